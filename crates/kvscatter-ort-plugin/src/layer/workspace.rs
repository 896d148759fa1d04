//! The memory in which the layers of a session work.

use std::sync::{Mutex, PoisonError};

use crate::status::CallError;

/// The most bytes that a session keeps between two calls.
const MAX_KEPT: usize = 16 << 20;

/// The working memory of the layers of a session. The layers of one run use it one after another. If another run of the
/// same session uses it already, a run allocates other memory.
pub(crate) struct Workspace {
    /// The memory that no call uses.
    idle: Mutex<Vec<u64>>,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { idle: Mutex::new(Vec::new()) }
    }

    /// Calls `work` with parts of these sizes, which contain anything. Keeps the memory for the next call if it is not
    /// too large. Returns an error if the memory cannot be allocated, or the error of `work`.
    pub(super) fn with<R, const N: usize>(
        &self,
        sizes: [usize; N],
        work: impl FnOnce([&mut [u64]; N]) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let needed = sizes.iter().sum();
        let mut memory = core::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
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
        if size_of_val(&*memory) <= MAX_KEPT {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < memory.len() {
                *idle = memory;
            }
        }
        result
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
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
        assert_eq!(workspace.kept(), 5, "the largest memory so far is used again");
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
    fn calls_at_the_same_time_have_different_memory_and_one_is_kept() {
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
        assert_eq!(workspace.kept(), 6);
    }

    #[test]
    fn memory_above_the_limit_is_not_kept() {
        let workspace = Workspace::new();
        let limit = MAX_KEPT / size_of::<u64>();
        assert!(workspace.with([limit, 1], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), 0);
        assert!(workspace.with([limit], |_| Ok(())).is_ok());
        assert_eq!(workspace.kept(), limit);
    }
}
