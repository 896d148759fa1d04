//! The memory in which calls work.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvscatter_attention::Float;

use crate::status::CallError;

/// The most bytes that are kept between two calls.
const MAX_KEPT: usize = 16 << 20;

/// The working memory of all sessions. The nodes of one run use it one after another. Runs at the same time use
/// different memory.
pub(crate) struct Workspace {
    /// The memory that no call uses.
    idle: Mutex<Vec<Vec<u64>>>,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { idle: Mutex::new(Vec::new()) }
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
pub(crate) fn elements_mut<T: Float>(memory: &mut [u64], count: usize) -> &mut [T] {
    bytemuck::cast_slice_mut(memory).get_mut(..count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{MAX_KEPT, Workspace};

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
    fn memory_above_the_limit_is_not_kept() {
        let workspace = Workspace::new();
        let limit = MAX_KEPT / size_of::<u64>();
        assert!(workspace.with([limit, 1], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), []);
        assert!(workspace.with([limit], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), [limit]);
    }
}
