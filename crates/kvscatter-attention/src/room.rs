//! The memory in which a thread works.

use core::ops::Range;

use crate::aligned::{Aligned, padded, spread};
use crate::kernel::{AHEAD, PANEL, STREAMS};
use crate::partial::{Partial, Total};
use crate::setup::{Blocking, Dimensions, Setup};
use crate::sizes::Sizes;
use crate::slots::Slots;

/// The memory in which one thread works. Each list but `runs`, `row` and `seen` has an entry for each
/// row of a block.
#[derive(Debug)]
pub(crate) struct Room {
    /// The scaled queries, [`padded`] with zeros. In a wide block, those of a panel are transposed.
    pub(crate) queries: Aligned,
    /// The scores of a section, and then the weights. In a wide block, they are those of a panel,
    /// transposed.
    pub(crate) scores: Aligned,
    /// The keys of a section of a wide block in float32, [`padded`] with zeros and [`spread`].
    pub(crate) keys: Aligned,
    /// The values of a section of a wide block in float32, [`padded`] with zeros and [`spread`].
    pub(crate) values: Aligned,
    /// The numbers that the mask adds to the scores of a section, if `has_bias`.
    pub(crate) bias: Vec<f32>,
    /// Whether the mask changes a score of the section.
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
    /// The offsets of the keys and the values of a chunk whose slots are in blocks, by index.
    pub(crate) offsets: [Vec<usize>; 2],
    /// Whether each row sees a slot that the mask does not hide with the lowest number.
    pub(crate) has_a_slot: Vec<bool>,
}

impl Room {
    /// Allocates memory for the blocks of a prepared call.
    pub(crate) fn new(setup: &Setup) -> Self {
        let Blocking { heads, rows, section, is_wide, copies_keys, .. } = setup.blocking;
        let Sizes { head_size, value_size, .. } = setup.sizes;
        let all = heads * rows;
        // Kernels request slots after a chunk.
        let offsets = if setup.sizes.blocks.is_some() && !is_wide { section + AHEAD * STREAMS } else { 0 };
        let [queries, scores, keys, values] = if is_wide {
            let keys = if copies_keys { section * spread(head_size) } else { 0 };
            // Queries are copied to the room of values before they are transposed.
            let values = section * spread(value_size.max(head_size));
            [rows.next_multiple_of(PANEL) * head_size, section * PANEL, keys, values]
        } else {
            [all * padded(head_size), all * setup.blocking.score_stride(), 0, 0]
        };
        Self {
            queries: Aligned::zeros(queries),
            scores: Aligned::zeros(scores),
            keys: Aligned::zeros(keys),
            values: Aligned::zeros(values),
            bias: if setup.mask.is_some() { vec![0.0; all * section] } else { Vec::new() },
            has_bias: false,
            partial: Partial::new(setup),
            group: Aligned::zeros(if is_wide { 0 } else { all * padded(value_size) }),
            total: Total::new(setup),
            row: vec![0.0; value_size],
            seen: Vec::with_capacity(rows),
            positions: 0..0,
            has_gaps: false,
            runs: Vec::with_capacity(if setup.mask.is_some() { section / 2 + 2 } else { 2 }),
            offsets: [(); 2].map(|()| vec![0; offsets]),
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
