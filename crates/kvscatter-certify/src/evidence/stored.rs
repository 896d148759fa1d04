//! Compares the rows that narrow caches store with the rows that they were given.
//!
//! A copy of the model returns the given rows as outputs. It runs out of place, and what it stores in a step is
//! compared with what it was given in the same step.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use kvscatter::quantize::largest_error;
use kvscatter_onnx::decoder::CachePart;
use kvscatter_onnx::internal::file::UnfinishedFiles;
use kvscatter_onnx::internal::proto::ValueInfoProto;
use kvscatter_onnx::{Model, ModelFile, WeightTransfer};
use kvscatter_session::{
    CachePort, Engine, Feed, Interface, LoadOptions, Rows, Session, SessionError, States, Step, Tensor,
    by_name, to_f32,
};

use super::check_builder::{CheckBuilder, Place};
use super::narrow::NarrowCache;
use super::observed::{Plan, tokens};
use crate::CertifyError;
use crate::certificate::{Check, Failure, StoredRows};
use crate::drive::scenarios::Scenario;

/// The model whose rows are compared.
pub(crate) struct StoredModel<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) options: LoadOptions,
    pub(crate) file: &'a ModelFile,
    pub(crate) model: &'a Model,
    pub(crate) interface: &'a Interface,
    pub(crate) narrow: &'a [NarrowCache],
}

const ID: &str = "stored-near-given";
const CLAIM: &str = "Every stored element differs from the given one by at most its bound.";

