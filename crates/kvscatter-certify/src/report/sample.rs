//! Certificates for tests of rendering, one that passed and one that failed.

use std::ops::Range;

use crate::certificate::{
    BytesMoved, CachePathTimes, CacheSummary, CapacityTime, Certificate, Check, ComparedModel, Crossover,
    DecodeTime, DecodeTimes, DecoderSummary, Evidence, Failure, FileIdentity, Fill, LogitPlace,
    LogitsComparison, LogitsReference, Machine, Occupancy, OccupancyStep, Opset, Parameters, PeakMemory,
    Phase, RuntimeInfo, SCHEMA, SampleSlots, SecondOpinion, Subject, Timings, Verdict,
};

const CAPACITY: usize = 64;

/// Returns a certificate of a model for which all claims hold.
pub(crate) fn passed() -> Certificate {
    let evidence = evidence();
    Certificate {
        schema: SCHEMA,
        tool_version: "0.1.0".to_owned(),
        made_at: Some("2026-11-21 21:50".to_owned()),
        command: "kvscatter certify static.onnx --original model.onnx --steps 12".to_owned(),
        verdict: evidence.verdict(),
        model: subject("static.onnx", 24),
        original: Some(subject("model.onnx", 18)),
        runtime: RuntimeInfo {
            name: "ONNX Runtime".to_owned(),
            version: "1.31.1".to_owned(),
            device: "CPU".to_owned(),
            plugin: None,
        },
        machine: Machine { cpu: "Example 9000".to_owned(), cores: 8, os: "linux x86_64".to_owned() },
        decoder: decoder(),
        parameters: Parameters {
            batch: 3,
            capacity: CAPACITY,
            steps: 12,
            prompts: vec![9, 4, 14],
            chunk: 5,
            seed: 42,
            tolerance: 1e-3,
        },
        evidence,
        second_opinion: SecondOpinion::OriginalInSameEngine,
        logits: logits(),
        occupancy: vec![ragged(), chunked()],
        timings: Some(timings()),
    }
}

/// Returns the same certificate with a clobbered slot, wrong logits and a copied cache.
pub(crate) fn failed() -> Certificate {
    let mut certificate = passed();
    let place = |slot| Failure {
        scenario: Some("ragged decode".to_owned()),
        step: Some(4),
        cache: Some("past_key_values.0.key".to_owned()),
        sample: Some(1),
        slot: Some(slot),
        ..Failure::new("the row has changed, although no write index names it")
    };
    certificate.evidence.observed[1] = Check::unless(
        "only-named-rows-change",
        "Only the rows that the write indices name have changed.",
        "27 steps, 4 caches, 2 fills: 20,736 rows compared, byte for byte.",
        (30..60).map(place),
    );
    certificate.occupancy[0].steps[4].samples[1].clobbered.push(30..60);
    certificate.logits[1].worst = 0.156;
    certificate.logits[1].greedy_equal = 31;
    if let Some(CachePathTimes { at, ratio, .. }) =
        certificate.timings.as_mut().and_then(|timings| timings.cache_path.as_mut())
    {
        (at[1].median_ns, *ratio) = (1.7e6, 4.1);
    }
    certificate.verdict = certificate.evidence.verdict();
    certificate
}

fn subject(name: &str, opset: i64) -> Subject {
    let file = |name: &str, bytes| FileIdentity {
        name: name.to_owned(),
        bytes,
        sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned(),
    };
    Subject {
        file: file(name, 81_231),
        external_data: vec![file("model.onnx_data", 2_147_483_648)],
        ir_version: Some(11),
        opsets: vec![Opset { domain: "ai.onnx".to_owned(), version: opset }],
        producer: "pytorch 2.9.0".to_owned(),
        compared: None,
    }
}

fn decoder() -> DecoderSummary {
    let bytes = 3 * 2 * 64 * 16 * 4;
    let cache = |layer: usize, part: &str| CacheSummary {
        past: format!("past_key_values.{layer}.{part}"),
        present: format!("present.{layer}.{part}"),
        shape: ["batch_size", "2", "64", "16"].map(str::to_owned).to_vec(),
        element: "float".to_owned(),
        style: "TensorScatter, linear".to_owned(),
        bytes,
        ring: None,
    };
    let caches: Vec<_> =
        [0, 1].into_iter().flat_map(|n| ["key", "value"].map(|part| cache(n, part))).collect();
    DecoderSummary {
        bytes: bytes * caches.len() as u64,
        caches,
        bytes_per_token: 4 * 2 * 16 * 4,
        without_rings: None,
    }
}

fn evidence() -> Evidence {
    let passed = Check::passed;
    Evidence {
        structural: vec![passed(
            "no-cache-sized-tensor-between",
            "No cache-sized tensor is between past input, TensorScatter and present output.",
            "4 caches: each past is read by one TensorScatter, whose output is the present.",
        )],
        observed: vec![
            passed(
                "present-aliases-past",
                "Present is at past's address in every step.",
                "27 steps of 4 caches: the runtime returned the address that was bound, 108 of 108 times.",
            ),
            passed(
                "only-named-rows-change",
                "Only the rows that the write indices name have changed.",
                "27 steps, 4 caches, 2 fills: 20,736 rows compared, byte for byte.",
            ),
            passed(
                "logits-equal",
                "Logits equal the original's within the tolerance.",
                "43,008 logits compared, the largest difference is 2.4e-7.",
            ),
            Check::not_applicable(
                "ring-wraps",
                "A ring wraps to its first slot.",
                "No cache is written in circular mode.",
            ),
        ],
        timed: vec![
            passed(
                "cache-path-flat",
                "The cache's own time does not grow with its capacity.",
                "1.02 times as long at four times the capacity. A ratio up to 1.50 counts as constant.",
            ),
            Check::not_measured(
                "peak-memory",
                "Decoding holds one copy of the caches.",
                "This system does not report the peak memory of a process.",
            ),
        ],
    }
}

