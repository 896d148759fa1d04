//! The evidence from running the model. Every scenario runs in place and out of place, with canaries, and with zeros
//! unless it is very long.

use kvscatter_onnx::decoder::{Decoder, Hazard};
use kvscatter_session::{
    self as session, CacheWriter, EncoderInputs, Feed, Interface, LogitsTensor, Runner, Session,
    SessionError, StatePort, States, Tensor,
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use crate::CertifyError;
use crate::certificate::{
    Check, Divergence, Failure, Fill, LogitsComparison, LogitsReference, Occupancy, OccupancyStep,
};
use crate::drive::reference::Sequence;
use crate::drive::scenarios::Scenario;
use crate::drive::texts::Texts;
use crate::drive::values;

use super::check_builder::{CheckBuilder, Place};
use super::logits::{self, Comparison, Difference, Token};
use super::memory::{MemoryChecks, StepMemory};
use super::slots::SlotKind;
use crate::report::words;

/// The scenarios, their sequences, and the values that the results are compared with.
pub(crate) struct Plan<'a> {
    pub(crate) scenarios: &'a [Scenario],
    pub(crate) sequences: &'a [Sequence],
    pub(crate) capacity: usize,
    pub(crate) against: LogitsReference,
    /// The nodes that make the results for a sample depend on the other samples and tokens of a step.
    pub(crate) scales: Option<&'a WideScales>,
    /// The largest difference between logits that counts as equal.
    pub(crate) tolerance: f64,
    pub(crate) seed: u64,
    /// The largest mean KL divergence from the original that counts as close, or `None` if the caches are not narrow or
    /// if there is no original.
    pub(crate) divergence: Option<f64>,
}

/// The results of all runs.
pub(crate) struct Observed {
    pub(crate) checks: Vec<Check>,
    pub(crate) logits: Vec<LogitsComparison>,
    pub(crate) occupancy: Vec<Occupancy>,
    pub(crate) divergence: Option<Divergence>,
}

impl Plan<'_> {
    /// Returns the number of steps that [`observe`] takes, for a progress bar.
    pub(crate) fn steps(&self) -> usize {
        let nan = self.nan_scenario().map_or(0, |scenario| scenario.steps.len());
        let steps = self.scenarios.iter().map(|scenario| scenario.fills.len() * scenario.steps.len());
        steps.sum::<usize>() + nan
    }

    /// Returns the inputs from an encoder for the samples of a scenario.
    pub(crate) fn texts(
        &self,
        session: &dyn Session,
        interface: &Interface,
        scenario: &Scenario,
    ) -> Result<EncoderInputs, SessionError> {
        Texts { seed: self.seed }.of_batch(session, interface, &scenario.sequences)
    }

    /// Returns the expected logits after the token at a position of a sample, if they are known.
    fn expected(&self, scenario: &Scenario, sample: usize, position: usize) -> Option<&[f32]> {
        let sequence = self.sequences.get(*scenario.sequences.get(sample)?)?;
        sequence.logits.get(position)?.as_deref()
    }

    /// Returns `true` if the logits of a scenario must equal those of the sequences run alone.
    fn is_comparable(&self, scenario: &Scenario) -> bool {
        self.scales.is_none() || scenario.is_as_reference
    }

    /// Returns the scenarios whose stored rows are compared with the given ones: a ragged one, and the last one, which
    /// fills the caches or goes around the rings.
    pub(crate) fn compared_rows(&self) -> impl Iterator<Item = &Scenario> {
        let last = self.scenarios.iter().rfind(|scenario| self.is_comparable(scenario));
        self.nan_scenario().into_iter().chain(last)
    }

    /// Returns the scenario that is also run with NaN in every slot: the first ragged decode, or else the
    /// first scenario.
    fn nan_scenario(&self) -> Option<&Scenario> {
        let is_ragged = |scenario: &&Scenario| scenario.name.starts_with("ragged decode");
        self.scenarios.iter().find(is_ragged).or(self.scenarios.first())
    }
}