impl StoredModel<'_> {
    /// Runs the copy, and returns the errors of each cache and the claims about them. A model without narrow caches has
    /// none.
    pub(crate) fn compare(&self, plan: &Plan<'_>) -> Result<(Vec<StoredRows>, Vec<Check>), CertifyError> {
        if self.narrow.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        // The session is dropped before its files are removed.
        let (_files, mut session) = match self.load() {
            Ok(loaded) => loaded,
            Err(error) => return Ok((Vec::new(), vec![Check::not_measured(ID, CLAIM, error.to_string())])),
        };
        let mut comparison = Comparison {
            check: CheckBuilder::new(ID, CLAIM),
            caches: self.narrow.iter().filter_map(|narrow| self.errors(narrow)).collect(),
        };
        for scenario in plan.compared_rows() {
            self.run(&mut *session, scenario, plan, &mut comparison)?;
        }
        Ok(comparison.conclude())
    }

    fn errors<'s>(&'s self, narrow: &'s NarrowCache) -> Option<CacheErrors<'s>> {
        let port = |index| self.interface.caches.get(index);
        Some(CacheErrors::new(narrow, port(narrow.cache)?, narrow.scales.and_then(port)))
    }

    /// Loads a copy of the model that also returns the given rows and the queries. The copy is in the model's folder,
    /// so that its weights can be links.
    fn load(&self) -> Result<(UnfinishedFiles, Box<dyn Session>), CertifyError> {
        let mut model = self.model.clone();
        let outputs = &mut model.proto_mut().graph.get_or_insert_default().output;
        let known: BTreeSet<_> = outputs.iter().filter_map(|output| output.name.clone()).collect();
        let names: BTreeSet<_> = self.returned().into_iter().collect();
        let new = names.into_iter().filter(|name| !known.contains(*name));
        outputs.extend(new.map(ValueInfoProto::new));
        let path = self.file.path();
        let mut unfinished = UnfinishedFiles::new();
        let folder = path.parent().unwrap_or(path);
        let folder = unfinished
            .folder_in(folder, ".kvscatter-")
            .map_err(|cause| CertifyError::Io { path: folder.to_owned(), cause })?;
        let copy = folder.join("model.onnx");
        model.save_with_weights(&copy, WeightTransfer::Link)?;
        Ok((unfinished, self.engine.load(&Model::load(&copy)?.file()?, self.options)?))
    }

    /// Returns the names of the given rows and queries, each once.
    fn returned(&self) -> Vec<&str> {
        let queries = self.narrow.iter().filter_map(|narrow| Some(narrow.attention.as_ref()?.query.as_str()));
        let names: BTreeSet<_> =
            self.narrow.iter().map(|narrow| narrow.given.as_str()).chain(queries).collect();
        names.into_iter().collect()
    }

    fn run(
        &self,
        session: &mut dyn Session,
        scenario: &Scenario,
        plan: &Plan<'_>,
        comparison: &mut Comparison<'_>,
    ) -> Result<(), CertifyError> {
        let ports = &self.interface.caches;
        let batch = scenario.sequences.len();
        let zeros = |port: &CachePort| session.zeros(port.element, &port.shape(batch, plan.capacity));
        let mut pasts = ports.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
        let mut presents = ports.iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
        let (token, names) = (tokens(scenario, plan.sequences), self.returned());
        let texts = plan.texts(session, self.interface, scenario)?;
        let mut states = States::new(session, self.interface, batch)?;
        for (step, (_, feed)) in scenario.steps.iter().enumerate() {
            let inputs = feed.tensors(self.interface, &token, plan.capacity)?;
            let mut all = by_name(inputs.iter().chain(texts.tensors()));
            all.extend(ports.iter().map(|port| port.past.as_str()).zip(&pasts));
            let outputs = ports.iter().map(|port| port.present.as_str()).zip(&mut presents).collect();
            let mut run = Step { inputs: all, outputs, returned: names.clone(), ..Step::default() };
            states.start(0, feed);
            states.bind(&mut run);
            let returned = match session.run(run) {
                Ok(ran) => ran.returned,
                // The claim `every-step-runs` reports it.
                Err(SessionError::Run { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            states.take(0, feed);
            let value =
                |name: &str| names.iter().position(|other| *other == name).and_then(|at| returned.get(at));
            let place = Place { scenario: &scenario.name, step };
            comparison.step(place, feed, plan.capacity, &presents, value);
            std::mem::swap(&mut pasts, &mut presents);
        }
        Ok(())
    }
}

/// The errors of all caches.
struct Comparison<'a> {
    check: CheckBuilder,
    caches: Vec<CacheErrors<'a>>,
}

/// The errors of one cache, and the numbers that its bounds depend on.
struct CacheErrors<'a> {
    narrow: &'a NarrowCache,
    port: &'a CachePort,
    scales: Option<&'a CachePort>,
    document: StoredRows,
    /// The largest bound of an element.
    element_bound: f64,
    /// The largest sum of the magnitudes of a query's elements, times the factor of scores.
    query: f64,
}

impl<'a> CacheErrors<'a> {
    fn new(narrow: &'a NarrowCache, port: &'a CachePort, scales: Option<&'a CachePort>) -> Self {
        Self {
            narrow,
            port,
            scales,
            document: StoredRows {
                cache: port.past.clone(),
                layer: port.layer,
                element: port.element.onnx_name().to_owned(),
                compared: 0,
                worst: 0.0,
                largest_error: 0.0,
                largest_given: 0.0,
                score_bound: None,
                output_bound: None,
            },
            element_bound: 0.0,
            query: 0.0,
        }
    }

