//! The certificate: the model that was examined, the claims about its KV cache, and the evidence for them.
//!
//! A certificate is plain data. This module only defines the data, and other modules measure and hash.
//! `report` renders a certificate as HTML, the command line prints it as text, and `serde` serialises it as
//! JSON.
//!
//! Times are in nanoseconds and sizes in bytes. Slots are counted from 0 along the sequence axis of a cache.
//! Steps are counted from 0 within a scenario.
//!
//! The names of tensors, nodes and files come from an untrusted model and are stored unchanged. Code that
//! shows them must escape them.

mod timings;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use kvscatter_onnx::convert::RingSize;
use kvscatter_session::{GroupQueryNodes, engine_label};
use serde::{Deserialize, Serialize};

pub use timings::{
    BytesMoved, CachePathTimes, CapacityTime, ComparedModel, Crossover, DecodeTime, DecodeTimes, PeakMemory,
    Timings,
};

/// The version of the certificate's format. It increases when a field is removed or changes its meaning.
pub const SCHEMA: u32 = 1;

/// The claims about a model's KV cache, their verdicts and the evidence for them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The version of the format: [`SCHEMA`].
    pub schema: u32,
    /// The version of kvscatter that made the certificate.
    pub tool_version: String,
    /// The time at which it was made, in UTC as `2026-11-21 21:50`, or `None` if the document must not depend
    /// on the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<String>,
    /// The command that makes the certificate again, as the user typed it.
    pub command: String,
    /// The verdict on all claims together, from [`Evidence::verdict`].
    pub verdict: Verdict,
    /// The model that was examined.
    pub model: Subject,
    /// The model that it was compared with, or `None` without such a model.
    pub original: Option<Subject>,
    /// The runtime that ran the model.
    pub runtime: RuntimeInfo,
    /// The machine on which the model ran.
    pub machine: Machine,
    /// The caches of the model.
    pub decoder: DecoderSummary,
    /// The sizes, seed and tolerance of the runs.
    pub parameters: Parameters,
    /// The claims with their verdicts, by kind of evidence.
    pub evidence: Evidence,
    /// The kind of reference for the logits. It determines which faults the verdict cannot show.
    #[serde(default)]
    pub second_opinion: SecondOpinion,
    /// The differences between the logits and their reference. There is one comparison for each scenario and
    /// fill.
    pub logits: Vec<LogitsComparison>,
    /// The slots that each step wrote, scenario by scenario.
    pub occupancy: Vec<Occupancy>,
    /// The errors of the rows that caches of half types and of int8 store, one entry for each cache.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stored: Vec<StoredRows>,
    /// How far the distributions of the next token are from the original's. `None` without such caches or without an
    /// original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
    /// The times and sizes that were measured, or `None` if nothing was timed.
    pub timings: Option<Timings>,
}

/// The result of one claim, or of all claims together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The claim was examined and holds.
    Passed,
    /// The claim was examined and does not hold.
    Failed,
    /// The claim does not apply, because the model lacks the part that the claim is about.
    NotApplicable,
    /// The claim could not be examined in this run. The evidence contains the reason.
    NotMeasured,
    /// The claim was examined, but the numbers cannot be compared with correct ones. The evidence contains
    /// the reason.
    NotComparable,
}

/// The kind of reference for the logits of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondOpinion {
    /// Other runs of the same model in the same engine. A model or an engine that computes wrong logits still
    /// passes.
    #[default]
    None,
    /// The original model, run in the same engine. An engine that computes wrong logits for both models still
    /// passes.
    OriginalInSameEngine,
}

/// A model, identified by the contents of its files and not by their location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The identity of the model's main file.
    pub file: FileIdentity,
    /// The identities of the files of external data, each once. Names are relative to the model's folder.
    pub external_data: Vec<FileIdentity>,
    /// The version of the ONNX file format, or `None` if the file does not contain it.
    pub ir_version: Option<i64>,
    /// The operator sets that the model imports.
    pub opsets: Vec<Opset>,
    /// The name and version of the program that wrote the model, as the file names it. Empty if the file does
    /// not.
    pub producer: String,
    /// The metadata entry `kvscatter.compared`: what `convert` compared. `None` without that entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<String>,
}

/// A file's name, size and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// The name of the file, without the folder.
    pub name: String,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The SHA-256 of the file's bytes, as 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// An operator set that a model imports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opset {
    /// The domain of the operators. The default domain is `ai.onnx`.
    pub domain: String,
    /// The version of the domain's operator set.
    pub version: i64,
}

