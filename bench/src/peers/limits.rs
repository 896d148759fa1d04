//! The cases that other libraries do not take.

use kvscatter_bench::{Case, Unsupported};
use kvscatter_onnx::text::units;

/// The most bytes that an engine may use for one case, if its library always allocates its results.
const OWN_MEMORY_BYTES: usize = 3 << 29;

pub(super) fn unsupported<T>(why: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported(why.into()))
}

/// Refuses a case for an engine that cannot work on the scene's memory, unless the case has one cache, one
/// thread and at most [`OWN_MEMORY_BYTES`].
pub(super) fn check_own_memory(case: &Case, bytes: usize) -> Result<(), Unsupported> {
    if case.caches_per_call() > 1 {
        return unsupported("owns its memory, and there are many caches");
    }
    if bytes > OWN_MEMORY_BYTES {
        return unsupported(format!("would allocate {}", units::bytes(bytes as u64)));
    }
    check_threads(case)
}

pub(super) fn check_threads(case: &Case) -> Result<(), Unsupported> {
    if case.parameters().threads > 1 { unsupported("runs on one thread here") } else { Ok(()) }
}
