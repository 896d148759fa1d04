//! The threads of the plan that is running.

use tract_linalg::multithread::{Executor, current_tract_executor};

/// The threads that tract uses for its matrix products.
pub(crate) struct Threads(Executor);

impl Threads {
    /// Returns the threads of the plan that is running on this thread.
    pub(crate) fn current() -> Self {
        Self(current_tract_executor())
    }

    /// Returns the number of threads. It is 1 for rayon's global pool, which the kernels do not use.
    pub(crate) fn count(&self) -> usize {
        match &self.0 {
            Executor::MultiThread(pool) => pool.current_num_threads(),
            Executor::SingleThread | Executor::RayonGlobal => 1,
        }
    }

    /// Returns the executor if there is more than one thread. The kernels decide which calls are large enough.
    pub(crate) fn executor(&self) -> Option<&dyn kvscatter::Executor> {
        (self.count() > 1).then_some(self as &dyn kvscatter::Executor)
    }
}

impl kvscatter::Executor for Threads {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        if let Executor::MultiThread(pool) = &self.0 {
            pool.broadcast(|_| work());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use tract_linalg::multithread::{Executor, multithread_tract_scope};

    use super::Threads;

    #[test]
    fn every_thread_of_the_pool_helps() {
        let threads = multithread_tract_scope(Executor::multithread(3), Threads::current);
        assert_eq!(threads.count(), 3);
        let seen = Mutex::new(BTreeSet::new());
        let executor = threads.executor().unwrap();
        executor.broadcast(&|| {
            let name = std::thread::current().name().map(str::to_owned);
            assert!(seen.lock().unwrap().insert(name), "a thread was called twice");
        });
        assert_eq!(seen.into_inner().unwrap().len(), 3);
    }

    #[test]
    fn a_plan_with_one_thread_has_no_executor() {
        let threads = multithread_tract_scope(Executor::SingleThread, Threads::current);
        assert_eq!(threads.count(), 1);
        assert!(threads.executor().is_none());
    }
}
