//! The results of a run, and the targets.

use kvscatter_bench::{MedianSpread, Spread};
use serde::{Deserialize, Serialize};

use super::decoder::Decoder;
use crate::host::Host;
use crate::suite::Target;
use crate::target::Verdict;

pub(super) const GROWING: &str = "growing";

/// The times of the nodes between past and present of all caches, alone, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Caches {
    pub(super) growing: Spread,
    pub(super) in_place: Spread,
    /// The ratio of growing to static caches, within a round.
    pub(super) ratio: Spread,
}

/// The time of a whole step of one decoder, in nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct StepTime {
    pub(super) name: String,
    pub(super) time: Spread,
    /// The ratio of the step with growing caches to this one, within a round.
    pub(super) speedup: Spread,
}

/// The results at one context length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The tokens in the caches before the step.
    pub(super) context: usize,
    pub(super) caches: Caches,
    pub(super) steps: Vec<StepTime>,
    /// The A/A spread of the step with growing caches.
    pub(super) noise: MedianSpread,
    pub(super) verdicts: Vec<Verdict>,
    /// The largest difference between the logits of two decoders.
    pub(super) difference: f32,
}

/// The converted decoder with the exported model's attention.
pub(super) const SEPARATE: &str = "static, separate nodes";
/// The converted decoder with `Attention` nodes.
pub(super) const STATIC: &str = "static";
/// The same with kvscatter's plugin.
pub(super) const PLUGIN: &str = "static, plugin";
pub(super) const GROUP_QUERY: &str = "GroupQueryAttention";

/// The smallest allowed speedup of the cache handling at the longest context.
pub(super) const TARGET: f64 = 5.0;

/// All context lengths of a run, and the machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    /// The name and the version of the runtime.
    pub(super) runtime: String,
    pub(super) quick: bool,
    pub(super) decoder: Decoder,
    pub(super) capacity: usize,
    /// The decoders that were not timed, and why.
    pub(super) absent: Vec<String>,
    pub(super) at: Vec<Measured>,
}

/// Returns the targets of a step at a context length.
pub(super) fn targets(context: usize, capacity: usize) -> Vec<Target> {
    /// From this length on, a static cache must not be slower than a growing one.
    const LONG: usize = 256;
    let over_growing = match context {
        _ if context + 1 >= capacity => 1.0 / 3.0,
        LONG.. => 1.0,
        _ => 1.03,
    };
    let target = |baseline: &str, at_most| Target {
        engine: PLUGIN.to_owned(),
        baseline: baseline.to_owned(),
        at_most,
        slack_ns: None,
    };
    vec![target(GROWING, over_growing), target(GROUP_QUERY, 1.1)]
}
