//! What is known about a call when its shapes are known.
//!
//! This file decides how a call is divided: the rows that are processed together, the chunks of positions, and the
//! order of heads and slots.

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Isa};

use crate::error::{AttentionError, Operand};
use crate::kernel::LANES;
use crate::mask::MaskLayout;
use crate::operands::Shapes;
use crate::operator::{Attention, Softmax};
use crate::sizes::Sizes;

/// The numbers that decide how a call is divided. They do not change what is computed, except for rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The number of positions that are processed together, counted from the first one that a block sees.
    pub(crate) chunk: usize,
    /// The smallest number of multiplications for which a call uses the executor, unless a scratch has another.
    pub(crate) min_shared: usize,
}

impl Limits {
    /// So many multiplications take about 20 microseconds on one thread, and waking a thread takes as long.
    pub(crate) const REAL: Self = Self { chunk: 1024, min_shared: 1 << 20 };

    /// Numbers so small that short calls take every path. They are for tests.
    pub(crate) const TINY: Self = Self { chunk: 2 * LANES, min_shared: 1 };
}

/// The largest number of rows of a head that are processed together. Each key is read from memory once for these
/// rows.
const ROWS: usize = 16;

/// The number of slots of each stream that are read before those of the next head, if the heads of a slot are
/// neighbours in memory.
const INTERLEAVED_STEPS: usize = 2;

/// An [`Attention`] with checked shapes, and the choices that depend on them.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) op: Attention,
    pub(crate) sizes: Sizes,
    pub(crate) element: ElementType,
    /// The type of keys and values.
    pub(crate) cache_element: ElementType,
    pub(crate) mask: Option<MaskLayout>,
    pub(crate) has_past: bool,
    pub(crate) rule: Visibility,
    pub(crate) isa: Isa,
    pub(crate) limits: Limits,
    pub(crate) blocking: Blocking,
}

/// How the rows and positions of a call are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocking {
    /// The number of heads of keys whose rows are processed together.
    pub(crate) heads: usize,
    /// The largest number of rows of one head that are processed together.
    pub(crate) rows: usize,
    /// The number of positions that are processed together.
    pub(crate) chunk: usize,
    /// The number of slots of each stream that are read before those of the next head.
    pub(crate) steps: usize,
    /// Whether every position is processed in one chunk, read or not. An output of scores needs this.
    pub(crate) is_whole: bool,
}

/// What the sizes of a scratch follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimensions {
    sizes: Sizes,
    blocking: Blocking,
    has_mask: bool,
    items: usize,
}

impl Dimensions {
    /// Returns what the memory of one thread follows from. It does not depend on the number of keys.
    pub(crate) fn memory(self) -> Self {
        Self { sizes: Sizes { keys: 0, past: 0, ..self.sizes }, ..self }
    }
}

impl Blocking {
    /// Returns the distance between two rows of scores. It is one vector more than a chunk: 1024 scores are 4 KiB, so
    /// without it the same position of all rows would share one set of the first-level CPU cache.
    pub(crate) fn score_stride(&self) -> usize {
        self.chunk + LANES
    }

    fn new(op: &Attention, sizes: &Sizes, mask: Option<&MaskLayout>, has_past: bool, limits: Limits) -> Self {
        let is_whole = op.scores.is_some() || op.softmax == Softmax::Float64;
        let rows = sizes.rows().min(ROWS);
        let chunk = if is_whole { sizes.total().next_multiple_of(LANES).max(LANES) } else { limits.chunk };
        // Heads that are read together read the same slots, so a mask must hide the same slots from them.
        let interleaves = sizes.is_cache_by_token
            && !has_past
            && !is_whole
            && !mask.is_some_and(MaskLayout::differs_by_head);
        Self {
            heads: if interleaves { sizes.heads } else { 1 },
            rows,
            chunk,
            steps: if interleaves { INTERLEAVED_STEPS } else { usize::MAX },
            is_whole,
        }
    }
}