fn logits() -> Vec<LogitsComparison> {
    let compared = |scenario: &str, fill, worst| LogitsComparison {
        scenario: scenario.to_owned(),
        fill,
        against: LogitsReference::Original,
        compared: 10_752,
        worst,
        worst_at: Some(LogitPlace { step: 3, sample: 1, token: 0, entry: 211 }),
        worst_by_step: vec![0.0, 1e-7, worst],
        not_finite: 0,
        tolerance: 1e-3,
        greedy_compared: 42,
        greedy_equal: 42,
    };
    vec![
        compared("ragged decode", Fill::Zeros, 2.4e-7),
        compared("ragged decode", Fill::Canaries, 2.4e-7),
        compared("chunked prefill", Fill::Zeros, 1.8e-7),
        LogitsComparison { worst_at: None, ..compared("chunked prefill", Fill::Canaries, 0.0) },
    ]
}

fn runs(run: Range<usize>) -> Vec<Range<usize>> {
    if run.is_empty() { Vec::new() } else { vec![run] }
}

/// Right-padded prompts, and then one token a step, each sample at its own position.
fn ragged() -> Occupancy {
    let prompts = [9, 4, 14];
    let prefill =
        prompts.map(|prompt| SampleSlots { written: runs(0..14), valid: runs(0..prompt), clobbered: vec![] });
    let decode = |step: usize| {
        let sample = |prompt: usize| {
            let slot = prompt + step;
            SampleSlots { written: runs(slot..slot + 1), valid: runs(0..slot + 1), clobbered: vec![] }
        };
        OccupancyStep { phase: Phase::Decode, rows: 1, samples: prompts.map(sample).to_vec() }
    };
    let mut steps = vec![OccupancyStep { phase: Phase::Prefill, rows: 14, samples: prefill.to_vec() }];
    steps.extend((0..12).map(decode));
    Occupancy {
        scenario: "ragged decode".to_owned(),
        description: "Prompts of 9, 4 and 14 tokens, padded on the right, then one token at a time."
            .to_owned(),
        capacity: CAPACITY,
        is_ring: false,
        steps,
    }
}

/// A left-padded prompt of 14 tokens in chunks of 5, then decode steps.
fn chunked() -> Occupancy {
    let step = |phase, start: usize, rows: usize| {
        let sample = |padding: usize| SampleSlots {
            written: runs(start..start + rows),
            valid: runs(padding.min(start + rows)..start + rows),
            clobbered: vec![],
        };
        OccupancyStep { phase, rows, samples: [5, 10].map(sample).to_vec() }
    };
    let mut steps = vec![step(Phase::Chunk, 0, 5), step(Phase::Chunk, 5, 5), step(Phase::Chunk, 10, 4)];
    steps.extend((14..18).map(|start| step(Phase::Decode, start, 1)));
    Occupancy {
        scenario: "chunked prefill".to_owned(),
        description: "Prompts padded on the left, in chunks of up to 5 tokens.".to_owned(),
        capacity: CAPACITY,
        is_ring: false,
        steps,
    }
}

fn timings() -> Timings {
    let at = |capacity, cache_bytes, median_ns: f64| CapacityTime {
        capacity,
        cache_bytes,
        median_ns,
        fastest_ns: median_ns * 0.9,
    };
    let decode =
        |context, model_ns, original_ns| DecodeTime { context, model_ns, original_ns: Some(original_ns) };
    let peak = |of, bytes| PeakMemory { of, batch: 1, steps: 32, context: 4096, bytes };
    Timings {
        cache_path: Some(CachePathTimes {
            caches: 4,
            cache: "past_key_values.0.key".to_owned(),
            batch: 1,
            context: 60,
            rounds: 40,
            at: vec![at(1024, 8 << 20, 1.21e4), at(4096, 32 << 20, 1.23e4)],
            ratio: 1.02,
            flat_up_to: 1.5,
        }),
        bytes_moved: Some(BytesMoved { batch: 3, capacity: CAPACITY, in_place: 3072, copied: 196_608 }),
        peak_memory: vec![peak(ComparedModel::Model, Some(34 << 20)), peak(ComparedModel::Original, None)],
        decode: Some(DecodeTimes {
            batch: 1,
            capacity: 4096,
            rounds: 20,
            at: vec![
                decode(128, 2.4e6, 1.1e6),
                decode(512, 2.5e6, 1.9e6),
                decode(1024, 2.5e6, 3.2e6),
                decode(4095, 2.6e6, 1.02e7),
            ],
            crossover: Some(Crossover::From(800)),
        }),
    }
}

#[test]
fn they_are_what_they_are_called() {
    assert_eq!((passed().verdict, failed().verdict), (Verdict::Passed, Verdict::Failed));
}
