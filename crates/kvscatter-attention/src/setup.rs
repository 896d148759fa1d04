//! What is known about a call when its shapes are known.
//!
//! This file decides how a call is divided: the rows that are processed together, the chunks of positions, and the
//! order of heads and slots.

use core::ops::Range;

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Isa};

use crate::error::{AttentionError, Operand};
use crate::for_elements::{Nothing, for_elements};
use crate::kernel::{LANES, SECTION, WIDE_ROWS};
use crate::mask::MaskLayout;
use crate::operands::{Shapes, Valid};
use crate::operator::{Attention, Softmax};
use crate::places::{Place, Places, Strides};
use crate::sizes::Sizes;
use crate::slots::Slots;
use crate::streams::{Order, Sweep, sweeps};

/// The numbers that decide how a call is divided. They do not change what is computed, except for rounding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The number of positions that are processed together, counted from the first one that a block sees.
    pub(crate) chunk: usize,
    /// The number of positions of a wide block that are processed together.
    pub(crate) section: usize,
    /// The number of rows of a head from which on its blocks are wide.
    pub(crate) wide: usize,
    /// The smallest number of multiplications for which a call uses the executor, unless a scratch has another.
    pub(crate) min_shared: usize,
}

impl Limits {
    /// So many multiplications take about 20 microseconds on one thread, and waking a thread takes as long.
    pub(crate) const REAL: Self = Self { chunk: 1024, section: SECTION, wide: 32, min_shared: 1 << 20 };

    /// Numbers so small that short calls take every path of blocks that are not wide. They are for tests.
    pub(crate) const TINY: Self = Self { chunk: 2 * LANES, section: LANES, wide: usize::MAX, min_shared: 1 };

    /// Returns these limits with wide blocks for any number of rows. It is for tests.
    pub(crate) fn with_wide_blocks(self) -> Self {
        Self { wide: 0, ..self }
    }
}

/// The largest number of chunks between which threads divide the items of a call, because a scratch has memory for
/// each. A cache with more slots may be an array whose strides are 0, which has few bytes.
const MAX_PARTIALS: usize = 1 << 16;

/// The number of bits of a slot up to which one row over a narrow type requests slots ahead.
const SHORT: usize = 128 * 8;

/// The largest number of rows of a head that are processed together, unless their block is wide. Each key is read from
/// memory once for these rows.
const ROWS: usize = 16;

/// The number of wide blocks of a sample below which they have half as many rows, so that more threads can share them.
const FEW_BLOCKS: usize = 8;

/// The number of slots of each stream that are read before those of the next head, if the heads of a slot are
/// neighbours in memory.
const INTERLEAVED_STEPS: usize = 2;

/// The largest number of heads that are read together. A scratch has memory for the scores of all of them, and heads
/// whose stride is 0 take no memory, so an array can claim any number.
const INTERLEAVED_HEADS: usize = 256;

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
    pub(crate) places: Places,
    pub(crate) blocking: Blocking,
}

