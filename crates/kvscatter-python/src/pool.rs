//! The threads that attention uses.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::available_parallelism;

use kvscatter::Executor;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Returns the number of threads that the machine lets this process use at a time.
pub(crate) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Returns an executor with so many threads, or `None` for one thread.
pub(crate) fn executor(threads: usize) -> Option<Box<dyn Executor>> {
    if threads < 2 {
        return None;
    }
    Some(Box::new(Pool { pool: pool()?, threads }))
}

struct Pool {
    pool: Arc<ThreadPool>,
    threads: usize,
}

impl Executor for Pool {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.pool.in_place_scope(|scope| {
            for _ in 1..self.threads.min(self.pool.current_num_threads() + 1) {
                scope.spawn(|_| work());
            }
            work();
        });
    }
}

/// Returns the threads of this process, which are started at the first call. A process that was forked does not have
/// those of its parent.
fn pool() -> Option<Arc<ThreadPool>> {
    static POOL: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some((process, pool)) if *process == process::id() => return Some(Arc::clone(pool)),
        _ => {}
    }
    // The calling thread also works.
    let threads = cores().saturating_sub(1).max(1);
    let name = |index| format!("kvscatter-{index}");
    let built = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build().ok()?;
    let built = Arc::new(built);
    // Dropping the pool of the parent would wait for its threads.
    if let Some((_, parent)) = pool.replace((process::id(), Arc::clone(&built))) {
        std::mem::forget(parent);
    }
    Some(built)
}