/// Runs every scenario with each of its fills, and one scenario also with NaN. `stepped` is called after every step.
pub(crate) fn observe(
    runner: &mut Runner,
    plan: &Plan<'_>,
    stepped: &mut dyn FnMut(&str),
) -> Result<Observed, CertifyError> {
    let mut observer = Observer::new(plan, &runner.interface);
    for scenario in plan.scenarios {
        observer.run_scenario(runner, scenario, stepped)?;
    }
    let nan = observer.nan(runner, stepped)?;
    Ok(observer.conclude(nan))
}

/// A scenario that runs with caches of one fill.
struct FilledRun {
    fill: Fill,
    caches: Vec<Tensor>,
    states: States,
    kinds: Vec<SlotKind>,
    comparison: Comparison,
    pictures: Vec<Occupancy>,
    /// Whether the runtime could not run a step.
    has_ended: bool,
}

impl FilledRun {
    fn new(runner: &Runner, scenario: &Scenario, plan: &Plan<'_>, fill: Fill) -> Result<Self, CertifyError> {
        let batch = scenario.sequences.len();
        let kinds = SlotKind::all(&runner.interface.caches, batch, plan.capacity, fill == Fill::Canaries);
        Ok(Self {
            fill,
            caches: start_caches(runner, batch, plan, fill)?,
            states: States::new(runner.session(), &runner.interface, batch)?,
            comparison: Comparison::new(&scenario.name, fill, plan.against, plan.tolerance),
            pictures: pictures(scenario, &kinds),
            kinds,
            has_ended: false,
        })
    }
}

struct Observer<'a> {
    plan: &'a Plan<'a>,
    memory: MemoryChecks,
    runs: CheckBuilder,
    logits: CheckBuilder,
    as_out_of_place: CheckBuilder,
    /// `None` for a model without states.
    states: Option<CheckBuilder>,
    fills: CheckBuilder,
    positions: CheckBuilder,
    divergences: Vec<f64>,
    comparisons: Vec<LogitsComparison>,
    occupancy: Vec<Occupancy>,
    wrong_at_start: u64,
    /// The number of wrong tokens in steps that do not write from slot 0, for each scenario and fill.
    wrong_mid_cache: Vec<(String, Fill, u64)>,
}

impl<'a> Observer<'a> {
    fn new(plan: &'a Plan<'a>, interface: &Interface) -> Self {
        let writer = interface.writer();
        let against = match (plan.against, plan.scales) {
            (LogitsReference::Original, None) => {
                "Logits of real tokens equal the original's at every step, within the tolerance."
            }
            (LogitsReference::Original, Some(_)) => {
                "Logits of each sequence alone, fed as the original was, equal the original's, within the tolerance."
            }
            (LogitsReference::UnaliasedRun, None) => {
                "Logits of real tokens equal those of a separate run of each sequence alone, within the tolerance."
            }
            (LogitsReference::UnaliasedRun, Some(_)) => {
                "Logits of each sequence alone equal those of a run that is not in place, within the tolerance."
            }
        };
        let positions = match (plan.scales, writer) {
            (None, CacheWriter::GroupQueryAttention) => {
                "Steps that write from later slots are as correct as steps that write from slot 0, so lengths and positions \
                 have the meaning that the operator gives them."
            }
            (None, CacheWriter::TensorScatter) => {
                "Steps that write from later slots are as correct as steps that write from slot 0, so write indices, \
                 lengths and positions have the meaning that ONNX gives them."
            }
            (Some(_), _) => {
                "For one sequence alone, steps that write from later slots are as correct as steps that write from \
                 slot 0. Ragged batches were not compared."
            }
        };
        Self {
            plan,
            memory: MemoryChecks::new(writer),
            runs: CheckBuilder::new("every-step-runs", "The runtime runs every step of every scenario."),
            logits: CheckBuilder::new("logits-equal", against),
            as_out_of_place: CheckBuilder::new(
                "logits-equal-unaliased-run",
                "Logits equal, bit for bit, those of the same step with present in separate memory.",
            ),
            states: (!interface.states.is_empty()).then(|| {
                CheckBuilder::new(
                    "states-equal-unaliased-run",
                    "States are finite and equal, bit for bit, those of the same step with present in separate memory.",
                )
            }),
            fills: CheckBuilder::new(
                "initial-values-do-not-matter",
                "Logits are the same whether the caches start with zeros or with canaries.",
            ),
            positions: CheckBuilder::new("position-conventions", positions),
            divergences: Vec::new(),
            comparisons: Vec::new(),
            occupancy: Vec::new(),
            wrong_at_start: 0,
            wrong_mid_cache: Vec::new(),
        }
    }

