//! Runs large writes on the threads of the calling program. The core starts no threads.
//!
//! The crate documentation defines G1.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::limits::Limits;
use crate::geometry::RowRange;

/// Threads of the calling program that help with one write.
///
/// A large write passes one closure to the executor. Each call of the closure claims parts of the write until
/// none are left. Each part is written once, regardless of how many threads call the closure and how often.
/// The calling thread writes the parts that no call claimed. An executor can therefore make a write slow, but
/// not wrong.
///
/// Use threads that are already awake, because waking a sleeping thread costs more than copying a megabyte.
/// The example spawns a thread only to be short.
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
/// let written = write.plan(&[7_i64])?.with_executor(&Two).write(&mut cache, &update)?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(cache.iter().sum::<f32>(), 1024.0 * 1024.0);
/// # Ok::<(), kvscatter::Error>(())
/// ```
pub trait Executor: Sync {
    /// Calls `work` on each thread that is to help. Returns when all of these threads have returned from
    /// `work` and their stores are visible to the calling thread.
    ///
    /// Joining the threads makes their stores visible, and so does waiting for a signal that they release and
    /// the calling thread acquires. A write calls this method on the thread that called the write.
    ///
    /// If this method panics, the panic propagates to the caller of the write. An unknown part of the write
    /// is then not done: every element is the old one or the new one, and no element outside the plan has
    /// changed.
    fn broadcast(&self, work: &(dyn Fn() + Sync));
}

/// The executor of a plan, or none.
#[derive(Clone, Copy)]
pub(crate) struct Threads<'a>(pub(crate) Option<&'a dyn Executor>);

impl<'a> Threads<'a> {
    /// Returns the executor if there is one and a write of this many bytes is faster with it.
    pub(crate) fn for_bytes(self, bytes: usize, limits: &Limits) -> Option<&'a dyn Executor> {
        self.0.filter(|_| bytes >= limits.parallel_min_bytes)
    }
}

impl fmt::Debug for Threads<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "the threads of an executor" } else { "one thread" })
    }
}

/// Runs `work`, which writes `bytes` bytes, on all threads of the executor. Every call walks the whole write,
/// and [`Share`] decides which chunks the call writes.
pub(super) fn share(executor: &dyn Executor, bytes: usize, work: impl Fn(&mut Share<'_>) + Sync) {
    let (taken, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let run = || {
        let first = first_chunk(arrived.fetch_add(1, Ordering::Relaxed));
        for chunks in [first..CHUNKS, 0..first] {
            work(&mut Share::new(&taken, chunks, bytes));
        }
    };
    executor.broadcast(&run);
    // Write the chunks that no call has claimed. `broadcast` has returned. By its contract, every call of
    // `run` has returned and its stores are visible here.
    run();
}

/// The number of equal chunks into which a shared write is divided. The word that records claims has one bit
/// for each.
const CHUNKS: u32 = usize::BITS;

/// Returns the chunk at which a thread begins, by the order in which it arrives: the front, then the middle,
/// then the quarters. The threads of a pool mostly arrive in the same order, so each thread writes about the
/// same part of the cache every time and finds it in its CPU caches.
fn first_chunk(arrival: usize) -> u32 {
    let [arrival, ..] = arrival.to_le_bytes();
    u32::from(arrival.reverse_bits()).wrapping_mul(CHUNKS).wrapping_shr(u8::BITS)
}

/// Which chunks of a write belong to one thread.
#[derive(Debug)]
pub(super) enum Share<'a> {
    /// The whole write, because there is only one thread.
    All,
    /// The chunks that this walk claims.
    Claims {
        /// The chunks that any walk has claimed, one bit each.
        taken: &'a AtomicUsize,
        /// The chunks that this walk may claim.
        chunks: Range<u32>,
        chunk_bytes: usize,
        /// The number of bytes that this walk has passed.
        walked: usize,
        /// The chunk that the walk has reached, and whether this walk has claimed it.
        current: Option<(u32, bool)>,
    },
}

impl<'a> Share<'a> {
    pub(super) fn new(taken: &'a AtomicUsize, chunks: Range<u32>, bytes: usize) -> Self {
        let chunk_bytes = usize::try_from(CHUNKS).map_or(bytes, |chunks| bytes.div_ceil(chunks));
        Self::Claims { taken, chunks, chunk_bytes, walked: 0, current: None }
    }

    /// Claims the next `bytes` bytes of the write, and returns whether this thread must write them. Every
    /// walk must pass the same sizes in the same order.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let Self::Claims { taken, chunks, chunk_bytes, walked, current } = self else { return true };
        let chunk = walked.checked_div(*chunk_bytes).unwrap_or(0);
        // A walk over more bytes than `of` was given stays in the last chunk.
        let chunk = u32::try_from(chunk).unwrap_or(u32::MAX).min(CHUNKS.wrapping_sub(1));
        *walked = walked.wrapping_add(bytes);
        match *current {
            Some((same, is_mine)) if same == chunk => is_mine,
            _ => {
                let bit = 1_usize.wrapping_shl(chunk);
                let is_mine = chunks.contains(&chunk) && taken.fetch_or(bit, Ordering::Relaxed) & bit == 0;
                *current = Some((chunk, is_mine));
                is_mine
            }
        }
    }

    /// Divides `count` items into groups, and calls `visit` with the first item and the size of each group
    /// that this thread claims. An item has `bytes` bytes. A group has at most `max` bytes, but at least one
    /// item.
    pub(super) fn groups(
        &mut self,
        count: usize,
        bytes: usize,
        max: usize,
        mut visit: impl FnMut(usize, usize),
    ) {
        let max = max.checked_div(bytes).unwrap_or(1).max(1);
        let mut first = 0;
        while let Some(left) = count.checked_sub(first).filter(|&left| left > 0) {
            let group = max.min(left);
            // G1: the group is a part of a tensor.
            if self.take(bytes.wrapping_mul(group)) {
                visit(first, group);
            }
            // The sum is at most `count`.
            first = first.wrapping_add(group);
        }
    }

    /// Visits the rows that this thread claims, at most `max` bytes at once, but at least one row. A row has
    /// `row` bytes.
    pub(super) fn rows(&mut self, rows: RowRange, row: usize, max: usize, mut visit: impl FnMut(RowRange)) {
        let max = max.checked_div(row).unwrap_or(1).max(1);
        let mut rest = rows;
        while rest.count > 0 {
            let count = rest.count.min(max);
            // G1: these rows are a part of a tensor.
            if self.take(count.wrapping_mul(row)) {
                visit(RowRange { count, ..rest });
            }
            // `count` is at most `rest.count`, so none of these passes the end of `rows`.
            rest.dst_row = rest.dst_row.wrapping_add(count);
            rest.src_row = rest.src_row.wrapping_add(count);
            rest.count = rest.count.wrapping_sub(count);
        }
    }
}
