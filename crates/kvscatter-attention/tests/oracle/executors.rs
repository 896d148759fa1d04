//! Executors that run the work too seldom, too often, or on other threads.

use kvscatter::Executor;

/// An executor that calls the work this many times, one after the other.
pub(crate) struct Times(pub(crate) usize);

impl Executor for Times {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        (0..self.0).for_each(|_| work());
    }
}

/// An executor that calls the work once on each of this many new threads.
pub(crate) struct Threads(pub(crate) usize);

impl Executor for Threads {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        std::thread::scope(|threads| {
            for _ in 0..self.0 {
                threads.spawn(work);
            }
        });
    }
}