    /// Compares the new rows of a step. Calls `fail` with the sample, the slot and the message of a row that is beyond
    /// its bound. Returns `None` if the given rows do not have the shape of the stored ones.
    fn step(
        &mut self,
        feed: &Feed,
        capacity: usize,
        presents: &[Tensor],
        given: &Tensor,
        mut fail: impl FnMut(usize, usize, String),
    ) -> Option<()> {
        let stored = presents.get(self.narrow.cache)?.bytes();
        let given = to_f32(given.element(), given.bytes())?;
        let scales = self.narrow.scales.and_then(|scales| presents.get(scales)).map(Tensor::bytes);
        let rows = Rows::new(self.port, capacity);
        let scale_rows = self.scales.map(|port| Rows::new(port, capacity));
        // The given rows are `[samples, outer, width, inner]`, and a stored row is `[outer, inner]`.
        let dims = self.port.dims.get(self.port.axis + 1..)?;
        let inner = dims.iter().try_fold(1_usize, |size, dim| size.checked_mul((*dim)?))?;
        let outers = rows.row() / (self.port.element.bits()? / 8) / inner.max(1);
        if given.len() != feed.samples.len() * outers * feed.width * inner {
            return None;
        }
        for (sample, fed) in feed.samples.iter().enumerate() {
            for column in 0..feed.width {
                let position = fed.start + column..fed.start + column + 1;
                let scale_runs =
                    scale_rows.map(|rows| rows.runs(sample, position.clone()).collect::<Vec<_>>());
                for (outer, run) in rows.runs(sample, position.clone()).enumerate() {
                    let first = ((sample * outers + outer) * feed.width + column) * inner;
                    let scale = scale_runs.as_ref().and_then(|runs| {
                        to_f32(ElementType::Float32, scales?.get(runs.get(outer)?.clone())?)?.first().copied()
                    });
                    let row = given.get(first..first + inner)?;
                    if let Some(message) = self.row(row, stored.get(run)?, scale.map(f64::from)) {
                        let [slots, _] = rows.slots(position.clone());
                        fail(sample, slots.start, message);
                    }
                }
            }
        }
        Some(())
    }

    /// Compares one row. Rows that are not finite have no bound, and `caches-stay-finite` reports them.
    fn row(&mut self, given: &[f32], stored: &[u8], scale: Option<f64>) -> Option<String> {
        if !given.iter().all(|x| x.is_finite()) {
            return None;
        }
        let mut message = None;
        for (element, (&x, read)) in given.iter().zip(self.read(stored, scale)?).enumerate() {
            let x = f64::from(x);
            // A number without a bound may become infinite.
            let bound = largest_error(self.port.element, x, scale.unwrap_or_default()).unwrap_or(0.0);
            let error = (read - x).abs();
            // A comparison with NaN is false.
            let is_within = error <= bound;
            self.document.compared += 1;
            self.document.largest_given = self.document.largest_given.max(x.abs());
            if is_within {
                let part = if bound > 0.0 { error / bound } else { 0.0 };
                self.document.worst = self.document.worst.max(part);
                self.document.largest_error = self.document.largest_error.max(error);
                self.element_bound = self.element_bound.max(bound);
            } else {
                message.get_or_insert_with(|| {
                    format!(
                        "element {element} was given as {x:e} and is read as {read:e}, the bound is {bound:.3e}"
                    )
                });
            }
        }
        message
    }

    /// Returns what is read of a stored row.
    fn read(&self, stored: &[u8], scale: Option<f64>) -> Option<Vec<f64>> {
        if self.port.element == ElementType::Int8 {
            let scale = scale.unwrap_or(f64::NAN);
            return Some(stored.iter().map(|code| f64::from(code.cast_signed()) * scale).collect());
        }
        Some(to_f32(self.port.element, stored)?.iter().map(|x| f64::from(*x)).collect())
    }

    /// Notes the queries that read the cache, `[batch, heads, width, size]`.
    fn queries(&mut self, queries: &Tensor) {
        let (Some(reader), Some(values)) =
            (&self.narrow.attention, to_f32(queries.element(), queries.bytes()))
        else {
            return;
        };
        let &[_, _, _, size] = queries.shape() else { return };
        let factor = reader.scale.map_or_else(|| 1.0 / (size as f64).sqrt(), f64::from);
        for query in values.chunks_exact(size.max(1)) {
            let sum: f64 = query.iter().map(|x| f64::from(x.abs())).sum();
            self.query = self.query.max(sum * factor);
        }
    }
}

