//! The calls that were prepared for the shapes with which a kernel was called last.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::status::CallError;

/// The number of prepared calls that are kept. Decoding needs one, and each chunk size of a prefill or a draft
/// needs another. Each thread that decodes at the same time needs one too.
const MAX_ENTRIES: usize = 8;

/// The element type of a tensor, as the runtime's number for it, and the shape.
pub(crate) type Signature<'a> = (i32, &'a [i64]);

/// A small cache of prepared calls.
///
/// Sessions run one kernel on many threads at once, and no thread waits here. A thread that cannot lock an
/// entry tries the next one. If no entry that it can lock has the call, the thread prepares the call itself.
pub(crate) struct RecentlyPrepared<P> {
    entries: [RecentEntry<P>; MAX_ENTRIES],
    /// The index of the entry that was read or filled last.
    latest: AtomicUsize,
}

impl<P> RecentlyPrepared<P> {
    pub(crate) fn new() -> Self {
        Self { entries: [const { RecentEntry::empty() }; MAX_ENTRIES], latest: AtomicUsize::new(0) }
    }

    /// Returns what is prepared for these tensors. If none of the recent calls is for them, `prepare` makes a new one.
    /// A kernel has the same inputs in every call, so they need no names here. Returns an error if `prepare` does.
    pub(crate) fn get<'t>(
        &self,
        tensors: impl Iterator<Item = Signature<'t>> + Clone,
        prepare: impl FnOnce() -> Result<P, CallError>,
    ) -> Result<Recent<'_, P>, CallError> {
        let latest = self.latest.load(Ordering::Relaxed);
        let entries = || self.entries.iter().enumerate().cycle().skip(latest).take(MAX_ENTRIES);
        for (index, entry) in entries() {
            if let Some((call, lock)) = entry.try_lock()
                && let Some(call) = call
                && call.is_for(tensors.clone())
            {
                if index != latest {
                    self.latest.store(index, Ordering::Relaxed);
                }
                return Ok(Recent::Kept { prepared: &mut call.prepared, _lock: lock });
            }
        }
        let call = KeyedCall { key: key(tensors), prepared: prepare()? };
        // The entry after the latest is the oldest, unless an entry was locked when it should have been
        // filled.
        let oldest = entries().skip(1).find_map(|(index, entry)| Some((index, entry.try_lock()?)));
        Ok(match oldest {
            Some((index, (place, lock))) => {
                self.latest.store(index, Ordering::Relaxed);
                Recent::Kept { prepared: &mut place.insert(call).prepared, _lock: lock }
            }
            None => Recent::Owned(call.prepared),
        })
    }
}

/// What is prepared for a call. No other call uses it before this is dropped.
pub(crate) enum Recent<'a, P> {
    Kept {
        prepared: &'a mut P,
        _lock: EntryLock<'a>,
    },
    /// All entries were locked.
    Owned(P),
}

impl<P> Deref for Recent<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        match self {
            Self::Kept { prepared, .. } => prepared,
            Self::Owned(prepared) => prepared,
        }
    }
}

impl<P> DerefMut for Recent<'_, P> {
    fn deref_mut(&mut self) -> &mut P {
        match self {
            Self::Kept { prepared, .. } => prepared,
            Self::Owned(prepared) => prepared,
        }
    }
}

/// One prepared call, which one thread at a time can lock.
///
/// The lock is not a mutex, because a mutex unlocks with a read-modify-write, which waits until all stores
/// have reached the CPU caches. No thread waits for an entry, so a plain store is enough.
struct RecentEntry<P> {
    is_locked: AtomicBool,
    call: UnsafeCell<Option<KeyedCall<P>>>,
}

// SAFETY: Only the owner of an `EntryLock` reaches the call, and `is_locked` lets only one lock exist at a time.
// The lock may be on any thread, because `P` is `Send`.
unsafe impl<P: Send> Sync for RecentEntry<P> {}

impl<P> RecentEntry<P> {
    const fn empty() -> Self {
        Self { is_locked: AtomicBool::new(false), call: UnsafeCell::new(None) }
    }

    /// Returns the call and its lock. The call must not be used after the lock is dropped.
    #[expect(clippy::mut_from_ref, reason = "the lock that is returned makes the reference exclusive")]
    fn try_lock(&self) -> Option<(&mut Option<KeyedCall<P>>, EntryLock<'_>)> {
        if self.is_locked.swap(true, Ordering::Acquire) {
            return None;
        }
        let lock = EntryLock { is_locked: &self.is_locked };
        // SAFETY: `is_locked` lets no other lock of this entry exist, and every caller uses the call only as long as
        // it has the lock.
        Some((unsafe { &mut *self.call.get() }, lock))
    }
}

/// The lock of an entry. Dropping it unlocks the entry.
pub(crate) struct EntryLock<'a> {
    is_locked: &'a AtomicBool,
}

impl Drop for EntryLock<'_> {
    fn drop(&mut self) {
        self.is_locked.store(false, Ordering::Release);
    }
}

/// A prepared call, with the element types and the shapes that it was prepared for.
struct KeyedCall<P> {
    /// The element type, the rank and the dimensions of each tensor.
    key: Box<[i64]>,
    prepared: P,
}

