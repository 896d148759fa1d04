//! The shapes that a kernel was last called with, prepared.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::context::Tensor;
use crate::status::Failure;

/// Shapes that are kept: those of decoding, and of the chunks that a prefill or a draft comes in; one shape several
/// times where several threads decode.
const KEPT: usize = 8;

/// Writes that are prepared for the shapes of recent calls.
///
/// Sessions run one kernel on many threads at once, and none of them ever waits here: a thread that finds a place
/// taken looks at the next, and prepares the write for itself where no place has it.
pub(crate) struct Recent<P> {
    places: [Place<P>; KEPT],
    /// The place that was found or filled last.
    latest: AtomicUsize,
}

impl<P> Recent<P> {
    pub(crate) fn new() -> Self {
        Self { places: [const { Place::empty() }; KEPT], latest: AtomicUsize::new(0) }
    }

    /// Calls `run` with the write that is prepared for these tensors; `prepare` makes it if it is not among the
    /// recent ones.
    ///
    /// # Errors
    /// Those of `prepare` and `run`.
    pub(crate) fn with(
        &self,
        cache: &Tensor<'_>,
        update: &Tensor<'_>,
        prepare: impl FnOnce() -> Result<P, Failure>,
        run: impl FnOnce(&P) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let latest = self.latest.load(Ordering::Relaxed);
        let places = || self.places.iter().enumerate().cycle().skip(latest).take(KEPT);
        for (index, place) in places() {
            if let Some(taken) = place.take()
                && let Some(entry) = taken.entry()
                && entry.is_for(cache, update)
            {
                if index != latest {
                    self.latest.store(index, Ordering::Relaxed);
                }
                return run(&entry.prepared);
            }
        }
        let prepared = prepare()?;
        let written = run(&prepared);
        let entry =
            Entry { code: cache.code, cache: cache.shape.into(), update: update.shape.into(), prepared };
        // The one after the latest has been there longest, as far as places were free.
        if let Some((index, mut taken)) =
            places().skip(1).find_map(|(index, place)| Some((index, place.take()?)))
        {
            taken.fill(entry);
            self.latest.store(index, Ordering::Relaxed);
        }
        written
    }
}

/// Room for one prepared write, which one thread at a time looks at.
///
/// A mutex would do, were it not for its release: that is a read-modify-write, which waits for all that has been
/// written to reach the caches. Nobody waits for this one, so a store is enough.
struct Place<P> {
    is_taken: AtomicBool,
    entry: UnsafeCell<Option<Entry<P>>>,
}

// SAFETY: the entry is reached through `Taken` alone, of which there is one at a time, on whatever thread.
unsafe impl<P: Send> Sync for Place<P> {}

impl<P> Place<P> {
    const fn empty() -> Self {
        Self { is_taken: AtomicBool::new(false), entry: UnsafeCell::new(None) }
    }

    fn take(&self) -> Option<Taken<'_, P>> {
        (!self.is_taken.swap(true, Ordering::Acquire)).then(|| Taken { place: self })
    }
}

/// A place, for as long as one thread has it.
struct Taken<'a, P> {
    place: &'a Place<P>,
}

impl<P> Taken<'_, P> {
    fn entry(&self) -> Option<&Entry<P>> {
        // SAFETY: there is no other `Taken` of this place, and this one is borrowed as the entry is.
        unsafe { &*self.place.entry.get() }.as_ref()
    }

    fn fill(&mut self, entry: Entry<P>) {
        // SAFETY: there is no other `Taken` of this place, and this one is not borrowed.
        unsafe { *self.place.entry.get() = Some(entry) };
    }
}

impl<P> Drop for Taken<'_, P> {
    fn drop(&mut self) {
        self.place.is_taken.store(false, Ordering::Release);
    }
}

/// A prepared write and what it was prepared for.
struct Entry<P> {
    code: i32,
    cache: Box<[i64]>,
    update: Box<[i64]>,
    prepared: P,
}

impl<P> Entry<P> {
    fn is_for(&self, cache: &Tensor<'_>, update: &Tensor<'_>) -> bool {
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

    use super::{KEPT, Recent};
    use crate::context::Tensor;
    use crate::status::Failure;

    fn shaped(code: i32, shape: &[i64]) -> Tensor<'_> {
        Tensor::described(Argument::PastCache, code, shape)
    }

    fn refuse() -> Failure {
        Failure::fail("refused")
    }

    #[test]
    fn shapes_that_repeat_are_prepared_once() {
        let (recent, prepared) = (Recent::new(), Cell::new(0));
        let call = |cache: &Tensor<'_>, update: &Tensor<'_>, value: usize| {
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
            for (value, update) in lengths.iter().take(KEPT).enumerate() {
                assert_eq!(call(&cache, &shaped(1, update), value), Some(value), "round {round}");
            }
        }
        assert_eq!(prepared.get(), KEPT);
        assert_eq!(call(&cache, &shaped(1, &lengths[KEPT]), KEPT), Some(KEPT), "one more than are kept");
        assert_eq!(call(&shaped(10, &[2, 8, 16]), &shaped(10, &lengths[1]), 9), Some(9), "another type");
        assert_eq!(prepared.get(), KEPT + 2);
    }

    #[test]
    fn what_is_refused_is_not_kept() {
        let recent = Recent::new();
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

    /// While every place is taken, a call prepares, and runs, for itself.
    #[test]
    fn nobody_waits() {
        let recent = Recent::new();
        let shapes: Vec<[i64; 2]> = (0..20).map(|rows| [1, rows]).collect();
        let cache = shaped(1, &[1, 99]);
        let depth = Cell::new(0);
        fn nest(recent: &Recent<usize>, cache: &Tensor<'_>, shapes: &[[i64; 2]], depth: &Cell<usize>) {
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

    /// Whatever place a thread finds, what is in it belongs to the shapes that it asked with.
    #[test]
    fn threads_get_what_they_asked_for() {
        let recent = Recent::new();
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
                            |found| {
                                assert_eq!(found, shape);
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