impl Comparison<'_> {
    fn step<'t>(
        &mut self,
        place: Place<'_>,
        feed: &Feed,
        capacity: usize,
        presents: &[Tensor],
        value: impl Fn(&str) -> Option<&'t Tensor>,
    ) {
        let Self { check, caches } = self;
        for errors in caches {
            let narrow = errors.narrow;
            let Some(given) = value(&narrow.given) else { continue };
            let cache = errors.port.past.clone();
            let fail = |sample, slot, message| {
                let (sample, slot) = (Some(sample), Some(slot));
                check.fail(Failure { cache: Some(cache.clone()), sample, slot, ..place.failure(message) });
            };
            if errors.step(feed, capacity, presents, given, fail).is_none() {
                let message = "the stored rows do not have the shape of the given ones";
                check.fail(Failure { cache: Some(cache), ..place.failure(message) });
            }
            let queries = narrow.attention.as_ref().and_then(|reader| value(&reader.query));
            queries.into_iter().for_each(|queries| errors.queries(queries));
        }
    }

    fn conclude(mut self) -> (Vec<StoredRows>, Vec<Check>) {
        self.bound_attention();
        self.check.looked = self.caches.iter().map(|errors| errors.document.compared).sum();
        let largest = |part| {
            let of_part = self.caches.iter().filter(move |errors| errors.narrow.part == part);
            of_part.map(|errors| errors.document.largest_given).fold(0.0, f64::max)
        };
        let [key, value] = [CachePart::Key, CachePart::Value].map(largest);
        let worst = self.caches.iter().map(|errors| errors.document.worst).fold(0.0, f64::max);
        let elements: BTreeSet<_> = self.caches.iter().map(|errors| rule(errors.port.element)).collect();
        let rules = elements.into_iter().collect::<Vec<_>>().join("; ");
        let count = self.caches.len();
        let failed = self.check.has_failed();
        let stored = self.check.into_check(|elements| {
            format!(
                "{elements} elements of {count} caches compared, the largest error is {worst:.6} of its bound. {rules}. The \
                 largest |K| is {key:.4}, the largest |V| is {value:.4}"
            )
        });
        let documents: Vec<_> = self.caches.into_iter().map(|errors| errors.document).collect();
        let attention = attention(&documents, failed);
        (documents, vec![stored, attention])
    }

    /// Computes the bounds of attention for each layer. A weight changes by a factor between `e^-2ε` and `e^2ε` if
    /// every score changes by up to ε.
    fn bound_attention(&mut self) {
        let keys =
            self.caches.iter().filter(|errors| errors.narrow.part == CachePart::Key && errors.query > 0.0);
        let scores: Vec<_> = keys
            .map(|errors| (errors.narrow.attention.clone(), errors.query * errors.element_bound))
            .collect();
        for errors in &mut self.caches {
            let score = scores.iter().find(|(attention, _)| *attention == errors.narrow.attention);
            let Some(&(_, score)) = score else { continue };
            match errors.narrow.part {
                CachePart::Key => errors.document.score_bound = Some(score),
                CachePart::Value => {
                    let weights = (2.0 * score).exp_m1();
                    errors.document.output_bound =
                        Some(errors.element_bound + weights * errors.document.largest_given);
                }
                CachePart::Both | CachePart::Latent | CachePart::Unknown => {}
            }
        }
    }
}

/// Returns the claim about the errors of attention that follow from those of stored rows.
fn attention(caches: &[StoredRows], failed: bool) -> Check {
    const ID: &str = "attention-error-bound";
    const CLAIM: &str = "In exact arithmetic, what is stored changes each score and each output of attention by at most \
                         a bound, which follows from the errors of the stored rows.";
    if failed {
        return Check::not_measured(ID, CLAIM, "the stored rows are not within their bounds");
    }
    let most = |of: fn(&StoredRows) -> Option<f64>| {
        caches
            .iter()
            .filter_map(of)
            .fold(None, |most: Option<f64>, x| Some(most.map_or(x, |most| most.max(x))))
    };
    match (most(|cache| cache.score_bound), most(|cache| cache.output_bound)) {
        (Some(score), Some(output)) => Check::passed(
            ID,
            CLAIM,
            format!(
                "over all layers and steps, at most {score:.3e} in a score and {output:.3e} in an output. This follows \
                 from the largest query, error and value of a layer, so real errors are far smaller"
            ),
        ),
        _ => Check::not_measured(ID, CLAIM, "no Attention node of the caches was found"),
    }
}

