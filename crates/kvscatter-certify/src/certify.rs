//! Examines a model and makes its certificate.

mod options;
mod setting;

use std::collections::BTreeSet;
use std::path::Path;

use kvscatter_onnx::decoder::{Decoder, InputRole};
use kvscatter_onnx::{Dimension, Graph, Model, ModelFile};
use kvscatter_session::{self as session, Engine, ExportedDecoder, Interface, Rows, Runner};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::certificate::{
    CacheSummary, Certificate, Check, DecoderSummary, Evidence, LinearCaches, LogitsReference, Parameters,
    RuntimeInfo, SCHEMA, Subject, Timings,
};
use crate::drive::reference::{Reference, Sequence};
use crate::drive::scenarios::ScenarioSetting;
use crate::drive::texts::Texts;
use crate::drive::values::can_paint;
use crate::evidence::logits::{Tolerance, divergence_limit};
use crate::evidence::narrow::{self, NarrowCache};
use crate::evidence::observed::{self, Observed, Plan, WideScales};
use crate::evidence::stored::StoredModel;
use crate::evidence::structural;
use crate::evidence::timed::{self, Timed};
use crate::{CertifyError, subject};
pub use options::CertifyOptions;
use setting::{check_caches, original_capacity, setting};

/// The progress of a certification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The current task.
    pub doing: &'a str,
    /// The number of steps that are done.
    pub done: usize,
    /// The number of all steps, or 0 if it is not yet known.
    pub total: usize,
}

