//! The memory in which a thread works.

use core::ops::Range;

use crate::aligned::{Aligned, padded};
use crate::partial::{Partial, Total};
use crate::setup::{Blocking, Dimensions, Setup};
use crate::sizes::Sizes;
use crate::slots::Slots;

/// The memory in which one thread works. Each list but `runs`, `row` and `seen` has an entry for each
/// row of a block.
#[derive(Debug)]
pub(crate) struct Room {
    /// The scaled queries, [`padded`] with zeros.
    pub(crate) queries: Aligned,
    /// The scores of a chunk, and then the weights.
    pub(crate) scores: Aligned,
    /// The numbers that the mask adds to the scores of a chunk, if `has_bias`.
    pub(crate) bias: Vec<f32>,
    /// Whether the mask changes a score of the chunk.
    pub(crate) has_bias: bool,
    /// The result of one chunk.
    pub(crate) partial: Partial,
    /// The weighted sums of a group of positions, padded like those of `partial`.
    pub(crate) group: Aligned,
    /// The result of all chunks so far.
    pub(crate) total: Total,
    pub(crate) row: Vec<f32>,
    /// The positions that each row of a head sees. They are the same for all heads of a block.
    pub(crate) seen: Vec<Range<i64>>,
    /// The positions from the first to the last one that any row sees.
    pub(crate) positions: Range<i64>,
    /// Whether some of these positions lie in no range of `seen`.
    pub(crate) has_gaps: bool,
    /// The slots of a chunk that any row sees.
    pub(crate) runs: Vec<Slots>,
    /// Whether each row sees a slot that the mask does not hide with the lowest number.
    pub(crate) has_a_slot: Vec<bool>,
}

impl Room {
    /// Allocates memory for the blocks of a prepared call.
    pub(crate) fn new(setup: &Setup) -> Self {
        let Blocking { heads, rows, chunk, .. } = setup.blocking;
        let Sizes { head_size, value_size, .. } = setup.sizes;
        let all = heads * rows;
        Self {
            queries: Aligned::zeros(all * padded(head_size)),
            scores: Aligned::zeros(all * setup.blocking.score_stride()),
            bias: if setup.mask.is_some() { vec![0.0; all * chunk] } else { Vec::new() },
            has_bias: false,
            partial: Partial::new(setup),
            group: Aligned::zeros(all * padded(value_size)),
            total: Total::new(setup),
            row: vec![0.0; value_size],
            seen: Vec::with_capacity(rows),
            positions: 0..0,
            has_gaps: false,
            runs: Vec::with_capacity(if setup.mask.is_some() { chunk / 2 + 2 } else { 2 }),
            has_a_slot: Vec::with_capacity(all),
        }
    }
}

/// The working memory of calls, from [`Prepared::scratch`](crate::Prepared::scratch). Calls reuse it, so they
/// allocate nothing.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) rooms: Vec<Room>,
    /// The results of the chunks of each item, if an item is divided between threads.
    pub(crate) partials: Vec<Partial>,
    /// The largest number of threads of a call.
    pub(crate) threads: usize,
    pub(crate) made_for: Dimensions,
    /// The smallest number of multiplications for which a call uses the executor.
    pub(crate) min_shared: usize,
}

impl Scratch {
    /// Sets the smallest number of multiplications for which a call uses the executor.
    ///
    /// The default is 2^20, which take about as long as waking a thread. Set less for an executor whose threads are
    /// awake between two calls.
    #[must_use]
    pub fn share_from(self, multiplications: usize) -> Self {
        Self { min_shared: multiplications, ..self }
    }
}
