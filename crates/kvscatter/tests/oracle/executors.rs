//! Executors that do too little or too much.

use kvscatter::Executor;

/// Calls nothing: all is left to the thread that asked.
struct Never;

impl Executor for Never {
    fn broadcast(&self, _work: &(dyn Fn() + Sync)) {}
}

/// Calls the same work three times, one after the other.
struct Thrice;

impl Executor for Thrice {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        (0..3).for_each(|_| work());
    }
}

/// The executors that every case runs on, after it ran without one. None with the real limits, whose share
/// begins far above what cases have.
pub(crate) const ODD: &[&dyn Executor] = if cfg!(kvscatter_tiny) { &[&Never, &Thrice] } else { &[] };

/// The same, for writes that are large.
pub(crate) const ODD_FOR_LARGE: &[&dyn Executor] = &[&Never, &Thrice];
