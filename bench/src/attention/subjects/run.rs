//! The threads of a subject.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::kvscatter::Executor;

use crate::attention::case::Attention;
use crate::threads::Pool;

/// The time after which threads of other libraries have stopped to spin.
const SETTLE: Duration = Duration::from_millis(2);

/// The longest time until the system has placed new threads on different cores. It often starts them on one.
const PLACEMENT: Duration = Duration::from_millis(100);

/// The longest time in which threads on different cores meet.
const MEETING: Duration = Duration::from_micros(50);

/// Waits until other threads are idle, if the case has several.
pub(super) fn settle(case: &Attention) {
    if case.threads > 1 {
        thread::sleep(SETTLE);
    }
}

/// Calls a function with the threads of a case. They exist only for this call, so that they do not take time
/// from other subjects.
pub(super) fn with_threads<R>(case: &Attention, work: impl FnOnce(Option<&dyn Executor>) -> R) -> R {
    if case.threads < 2 {
        return work(None);
    }
    settle(case);
    let pool = Pool::new(case.threads);
    let deadline = Instant::now() + PLACEMENT;
    while !meet(&pool) && Instant::now() < deadline {}
    work(Some(&pool))
}

/// Returns `true` if all threads of a pool ran at the same time.
fn meet(pool: &Pool) -> bool {
    let (arrived, met) = (AtomicUsize::new(0), AtomicUsize::new(0));
    pool.broadcast(&|| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let began = Instant::now();
        while began.elapsed() < MEETING {
            if arrived.load(Ordering::Acquire) == pool.threads() {
                met.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    });
    met.into_inner() == pool.threads()
}
