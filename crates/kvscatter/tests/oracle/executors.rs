//! Executors that run the work too seldom or too often.

use kvscatter::Executor;

/// An executor that does not run the work, so that the calling thread must do all of it.
struct Never;

impl Executor for Never {
    fn broadcast(&self, _work: &(dyn Fn() + Sync)) {}
}

/// An executor that runs the same work three times, one after the other.
struct Thrice;

impl Executor for Thrice {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        (0..3).for_each(|_| work());
    }
}

/// The executors that every case runs on, after a run without one. There are none with the real limits,
/// because the cases are much too small to be shared between threads.
pub(crate) const ODD: &[&dyn Executor] = if cfg!(kvscatter_tiny) { &[&Never, &Thrice] } else { &[] };

/// The executors that large writes run on.
pub(crate) const ODD_FOR_LARGE: &[&dyn Executor] = &[&Never, &Thrice];