/// Returns the bound of an element as a sentence without a full stop.
fn rule(element: ElementType) -> &'static str {
    match element {
        ElementType::Float16 => {
            "The bound of float16 is 2^-11 |x| for 2^-14 <= |x| <= 65504, above which it is infinity"
        }
        ElementType::BFloat16 => "The bound of bfloat16 is 2^-8 |x|",
        _ => {
            "The bound of int8 is s (1/2 + 2^-16) for the scale s of a row, after the rotation of keys. Before it, the \
             error of a key is at most sqrt(D) s (1/2 + 2^-16) long"
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use kvscatter::ElementType;
    use kvscatter::quantize::quantize_row;
    use kvscatter_onnx::decoder::CachePart;
    use kvscatter_session::CachePort;

    use super::{CacheErrors, NarrowCache, StoredRows};

    /// Returns the message about a row, and the errors after it.
    fn compared(
        element: ElementType,
        given: &[f32],
        stored: &[u8],
        scale: f64,
    ) -> (Option<String>, StoredRows) {
        let part = CachePart::Key;
        let narrow =
            NarrowCache { cache: 0, scales: None, element, part, given: String::new(), attention: None };
        let dims = [None, Some(1), Some(4), Some(given.len())].to_vec();
        let (past, present) = ("past".to_owned(), "present".to_owned());
        let port = CachePort { past, present, element, axis: 2, layer: 0, dims, growth: None, ring: None };
        let mut errors = CacheErrors::new(&narrow, &port, None);
        let message = errors.row(given, stored, Some(scale));
        (message, errors.document)
    }

    #[test]
    fn rows_of_int8_are_within_half_a_code() {
        let given = [1.0, -0.5, 0.1, 0.0];
        let mut codes = [0; 4];
        let scale = f64::from(quantize_row(&given, &mut codes));
        let bytes = codes.map(i8::cast_unsigned);
        let (message, rows) = compared(ElementType::Int8, &given, &bytes, scale);
        assert_eq!((message, rows.compared, rows.largest_given), (None, 4, 1.0));
        // 0.5 is 63.5 codes, which is a tie.
        assert!(rows.worst > 0.99 && rows.worst <= 1.0, "{rows:?}");
        let mut wrong = bytes;
        wrong[2] = wrong[2].wrapping_add(1);
        for (codes, scale) in [(wrong, scale), (bytes, scale * 1.1), (bytes, f64::NAN), (bytes, 0.0)] {
            assert!(compared(ElementType::Int8, &given, &codes, scale).0.is_some(), "{codes:?} {scale}");
        }
        // No bound holds for a row that is not finite.
        assert_eq!(compared(ElementType::Int8, &[f32::NAN], &[0], f64::NAN).0, None);
    }

    #[test]
    fn halves_are_within_half_a_unit() {
        let row = |x: f32| {
            let float16 = compared(ElementType::Float16, &[x], &f16::from_f32(x).to_le_bytes(), 0.0);
            let bfloat16 = compared(ElementType::BFloat16, &[x], &bf16::from_f32(x).to_le_bytes(), 0.0);
            [float16.0, bfloat16.0]
        };
        for x in [0.0, 1.0, 1.000_488_2, -3.3, 65504.0, 1e-5, -1e-7, 6.2e-5] {
            assert_eq!(row(x), [None, None], "{x}");
        }
        assert!(row(65519.0)[0].is_some() && row(1e6)[0].is_some());
        assert_eq!(row(1e30)[1], None);
        let next = f16::from_bits(f16::from_f32(1.3).to_bits() + 1);
        assert!(compared(ElementType::Float16, &[1.3], &next.to_le_bytes(), 0.0).0.is_some());
    }
}
