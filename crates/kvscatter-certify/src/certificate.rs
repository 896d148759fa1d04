//! The certificate: what was examined, which claims hold, and on what evidence.
//!
//! One document, made once and rendered by `report` as text and as HTML; as JSON it is itself.
//! It is plain data: nothing in it is measured, hashed or dated here. Times are in nanoseconds, sizes in bytes,
//! slots are counted from 0 along the sequence axis of a cache, and steps from 0 within a scenario.
//!
//! Names of tensors, nodes and files come from a stranger's model and are stored unchanged. Code that shows them must
//! escape them, as [`one_line`](kvscatter_text::names::one_line) does.

mod timings;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use timings::{
    BytesMoved, CachePathTimes, CapacityTime, ComparedModel, Crossover, DecodeTime, DecodeTimes, PeakMemory,
    Timings,
};

/// The version of this document's form. It is raised when a field changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// What a model's KV cache was seen to do, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The form of this document: [`SCHEMA`].
    pub schema: u32,
    /// The version of kvscatter that made it.
    pub tool_version: String,
    /// When it was made, in UTC as `2026-11-21 21:50`; absent where a document must not depend on the date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<String>,
    /// The command that makes it again, as typed.
    pub command: String,
    /// Whether every claim that could be examined holds: [`Evidence::verdict`].
    pub verdict: Verdict,
    /// The model that was examined.
    pub model: Subject,
    /// The model that it was compared with.
    pub original: Option<Subject>,
    /// What ran it.
    pub runtime: RuntimeInfo,
    /// Where it ran.
    pub machine: Machine,
    /// Its caches.
    pub decoder: DecoderSummary,
    /// What it was run with.
    pub parameters: Parameters,
    /// The claims.
    pub evidence: Evidence,
    /// What the logits were compared with. This decides which faults the verdict cannot show.
    #[serde(default)]
    pub second_opinion: SecondOpinion,
    /// How far its logits are from those it was compared with, one for each scenario and fill.
    pub logits: Vec<LogitsComparison>,
    /// Which slots were written in which step, one for each scenario.
    pub occupancy: Vec<Occupancy>,
    /// What was timed; absent if nothing was.
    pub timings: Option<Timings>,
}

/// The result of one claim, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was examined and holds.
    Passed,
    /// It was examined and does not hold.
    Failed,
    /// The model has nothing that the claim is about.
    NotApplicable,
    /// It could not be examined here. The evidence gives the reason.
    NotMeasured,
    /// It was run, but no correct value is known that its numbers could be compared with. The evidence gives
    /// the reason.
    NotComparable,
}

/// What the model's logits were compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondOpinion {
    /// Nothing but other runs of the same model in the same engine. A model or an engine that computes wrong logits
    /// passes.
    #[default]
    None,
    /// The original, run in the same engine. An engine that computes wrong logits for both passes.
    OriginalInSameEngine,
}

/// A model file, by what it holds rather than by where it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// The model's own file.
    pub file: FileIdentity,
    /// The files of its external data, each once; their names are relative to the model's folder.
    pub external_data: Vec<FileIdentity>,
    /// The version of the ONNX format.
    pub ir_version: Option<i64>,
    /// The operator sets it imports.
    pub opsets: Vec<Opset>,
    /// Name and version of the program that wrote it, from the file; empty if the file does not have them.
    pub producer: String,
}

/// A file's name, size and hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Its name, without the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of all its bytes, 64 hexadecimal digits in lower case.
    pub sha256: String,
}

/// An operator set that a model imports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opset {
    /// Its domain; `ai.onnx` for the default one.
    pub domain: String,
    /// Its version.
    pub version: i64,
}

/// What ran the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeInfo {
    /// Its name, such as `ONNX Runtime`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it computed with, such as `CPU`.
    pub device: String,
}

/// Where the model ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name; empty where the system does not tell.
    pub cpu: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// System and architecture, such as `linux x86_64`.
    pub os: String,
}

/// The caches of a decoder, at the batch and capacity of [`Parameters`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecoderSummary {
    /// Each cache, in the order of the model's inputs.
    pub caches: Vec<CacheSummary>,
    /// The bytes of all of them.
    pub bytes: u64,
    /// What one token of one sample adds to what is valid in all of them.
    pub bytes_per_token: u64,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheSummary {
    /// The graph input.
    pub past: String,
    /// The graph output.
    pub present: String,
    /// The shape as the model declares it, symbols included.
    pub shape: Vec<String>,
    /// The element type, as ONNX names it: `float16`.
    pub element: String,
    /// How it is written: `TensorScatter, linear`, `Attention` and so on.
    pub style: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What the model was run with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Samples in a batch.
    pub batch: usize,
    /// Slots of each sample in a cache.
    pub capacity: usize,
    /// Decode steps after the prompt.
    pub steps: usize,
    /// Tokens in the prompt of each sample.
    pub prompts: Vec<usize>,
    /// The largest number of tokens in a step of a chunked prefill.
    pub chunk: usize,
    /// What tokens and canaries are drawn from.
    pub seed: u64,
    /// The largest absolute difference between logits that counts as equal.
    pub tolerance: f64,
}

/// All claims, by the kind of evidence that they rest on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Claims that the graph proves. They hold for every input, on a runtime that runs the graph unchanged.
    pub structural: Vec<Check>,
    /// Claims about memory, observed while the model ran. They hold for these runs.
    pub observed: Vec<Check>,
    /// Claims about time. They hold for this machine, within its noise.
    pub timed: Vec<Check>,
}

