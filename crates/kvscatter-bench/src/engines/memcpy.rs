//! The first yardstick: one memcpy of the number of bytes that the write moves.

use std::sync::{Arc, Mutex, PoisonError};

use ::kvscatter::Executor;

use crate::call::{Call, Task};
use crate::case::{Case, Form};
use crate::engine::{Engine, Failed, Run, Unsupported};
use crate::engines::MEMCPY;
use crate::layout::{runs, straddles};
use crate::raw::{Pool, Runs};
use crate::scene::Scene;

/// libc's memcpy. See [`Task::Memcpy`].
#[derive(Debug)]
pub struct Memcpy {
    name: String,
    pool: Option<Arc<Pool>>,
}

struct MemcpyRun {
    case: Case,
    runs: Runs,
    pool: Option<Arc<Pool>>,
}

impl Memcpy {
    /// Creates an engine that runs on the calling thread.
    #[must_use]
    pub fn new() -> Self {
        Self { name: MEMCPY.to_owned(), pool: None }
    }

    /// Creates an engine with one memcpy for each thread of a pool. All threads copy equal shares.
    #[must_use]
    pub fn on(pool: Arc<Pool>) -> Self {
        Self { name: format!("{} × {MEMCPY}", pool.threads()), pool: Some(pool) }
    }
}

impl Default for Memcpy {
    fn default() -> Self {
        Self::new()
    }
}

impl Engine for Memcpy {
    fn name(&self) -> &str {
        &self.name
    }

    fn task(&self) -> Task {
        Task::Memcpy
    }

    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        if self.pool.is_some() && straddles(&case.dims()) {
            return Err(Unsupported("rows that straddle bytes cannot be divided among threads".to_owned()));
        }
        let runs = runs(case, Task::Memcpy, scene.starts());
        Ok(Box::new(MemcpyRun { case: case.clone(), runs, pool: self.pool.clone() }))
    }
}

impl Run for MemcpyRun {
    fn aim(&mut self, starts: &[i64]) {
        self.runs = runs(&self.case, Task::Memcpy, starts);
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        call.each(|tensor| {
            match (&self.pool, self.case.parameters().form) {
                (None, Form::InPlace) => self.runs.copy(tensor.cache, tensor.update),
                (None, Form::Functional) => copy(tensor.present, tensor.cache),
                (Some(pool), Form::InPlace) => {
                    for range in self.runs.destinations() {
                        copy_on(pool, &mut tensor.cache[range], tensor.update);
                    }
                }
                (Some(pool), Form::Functional) => copy_on(pool, tensor.present, tensor.cache),
            }
            Ok(())
        })
    }
}

/// Calls libc's memcpy. The compiler cannot replace the call, because it does not know the length.
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

/// Copies an equal share on each thread.
fn copy_on(pool: &Pool, to: &mut [u8], from: &[u8]) {
    let share = to.len().div_ceil(pool.threads()).max(1);
    let shares = Mutex::new(to.chunks_mut(share).zip(from.chunks(share)));
    pool.broadcast(&|| {
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some((to, from)) = next() {
            copy(to, from);
        }
    });
}
