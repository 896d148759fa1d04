//! The sentences about a certificate that its page and the command line's text share.

use crate::certificate::{
    Certificate, Check, ComparedModel, Crossover, DecoderSummary, Evidence, Fill, LinearCaches,
    LogitsReference, PeakMemory, Phase, SecondOpinion, Timings, Verdict,
};
use kvscatter_onnx::convert::RingSize;
use kvscatter_onnx::internal::text::units;
use serde::Serialize;

/// One kind of evidence: its claims, and a description of what it can prove.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct EvidenceKind<'c> {
    /// The name of the kind.
    pub name: &'static str,
    /// What this kind of evidence is based on, what it proves and what it does not.
    pub description: &'static str,
    /// The claims.
    pub checks: &'c [Check],
}

/// Returns the three kinds of evidence, in the order in which they are shown.
#[must_use]
pub fn kinds(evidence: &Evidence) -> [EvidenceKind<'_>; 3] {
    [
        EvidenceKind {
            name: "Structural",
            description: "Claims that the graph proves. They are true for every input on a runtime that runs the graph \
                   unchanged. They do not show what a runtime does with the graph.",
            checks: &evidence.structural,
        },
        EvidenceKind {
            name: "Observed",
            description: "Claims about memory and logits while the model ran. They are true of these runs. Other prompts, \
                   positions and runtimes were not tried. A cache that is copied out and back within a step looks the \
                   same, so the graph is also examined and the time is measured.",
            checks: &evidence.observed,
        },
        EvidenceKind {
            name: "Timed",
            description: "Claims about time. They are true of this machine, within its noise. If the time does not grow \
                   with the capacity, the cache cannot have been copied. The time does not show whether the results \
                   are correct.",
            checks: &evidence.timed,
        },
    ]
}

/// What no certificate shows.
pub(crate) const LIMITS: [&str; 4] = [
    "The tokens are drawn at random from the model's vocabulary. The certificate shows that the model's answers are \
     the same, and not that they are good.",
    "The certificate is valid for the files with these hashes and for this version of the runtime. Another version, \
     another device or other options of the session may copy the cache, so certify again after a change.",
    "The caller must bind past and present to the same memory in every step, as in these runs. A runtime that \
     allocates the present itself makes a second cache.",
    "A slot that was never written must contain finite values, because a masked slot is still multiplied by zero. \
     Fill the caches with zeros once before use.",
];

/// Returns a sentence about each size of the rings, and one about the caches without rings. A decoder without rings has
/// none.
#[must_use]
pub fn rings(decoder: &DecoderSummary) -> Vec<String> {
    let of_size = |(ring, caches): (RingSize, usize)| {
        let RingSize { capacity, window, chunk, rewind } = ring;
        let rings = if caches == 1 { "1 ring".to_owned() } else { format!("{caches} rings") };
        format!(
            "{rings} of C = {capacity} slots: a window of W = {window} tokens, steps of up to S = {chunk} rows, and \
             R = {rewind} tokens that can be taken back."
        )
    };
    let mut sentences: Vec<_> = decoder.rings().into_iter().map(of_size).collect();
    if let Some(LinearCaches { capacity, bytes }) = decoder.without_rings {
        let [with, without] = [decoder.bytes, bytes].map(units::bytes);
        sentences.push(format!(
            "The caches take {with}. Without rings, they would take {without} for {capacity} slots."
        ));
    }
    sentences
}

/// Returns the verdict as a word.
#[must_use]
pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::NotApplicable => "not applicable",
        Verdict::NotMeasured => "not measured",
        Verdict::NotComparable => "not comparable",
    }
}

/// Returns the outcome as one sentence.
#[must_use]
pub fn headline(certificate: &Certificate) -> &'static str {
    match certificate.verdict {
        Verdict::Passed => "The KV cache is written in place.",
        Verdict::Failed => "Not certified: at least one claim does not hold.",
        Verdict::NotMeasured | Verdict::NotApplicable | Verdict::NotComparable => {
            "Not certified: too little could be examined."
        }
    }
}