/// How the rows and positions of a call are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Blocking {
    /// The number of heads of keys whose rows are processed together.
    pub(crate) heads: usize,
    /// The largest number of rows of one head that are processed together.
    pub(crate) rows: usize,
    /// The number of positions that are processed together.
    pub(crate) chunk: usize,
    /// The number of positions whose scores are in memory at a time: those of a chunk, unless the block is wide.
    pub(crate) section: usize,
    /// Whether blocks are wide.
    pub(crate) is_wide: bool,
    /// Whether the keys of a wide block are copied, because they are not float32.
    pub(crate) copies_keys: bool,
    /// The order in which the slots of a chunk are read.
    pub(crate) order: Order,
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

    /// Returns the sweeps over runs of slots, in the order in which they are read.
    pub(crate) fn sweeps(self, runs: &[Slots]) -> impl Iterator<Item = Sweep> {
        sweeps(runs, self.order, self.steps)
    }

    fn new(setup: &Setup) -> Self {
        let Setup { op, sizes, mask, limits, .. } = setup;
        let is_whole = op.scores.is_some() || op.softmax == Softmax::Float64;
        let copies_keys = setup.cache_element != ElementType::Float32;
        let bits = setup.cache_element.bits().unwrap_or_default();
        let is_short = copies_keys && sizes.head_size.max(sizes.value_size) <= SHORT / bits.max(1);
        // A wide block multiplies keys that only some of its rows see. With portable kernels, this takes a larger
        // share.
        let wide = if setup.isa >= Isa::Avx2 { limits.wide } else { limits.wide.saturating_mul(4) };
        let is_wide = !is_whole && sizes.rows() >= wide;
        let rows = match sizes.heads.saturating_mul(sizes.rows().div_ceil(WIDE_ROWS)) {
            _ if !is_wide => ROWS,
            ..FEW_BLOCKS => WIDE_ROWS / 2,
            _ => WIDE_ROWS,
        };
        let chunk = if is_whole { sizes.total().next_multiple_of(LANES).max(LANES) } else { limits.chunk };
        // Heads that are read together read the same slots, so a mask must hide the same slots from them.
        let interleaves = setup.places.are_heads_together()
            && !setup.has_past
            && !is_whole
            && !is_wide
            && !mask.as_ref().is_some_and(MaskLayout::differs_by_head);
        Self {
            heads: if interleaves { sizes.heads.min(INTERLEAVED_HEADS) } else { 1 },
            rows: sizes.rows().min(rows),
            chunk,
            section: if is_wide { limits.section } else { chunk },
            is_wide,
            copies_keys,
            order: if sizes.rows() > 1 || is_short { Order::Neighbours } else { Order::Places },
            steps: if interleaves { INTERLEAVED_STEPS } else { usize::MAX },
            is_whole,
        }
    }
}

impl Setup {
    pub(crate) fn new(op: Attention, shapes: &Shapes<'_>, strides: &Strides) -> Result<Self, AttentionError> {
        op.check()?;
        let sizes = Sizes::new(&op, shapes)?;
        let element = shapes.element;
        let cache_element = op.cache_element.unwrap_or(element);
        for_elements(element, cache_element, Nothing)?;
        if cache_element == ElementType::Int8 && shapes.past.is_some() {
            return Err(AttentionError::Codes { operand: Operand::PastKey });
        }
        let expected = sizes.shape(Operand::Mask);
        let mask = shapes.mask.map(|shape| MaskLayout::new(shape, expected)).transpose()?;
        let setup = Self {
            op,
            sizes,
            element,
            cache_element,
            mask,
            has_past: shapes.past.is_some(),
            rule: sizes.visibility(&op),
            isa: Isa::allowed(),
            limits: Limits::REAL,
            places: Places::new(&sizes, strides)?,
            blocking: Blocking::default(),
        };
        Ok(setup.divided())
    }

    /// Returns the number of tokens of a sample, and the position of its first query.
    pub(crate) fn tokens_of(&self, valid: Valid<'_>, sample: usize) -> (i64, i64) {
        let sizes = &self.sizes;
        match valid {
            Valid::All => (sizes.total() as i64, sizes.past as i64),
            Valid::Lengths(lengths) => (lengths[sample], lengths[sample] - sizes.queries as i64),
            Valid::Prompt(lengths) => (lengths[sample], 0),
        }
    }

    /// Returns the positions that the rule of visibility shows to a query of a sample that begins at `start`. Both ends
    /// increase with the position of the query.
    pub(crate) fn positions(&self, tokens: i64, position: i64, start: i64) -> Range<i64> {
        let seen = self.rule.positions(tokens, position);
        seen.start.max(start)..seen.end.max(start)
    }

    /// Returns the place of an operand.
    pub(crate) fn place(&self, operand: Operand) -> Place {
        match operand {
            Operand::Query => self.places.query,
            Operand::Key => self.places.key,
            Operand::Value => self.places.value,
            Operand::Output => self.places.output,
            _ => Place::dense(&self.sizes, operand),
        }
    }