impl Setup {
    pub(crate) fn new(op: Attention, shapes: &Shapes<'_>) -> Result<Self, AttentionError> {
        op.check()?;
        let sizes = Sizes::new(&op, shapes)?;
        let element = shapes.element;
        let cache_element = op.cache_element.unwrap_or(element);
        for element in [element, cache_element] {
            if !matches!(element, ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16) {
                return Err(AttentionError::ElementType { element });
            }
        }
        let expected = sizes.shape(Operand::Mask);
        let mask = shapes.mask.map(|shape| MaskLayout::new(shape, expected)).transpose()?;
        let limits = Limits::REAL;
        let blocking = Blocking::new(&op, &sizes, mask.as_ref(), shapes.past.is_some(), limits);
        Ok(Self {
            op,
            sizes,
            element,
            cache_element,
            mask,
            has_past: shapes.past.is_some(),
            rule: sizes.visibility(&op),
            isa: Isa::allowed(),
            limits,
            blocking,
        })
    }

    /// Returns what the sizes of a scratch follow from.
    pub(crate) fn dimensions(&self) -> Dimensions {
        let Self { sizes, blocking, mask, .. } = self;
        Dimensions { sizes: *sizes, blocking: *blocking, has_mask: mask.is_some(), items: self.items() }
    }

    pub(crate) fn with_limits(self, limits: Limits) -> Self {
        let blocking = Blocking::new(&self.op, &self.sizes, self.mask.as_ref(), self.has_past, limits);
        Self { limits, blocking, ..self }
    }

    /// Returns the number of blocks that threads can claim.
    pub(crate) fn items(&self) -> usize {
        let Sizes { batch, heads, value_size, .. } = self.sizes;
        // Empty outputs may have any number of rows.
        if value_size == 0 && (self.op.scores.is_none() || self.sizes.total() == 0) {
            return 0;
        }
        batch * heads.div_ceil(self.blocking.heads) * self.sizes.rows().div_ceil(self.blocking.rows.max(1))
    }

    /// Returns whether items are divided between this many threads, because some of them would be idle for a part
    /// of the call otherwise.
    pub(crate) fn divides_items(&self, threads: usize) -> bool {
        threads > 1 && self.max_chunks() > 1 && self.items() < 2 * threads
    }

    /// Returns the largest number of chunks of an item, for any length.
    pub(crate) fn max_chunks(&self) -> usize {
        if self.blocking.is_whole {
            return 1;
        }
        self.sizes.total().div_ceil(self.blocking.chunk).max(1)
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Limits, Setup};
    use crate::kernel::LANES;
    use crate::operands::Shapes;
    use crate::operator::{Attention, Softmax};

    const CHUNK: usize = Limits::REAL.chunk;

    /// Prepares a decode with so many samples, heads and slots.
    fn setup(op: Attention, [batch, heads, slots]: [usize; 3]) -> Setup {
        let (query, cache) = ([batch, heads, 1, 8], [batch, heads, slots, 8]);
        let shapes = Shapes {
            element: ElementType::Float32,
            query: &query,
            key: &cache,
            value: &cache,
            mask: None,
            past: None,
        };
        Setup::new(op, &shapes).unwrap()
    }

    #[test]
    fn long_items_are_divided_if_threads_would_be_idle() {
        let op = Attention::new();
        for (sizes, threads, expected) in [
            ([2, 3, 3 * CHUNK], 4, true),
            // Two items for each thread keep all of them busy.
            ([2, 3, 3 * CHUNK], 3, false),
            ([1, 1, 3 * CHUNK], 2, true),
            ([1, 1, 3 * CHUNK], 1, false),
            ([1, 1, CHUNK], 2, false),
            ([1, 1, CHUNK + 1], 2, true),
        ] {
            assert_eq!(setup(op, sizes).divides_items(threads), expected, "{sizes:?}, {threads} threads");
        }
        assert_eq!(setup(op, [1, 1, 3 * CHUNK]).max_chunks(), 3);
        assert_eq!(setup(op, [1, 1, 3 * CHUNK + 1]).max_chunks(), 4);
        assert_eq!(setup(op, [1, 1, 0]).max_chunks(), 1);
        // The whole row of scores is needed at once.
        assert_eq!(setup(op.softmax(Softmax::Float64), [1, 1, 3 * CHUNK]).max_chunks(), 1);
    }

    #[test]
    fn rows_of_scores_lie_in_different_sets_of_a_cache() {
        let blocking = setup(Attention::new(), [1, 1, 3 * CHUNK]).blocking;
        assert_eq!((blocking.chunk, blocking.score_stride()), (CHUNK, CHUNK + LANES));
        assert_eq!(CHUNK % LANES, 0);
    }
}