/// The runtime that ran the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeInfo {
    /// The name of the runtime, such as `ONNX Runtime`.
    pub name: String,
    /// The version of the runtime, such as `1.31.1`.
    pub version: String,
    /// The device that the runtime computes on, such as `CPU`.
    pub device: String,
    /// The name and version of the plugin that the runtime used, such as `kvscatter 0.1.0`, or `None` if it
    /// used none.
    #[serde(default)]
    pub plugin: Option<String>,
    /// Which kernels compute the nodes of `GroupQueryAttention`, or `None` if the model has no such node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_query_nodes: Option<GroupQueryNodes>,
}

/// Formats the name, the version and the plugin.
impl fmt::Display for RuntimeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&engine_label(&self.name, &self.version, self.plugin.as_deref()))
    }
}

/// The machine on which the model ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the processor. Empty if the system does not report it.
    pub cpu: String,
    /// The number of cores that the process may use.
    pub cores: usize,
    /// The operating system and architecture, such as `linux x86_64`.
    pub os: String,
}

impl Machine {
    /// Reads the facts about this machine.
    #[must_use]
    pub fn read() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cpu: cpu.map_or(String::new(), |(_, name)| name.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// The caches of a decoder, at the batch and capacity of [`Parameters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderSummary {
    /// The caches in the order of the model's inputs.
    pub caches: Vec<CacheSummary>,
    /// The number of bytes of all caches together.
    pub bytes: u64,
    /// The number of bytes that one more token of one sample takes in all caches. A ring that is full takes none.
    pub bytes_per_token: u64,
    /// The caches without rings. `None` for a decoder without rings, and for one that does not declare how many tokens
    /// it was converted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_rings: Option<LinearCaches>,
}

impl DecoderSummary {
    /// Returns each size of a ring once, with the number of its caches.
    #[must_use]
    pub fn rings(&self) -> BTreeMap<RingSize, usize> {
        let mut rings = BTreeMap::new();
        for ring in self.caches.iter().filter_map(|cache| cache.ring) {
            *rings.entry(ring).or_insert(0_usize) += 1;
        }
        rings
    }
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSummary {
    /// The graph input that holds the cache before a step.
    pub past: String,
    /// The graph output that holds the cache after a step.
    pub present: String,
    /// The shape as the model declares it, with its symbols.
    pub shape: Vec<String>,
    /// The name of the element type in ONNX, such as `float16`.
    pub element: String,
    /// How the graph writes the cache, such as `TensorScatter, linear` or `Attention`.
    pub style: String,
    /// The number of bytes of the cache, for all samples and slots.
    pub bytes: u64,
    /// The size of the ring, or `None` for a linear cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingSize>,
}

/// The caches that a decoder would have without rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearCaches {
    /// The number of slots of each sample in each cache.
    pub capacity: usize,
    /// The number of bytes of all caches together.
    pub bytes: u64,
}

/// The sizes, seed and tolerance of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// The number of samples in a batch.
    pub batch: usize,
    /// The number of slots of each sample in a cache.
    pub capacity: usize,
    /// The number of decode steps after the prompt.
    pub steps: usize,
    /// The number of tokens in each sample's prompt.
    pub prompts: Vec<usize>,
    /// The maximum number of tokens of one sample in a step of a chunked prefill.
    pub chunk: usize,
    /// The seed of the random tokens and canaries.
    pub seed: u64,
    /// The largest absolute difference between logits that counts as equal.
    pub tolerance: f64,
}

/// All claims, grouped by the kind of evidence for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Claims that the graph proves. They are true for every input on a runtime that runs the graph
    /// unchanged.
    pub structural: Vec<Check>,
    /// Claims about memory and logits, observed while the model ran. They are true of these runs.
    pub observed: Vec<Check>,
    /// Claims about time. They are true of this machine, within its noise.
    pub timed: Vec<Check>,
}

/// One claim and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The claim's name, such as `present-aliases-past`. It is the same in every version.
    pub id: String,
    /// The claim, as one sentence.
    pub claim: String,
    /// The result of the examination.
    pub verdict: Verdict,
    /// What was examined, with counts. If the claim was not examined, the reason.
    pub evidence: String,
    /// The first places where the claim does not hold, at most [`KEPT_FAILURES`](Self::KEPT_FAILURES).
    pub failures: Vec<Failure>,
    /// The number of places where the claim does not hold, including those that are not listed.
    pub failure_count: u64,
}

/// A place where a claim does not hold. Fields that do not apply are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The fault, as one sentence.
    pub message: String,
    /// The name of the scenario, as in [`Occupancy::scenario`]. `None` for the model as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// The index of the step within the scenario, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// The name of the graph input that is the past of the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The index of the sample in the batch, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<usize>,
    /// The index of the slot along the sequence dimension of the cache, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<usize>,
}

