//! What every subject does, and its threads.

use std::thread;
use std::time::Duration;

use ::kvscatter::Executor;
use kvscatter_bench::{Failed, Pool};

use crate::attention::scene::Scene;
use crate::attention::suite::Parameters;

/// A subject that is ready for one case.
pub(crate) trait Run {
    /// Makes so many calls, and returns their time.
    ///
    /// # Errors
    /// Returns the library's error.
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed>;

    /// Compares the result of the last call with the expected one.
    ///
    /// # Errors
    /// Returns the first difference.
    fn check(&mut self, scene: &Scene) -> Result<(), String>;
}

/// The time after which threads of other libraries have stopped to spin.
const SETTLE: Duration = Duration::from_millis(2);

/// Waits until other threads are idle, if the case has several.
pub(super) fn settle(case: &Parameters) {
    if case.threads > 1 {
        thread::sleep(SETTLE);
    }
}

/// Calls a function with the threads of a case. They exist only for this call, so that they do not take time
/// from other subjects.
pub(super) fn with_threads<R>(case: &Parameters, work: impl FnOnce(Option<&dyn Executor>) -> R) -> R {
    if case.threads < 2 {
        return work(None);
    }
    settle(case);
    let pool = Pool::new(case.threads);
    // Its threads have started when this returns.
    pool.broadcast(&|| ());
    work(Some(&pool))
}
