//! The prepared writes for the shapes with which a kernel was called last.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::context::InputTensor;
use crate::status::Failure;

/// The number of prepared writes that are kept. Decoding needs one write, and each chunk size of a prefill or
/// a draft needs another. Each thread that decodes at the same time needs one too.
const MAX_ENTRIES: usize = 8;

/// A small cache of prepared writes.
///
/// Sessions run one kernel on many threads at once, and no thread waits here. A thread that cannot lock an
/// entry tries the next one. If no entry that it can lock has the write, the thread prepares the write
/// itself.
pub(crate) struct RecentlyPrepared<P> {
    entries: [RecentEntry<P>; MAX_ENTRIES],
    /// The index of the entry that was read or filled last.
    latest: AtomicUsize,
}

impl<P> RecentlyPrepared<P> {
    pub(crate) fn new() -> Self {
        Self { entries: [const { RecentEntry::empty() }; MAX_ENTRIES], latest: AtomicUsize::new(0) }
    }

    /// Calls `run` with the write that is prepared for these tensors. If none of the recent writes is for
    /// them, `prepare` makes a new one.
    ///
    /// # Errors
    /// Returns an error if `prepare` or `run` does.
    pub(crate) fn with(
        &self,
        cache: &InputTensor<'_>,
        update: &InputTensor<'_>,
        prepare: impl FnOnce() -> Result<P, Failure>,
        run: impl FnOnce(&P) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let latest = self.latest.load(Ordering::Relaxed);
        let entries = || self.entries.iter().enumerate().cycle().skip(latest).take(MAX_ENTRIES);
        for (index, entry) in entries() {
            if let Some(guard) = entry.try_lock()
                && let Some(write) = guard.write()
                && write.is_for(cache, update)
            {
                if index != latest {
                    self.latest.store(index, Ordering::Relaxed);
                }
                return run(&write.prepared);
            }
        }
        let prepared = prepare()?;
        let written = run(&prepared);
        let write =
            KeyedWrite { code: cache.code, cache: cache.shape.into(), update: update.shape.into(), prepared };
        // The entry after the latest is the oldest, unless an entry was locked when it should have been
        // filled.
        if let Some((index, mut guard)) =
            entries().skip(1).find_map(|(index, entry)| Some((index, entry.try_lock()?)))
        {
            guard.fill(write);
            self.latest.store(index, Ordering::Relaxed);
        }
        written
    }
}

/// One prepared write, which one thread at a time can lock.
///
/// The lock is not a mutex, because a mutex unlocks with a read-modify-write, which waits until all stores
/// have reached the CPU caches. No thread waits for an entry, so a plain store is enough.
struct RecentEntry<P> {
    is_locked: AtomicBool,
    write: UnsafeCell<Option<KeyedWrite<P>>>,
}

// SAFETY: Only a `RecentEntryGuard` reaches the write, and `is_locked` lets only one guard exist at a time.
// The guard may be on any thread, because `P` is `Send`.
unsafe impl<P: Send> Sync for RecentEntry<P> {}

impl<P> RecentEntry<P> {
    const fn empty() -> Self {
        Self { is_locked: AtomicBool::new(false), write: UnsafeCell::new(None) }
    }

    fn try_lock(&self) -> Option<RecentEntryGuard<'_, P>> {
        (!self.is_locked.swap(true, Ordering::Acquire)).then(|| RecentEntryGuard { entry: self })
    }
}

/// A locked entry. Dropping it unlocks the entry.
struct RecentEntryGuard<'a, P> {
    entry: &'a RecentEntry<P>,
}

impl<P> RecentEntryGuard<'_, P> {
    fn write(&self) -> Option<&KeyedWrite<P>> {
        // SAFETY: `is_locked` lets no other `RecentEntryGuard` of this entry exist, and the result borrows
        // this one.
        unsafe { &*self.entry.write.get() }.as_ref()
    }

    fn fill(&mut self, write: KeyedWrite<P>) {
        // SAFETY: `is_locked` lets no other `RecentEntryGuard` of this entry exist, and `&mut self` means
        // that nothing borrows this one.
        unsafe { *self.entry.write.get() = Some(write) };
    }
}

impl<P> Drop for RecentEntryGuard<'_, P> {
    fn drop(&mut self) {
        self.entry.is_locked.store(false, Ordering::Release);
    }
}

/// A prepared write, with the element type and the shapes that it was prepared for.
struct KeyedWrite<P> {
    code: i32,
    cache: Box<[i64]>,
    update: Box<[i64]>,
    prepared: P,
}

