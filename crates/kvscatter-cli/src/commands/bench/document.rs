//! The JSON document of a report.

use kvscatter_bench::engines::{HAND_LOOP, MEMCPY};
use kvscatter_bench::{Case, Machine, Noise, Outcome, Reference, Report, Spread, Variation};
use serde::Serialize;

/// A report, with the case and the machine.
#[derive(Serialize)]
pub(super) struct BenchDocument<'r> {
    case: &'r Case,
    machine: &'r Machine,
    isa: &'r Option<String>,
    /// Whether this is a debug build, whose times mean nothing.
    debug_build: bool,
    checked_by: Reference,
    /// The bytes that one call moves.
    bytes_per_call: usize,
    engines: Vec<Engine<'r>>,
    /// The A/A spread.
    noise: &'r Option<Noise>,
    /// The range of the medians of blocks of rounds and of processes.
    variation: Option<&'r Variation>,
}

/// The result of an engine. Times are nanoseconds per call, and ratios are between samples of the same round.
#[derive(Serialize)]
struct Engine<'r> {
    name: &'r str,
    #[serde(flatten)]
    outcome: &'r Outcome,
    gigabytes_per_second: Option<f64>,
    over_memcpy: Option<Spread>,
    over_hand_loop: Option<Spread>,
}

impl<'r> BenchDocument<'r> {
    pub(super) fn new(report: &'r Report, machine: &'r Machine, variation: Option<&'r Variation>) -> Self {
        let engines = report.entries.iter().map(|entry| Engine {
            name: &entry.engine,
            outcome: &entry.outcome,
            gigabytes_per_second: report.bandwidth(&entry.engine),
            over_memcpy: report.ratio(&entry.engine, MEMCPY),
            over_hand_loop: report.ratio(&entry.engine, HAND_LOOP),
        });
        Self {
            case: &report.case,
            machine,
            isa: &report.isa,
            debug_build: cfg!(debug_assertions),
            checked_by: report.checked_by,
            bytes_per_call: report.case.moved_bytes(),
            engines: engines.collect(),
            noise: &report.noise,
            variation,
        }
    }
}
