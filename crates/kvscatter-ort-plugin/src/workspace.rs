//! The memory in which calls work.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use kvscatter_attention::{Prepared, Scratch};

use crate::status::CallError;

/// The most bytes that are kept between two calls.
const MAX_KEPT: usize = 16 << 20;

/// The working memory of all sessions. The nodes of one run use it one after another. Runs at the same time use
/// different memory.
pub(crate) struct Workspace {
    /// The memory that no call uses.
    idle: Mutex<Vec<Vec<u64>>>,
    /// The memory of attention that no call uses. The one that was used last is the last.
    scratches: Mutex<Vec<Scratch>>,
}

/// The number of scratches that are kept. The layers of a model share one in decoding, and one for each length of a
/// prompt. Runs at the same time need others.
const MAX_SCRATCHES: usize = 8;

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { idle: Mutex::new(Vec::new()), scratches: Mutex::new(Vec::new()) }
    }

    /// Calls `work` with memory for a prepared call, which the next call of the same size uses again. `make` allocates
    /// it for the first one.
    pub(crate) fn with_scratch<R>(
        &self,
        prepared: &Prepared,
        make: impl FnOnce() -> Scratch,
        work: impl FnOnce(&mut Scratch) -> R,
    ) -> R {
        let kept = {
            let mut scratches = self.scratches();
            let index = scratches.iter().rposition(|scratch| prepared.keeps(scratch));
            index.map(|index| scratches.remove(index))
        };
        let mut scratch = kept.unwrap_or_else(make);
        prepared.fit(&mut scratch);
        let result = work(&mut scratch);
        let mut scratches = self.scratches();
        scratches.push(scratch);
        let oldest = (scratches.len() > MAX_SCRATCHES).then(|| scratches.remove(0));
        drop(scratches);
        drop(oldest);
        result
    }

    fn scratches(&self) -> MutexGuard<'_, Vec<Scratch>> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with parts of these sizes, which contain anything. Keeps the memory for the next call if all that
    /// is kept is not too large. Returns an error if the memory cannot be allocated, or the error of `work`.
    pub(crate) fn with<R, const N: usize>(
        &self,
        sizes: [usize; N],
        work: impl FnOnce([&mut [u64]; N]) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let needed = sizes.iter().sum();
        let mut memory = self.idle().pop().unwrap_or_default();
        if memory.len() < needed {
            // The old memory is freed before the new one is allocated.
            memory = Vec::new();
            memory.try_reserve_exact(needed).map_err(|_| {
                let bytes = needed.saturating_mul(size_of::<u64>());
                CallError::fail(format!("kvscatter: {bytes} bytes of working memory cannot be allocated"))
            })?;
            memory.resize(needed, 0);
        }
        let mut rest = &mut *memory;
        let result = work(sizes.map(|size| rest.split_off_mut(..size).unwrap_or_default()));
        let mut idle = self.idle();
        if idle.iter().chain([&memory]).map(|kept| size_of_val(&**kept)).sum::<usize>() <= MAX_KEPT {
            idle.push(memory);
        }
        result
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<u64>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn kept(&self) -> Vec<usize> {
        self.idle().iter().map(Vec::len).collect()
    }
}

/// Returns the size of memory for so many elements of at most 4 bytes.
pub(crate) fn words(elements: usize) -> usize {
    elements.div_ceil(2)
}

/// Returns the first elements of memory that has at least so many.
pub(crate) fn elements_mut<T: Pod>(memory: &mut [u64], count: usize) -> &mut [T] {
    bytemuck::cast_slice_mut(memory).get_mut(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kvscatter_attention::{Attention, Shapes};

    use super::{MAX_KEPT, MAX_SCRATCHES, Workspace};

    #[test]
    fn parts_are_separate_and_have_the_sizes_that_were_asked_for() {
        let workspace = Workspace::new();
        for sizes in [[3, 0, 2], [1, 4, 0], [0, 0, 0]] {
            let work = |parts: [&mut [u64]; 3]| {
                let got = parts.each_ref().map(|part| part.len());
                for (index, part) in (1..).zip(parts) {
                    part.fill(index);
                }
                Ok(got)
            };
            assert_eq!(workspace.with(sizes, work).ok(), Some(sizes));
        }
        assert_eq!(workspace.kept(), [5], "the same memory is used again");
        let parts = workspace.with([2, 3], |parts| {
            let [one, two] = parts;
            one.fill(1);
            two.fill(2);
            Ok([one.to_vec(), two.to_vec()])
        });
        assert_eq!(parts.ok(), Some([vec![1, 1], vec![2, 2, 2]]));
    }

    #[test]
    fn memory_that_cannot_be_allocated_is_an_error() {
        let workspace = Workspace::new();
        let refused = workspace.with([usize::MAX / 16, 0], |_| Ok(()));
        assert!(refused.is_err_and(|failure| failure.to_string().contains("cannot be allocated")));
    }

    #[test]
    fn calls_at_the_same_time_have_different_memory() {
        let workspace = Workspace::new();
        let outer = workspace.with([4], |[outer]| {
            outer.fill(1);
            workspace.with([6], |[inner]| {
                inner.fill(2);
                Ok(())
            })?;
            Ok(outer.to_vec())
        });
        assert_eq!(outer.ok(), Some(vec![1; 4]));
        assert_eq!(workspace.kept(), [6, 4]);
    }

    #[test]
    fn calls_of_one_size_use_one_scratch() {
        let workspace = Workspace::new();
        let prepared = |queries: usize, keys: usize| {
            let (query, cache) = ([1, 2, queries, 8], [1, 1, keys, 8]);
            let element = kvscatter::ElementType::Float32;
            let shapes =
                Shapes { element, query: &query, key: &cache, value: &cache, mask: None, past: None };
            Attention::new().prepare(&shapes).unwrap()
        };
        let made = core::cell::Cell::new(0);
        let call = |queries, keys| {
            let prepared = prepared(queries, keys);
            let make = || {
                made.set(made.get() + 1);
                prepared.scratch(2)
            };
            workspace.with_scratch(&prepared, make, |scratch| assert!(prepared.keeps(scratch)));
        };
        // The steps of a growing cache, and another number of queries between them.
        (1..2000).for_each(|keys| call(1, keys));
        call(3, 7);
        call(1, 2000);
        assert_eq!(made.get(), 2);
        (4..4 + MAX_SCRATCHES).for_each(|queries| call(queries, 100));
        call(1, 2000);
        assert_eq!((made.get(), workspace.scratches().len()), (3 + MAX_SCRATCHES, MAX_SCRATCHES));
    }

    #[test]
    fn memory_above_the_limit_is_not_kept() {
        let workspace = Workspace::new();
        let limit = MAX_KEPT / size_of::<u64>();
        assert!(workspace.with([limit, 1], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), []);
        assert!(workspace.with([limit], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), [limit]);
    }
}