    /// Runs a scenario with every fill, step by step, so that only the logits of one step are kept. If the runtime
    /// returns an error for a step, the run of that fill ends there and the claim fails.
    fn run_scenario(
        &mut self,
        runner: &mut Runner,
        scenario: &Scenario,
        stepped: &mut dyn FnMut(&str),
    ) -> Result<(), CertifyError> {
        let plan = self.plan;
        let batch = scenario.sequences.len();
        let mut fills = Vec::new();
        for &fill in scenario.fills {
            fills.push(FilledRun::new(runner, scenario, plan, fill)?);
        }
        let mut before = runner.caches(batch, plan.capacity)?;
        let mut presents = runner.caches(batch, plan.capacity)?;
        let mut states = States::new(runner.session(), &runner.interface, batch)?;
        let texts = plan.texts(runner.session(), &runner.interface, scenario)?;
        let token = tokens(scenario, plan.sequences);
        for (step, (phase, feed)) in scenario.steps.iter().enumerate() {
            let place = Place { scenario: &scenario.name, step };
            let inputs = feed.tensors(&runner.interface, &token, plan.capacity)?;
            let mut of_fills = Vec::new();
            for run in fills.iter_mut().filter(|run| !run.has_ended) {
                for (before, cache) in before.iter_mut().zip(&run.caches) {
                    before.bytes_mut().copy_from_slice(cache.bytes());
                }
                states.copy_from(&run.states);
                self.runs.look(2);
                let of_encoder = texts.tensors();
                let ran = runner
                    .out_of_place(&inputs, of_encoder, &before, &mut presents, &mut states, feed)
                    .and_then(|out_of_place| {
                        let FilledRun { caches, states, .. } = run;
                        let (in_place, at) = runner.in_place(&inputs, of_encoder, caches, states, feed)?;
                        Ok((out_of_place, in_place, at))
                    });
                let (out_of_place, in_place, present_at) = match ran {
                    Ok(ran) => ran,
                    Err(error @ session::SessionError::Run { .. }) => {
                        self.runs.fail(place.failure(error.to_string()));
                        run.has_ended = true;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                let slots = self.memory.look(&mut StepMemory {
                    place,
                    feed,
                    ports: &runner.interface.caches,
                    capacity: plan.capacity,
                    before: &before,
                    after: &run.caches,
                    out_of_place: &presents,
                    present_at: &present_at,
                    kinds: &mut run.kinds,
                });
                for (picture, samples) in run.pictures.iter_mut().zip(slots) {
                    picture.steps.push(OccupancyStep { phase: *phase, rows: feed.width, samples });
                }
                self.compare_states(place, &runner.interface.states, batch, [&run.states, &states]);
                self.compare(scenario, place, feed, [&in_place, &out_of_place], &mut run.comparison);
                of_fills.push(in_place);
                stepped(&scenario.name);
            }
            if let [zeros, canaries] = &of_fills[..] {
                self.compare_fills(scenario, place, feed, zeros, canaries);
            }
        }
        fills.into_iter().for_each(|run| self.record(scenario, run));
        Ok(())
    }

    /// Keeps the results of a run. The slots are recorded once, from the run with canaries.
    fn record(&mut self, scenario: &Scenario, run: FilledRun) {
        let FilledRun { fill, comparison, pictures, .. } = run;
        if self.plan.is_comparable(scenario) {
            self.wrong_at_start += comparison.wrong_at_start;
            self.positions.looked += comparison.mid_cache;
            self.wrong_mid_cache.push((scenario.name.clone(), fill, comparison.wrong_mid_cache));
            self.comparisons.push(comparison.into_document());
        }
        if fill == Fill::Canaries {
            self.occupancy.extend(pictures);
        }
    }

    /// Compares the states of every sample after a step with those of the out-of-place run, which began with a copy.
    fn compare_states(
        &mut self,
        place: Place<'_>,
        ports: &[StatePort],
        samples: usize,
        [in_place, out_of_place]: [&States; 2],
    ) {
        let Some(check) = &mut self.states else { return };
        for (state, port) in ports.iter().enumerate() {
            for sample in 0..samples {
                let bytes = in_place.sample_bytes(state, sample);
                let wrong = if bytes != out_of_place.sample_bytes(state, sample) {
                    "differs from the unaliased run"
                } else if !values::are_finite(port.element, bytes) {
                    "contains NaN or an infinity"
                } else {
                    ""
                };
                check.look(1);
                if !wrong.is_empty() {
                    let message = format!("state {:?} {wrong}", port.past);
                    check.fail(Failure { sample: Some(sample), ..place.failure(message) });
                }
            }
        }
    }

    /// Compares the logits of every real token of the in-place run with the out-of-place run and with the
    /// expected logits.
    fn compare(
        &mut self,
        scenario: &Scenario,
        place: Place<'_>,
        feed: &Feed,
        [in_place, out_of_place]: [&LogitsTensor; 2],
        comparison: &mut Comparison,
    ) {
        comparison.begin_step();
        for (sample, fed) in feed.samples.iter().enumerate() {
            for column in 0..feed.width {
                let Some(position) = fed.position(column) else { continue };
                let Some(got) = in_place.after(sample, column) else { continue };
                if let Some(out_of_place) = out_of_place.after(sample, column) {
                    self.as_out_of_place.look(got.len());
                    let same = got.iter().zip(&*out_of_place).all(|(a, b)| a.to_bits() == b.to_bits());
                    if !same {
                        let worst = Difference::between(&got, &out_of_place).worst;
                        let message = format!("logits differ from the unaliased run by up to {worst:.3e}");
                        self.as_out_of_place.fail(Failure { sample: Some(sample), ..place.failure(message) });
                    }
                }
                let Some(expected) = self.plan.expected(scenario, sample, position) else { continue };
                if self.plan.is_comparable(scenario) {
                    let token = Token { step: place.step, sample, column, is_mid_cache: fed.start > 0 };
                    comparison.compare(token, &got, expected, &mut self.logits);
                    if self.plan.divergence.is_some() {
                        self.divergences.push(logits::divergence(expected, &got));
                    }
                }
            }
        }
    }

    /// Compares the logits of a step that have an expected value, for both fills.
    fn compare_fills(
        &mut self,
        scenario: &Scenario,
        place: Place<'_>,
        feed: &Feed,
        zeros: &LogitsTensor,
        canaries: &LogitsTensor,
    ) {
        if self.plan.scales.is_some() && scenario.has_left_padding() {
            return;
        }
        for (sample, fed) in feed.samples.iter().enumerate() {
            for column in 0..feed.width {
                let expected = fed.position(column).and_then(|at| self.plan.expected(scenario, sample, at));
                let both = zeros.after(sample, column).zip(canaries.after(sample, column));
                let Some((with_zeros, with_canaries)) = expected.and(both) else { continue };
                self.fills.look(with_zeros.len());
                let difference = Difference::between(&with_canaries, &with_zeros);
                if let Some(message) = difference.beyond(self.plan.tolerance) {
                    self.fills.fail(Failure {
                        sample: Some(sample),
                        ..place.failure(format!("with canaries instead of zeros, {message}"))
                    });
                }
            }
        }
    }

    /// Examines whether NaN in unwritten slots reaches the logits. This is a property of the model, so it is
    /// not a failure.
    fn nan(&mut self, runner: &mut Runner, stepped: &mut dyn FnMut(&str)) -> Result<Check, CertifyError> {
        const ID: &str = "nan-does-not-spread";
        const CLAIM: &str = "NaN in unwritten slots does not reach the logits.";
        let plan = self.plan;
        let Some(scenario) = plan.nan_scenario() else {
            return Ok(Check::not_measured(ID, CLAIM, "no scenario"));
        };
        let batch = scenario.sequences.len();
        let mut caches = runner.caches(batch, plan.capacity)?;
        let mut states = States::new(runner.session(), &runner.interface, batch)?;
        let has_nan = caches
            .iter_mut()
            .fold(false, |any, cache| values::fill_nan(cache.element(), cache.bytes_mut()) | any);
        if !has_nan {
            return Ok(Check::not_applicable(ID, CLAIM, "the caches' type has no NaN"));
        }
        let texts = plan.texts(runner.session(), &runner.interface, scenario)?;
        let token = tokens(scenario, plan.sequences);
        let (mut reached, mut looked) = (0_u64, 0_u64);
        for (_, feed) in &scenario.steps {
            let inputs = feed.tensors(&runner.interface, &token, plan.capacity)?;
            let ran = runner.in_place(&inputs, texts.tensors(), &mut caches, &mut states, feed);
            let Ok((logits, _)) = ran else { break };
            for (sample, fed) in feed.samples.iter().enumerate() {
                for column in (0..feed.width).filter(|&column| fed.position(column).is_some()) {
                    let Some(got) = logits.after(sample, column) else { continue };
                    looked += 1;
                    reached += u64::from(got.iter().any(|logit| logit.is_nan()));
                }
            }
            stepped("NaN in unwritten slots");
        }
        let name = &scenario.name;
        Ok(match (reached, looked) {
            (_, 0) => Check::not_measured(ID, CLAIM, "no run reached this check"),
            (0, _) => Check::passed(
                ID,
                CLAIM,
                format!("{looked} tokens of \"{name}\" with NaN in every unwritten slot"),
            ),
            _ => Check::not_applicable(
                ID,
                CLAIM,
                format!(
                    "NaN reaches the logits of {reached} of {looked} tokens of \"{name}\", because 0 × NaN is NaN. The \
                     caches must start with finite values, such as zeros"
                ),
            ),
        })
    }

    fn conclude(mut self, nan: Check) -> Observed {
        // If steps from slot 0 are wrong as well, the fault is not in the handling of positions.
        if self.wrong_at_start == 0 {
            for (scenario, fill, wrong) in &self.wrong_mid_cache {
                if *wrong > 0 {
                    let message = format!(
                        "{wrong} tokens are wrong in steps that write from later slots, and no token is wrong in steps \
                         that write from slot 0 (caches initially filled with {})",
                        words::fill(*fill)
                    );
                    self.positions
                        .fail(Failure { scenario: Some(scenario.clone()), ..Failure::new(message) });
                }
            }
        }
        let plan = self.plan;
        let scenarios = plan.scenarios.len();
        let tolerance = plan.tolerance;
        let worst = self.comparisons.iter().map(|comparison| comparison.worst).fold(0.0, f64::max);
        let worst_fill =
            if self.fills.has_failed() { "not within the tolerance" } else { "within the tolerance" };
        let MemoryChecks { aliased, only_named, written, placed, as_out_of_place, finite, .. } = self.memory;
        let mut checks = vec![
            self.runs.into_check(|runs| {
                let left_out = match plan.scenarios.iter().filter(|scenario| scenario.fills.len() == 1).count() {
                    0 => String::new(),
                    long => format!("; {long} long ones around the rings with canaries only"),
                };
                format!("{runs} runs in {scenarios} scenarios, each with zeros and canaries{left_out}")
            }),
            aliased.into_check(|looked| format!("{looked} addresses compared after as many runs of a cache")),
            only_named.into_check(|bytes| format!("{bytes} bytes compared with a copy from before the step")),
            written.into_check(|rows| format!("{rows} rows that contained canaries")),
            placed.into_check(|writes| format!("{writes} writes into rows that contained canaries")),
            as_out_of_place.into_check(|rows| format!("{rows} rows compared after every step")),
            finite.into_check(|rows| format!("{rows} written rows examined")),
            self.logits.into_check(|logits| {
                format!(
                    "{logits} logits compared, the largest difference is {worst:.3e}, the tolerance is {tolerance:.3e}"
                )
            }),
            self.as_out_of_place.into_check(|logits| format!("{logits} logits compared")),
            self.fills.into_check(|logits| {
                let left_out =
                    if plan.scales.is_some() && plan.scenarios.iter().any(Scenario::has_left_padding) {
                        "; padding on the left was left out, because unwritten slots affect the scale there"
                    } else {
                        ""
                    };
                format!("{logits} logits compared, {worst_fill}{left_out}")
            }),
            self.positions.into_check(|tokens| format!("{tokens} tokens in steps that write from later slots")),
            nan,
        ];
        let states = self.states;
        checks.extend(
            states.map(|check| check.into_check(|states| format!("{states} states of samples compared"))),
        );
        checks.extend(plan.scales.map(WideScales::not_comparable));
        let divergence =
            plan.divergence.and_then(|limit| logits::summary(self.divergences, &self.comparisons, limit));
        checks.extend(divergence.as_ref().map(logits::divergence_check));
        Observed { checks, logits: self.comparisons, occupancy: self.occupancy, divergence }
    }
}

/// Nodes that compute one scale from a whole tensor. They make the results for a sample depend on the other
/// samples and tokens of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WideScales {
    /// The name of the first node, which may be empty.
    pub(crate) node: String,
    pub(crate) op_type: String,
    /// The number of such nodes.
    pub(crate) count: usize,
}

impl WideScales {
    /// Finds such nodes among a decoder's hazards. Returns `None` if there are none.
    pub(crate) fn find(decoder: &Decoder<'_>) -> Option<Self> {
        let hazards = decoder.hazards();
        let mut nodes = hazards.iter().filter_map(|hazard| match hazard {
            Hazard::TensorWideScale { node } => Some(node),
            _ => None,
        });
        let first = nodes.next()?;
        Some(Self { node: first.name.clone(), op_type: first.op_type.clone(), count: 1 + nodes.count() })
    }