/// Returns one or two sentences to show beside the verdict. They name the reference for the logits and the
/// faults that a comparison with it cannot show.
#[must_use]
pub fn second_opinion(certificate: &Certificate) -> String {
    let engine = certificate.runtime.to_string();
    match certificate.second_opinion {
        SecondOpinion::None => format!(
            "No second opinion: the logits were only compared with other runs of the same model in {engine}. This cannot \
             show wrong logits of the model or of the engine."
        ),
        SecondOpinion::OriginalInSameEngine => format!(
            "The logits were compared with the original's, and both models ran in {engine}. This cannot show logits that \
             the engine computes wrongly for both."
        ),
    }
}

/// Returns the claims whose numbers cannot be compared with anything, each with the reason.
pub fn not_judged(evidence: &Evidence) -> impl Iterator<Item = String> {
    let checks = evidence.checks().filter(|check| check.verdict == Verdict::NotComparable);
    checks.map(|check| format!("Not judged: {} It is {}.", check.claim, check.evidence))
}

/// Counts the claims by verdict: `9 claims passed, 1 was not measured`.
#[must_use]
pub fn verdict_counts(evidence: &Evidence) -> String {
    let number = |verdict| evidence.checks().filter(|check| check.verdict == verdict).count();
    let mut parts = Vec::new();
    for (verdict, one, more) in [
        (Verdict::Failed, "failed", "failed"),
        (Verdict::Passed, "passed", "passed"),
        (Verdict::NotComparable, "is not comparable", "are not comparable"),
        (Verdict::NotMeasured, "was not measured", "were not measured"),
        (Verdict::NotApplicable, "does not apply", "do not apply"),
    ] {
        match number(verdict) {
            0 => {}
            count => {
                let noun = if parts.is_empty() { if count == 1 { " claim" } else { " claims" } } else { "" };
                parts.push(format!("{count}{noun} {}", if count == 1 { one } else { more }));
            }
        }
    }
    if parts.is_empty() { "no claim was examined".to_owned() } else { parts.join(", ") }
}

/// Returns the claims that do not hold, in the order in which they are shown.
pub fn failed(evidence: &Evidence) -> impl Iterator<Item = &Check> {
    evidence.checks().filter(|check| check.verdict == Verdict::Failed)
}

/// Formats the place of a failure: `ragged decode, step 3, cache "past.0.key", sample 1, slot 17`. Returns an
/// empty text for a failure of the whole model.
#[must_use]
pub fn place(failure: &crate::certificate::Failure) -> String {
    let number = |name: &str, value: Option<usize>| value.map(|value| format!("{name} {value}"));
    let parts = [
        failure.scenario.clone(),
        number("step", failure.step),
        failure.cache.as_ref().map(|cache| format!("cache {cache}")),
        number("sample", failure.sample),
        number("slot", failure.slot),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Returns a description of the caches' initial contents.
#[must_use]
pub fn fill(fill: Fill) -> &'static str {
    match fill {
        Fill::Zeros => "zeros",
        Fill::Canaries => "canaries",
    }
}

/// Returns a description of the reference for the logits.
#[must_use]
pub fn against(against: LogitsReference) -> &'static str {
    match against {
        LogitsReference::Original => "the original",
        LogitsReference::UnaliasedRun => "an unaliased run",
    }
}

/// Returns the name of the kind of step.
#[must_use]
pub(crate) fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Prefill => "prefill",
        Phase::Chunk => "chunk",
        Phase::Decode => "decode",
    }
}

/// Returns a description of one of the two models.
#[must_use]
pub(crate) fn side(side: ComparedModel) -> &'static str {
    match side {
        ComparedModel::Model => "this model",
        ComparedModel::Original => "the original",
    }
}

