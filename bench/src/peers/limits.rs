//! What no peer does.

use kvscatter_bench::{Case, Unsupported};
use kvscatter_text::units;

/// The bytes that an engine whose library always allocates its results may take for one case.
const OWN_MEMORY_BYTES: usize = 3 << 29;

pub(super) fn unsupported<T>(why: impl Into<String>) -> Result<T, Unsupported> {
    Err(Unsupported(why.into()))
}

/// An engine that cannot work on the scene's memory takes one cache, so much memory, one thread.
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