/// One claim and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A name that stays the same from version to version, such as `present-aliases-past`.
    pub id: String,
    /// The claim, one sentence.
    pub claim: String,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What was done to find out, with counts; where it was not examined, why.
    pub evidence: String,
    /// The first places where it does not hold.
    pub failures: Vec<Failure>,
    /// How many such places there are.
    pub failure_count: u64,
}

/// A place where a claim does not hold, as exactly as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong, one sentence.
    pub message: String,
    /// The scenario.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// The step in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// The cache, by its past input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<usize>,
    /// The slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<usize>,
}

/// How far the logits of a run are from those of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogitsComparison {
    /// The scenario, as in [`Occupancy::scenario`].
    pub scenario: String,
    /// What the caches held at first.
    pub fill: Fill,
    /// What they were compared with.
    pub against: LogitsReference,
    /// How many logits were compared: those of tokens that are no padding.
    pub compared: u64,
    /// The largest absolute difference among those that are finite on both sides.
    pub worst: f64,
    /// Where it is; absent if nothing differs.
    pub worst_at: Option<LogitPlace>,
    /// The largest absolute difference of each step.
    pub worst_by_step: Vec<f64>,
    /// How many are infinite or not a number on either side.
    pub not_finite: u64,
    /// The largest difference that counts as equal.
    pub tolerance: f64,
    /// Tokens for which a most likely next one was chosen on both sides.
    pub greedy_compared: u64,
    /// Those for which it is the same.
    pub greedy_equal: u64,
}

/// What the caches held before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// Zeros.
    Zeros,
    /// Finite values of at most 1 in magnitude, each different from its neighbours.
    Canaries,
}

/// What logits are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogitsReference {
    /// The original model, on the same tokens.
    Original,
    /// The same model, with present and past in separate memory.
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

/// One logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogitPlace {
    /// The step.
    pub step: usize,
    /// The sample.
    pub sample: usize,
    /// The token within the step.
    pub token: usize,
    /// The entry of the vocabulary.
    pub entry: usize,
}

/// Which slots a scenario wrote, step by step. All caches of a decoder are written alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Occupancy {
    /// The scenario's name, such as `chunked prefill`.
    pub scenario: String,
    /// What it does, one sentence.
    pub description: String,
    /// Slots of each sample.
    pub capacity: usize,
    /// The steps, in order.
    pub steps: Vec<OccupancyStep>,
}

/// The slots of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccupancyStep {
    /// What kind of step it is.
    pub phase: Phase,
    /// Rows that the step writes to each sample, padding included.
    pub rows: usize,
    /// The slots of each sample.
    pub samples: Vec<SampleSlots>,
}

/// What a step feeds to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A prompt, whole.
    Prefill,
    /// A part of a prompt.
    Chunk,
    /// One token for each sample.
    Decode,
}

/// The slots of one sample in one step, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleSlots {
    /// Those that this step's write indices name; two runs where a ring wraps.
    pub written: Vec<Range<usize>>,
    /// Those that hold tokens after this step. A slot that was written and is not among them holds padding.
    pub valid: Vec<Range<usize>>,
    /// Those that have changed in some cache although nothing names them: there must be none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clobbered: Vec<Range<usize>>,
}

impl Evidence {
    /// Every claim, the structural ones first.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.structural.iter().chain(&self.observed).chain(&self.timed)
    }

    /// [`Failed`](Verdict::Failed) if any claim is. [`Passed`](Verdict::Passed) if some structural and some observed
    /// claim passed; without both, nothing was certified: [`NotMeasured`](Verdict::NotMeasured). Claims that are
    /// [`NotComparable`](Verdict::NotComparable) do not affect the verdict.
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
    /// How many failures are kept of those there are.
    pub const KEPT_FAILURES: usize = 8;

    /// A claim that holds.
    #[must_use]
    pub fn passed(id: &str, claim: &str, evidence: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::Passed, evidence)
    }

    /// A claim that the model has nothing for.
    #[must_use]
    pub fn not_applicable(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotApplicable, why)
    }

    /// A claim that could not be examined.
    #[must_use]
    pub fn not_measured(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotMeasured, why)
    }

    /// Makes a claim whose numbers cannot be compared with anything.
    #[must_use]
    pub fn not_comparable(id: &str, claim: &str, why: impl Into<String>) -> Self {
        Self::new(id, claim, Verdict::NotComparable, why)
    }

    /// A claim that holds if there is no failure.
    #[must_use]
    pub fn unless(
        id: &str,
        claim: &str,
        evidence: impl Into<String>,
        failures: impl IntoIterator<Item = Failure>,
    ) -> Self {
        let mut check = Self::passed(id, claim, evidence);
        for failure in failures {
            check.verdict = Verdict::Failed;
            check.failure_count = check.failure_count.saturating_add(1);
            if check.failures.len() < Self::KEPT_FAILURES {
                check.failures.push(failure);
            }
        }
        check
    }

    fn new(id: &str, claim: &str, verdict: Verdict, evidence: impl Into<String>) -> Self {
        let (id, claim) = (id.to_owned(), claim.to_owned());
        Self { id, claim, verdict, evidence: evidence.into(), failures: Vec::new(), failure_count: 0 }
    }
}

impl Failure {
    /// A failure of the model as a whole.
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