/// The differences between the logits of a run and their reference.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogitsComparison {
    /// The name of the scenario, as in [`Occupancy::scenario`].
    pub scenario: String,
    /// What the caches contained before the first step.
    pub fill: Fill,
    /// The run that produced the reference logits.
    pub against: LogitsReference,
    /// The number of logits that were compared. Logits of padding are not compared.
    pub compared: u64,
    /// The largest absolute difference among the logits that are finite on both sides.
    pub worst: f64,
    /// The position of the largest difference, or `None` if no logit differs.
    pub worst_at: Option<LogitPlace>,
    /// The largest absolute difference in each step, by the index of the step.
    pub worst_by_step: Vec<f64>,
    /// The number of logits that are infinite or NaN on either side.
    pub not_finite: u64,
    /// The largest absolute difference that counts as equal.
    pub tolerance: f64,
    /// The number of tokens for which both sides have a most likely next token.
    pub greedy_compared: u64,
    /// The number of those tokens for which both sides choose the same next token.
    pub greedy_equal: u64,
}

/// The errors of the rows that one cache stores. Rows of rotated keys are given after the rotation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredRows {
    /// The graph input of the cache. For int8, it is that of the codes.
    pub cache: String,
    /// The index of the layer, counted from 0.
    pub layer: usize,
    /// The name of the element type in ONNX.
    pub element: String,
    /// The number of elements that were compared.
    pub compared: u64,
    /// The largest error as a part of its bound. The bound of an element is `s * (1/2 + 2^-16)` for int8 and the scale
    /// `s` of its row, `2^-11 * |x|` for float16, and `2^-8 * |x|` for bfloat16.
    pub worst: f64,
    /// The largest error.
    pub largest_error: f64,
    /// The largest magnitude of a given element. Above 65504, float16 stores infinity.
    pub largest_given: f64,
    /// The largest change of a score that the errors of these keys can make, in exact arithmetic. `None` for values,
    /// and if the queries are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_bound: Option<f64>,
    /// The largest change of an output of attention that the errors of these values and of their keys can make, in
    /// exact arithmetic. `None` for keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bound: Option<f64>,
}

/// How far the distributions of the next token are from the original's. These numbers are measured and are no bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// The number of tokens after which the distributions were compared.
    pub tokens: u64,
    /// The mean of the Kullback-Leibler divergences from the original, in nats.
    pub mean_kl: f64,
    /// The divergence that 99 of 100 tokens do not exceed.
    pub p99_kl: f64,
    /// The number of tokens after which both models have the same most likely token.
    pub same_top_1: u64,
    /// The largest absolute difference of two logits.
    pub largest_difference: f64,
    /// The largest mean that counts as close.
    pub limit: f64,
}

/// What the caches contain before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Finite values of at most 1 in magnitude, each different from its neighbours.
    Canaries,
}

/// The run whose logits are the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogitsReference {
    /// The original model, run on the same tokens.
    Original,
    /// The same model, run with presents and pasts in separate memory.
    UnaliasedRun,
}

impl From<LogitsReference> for SecondOpinion {
    fn from(against: LogitsReference) -> Self {
        match against {
            LogitsReference::Original => Self::OriginalInSameEngine,
            LogitsReference::UnaliasedRun => Self::None,
        }
    }
}

/// The position of one logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogitPlace {
    /// The index of the step within the scenario, counted from 0.
    pub step: usize,
    /// The index of the sample in the batch, counted from 0.
    pub sample: usize,
    /// The index of the token among the tokens of the step, counted from 0.
    pub token: usize,
    /// The index of the logit: the id of a token in the vocabulary.
    pub entry: usize,
}

/// The slots that each step of a scenario writes. They are the same in all linear caches, and in all rings of one
/// capacity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// The scenario's name, such as `chunked prefill`.
    pub scenario: String,
    /// What the scenario does, as one sentence.
    pub description: String,
    /// The number of slots of each sample in a cache.
    pub capacity: usize,
    /// Whether the caches are rings. Position `p` is then in slot `p mod capacity`, and a slot with a token that was
    /// taken back counts as padding.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_ring: bool,
    /// The steps in the order in which they ran.
    pub steps: Vec<OccupancyStep>,
}

/// The slots that one step writes, and the slots that are valid after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccupancyStep {
    /// What the step feeds to the decoder.
    pub phase: Phase,
    /// The number of rows that the step writes for each sample, padding included.
    pub rows: usize,
    /// The slots of each sample, by the index of the sample.
    pub samples: Vec<SampleSlots>,
}

/// What a step feeds to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A whole prompt.
    Prefill,
    /// A part of a prompt.
    Chunk,
    /// One token for each sample.
    Decode,
}

