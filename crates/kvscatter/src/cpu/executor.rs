//! Large writes on the threads of whoever calls: the core has none of its own.

use core::fmt;
use core::hint;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::kernel;
use super::limits::PIECE;
use crate::mapping::Rows;

/// The warm threads of a host, lent for one write.
///
/// A write that is large enough hands over one closure, and every call of it takes parts of the write until none
/// are left. However often it is called, and on however many threads, each part is written once; parts that nobody
/// took are written by the calling thread. So an executor can be slow, but not
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

/// Runs `work`, which writes `bytes` bytes, on all threads of the executor. Every call walks the whole write, and
/// [`Share`] says which parts of it are the caller's.
pub(super) fn share(executor: &dyn Executor, bytes: usize, work: impl Fn(&mut Share<'_>) + Sync) {
    let (taken, arrived, busy) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let run = || {
        let _busy = Busy::new(&busy);
        let first = first_slot(arrived.fetch_add(1, Ordering::Relaxed));
        for slots in [first..SLOTS, 0..first] {
            work(&mut Share::new(&taken, slots, bytes));
        }
        kernel::fence();
    };
    executor.broadcast(&run);
    run();
    // Every slot is taken, since this thread has asked for each; wait for those that others still write. This also
    // orders their stores before whatever the caller does next.
    while busy.load(Ordering::Acquire) != 0 {
        hint::spin_loop();
    }
}

/// Equal parts of a write, each of which one thread takes: a bit of a word.
const SLOTS: u32 = usize::BITS;

/// Where a thread begins: the first at the front, the second in the middle, the next two at the quarters. Threads
/// of a pool mostly arrive in the same order, so that each finds in its own caches what it wrote the time before.
fn first_slot(arrival: usize) -> u32 {
    let [arrival, ..] = arrival.to_le_bytes();
    u32::from(arrival.reverse_bits()).wrapping_mul(SLOTS).wrapping_shr(u8::BITS)
}

/// Which parts of a write belong to one thread.
#[derive(Debug)]
pub(super) struct Share<'a> {
    /// The slots that are taken, and those that this walk asks for; `None` if everything is this thread's.
    of: Option<(&'a AtomicUsize, Range<u32>)>,
    /// Bytes of one slot.
    slot_bytes: usize,
    /// Bytes walked over.
    walked: usize,
    /// The slot they have come to, and whether it is this thread's.
    slot: Option<u32>,
    is_mine: bool,
}

impl<'a> Share<'a> {
    /// Everything.
    pub(super) fn all() -> Self {
        Self { of: None, slot_bytes: 0, walked: 0, slot: None, is_mine: true }
    }

    pub(super) fn new(taken: &'a AtomicUsize, slots: Range<u32>, bytes: usize) -> Self {
        let slot_bytes = bytes.div_ceil(size_of::<usize>().wrapping_mul(8));
        Self { of: Some((taken, slots)), slot_bytes, walked: 0, slot: None, is_mine: false }
    }

    /// Whether the next so many bytes are this thread's. Every walk must ask for the same in the same order.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let Some((taken, slots)) = &self.of else { return true };
        let slot = self.walked.checked_div(self.slot_bytes).unwrap_or(0);
        // A walk over more than was announced stays in the last slot.
        let slot = u32::try_from(slot).unwrap_or(u32::MAX).min(SLOTS.wrapping_sub(1));
        self.walked = self.walked.wrapping_add(bytes);
        if self.slot != Some(slot) {
            self.slot = Some(slot);
            let bit = 1_usize.wrapping_shl(slot);
            // Whoever finds it taken knows that its taker is `Busy`.
            self.is_mine = slots.contains(&slot) && taken.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        }
        self.is_mine
    }

    /// Visits those parts of the rows that are this thread's. A row is `row` bytes.
    pub(super) fn rows(&mut self, rows: Rows, row: usize, mut visit: impl FnMut(Rows)) {
        let most = match self.of {
            Some(_) => PIECE.checked_div(row).unwrap_or(1).max(1),
            None => rows.count,
        };
        let mut rest = rows;
        while rest.count > 0 {
            let count = rest.count.min(most);
            // G1: a part of a tensor.
            if self.take(count.wrapping_mul(row)) {
                visit(Rows { count, ..rest });
            }
            // None of these passes the end of `rows`.
            rest.dst = rest.dst.wrapping_add(count);
            rest.src = rest.src.wrapping_add(count);
            rest.count = rest.count.wrapping_sub(count);
        }
    }
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