    /// Returns the claim that cannot be compared, because the results for a sample depend on the other
    /// samples.
    fn not_comparable(&self) -> Check {
        let Self { node, op_type, count } = self;
        let (more, compute) = match count - 1 {
            0 => (String::new(), "computes"),
            more => (format!(" and {more} more"), "compute"),
        };
        Check::not_comparable(
            "logits-equal-in-batches",
            "Logits in batches, in chunks and with padding equal those of each sequence alone.",
            format!(
                "not comparable because {op_type} ({node:?}){more} {compute} one scale for a whole tensor: a sample's \
                 logits depend on its neighbours in the batch, on padding and on how its prompt is cut into steps"
            ),
        )
    }
}

/// Returns the caches at the start of a scenario.
fn start_caches(
    runner: &Runner,
    batch: usize,
    plan: &Plan<'_>,
    fill: Fill,
) -> Result<Vec<Tensor>, CertifyError> {
    let mut caches = runner.caches(batch, plan.capacity)?;
    if fill == Fill::Canaries {
        let mut random = Pcg64Mcg::seed_from_u64(plan.seed);
        caches.iter_mut().for_each(|cache| values::paint(cache.element(), cache.bytes_mut(), &mut random));
    }
    Ok(caches)
}

/// Returns a picture without steps for each kind of cache.
fn pictures(scenario: &Scenario, kinds: &[SlotKind]) -> Vec<Occupancy> {
    let picture = |kind: &SlotKind| Occupancy {
        scenario: scenario.name.clone(),
        description: scenario.description.clone(),
        capacity: kind.capacity(),
        is_ring: kind.is_ring(),
        steps: Vec::new(),
    };
    kinds.iter().map(picture).collect()
}

/// Returns a function that maps a sample and a position in its sequence to the token there.
pub(crate) fn tokens(scenario: &Scenario, sequences: &[Sequence]) -> impl Fn(usize, usize) -> i64 {
    move |sample, position| {
        let sequence = scenario.sequences.get(sample).and_then(|&index| sequences.get(index));
        sequence.and_then(|sequence| sequence.tokens.get(position)).copied().unwrap_or_default()
    }
}
