//! A pool of spinning threads, such as the host program of a model may have.
#![expect(unsafe_code, reason = "threads borrow the closure that they run")]

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use kvscatter::Executor;

type Work<'a> = &'a (dyn Fn() + Sync);

/// Threads that spin while they wait for work. They start work within a fraction of a microsecond.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// The state that the caller and the workers share.
///
/// **W1** The closure in `work` is alive from a change of `round` until `running` is 0 again. No worker calls
/// the closure at any other time.
struct Shared {
    work: Mutex<Option<Work<'static>>>,
    round: AtomicUsize,
    running: AtomicUsize,
    panicked: AtomicBool,
    closing: AtomicBool,
    /// The lock that allows only one caller at a time.
    caller: Mutex<()>,
}

impl Pool {
    /// Creates a pool of this many threads, including the caller's.
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            work: Mutex::new(None),
            round: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            caller: Mutex::new(()),
        });
        let worker = |_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.serve())
        };
        let workers = (1..threads).map(worker).collect();
        Self { shared, workers }
    }

    /// Returns the number of threads, including the caller's.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }
}

impl Executor for Pool {
    /// Runs `work` once on every thread, including the caller's, and returns when all threads have finished.
    ///
    /// Callers wait for each other, so `work` must not call the pool that runs it.
    ///
    /// # Panics
    /// Panics if `work` panics on any thread.
    fn broadcast(&self, work: Work<'_>) {
        let _caller = self.shared.caller.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: Only the lifetime changes. Workers call the closure only between the change of `round` and
        // the moment when `running` is 0 again (W1). This function calls the closure itself, and it returns
        // or unwinds only after that moment.
        let work = unsafe { mem::transmute::<Work<'_>, Work<'static>>(work) };
        *self.shared.work.lock().unwrap_or_else(PoisonError::into_inner) = Some(work);
        self.shared.running.store(self.workers.len(), Ordering::Relaxed);
        self.shared.round.fetch_add(1, Ordering::Release);
        let own = panic::catch_unwind(AssertUnwindSafe(work));
        spin_while(|| self.shared.running.load(Ordering::Acquire) > 0);
        *self.shared.work.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let theirs = self.shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(cause) = own {
            panic::resume_unwind(cause);
        }
        assert!(!theirs, "the work panicked on another thread");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.round.fetch_add(1, Ordering::Release);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its work, so joining it cannot fail.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut done = 0;
        loop {
            spin_while(|| self.round.load(Ordering::Acquire) == done);
            done = done.wrapping_add(1);
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            let work = *self.work.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(work) = work
                && panic::catch_unwind(AssertUnwindSafe(work)).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // The worker does not call the closure after this line. A thread that reads 0 with acquire
            // ordering sees everything that the closure wrote.
            self.running.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Spins while a condition is true, and yields from time to time in case there are more threads than cores.
fn spin_while(waiting: impl Fn() -> bool) {
    const TURNS: u32 = 1 << 14;
    let mut turns = 0;
    while waiting() {
        turns = (turns + 1) % TURNS;
        if turns == 0 {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::{Executor, Pool};

    #[test]
    fn every_thread_works_once_in_every_round() {
        for threads in 1..4 {
            let pool = Pool::new(threads);
            for _ in 0..50 {
                let seen = Mutex::new(Vec::new());
                pool.broadcast(&|| seen.lock().unwrap().push(thread::current().id()));
                let seen = seen.into_inner().unwrap();
                assert_eq!((seen.len(), seen.into_iter().collect::<HashSet<_>>().len()), (threads, threads));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(2);
        for theirs in [true, false] {
            let caller = thread::current().id();
            let work = || assert_eq!(thread::current().id() == caller, theirs);
            assert!(catch_unwind(AssertUnwindSafe(|| pool.broadcast(&work))).is_err());
        }
        let count = AtomicUsize::new(0);
        pool.broadcast(&|| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 2);
    }
}