impl<P> KeyedWrite<P> {
    fn is_for(&self, cache: &InputTensor<'_>, update: &InputTensor<'_>) -> bool {
        self.code == cache.code
            && self.code == update.code
            && *self.cache == *cache.shape
            && *self.update == *update.shape
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kvscatter::Argument;

    use super::{MAX_ENTRIES, RecentlyPrepared};
    use crate::context::InputTensor;
    use crate::status::Failure;

    fn shaped(code: i32, shape: &[i64]) -> InputTensor<'_> {
        InputTensor::without_data(Argument::PastCache, code, shape)
    }

    fn refuse() -> Failure {
        Failure::fail("refused")
    }

    #[test]
    fn shapes_that_repeat_are_prepared_once() {
        let (recent, prepared) = (RecentlyPrepared::new(), Cell::new(0));
        let call = |cache: &InputTensor<'_>, update: &InputTensor<'_>, value: usize| {
            let mut seen = None;
            let prepare = || {
                prepared.set(prepared.get() + 1);
                Ok(value)
            };
            let ran = recent.with(cache, update, prepare, |&it| {
                seen = Some(it);
                Ok(())
            });
            assert!(ran.is_ok());
            seen
        };
        let cache = shaped(1, &[2, 8, 16]);
        let lengths: Vec<[i64; 3]> = (1..=9).map(|rows| [2, rows, 16]).collect();
        for round in 0..3 {
            for (value, update) in lengths.iter().take(MAX_ENTRIES).enumerate() {
                assert_eq!(call(&cache, &shaped(1, update), value), Some(value), "round {round}");
            }
        }
        assert_eq!(prepared.get(), MAX_ENTRIES);
        assert_eq!(
            call(&cache, &shaped(1, &lengths[MAX_ENTRIES]), MAX_ENTRIES),
            Some(MAX_ENTRIES),
            "one more than are kept"
        );
        assert_eq!(call(&shaped(10, &[2, 8, 16]), &shaped(10, &lengths[1]), 9), Some(9), "another type");
        assert_eq!(prepared.get(), MAX_ENTRIES + 2);
    }

    #[test]
    fn what_is_refused_is_not_kept() {
        let recent = RecentlyPrepared::new();
        let (cache, update) = (shaped(1, &[1, 1]), shaped(1, &[1, 2]));
        assert!(recent.with(&cache, &update, || Err(refuse()), |_: &u8| Ok(())).is_err());
        let mut ran = false;
        let run = |_: &u8| {
            ran = true;
            Err(refuse())
        };
        assert!(
            recent.with(&cache, &update, || Ok(0), run).is_err(),
            "prepared, but its indices are refused"
        );
        assert!(ran);
        assert!(recent.with(&cache, &update, || Err(refuse()), |_| Ok(())).is_ok(), "and kept all the same");
    }

    /// A call that can lock no entry prepares the write itself.
    #[test]
    fn calls_do_not_wait_for_an_entry() {
        let recent = RecentlyPrepared::new();
        let shapes: Vec<[i64; 2]> = (0..20).map(|rows| [1, rows]).collect();
        let cache = shaped(1, &[1, 99]);
        let depth = Cell::new(0);
        fn nest(
            recent: &RecentlyPrepared<usize>,
            cache: &InputTensor<'_>,
            shapes: &[[i64; 2]],
            depth: &Cell<usize>,
        ) {
            let Some((first, rest)) = shapes.split_first() else { return };
            let update = shaped(1, first);
            for _ in 0..2 {
                let ran = recent.with(
                    cache,
                    &update,
                    || Ok(rest.len()),
                    |&it| {
                        assert_eq!(it, rest.len());
                        depth.set(depth.get() + 1);
                        Ok(())
                    },
                );
                assert!(ran.is_ok());
            }
            let ran = recent.with(
                cache,
                &update,
                || Ok(rest.len()),
                |_| {
                    nest(recent, cache, rest, depth);
                    Ok(())
                },
            );
            assert!(ran.is_ok());
        }
        nest(&recent, &cache, &shapes, &depth);
        assert_eq!(depth.get(), 40);
    }

    /// Every entry returns the write for the shapes that the thread asked for.
    #[test]
    fn threads_get_what_they_asked_for() {
        let recent = RecentlyPrepared::new();
        let shapes: Vec<[i64; 2]> = (0..12).map(|rows| [1, rows]).collect();
        std::thread::scope(|threads| {
            for first in 0..8 {
                let (recent, shapes) = (&recent, &shapes);
                threads.spawn(move || {
                    let cache = shaped(1, &[1, 99]);
                    for shape in shapes.iter().cycle().skip(first).step_by(5).take(5_000) {
                        let asked = recent.with(
                            &cache,
                            &shaped(1, shape),
                            || Ok(*shape),
                            |prepared| {
                                assert_eq!(prepared, shape);
                                Ok(())
                            },
                        );
                        assert!(asked.is_ok());
                    }
                });
            }
        });
    }
}