impl<P> KeyedCall<P> {
    fn is_for<'t>(&self, tensors: impl Iterator<Item = Signature<'t>>) -> bool {
        let mut key = &*self.key;
        for (code, shape) in tensors {
            let Some((&head, rest)) = key.split_first_chunk() else { return false };
            let Some((dims, rest)) = rest.split_at_checked(shape.len()) else { return false };
            if head != key_head(code, shape) || dims != shape {
                return false;
            }
            key = rest;
        }
        key.is_empty()
    }
}

fn key<'t>(tensors: impl Iterator<Item = Signature<'t>>) -> Box<[i64]> {
    tensors.flat_map(|(code, shape)| key_head(code, shape).into_iter().chain(shape.iter().copied())).collect()
}

/// Returns the element type and the rank, which come before the dimensions in a key.
fn key_head(code: i32, shape: &[i64]) -> [i64; 2] {
    [i64::from(code), shape.len() as i64]
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{MAX_ENTRIES, Recent, RecentlyPrepared, Signature};
    use crate::status::CallError;

    fn refuse() -> CallError {
        CallError::fail("refused")
    }

    #[test]
    fn shapes_that_repeat_are_prepared_once() {
        let (recent, prepared) = (RecentlyPrepared::new(), Cell::new(0));
        let call = |cache: Signature<'_>, update: Signature<'_>, value: usize| {
            let prepare = || {
                prepared.set(prepared.get() + 1);
                Ok(value)
            };
            recent.get([cache, update].into_iter(), prepare).ok().map(|value| *value)
        };
        let cache: Signature<'_> = (1, &[2, 8, 16]);
        let lengths: Vec<[i64; 3]> = (1..=9).map(|rows| [2, rows, 16]).collect();
        for round in 0..3 {
            for (value, update) in lengths.iter().take(MAX_ENTRIES).enumerate() {
                assert_eq!(call(cache, (1, update), value), Some(value), "round {round}");
            }
        }
        assert_eq!(prepared.get(), MAX_ENTRIES);
        assert_eq!(
            call(cache, (1, &lengths[MAX_ENTRIES]), MAX_ENTRIES),
            Some(MAX_ENTRIES),
            "one more than are kept"
        );
        assert_eq!(call((10, cache.1), (10, &lengths[1]), 9), Some(9), "another type");
        assert_eq!(prepared.get(), MAX_ENTRIES + 2);
    }

    /// Lists of tensors whose numbers would be the same one after another are different calls.
    #[test]
    fn shapes_are_compared_tensor_by_tensor() {
        let lists: [&[Signature<'_>]; 7] = [
            &[(1, &[2, 3])],
            &[(1, &[2]), (3, &[])],
            &[(1, &[2, 3]), (1, &[2])],
            &[(1, &[2, 3]), (1, &[])],
            &[(1, &[]), (1, &[2, 3])],
            &[(2, &[2, 3])],
            &[],
        ];
        let recent = RecentlyPrepared::new();
        for round in 0..2 {
            for (index, list) in lists.iter().enumerate() {
                let prepare = || if round == 0 { Ok(index) } else { Err(refuse()) };
                let got = recent.get(list.iter().copied(), prepare).ok().map(|index| *index);
                assert_eq!(got, Some(index), "{list:?}");
            }
        }
    }

    #[test]
    fn only_prepared_calls_are_kept() {
        let recent = RecentlyPrepared::new();
        let tensors = [(1, [1, 1].as_slice()), (1, &[1, 2])];
        assert!(recent.get(tensors.into_iter(), || Err(refuse())).is_err());
        assert!(recent.get(tensors.into_iter(), || Ok(0)).is_ok());
        assert!(recent.get(tensors.into_iter(), || Err::<i32, _>(refuse())).is_ok());
    }

    /// A call that can lock no entry prepares the write itself.
    #[test]
    fn calls_do_not_wait_for_an_entry() {
        let recent = RecentlyPrepared::new();
        let shapes: Vec<[i64; 2]> = (0..20).map(|rows| [1, rows]).collect();
        let get = |rows: usize, shape: &[i64; 2]| {
            let tensors = [(1, [1, 99].as_slice()), (1, shape)].into_iter();
            recent.get(tensors, || Ok(rows)).ok().unwrap()
        };
        let held: Vec<_> = shapes.iter().enumerate().map(|(rows, shape)| get(rows, shape)).collect();
        let kept = |held: &Recent<'_, usize>| matches!(held, Recent::Kept { .. });
        assert_eq!(held.iter().filter(|held| kept(held)).count(), MAX_ENTRIES);
        for (rows, (shape, held)) in shapes.iter().zip(&held).enumerate() {
            let again = get(rows, shape);
            assert_eq!((**held, *again, kept(&again)), (rows, rows, false));
        }
        drop(held);
        assert!(kept(&get(0, &shapes[0])));
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
                    for shape in shapes.iter().cycle().skip(first).step_by(5).take(5_000) {
                        let tensors = [(1, [1, 99].as_slice()), (1, shape)].into_iter();
                        let got = recent.get(tensors, || Ok(*shape));
                        assert_eq!(got.ok().as_deref(), Some(shape));
                    }
                });
            }
        });
    }
}
