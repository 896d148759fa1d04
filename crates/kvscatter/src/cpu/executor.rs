//! Large writes on the threads of whoever calls: the core has none of its own.

use core::fmt;
use core::hint;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::kernel;
use super::limits::PIECE;
use crate::mapping::Rows;

/// The warm threads of a host, lent for one write.
///
/// A write that is large enough hands over one closure, and every call of it takes pieces of the write from a
/// shared counter until none are left. However often it is called, and on however many threads, each piece is
/// written once; pieces that nobody took are written by the calling thread. So an executor can be slow, but not
/// wrong.
///
/// Waking a sleeping thread costs more than copying a megabyte: lend threads that are already awake.
///
/// ```
/// use kvscatter::{ElementType, Executor, spec::onnx::TensorScatter};
///
/// struct Two;
///
/// impl Executor for Two {
///     fn broadcast(&self, work: &(dyn Fn() + Sync)) {
///         std::thread::scope(|threads| {
///             threads.spawn(work);
///             work();
///         });
///     }
/// }
///
/// let write = TensorScatter::new().prepare(ElementType::Float32, &[1, 4096, 1024], &[1, 1024, 1024])?;
/// let (mut cache, update) = (vec![0.0_f32; 4096 * 1024], vec![1.0_f32; 1024 * 1024]);
/// write.plan(&[7_i64])?.with_executor(&Two).write(&mut cache, &update)?;
/// assert_eq!(cache.iter().sum::<f32>(), 1024.0 * 1024.0);
/// # Ok::<(), kvscatter::Error>(())
/// ```
pub trait Executor: Sync {
    /// Calls `work` on each thread that is to help, and returns when all of them have returned from it.
    ///
    /// A panic in here goes through to the caller of the write and leaves an unknown part of the write undone:
    /// every element is the old one or the new one, and none outside the plan has changed.
    fn broadcast(&self, work: &(dyn Fn() + Sync));
}

/// An executor, if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Host<'a>(pub(crate) Option<&'a dyn Executor>);

impl fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "its host's threads" } else { "one thread" })
    }
}

/// Runs `work` on all threads of the executor. Every call walks the whole write, and [`Pieces::take`] says
/// which parts of it are the caller's.
pub(super) fn share(executor: &dyn Executor, work: impl Fn(&mut Pieces<'_>) + Sync) {
    let (next, busy) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = || {
        let _busy = Busy::new(&busy);
        work(&mut Pieces::shared(&next));
        kernel::fence();
    };
    executor.broadcast(&run);
    run();
    // Every piece is taken, since this thread has seen the last one; wait for those that others still write.
    // This also orders their stores before whatever the caller does next.
    while busy.load(Ordering::Acquire) != 0 {
        hint::spin_loop();
    }
}

/// Which pieces of a write belong to one thread.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    /// `None` if there is one thread.
    next: Option<&'a AtomicUsize>,
    mine: usize,
    seen: usize,
}

impl<'a> Pieces<'a> {
    /// Everything.
    pub(super) fn all() -> Self {
        Self { next: None, mine: 0, seen: 0 }
    }

    pub(super) fn shared(next: &'a AtomicUsize) -> Self {
        Self { next: Some(next), mine: claim(next), seen: 0 }
    }

    /// Whether the next piece is this thread's. Every thread must ask for the same pieces in the same order.
    pub(super) fn take(&mut self) -> bool {
        let Some(next) = self.next else { return true };
        let is_mine = self.seen == self.mine;
        // No write has `usize::MAX` pieces, nor a machine that many threads.
        self.seen = self.seen.wrapping_add(1);
        if is_mine {
            self.mine = claim(next);
        }
        is_mine
    }

    /// Visits those parts of the rows that are this thread's. A row is `row` bytes.
    pub(super) fn rows(&mut self, rows: Rows, row: usize, mut visit: impl FnMut(Rows)) {
        let most = match self.next {
            Some(_) => PIECE.checked_div(row).unwrap_or(1).max(1),
            None => rows.count,
        };
        let mut rest = rows;
        while rest.count > 0 {
            let count = rest.count.min(most);
            if self.take() {
                visit(Rows { count, ..rest });
            }
            // None of these passes the end of `rows`.
            rest.dst = rest.dst.wrapping_add(count);
            rest.src = rest.src.wrapping_add(count);
            rest.count = rest.count.wrapping_sub(count);
        }
    }
}

/// The next piece that nobody has. Whoever takes a later one knows that the taker of this one is [`Busy`].
fn claim(next: &AtomicUsize) -> usize {
    next.fetch_add(1, Ordering::AcqRel)
}

/// Counts a thread as busy, also while a panic unwinds it.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