/// Examines a model's graph, runs the model, and returns a certificate.
///
/// A claim that does not hold is not an error. The certificate reports it.
///
/// # Errors
/// Returns a [`CertifyError`] in these cases:
///
/// - The model's caches cannot be written in place, or the element type of one has no canaries.
/// - The options do not match the model.
/// - The engine cannot load the model, or cannot load or run the original.
pub fn certify(
    engine: &dyn Engine,
    options: &CertifyOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Certificate, CertifyError> {
    progress(Progress { doing: "reading the graph", done: 0, total: 0 });
    let model = Model::load(&options.model)?;
    let file = model.file()?;
    let graph = about(&options.model, model.graph())?;
    let decoder = about(&options.model, Decoder::from_graph(&graph))?;
    let interface = about(&options.model, in_place_interface(&model, &decoder))?;
    let original = options.original.as_deref().map(|path| Original::read(path, &interface)).transpose()?;
    let of_original = original.as_ref().map(|original| &original.decoder.interface);
    let setting = setting(options, &interface, of_original, attention_sees_positions(&graph, &decoder))?;
    let (subject, original_subject) = identify(&file, &model, original.as_ref())?;
    original.as_ref().map_or(Ok(()), |original| original.check_caches(options, &setting))?;
    let mut runner = Runner::new(engine.load(&file, options.load_options())?, interface);
    progress(Progress { doing: "running every sequence alone", done: 0, total: 0 });
    let (sequences, against) = expected(engine, options, &setting, &mut runner, original.as_ref())?;
    let scales = WideScales::find(&decoder);
    let mut scenarios = setting.scenarios();
    scenarios.extend(scales.iter().flat_map(|_| setting.alone()));
    let tolerance = tolerance(
        &decoder,
        &runner.interface,
        original.as_ref(),
        scales.is_some() || decoder.rounds_activations(),
    );
    let narrow = NarrowCache::find(&graph, &decoder);
    let limit = divergence_limit(narrow.iter().map(|narrow| narrow.element));
    let plan = Plan {
        scenarios: &scenarios,
        scales: scales.as_ref(),
        sequences: &sequences,
        capacity: setting.capacity,
        against,
        tolerance: options.tolerance.unwrap_or_else(|| tolerance.among(&sequences)),
        seed: options.seed,
        divergence: Some(limit).filter(|_| original.is_some() && !narrow.is_empty()),
    };
    let mut observed = observe(&mut runner, &plan, progress)?;
    observed.checks.extend(setting.left_out());
    observed.checks.extend(setting.turns(&scenarios));
    let stored = StoredModel {
        engine,
        options: options.load_options(),
        file: &file,
        model: &model,
        interface: &runner.interface,
        narrow: &narrow,
    };
    let (stored, errors) = stored.compare(&plan)?;
    observed.checks.extend(errors);
    let (mut timings, mut timed) = (None, Vec::new());
    if options.is_timed {
        progress(Progress { doing: "measuring times", done: 0, total: 0 });
        let model = Timed { file: &file, model: &model, interface: &runner.interface };
        (timings, timed) = take_times(engine, options, &setting, model, original.as_ref())?;
    }
    let mut structural = structural::examine(&graph, &decoder);
    structural.extend(narrow::examine(&graph, &decoder, &narrow));
    let evidence = Evidence { structural, observed: observed.checks, timed };
    Ok(Certificate {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        made_at: options.made_at.clone(),
        command: options.command.clone(),
        verdict: evidence.verdict(),
        model: subject,
        original: original_subject,
        runtime: runtime(engine, &runner),
        machine: options.machine.clone(),
        decoder: summary(&model, &decoder, &runner.interface, &setting),
        parameters: parameters(options, plan.tolerance, setting),
        evidence,
        second_opinion: against.into(),
        logits: observed.logits,
        occupancy: observed.occupancy,
        stored,
        divergence: observed.divergence,
        timings,
    })
}

/// Returns a decoder's inputs and outputs, if its caches can be written in place and filled with canaries.
fn in_place_interface(model: &Model, decoder: &Decoder<'_>) -> Result<Interface, CertifyError> {
    let mut interface = Interface::in_place(model, decoder)?;
    check_elements(&interface)?;
    interface.settle(None)?;
    Ok(interface)
}

/// Computes the identities of the model and of its original, which must be different models.
fn identify(
    file: &ModelFile,
    model: &Model,
    original: Option<&Original>,
) -> Result<(Subject, Option<Subject>), CertifyError> {
    let identity = subject::identify(file, model)?;
    let Some(original) = original else { return Ok((identity, None)) };
    let of_original = subject::identify(&original.file, &original.model)?;
    if subject::is_same(&identity, &of_original) {
        return Err(CertifyError::OriginalIsModel { path: original.file.path().to_owned() });
    }
    Ok((identity, Some(of_original)))
}

/// Computes the expected logits of each sequence, run alone. They come from the original or, without an
/// original, from the model itself.
fn expected(
    engine: &dyn Engine,
    options: &CertifyOptions,
    setting: &ScenarioSetting,
    runner: &mut Runner,
    original: Option<&Original>,
) -> Result<(Vec<Sequence>, LogitsReference), CertifyError> {
    let most_tokens = if setting.is_decode_only { 1 } else { setting.most_rows() };
    match original {
        Some(Original { file, decoder, .. }) => {
            // The original may be static too, with another capacity.
            let capacity = original_capacity(&decoder.interface, setting.capacity)?;
            let mut runner = decoder.load(engine, file, options.load_options())?;
            let texts = Texts { seed: options.seed };
            let original = Reference::new(&mut runner, capacity, false, most_tokens, texts);
            Ok((sequences(original, setting, options.seed)?, LogitsReference::Original))
        }
        None => {
            let texts = Texts { seed: options.seed };
            let alone = Reference::new(runner, setting.capacity, true, most_tokens, texts);
            Ok((sequences(alone, setting, options.seed)?, LogitsReference::UnaliasedRun))
        }
    }
}

/// Returns the tolerance for logits, from the element types of the decoder.
fn tolerance(
    decoder: &Decoder<'_>,
    interface: &Interface,
    original: Option<&Original>,
    is_quantised: bool,
) -> Tolerance {
    let mut elements = vec![interface.logits_element];
    elements.extend(decoder.caches.iter().map(|cache| cache.element));
    elements.extend(decoder.states.iter().map(|state| state.element));
    elements.extend(original.map(|original| original.decoder.interface.logits_element));
    if is_quantised { Tolerance::from_quantised_types(elements) } else { Tolerance::from_types(elements) }
}

/// Runs every scenario, and counts the steps for `progress`.
fn observe(
    runner: &mut Runner,
    plan: &Plan<'_>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Observed, CertifyError> {
    let (total, mut done) = (plan.steps(), 0);
    observed::observe(runner, plan, &mut |doing| {
        done += 1;
        progress(Progress { doing, done, total });
    })
}

/// Times the models. If the runtime returns an error, returns a claim that was not measured.
fn take_times(
    engine: &dyn Engine,
    options: &CertifyOptions,
    setting: &ScenarioSetting,
    model: Timed<'_>,
    original: Option<&Original>,
) -> Result<(Option<Timings>, Vec<Check>), CertifyError> {
    // The copies of layers would count as the original's time.
    let original = original.filter(|original| !original.decoder.is_stacked());
    let original = original.map(|Original { file, model, decoder }| Timed {
        file,
        model,
        interface: &decoder.interface,
    });
    let (capacity, options) = (setting.capacity, options.load_options());
    match timed::gather(&timed::TimedModels { engine, model, original, capacity, options }) {
        Ok((timings, checks)) => Ok((Some(timings), checks)),
        // This is not another failure of the model. Either the check `every-step-runs` has already reported
        // the error, or the runtime runs the whole model but not the nodes of one cache alone.
        Err(CertifyError::Session(
            error @ (session::SessionError::Run { .. } | session::SessionError::Load { .. }),
        )) => {
            const CLAIM: &str = "The time of a step can be measured.";
            Ok((None, vec![Check::not_measured("timed", CLAIM, error.to_string())]))
        }
        Err(error) => Err(error),
    }
}

fn runtime(engine: &dyn Engine, runner: &Runner) -> RuntimeInfo {
    RuntimeInfo {
        name: engine.name().to_owned(),
        version: engine.version().to_owned(),
        device: engine.device().to_owned(),
        plugin: engine.plugin().map(str::to_owned),
        group_query_nodes: runner.group_query_nodes(),
    }
}

fn parameters(options: &CertifyOptions, tolerance: f64, setting: ScenarioSetting) -> Parameters {
    Parameters {
        batch: setting.prompts.len(),
        capacity: setting.capacity,
        steps: setting.steps,
        chunk: setting.chunk.max(setting.filler),
        seed: options.seed,
        tolerance,
        prompts: setting.prompts,
    }
}

/// The model that the examined model was made from.
struct Original {
    file: ModelFile,
    model: Model,
    decoder: ExportedDecoder,
}

impl Original {
    /// Reads the original. Sizes that the original leaves open are those of the examined model.
    fn read(path: &Path, of_model: &Interface) -> Result<Self, CertifyError> {
        let model = Model::load(path)?;
        let file = model.file()?;
        let mut decoder = about(path, ExportedDecoder::new(&model))?;
        let interface = &mut decoder.interface;
        about(path, check_elements(interface))?;
        about(path, interface.settle(Some(of_model)))?;
        match (interface.vocabulary, of_model.vocabulary) {
            (Some(got), Some(expected)) if got != expected => Err(session::SessionError::SizesDiffer {
                size: session::ModelSize::Vocabulary,
                input: interface.logits.clone(),
                got,
                expected,
            }
            .into()),
            _ => Ok(Self { file, model, decoder }),
        }
    }

    /// Checks that the caches of the original are within the memory limit as well.
    fn check_caches(&self, options: &CertifyOptions, setting: &ScenarioSetting) -> Result<(), CertifyError> {
        let interface = &self.decoder.interface;
        let capacity = original_capacity(interface, setting.capacity)?;
        check_caches(options, interface, interface.batch.unwrap_or(1), capacity).map(drop)
    }
}

/// Adds the path of the model to an error.
fn about<T>(path: &Path, result: Result<T, impl Into<CertifyError>>) -> Result<T, CertifyError> {
    result.map_err(|cause| CertifyError::InModel { path: path.to_owned(), cause: Box::new(cause.into()) })
}

/// Checks that every cache has an element type that has canaries.
fn check_elements(interface: &Interface) -> Result<(), CertifyError> {
    match interface.caches.iter().find(|cache| !can_paint(cache.element)) {
        None => Ok(()),
        Some(cache) => Err(CertifyError::NoCanary { input: cache.past.clone(), element: cache.element }),
    }
}

/// Generates each sample's sequence: a prompt from the seed, and then the most likely tokens. Adds a sequence
/// that fills the cache, and one that goes around the rings.
fn sequences(
    mut reference: Reference<'_>,
    setting: &ScenarioSetting,
    seed: u64,
) -> Result<Vec<Sequence>, CertifyError> {
    let vocabulary = reference.vocabulary()?;
    let limit = u64::try_from(vocabulary).unwrap_or(u64::MAX);
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut token =
        || random.next_u64().checked_rem(limit).and_then(|token| token.try_into().ok()).unwrap_or(0);
    let mut draw = |count| (0..count).map(|_| token()).collect();
    let mut sequences = Vec::with_capacity(setting.prompts.len() + 1);
    for &prompt in &setting.prompts {
        let prompt: Vec<i64> = draw(prompt);
        sequences.push(reference.greedy(&prompt, setting.steps)?);
    }
    let filling: Vec<i64> = draw(setting.capacity);
    sequences.push(reference.forced(&filling, setting.filler(), setting.tail())?);
    if !setting.rings.is_empty() {
        let around: Vec<i64> = draw(setting.around());
        sequences.push(reference.all(&around, setting.around_width())?);
    }
    Ok(sequences)
}

fn summary(
    model: &Model,
    decoder: &Decoder<'_>,
    interface: &Interface,
    setting: &ScenarioSetting,
) -> DecoderSummary {
    let count = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let batch = setting.prompts.len();
    let mut bytes_per_token = 0;
    let mut caches = Vec::with_capacity(decoder.caches.len());
    for (cache, port) in decoder.caches.iter().zip(&interface.caches) {
        let shape = port.shape(batch, setting.capacity);
        bytes_per_token += count(Rows::new(port, setting.capacity).row());
        caches.push(CacheSummary {
            past: cache.past.to_owned(),
            present: cache.present.to_owned(),
            shape: cache.past_shape.iter().map(dimension).collect(),
            element: cache.element.onnx_name().to_owned(),
            style: cache.style.to_string(),
            bytes: count(cache.element.storage_len(&shape).unwrap_or_default()),
            ring: port.ring,
        });
    }
    // A model whose caches are all rings declares the number of slots that linear caches would have had.
    let capacity = if setting.has_linear {
        Some(setting.capacity)
    } else {
        model.metadata("kvscatter.max_seq").and_then(|slots| slots.parse().ok())
    };
    let linear = |capacity: usize| {
        let bytes = bytes_per_token.saturating_mul(count(batch)).saturating_mul(count(capacity));
        LinearCaches { capacity, bytes }
    };
    let without_rings = capacity.filter(|_| !setting.rings.is_empty()).map(linear);
    let bytes = caches.iter().map(|cache| cache.bytes).sum();
    DecoderSummary { bytes, caches, bytes_per_token, without_rings }
}

/// Returns `true` if the masks of all attention are computed from the positions of the tokens.
fn attention_sees_positions(graph: &Graph<'_>, decoder: &Decoder<'_>) -> bool {
    let Some(positions) = decoder.input(InputRole::PositionIds) else { return false };
    let attention = graph.nodes().iter().filter(|node| node.is("Attention"));
    let masks: BTreeSet<_> = attention.map(|attention| attention.input(3)).collect();
    let sees = |mask: &Option<&str>| decoder.sources(*mask).contains(positions.name);
    !masks.is_empty() && masks.iter().all(sees)
}

fn dimension(dimension: &Dimension<'_>) -> String {
    match dimension {
        Dimension::Known(size) => size.to_string(),
        Dimension::Symbolic(symbol) => (*symbol).to_owned(),
        Dimension::Unknown => "?".to_owned(),
    }
}