    /// Returns this setup with the blocks that follow from its other fields.
    fn divided(self) -> Self {
        Self { blocking: Blocking::new(&self), ..self }
    }

    /// Returns what the sizes of a scratch follow from.
    pub(crate) fn dimensions(&self) -> Dimensions {
        let Self { sizes, blocking, mask, .. } = self;
        Dimensions { sizes: *sizes, blocking: *blocking, has_mask: mask.is_some(), items: self.items() }
    }

    pub(crate) fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }.divided()
    }

    pub(crate) fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }.divided()
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
        let (chunks, items) = (self.max_chunks(), self.items());
        threads > 1 && chunks > 1 && items < 2 * threads && items.saturating_mul(chunks) <= MAX_PARTIALS
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
    use kvscatter::{ElementType, Isa};

    use super::{Blocking, Limits, MAX_PARTIALS, Setup};
    use crate::kernel::{LANES, SECTION};
    use crate::operands::Shapes;
    use crate::operator::{Attention, Scores, Softmax};
    use crate::places::Strides;

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
        Setup::new(op, &shapes, &Strides::default()).unwrap()
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
            // The slots of a cache that share their bytes may be very many.
            ([1, 1, CHUNK * MAX_PARTIALS], 2, true),
            ([1, 1, CHUNK * MAX_PARTIALS + 1], 2, false),
        ] {
            assert_eq!(setup(op, sizes).divides_items(threads), expected, "{sizes:?}, {threads} threads");
        }
        assert_eq!(setup(op, [1, 1, 3 * CHUNK]).max_chunks(), 3);
        assert_eq!(setup(op, [1, 1, 3 * CHUNK + 1]).max_chunks(), 4);
        assert_eq!(setup(op, [1, 1, 0]).max_chunks(), 1);
        // The whole row of scores is needed at once.
        assert_eq!(setup(op.softmax(Softmax::Float64), [1, 1, 3 * CHUNK]).max_chunks(), 1);
    }

    /// Prepares a prompt with so many heads, heads of keys and queries.
    fn prompt(op: Attention, [query_heads, heads, queries]: [usize; 3], isa: Isa) -> Blocking {
        let (query, cache) = ([1, query_heads, queries, 8], [1, heads, 300, 8]);
        let element = ElementType::Float16;
        let shapes = Shapes { element, query: &query, key: &cache, value: &cache, mask: None, past: None };
        Setup::new(op, &shapes, &Strides::default()).unwrap().with_isa(isa).blocking
    }

    #[test]
    fn blocks_of_many_rows_are_wide() {
        let op = Attention::new();
        for (isa, sizes, is_wide, rows) in [
            (Isa::Avx2, [4, 1, 7], false, 16),
            (Isa::Avx2, [4, 1, 8], true, 32),
            (Isa::Avx512, [2, 2, 200], true, 64),
            // Many blocks are larger.
            (Isa::Avx512, [32, 8, 64], true, 128),
            (Isa::Portable, [3, 1, 42], false, 16),
            (Isa::Portable, [4, 1, 32], true, 64),
        ] {
            let blocking = prompt(op, sizes, isa);
            assert_eq!((blocking.is_wide, blocking.rows), (is_wide, rows), "{isa:?} {sizes:?}");
            assert_eq!(blocking.section, if is_wide { SECTION } else { CHUNK });
        }
        // These need the scores of all slots at once.
        for op in [op.softmax(Softmax::Float64), op.scores(Scores::Weights)] {
            assert!(!prompt(op, [32, 8, 64], Isa::Avx512).is_wide);
        }
    }

    #[test]
    fn rows_of_scores_lie_in_different_sets_of_a_cache() {
        let blocking = setup(Attention::new(), [1, 1, 3 * CHUNK]).blocking;
        assert_eq!((blocking.chunk, blocking.score_stride()), (CHUNK, CHUNK + LANES));
        assert_eq!(CHUNK % LANES, 0);
    }
}
