//! A host's pool: threads that live as long as the tests, and spin before they sleep.

use std::sync::LazyLock;

use kvscatter::Executor;
use rayon::{ThreadPool, ThreadPoolBuilder};

pub(crate) struct Pool(ThreadPool);

impl Executor for Pool {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.0.broadcast(|_| work());
    }
}

/// More threads than small machines have cores, so that they are also interrupted in the middle of a piece.
pub(crate) static POOL: LazyLock<Pool> =
    LazyLock::new(|| Pool(ThreadPoolBuilder::new().num_threads(3).build().unwrap()));
