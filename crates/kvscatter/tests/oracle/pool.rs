//! A pool like that of a host program. Its threads live as long as the tests and spin before they sleep.

use std::sync::LazyLock;

use kvscatter::Executor;
use rayon::{ThreadPool, ThreadPoolBuilder};

pub(crate) struct Pool(ThreadPool);

impl Executor for Pool {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.0.broadcast(|_| work());
    }
}

/// There are more threads than a small machine has cores, so that threads are also interrupted while they
/// copy.
pub(crate) static POOL: LazyLock<Pool> =
    LazyLock::new(|| Pool(ThreadPoolBuilder::new().num_threads(3).build().unwrap()));