/// Returns one sentence about the context length from which the static cache is faster.
#[must_use]
pub(crate) fn crossover(crossover: Crossover) -> String {
    match crossover {
        Crossover::Always => "This model was faster at every context length that was timed.".to_owned(),
        Crossover::Never => {
            "The original was faster at every context length that was timed: attention over a static \
                             cache may read every slot."
                .to_owned()
        }
        Crossover::From(context) => format!(
            "The original was faster below about {context} tokens of context: attention over a static cache may read \
             every slot. This model was faster above that length."
        ),
        Crossover::Unclear => "Neither model was faster beyond the machine's noise.".to_owned(),
    }
}

/// Returns the most important numbers. Each consists of a name, the number, and what the number is compared
/// with.
#[must_use]
pub fn key_figures(certificate: &Certificate) -> Vec<[String; 3]> {
    let mut figures = Vec::new();
    if let Some(worst) = certificate.logits.iter().max_by(|a, b| a.worst.total_cmp(&b.worst)) {
        figures.push([
            "largest difference of a logit".to_owned(),
            difference(worst.worst),
            format!("the tolerance is {}, from {}", difference(worst.tolerance), against(worst.against)),
        ]);
    }
    let Some(Timings { cache_path, bytes_moved, peak_memory, decode }) = &certificate.timings else {
        return figures;
    };
    if let Some(times) = cache_path
        && let (Some(small), Some(large)) = (times.at.first(), times.at.last())
    {
        figures.push([
            "a cache's time, large over small capacity".to_owned(),
            format!("{:.2} ×", times.ratio),
            format!("{} and {} slots", small.capacity, large.capacity),
        ]);
    }
    if let Some(bytes) = bytes_moved {
        figures.push([
            "read plus written in the caches per step".to_owned(),
            units::bytes(bytes.in_place),
            format!(
                "batch {}; {} if copied at {} slots",
                bytes.batch,
                units::bytes(bytes.copied),
                bytes.capacity
            ),
        ]);
    }
    let peak = |of| peak_memory.iter().find(|peak| peak.of == of && peak.bytes.is_some());
    if let Some(PeakMemory { batch, context, bytes: Some(bytes), .. }) = peak(ComparedModel::Model) {
        let original = peak(ComparedModel::Original).and_then(|peak| peak.bytes);
        let original = original.map(|bytes| format!("{} with the original, ", units::bytes(bytes)));
        figures.push([
            "peak memory of decoding".to_owned(),
            units::bytes(*bytes),
            format!("{}batch {batch}, {context} tokens", original.unwrap_or_default()),
        ]);
    }
    if let Some(Some(crossover)) = decode.as_ref().map(|decode| decode.crossover) {
        figures.push([
            "faster than the original".to_owned(),
            match crossover {
                Crossover::Always => "always".to_owned(),
                Crossover::Never => "never".to_owned(),
                Crossover::From(context) => format!("from {context} tokens"),
                Crossover::Unclear => "unclear".to_owned(),
            },
            "whole decode steps, as timed".to_owned(),
        ]);
    }
    figures
}

/// Formats a difference of logits: `2.4e-7`, or `0` if there is none.
#[must_use]
pub fn difference(value: f64) -> String {
    if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::verdict_counts;
    use crate::certificate::{Check, Evidence, Failure};

    #[test]
    fn claims_are_counted_and_failures_come_first() {
        let passed = || Check::passed("id", "claim", "evidence");
        let failed = Check::unless("id", "claim", "evidence", [Failure::new("wrong")]);
        let mut evidence = Evidence { structural: vec![passed()], ..Evidence::default() };
        assert_eq!(verdict_counts(&Evidence::default()), "no claim was examined");
        assert_eq!(verdict_counts(&evidence), "1 claim passed");
        evidence.observed = vec![passed(), failed];
        evidence.timed = vec![Check::not_measured("id", "claim", "why")];
        assert_eq!(verdict_counts(&evidence), "1 claim failed, 2 passed, 1 was not measured");
    }
}