/// The slots of one sample in one step, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleSlots {
    /// The slots to which the write indices of this step refer. These are two ranges if the write wraps at
    /// the end of a circular cache.
    pub written: Vec<Range<usize>>,
    /// The slots that contain tokens after this step. A written slot that is not valid contains padding.
    pub valid: Vec<Range<usize>>,
    /// The slots that changed in some cache although the write indices do not refer to them. This is empty
    /// for a correct model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clobbered: Vec<Range<usize>>,
}

impl Evidence {
    /// Returns every claim, beginning with the structural ones.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.structural.iter().chain(&self.observed).chain(&self.timed)
    }

    /// Returns the verdict on all claims together.
    ///
    /// The verdict is [`Failed`](Verdict::Failed) if any claim failed. Otherwise it is
    /// [`Passed`](Verdict::Passed) if at least one structural and one observed claim passed. In all other
    /// cases the certificate proves nothing, and the verdict is [`NotMeasured`](Verdict::NotMeasured). Claims
    /// that are [`NotComparable`](Verdict::NotComparable) do not affect the verdict.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let some = |checks: &[Check]| checks.iter().any(|check| check.verdict == Verdict::Passed);
        if self.checks().any(|check| check.verdict == Verdict::Failed) {
            Verdict::Failed
        } else if some(&self.structural) && some(&self.observed) {
            Verdict::Passed
        } else {
            Verdict::NotMeasured
        }
    }
}

impl Check {
    /// The maximum number of failures that a check lists.
    pub const KEPT_FAILURES: usize = 8;

    /// Creates a claim that holds.
    #[must_use]
    pub fn passed(id: &str, claim: &str, evidence: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::Passed, evidence)
    }

    /// Creates a claim that does not apply to the model.
    #[must_use]
    pub fn not_applicable(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotApplicable, why)
    }

    /// Creates a claim that could not be examined.
    #[must_use]
    pub fn not_measured(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotMeasured, why)
    }

    /// Creates a claim whose numbers cannot be compared with correct ones.
    #[must_use]
    pub fn not_comparable(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotComparable, why)
    }

    /// Creates a claim that holds if there is no failure.
    #[must_use]
    pub fn unless(
        id: &str,
        claim: &str,
        evidence: impl Into<String>,
        failures: impl IntoIterator<Item = Failure>,
    ) -> Self {
        let mut check = Self::passed(id, claim, evidence);
        failures.into_iter().for_each(|failure| check.fail(failure));
        check
    }

    /// Adds a place where the claim does not hold.
    pub(crate) fn fail(&mut self, failure: Failure) {
        self.verdict = Verdict::Failed;
        self.failure_count = self.failure_count.saturating_add(1);
        if self.failures.len() < Self::KEPT_FAILURES {
            self.failures.push(failure);
        }
    }

    fn new(id: &str, claim: &str, verdict: Verdict, evidence: impl Into<String>) -> Self {
        let (id, claim) = (id.to_owned(), claim.to_owned());
        Self { id, claim, verdict, evidence: evidence.into(), failures: Vec::new(), failure_count: 0 }
    }
}

impl Failure {
    /// Creates a failure of the model as a whole.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Check, Evidence, Failure, Verdict};

    fn passed() -> Check {
        Check::passed("id", "claim", "evidence")
    }

    #[test]
    fn nothing_is_certified_without_a_look_at_graph_and_memory() {
        let mut evidence = Evidence::default();
        assert_eq!(evidence.verdict(), Verdict::NotMeasured);
        evidence.structural.push(passed());
        evidence.timed.push(passed());
        assert_eq!(evidence.verdict(), Verdict::NotMeasured);
        evidence.observed.push(passed());
        assert_eq!(evidence.verdict(), Verdict::Passed);
        evidence.timed.push(Check::not_measured("id", "claim", "why"));
        evidence.observed.push(Check::not_comparable("id", "claim", "why"));
        assert_eq!(evidence.verdict(), Verdict::Passed);
        evidence.timed.push(Check::unless("id", "claim", "evidence", [Failure::new("slow")]));
        assert_eq!(evidence.verdict(), Verdict::Failed);
    }

    #[test]
    fn the_first_failures_are_kept_and_all_are_counted() {
        let check = Check::unless(
            "id",
            "claim",
            "evidence",
            (0..100).map(|slot| Failure { slot: Some(slot), ..Failure::new("changed") }),
        );
        assert_eq!((check.verdict, check.failure_count), (Verdict::Failed, 100));
        assert_eq!(check.failures.last().unwrap().slot, Some(Check::KEPT_FAILURES - 1));
        assert_eq!(Check::unless("id", "claim", "evidence", []).verdict, Verdict::Passed);
    }
}
