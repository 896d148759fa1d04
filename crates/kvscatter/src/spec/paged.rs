//! Paged caches, whose slots are in blocks that an engine gives to its samples.
//!
//! No document defines the write. The terms are those of vLLM, FlashInfer and FlashAttention:
//!
//! * A cache has `num_blocks` blocks of `block_size` slots.
//! * `block_tables` lists the blocks of each sample. Token `t` of a sample is in block
//!   `block_tables[sample][t / block_size]`, at offset `t % block_size`.
//! * `slot_mapping` has one slot for each new token: `block * block_size + offset`.
//!
//! [`BlockTables::slot_mapping`] computes the slots, and [`PagedWrite`] writes the rows. This module gives no
//! blocks to samples and takes none back. The tables come from the caller.
//!
//! The engines check nothing here. A slot beyond the last block writes into other memory, and if two tokens
//! have the same slot, one of them is lost. Both are errors in this module.

use super::operands::{Roles, axis_from_front, pair_dimensions};
use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::Error;
use crate::geometry::{ByTensor, Dim, Layout, Operands, UpdateBatch};
use crate::plan::{Convention, OutOfRange, RuleOptions, check_count, within};
use crate::prepared::Prepared;

const NAMES: ArgumentNames = ArgumentNames {
    cache: Argument::Cache,
    update: Argument::Update,
    axis: Some(Argument::Axis),
    positions: Argument::SlotMapping,
    // A paged write has no row counts and no layers. An error for a call that has them uses these names.
    row_counts: Argument::UpdateLengths,
    // A paged cache has no functional form. An error for a call of it uses this name.
    present: Argument::PresentCache,
    layer: Argument::LayerId,
};

/// The write of new rows into a paged cache, one slot for each token.
///
/// A decode step writes the keys and the values of all samples by one plan, either all of them or none:
///
/// ```
/// use kvscatter::ElementType;
/// use kvscatter::spec::paged::{BlockTables, PagedWrite};
///
/// // 4 blocks of 2 slots, 1 head, head size 2, and one new token for each of 2 samples.
/// let write = PagedWrite::new().prepare(ElementType::Float32, &[4, 2, 1, 2], &[2, 1, 2])?;
///
/// // Sample 0 has 3 tokens in blocks 2 and 0, and sample 1 has 2 tokens in block 3. Both include the new token.
/// let tables = BlockTables {
///     block_tables: &[2, 0, 3, -1],
///     max_blocks: 2,
///     seq_lens: &[3, 2],
///     block_size: 2,
///     num_blocks: 4,
/// };
/// let mut slot_mapping = [0_i64; 2];
/// tables.slot_mapping(1, &mut slot_mapping)?;
/// assert_eq!(slot_mapping, [0, 7]); // slot 0 of block 0, and slot 1 of block 3
///
/// let (mut k, mut v) = ([0.0_f32; 16], [0.0_f32; 16]);
/// let (new_k, new_v) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
/// let written = write.plan(&slot_mapping)?.write_many(&mut [(&mut k, &new_k), (&mut v, &new_v)])?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!((k[..2].to_vec(), k[14..].to_vec()), (vec![1.0, 2.0], vec![3.0, 4.0]));
/// assert_eq!((v[..2].to_vec(), v[14..].to_vec()), (vec![5.0, 6.0], vec![7.0, 8.0]));
/// # Ok::<(), kvscatter::Error>(())
/// ```
///
/// In the terms of the other operators, each block is a sample of the cache, and `block_size` is its capacity.
/// [`Segment`](crate::Segment) names blocks in this way. A [`WritePlan`](crate::WritePlan) counts each token as a
/// sample of the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedWrite {
    axis: i64,
    skip_negative: bool,
}

impl PagedWrite {
    /// The axis of the slots in a cache of `[num_blocks, block_size, heads, size]`. This is the default.
    pub const NHD: i64 = 1;

    /// The axis of the slots in a cache of `[num_blocks, heads, block_size, size]`.
    pub const HND: i64 = 2;

    /// Creates a write into `[num_blocks, block_size, …]` that returns an error for a negative slot.
    #[must_use]
    pub const fn new() -> Self {
        Self { axis: Self::NHD, skip_negative: false }
    }

    /// Sets the dimension of the cache that counts the slots of a block. It lies in `1..rank`, or in
    /// `-rank + 1..=-1` if it counts from the end. The first dimension counts the blocks.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Sets whether a token with a negative slot is skipped. The default is an error. vLLM gives padding the
    /// slot -1.
    ///
    /// The write returns the number of skipped tokens. A slot beyond the last block is always an error.
    #[must_use]
    pub const fn skip_negative(mut self, skip: bool) -> Self {
        self.skip_negative = skip;
        self
    }

    /// Prepares writes of an update of `[tokens, …]`. Its other dimensions are those of the cache without the
    /// blocks and the slots, in the same order.
    ///
    /// | cache | `axis` | update |
    /// |---|---|---|
    /// | `[num_blocks, block_size, heads, size]` | 1 | `[tokens, heads, size]` |
    /// | `[num_blocks, heads, block_size, size]` | 2 | `[tokens, heads, size]` |
    /// | `[num_blocks, block_size, size]` | 1 | `[tokens, size]` |
    ///
    /// Both tensors may be strided, and every element type is accepted.
    ///
    /// Each call passes one slot per token to [`Prepared::plan`]. With up to 128 runs of consecutive slots, a
    /// plan allocates nothing. More runs are sorted to find a slot that occurs twice, which takes 16 bytes
    /// for each run until the plan is made, unless the runs are in ascending order. A paged cache has no
    /// functional form, and `lengths` do not apply.
    ///
    /// # Errors
    /// The errors are listed in the order of the checks:
    ///
    /// * Returns [`Error::Rank`] unless the cache has 2 to 8 dimensions.
    /// * Returns [`Error::AxisOutOfRange`] or [`Error::AxisIsBatch`] if the axis is not a dimension after the
    ///   first.
    /// * Returns [`Error::Rank`] unless the update has one dimension less than the cache.
    /// * Returns [`Error::StrideCount`], [`Error::TooLarge`] or [`Error::BeforeBuffer`] if a layout is
    ///   invalid.
    /// * Returns [`Error::DimensionMismatch`] if another dimension differs.
    /// * Returns [`Error::CacheOverlapsItself`] if two positions of the cache share memory.
    /// * Returns [`Error::TooManyLoops`] if the two layouts need too many loops.
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (cache, update) = (cache.into(), update.into());
        let rank = cache.shape().len();
        let of_rank = |argument, rank, expected: &'static [usize]| {
            if expected.contains(&rank) { Ok(()) } else { Err(Error::Rank { argument, rank, expected }) }
        };
        of_rank(NAMES.cache, rank, RANKS.get(2..).unwrap_or_default())?;
        let axis = axis_from_front(self.axis, rank)?;
        let update_rank = RANKS.get(rank.saturating_sub(1)..rank).unwrap_or_default();
        of_rank(NAMES.update, update.shape().len(), update_rank)?;
        let cache = cache.resolve(NAMES.cache, element.size_bits())?;
        let update = update.resolve(NAMES.update, element.size_bits())?;

        let (Some(of_cache), Some((tokens, of_update))) =
            (Roles::new(cache.dims(), axis), update.dims().split_first())
        else {
            return Err(Error::AxisOutOfRange { axis: self.axis, rank });
        };
        // The ranks agree, so the update has `axis - 1` outer dimensions after its tokens.
        let (outer, inner) = of_update.split_at_checked(axis.saturating_sub(1)).unwrap_or_default();
        let operands = Operands {
            names: &NAMES,
            element,
            cache: &cache,
            update: &update,
            layers: Dim::ONE,
            batch: ByTensor { cache: of_cache.sample, update: UpdateBatch::Tokens },
            rows: ByTensor { cache: of_cache.rows, update: *tokens },
            outer: pair_dimensions(NAMES.update, 1, of_cache.outer, outer)?,
            inner: pair_dimensions(NAMES.update, axis, of_cache.inner, inner)?,
        };
        let options = RuleOptions::linear(Convention::Slots, OutOfRange::Error);
        Prepared::new(&operands, RuleOptions { skip_negative: self.skip_negative, ..options })
    }
}

impl Default for PagedWrite {
    fn default() -> Self {
        Self::new()
    }
}

/// The ranks of tensors, from 0 to the largest that is accepted.
const RANKS: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7, 8];

/// The blocks of each sample of a paged cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTables<'a> {
    /// The blocks of each sample in the order of its tokens, `[batch, max_blocks]` row by row. Entries after
    /// the last token of a sample are never read, so they may be any number.
    pub block_tables: &'a [i32],
    /// The number of entries of each sample.
    pub max_blocks: usize,
    /// The number of tokens of each sample, new tokens included.
    pub seq_lens: &'a [i32],
    /// The number of slots of a block.
    pub block_size: usize,
    /// The number of blocks of the cache.
    pub num_blocks: usize,
}

/// The number of new tokens of each sample. They are the last tokens of the sample.
///
/// A number, or a borrowed slice, array or vector of numbers, converts into this type.
#[doc(alias = "query_lens")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NewTokens<'a> {
    /// Every sample has this many, such as 1 in a decode step.
    Same(usize),
    /// One number per sample. It may be 0.
    Each(&'a [i32]),
}

impl BlockTables<'_> {
    /// Computes the slots of the new tokens of each sample, one sample after the other.
    ///
    /// `slots` has one element for each new token of all samples. If the call returns an error, it is
    /// unchanged.
    ///
    /// ```
    /// # use kvscatter::spec::paged::BlockTables;
    /// // A prefill of 3 tokens, and a sample that decodes its fifth token.
    /// let tables = BlockTables {
    ///     block_tables: &[7, 1, 4, 5, 3, 8],
    ///     max_blocks: 3,
    ///     seq_lens: &[3, 5],
    ///     block_size: 2,
    ///     num_blocks: 9,
    /// };
    /// let mut slots = [0; 4];
    /// tables.slot_mapping(&[3, 1], &mut slots)?;
    /// assert_eq!(slots, [14, 15, 2, 16]);
    /// # Ok::<(), kvscatter::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors are listed in the order of the checks. Each is about the first value that breaks its rule.
    ///
    /// * Returns [`Error::TooLarge`] if the cache has more than `isize::MAX` slots.
    /// * Returns [`Error::ListLength`] if `block_tables` has not `batch * max_blocks` entries, or `new_tokens`
    ///   not one number per sample.
    /// * Returns [`Error::LengthOutOfRange`] if a number of new tokens is negative or exceeds
    ///   `max_blocks * block_size`, or if a length is less than the new tokens or exceeds
    ///   `max_blocks * block_size`.
    /// * Returns [`Error::ListLength`] if `slots` has not one element per new token.
    /// * Returns [`Error::BlockOutOfRange`] if a block of a new token is negative or not less than
    ///   `num_blocks`.
    pub fn slot_mapping<'n>(
        &self,
        new_tokens: impl Into<NewTokens<'n>>,
        slots: &mut [i64],
    ) -> Result<(), Error> {
        let new_tokens = new_tokens.into();
        check_count(Argument::SlotMapping, Some(slots.len()), self.count_new_tokens(new_tokens)?)?;
        self.for_each_span(new_tokens, |_, _| {})?; // checks every block
        let mut slots = slots.iter_mut();
        self.for_each_span(new_tokens, |first, count| {
            slots.by_ref().zip(first..).take(count).for_each(|(place, slot)| *place = slot);
        })
    }

    /// Returns the number of new tokens of all samples, which is the number of slots that
    /// [`slot_mapping`](Self::slot_mapping) computes.
    ///
    /// # Errors
    /// Returns the errors of [`slot_mapping`](Self::slot_mapping), except those about `slots` and about blocks.
    pub fn count_new_tokens<'n>(&self, new_tokens: impl Into<NewTokens<'n>>) -> Result<usize, Error> {
        let new_tokens = new_tokens.into();
        self.check_lists(new_tokens)?;
        let mut total = 0_usize;
        for (sample, &seq_len) in self.seq_lens.iter().enumerate() {
            total = total.saturating_add(self.new_positions(sample, seq_len, new_tokens)?.len());
        }
        Ok(total)
    }

    fn check_lists(&self, new_tokens: NewTokens<'_>) -> Result<(), Error> {
        let slots = self.num_blocks.checked_mul(self.block_size).and_then(|n| isize::try_from(n).ok());
        if slots.is_none() {
            return Err(Error::TooLarge { argument: Argument::Cache });
        }
        let batch = self.seq_lens.len();
        let entries = batch.saturating_mul(self.max_blocks);
        check_count(Argument::BlockTables, Some(self.block_tables.len()), entries)?;
        match new_tokens {
            NewTokens::Same(_) => Ok(()),
            NewTokens::Each(counts) => check_count(Argument::NewTokens, Some(counts.len()), batch),
        }
    }

    /// Returns the positions of the new tokens of a sample.
    fn new_positions(
        &self,
        sample: usize,
        seq_len: i32,
        new_tokens: NewTokens<'_>,
    ) -> Result<core::ops::Range<usize>, Error> {
        let max = self.max_blocks.saturating_mul(self.block_size);
        let new_tokens = match new_tokens {
            NewTokens::Same(count) => count,
            NewTokens::Each(counts) => {
                let count = counts.get(sample).copied().unwrap_or(0);
                within(Argument::NewTokens, sample, count.into(), 0, max)?
            }
        };
        let seq_len = within(Argument::SeqLens, sample, seq_len.into(), new_tokens, max)?;
        Ok(seq_len.saturating_sub(new_tokens)..seq_len)
    }

    /// Visits the slots of the new tokens as spans inside a block: the first slot and the number of slots.
    fn for_each_span(
        &self,
        new_tokens: NewTokens<'_>,
        mut visit: impl FnMut(i64, usize),
    ) -> Result<(), Error> {
        let block_size = self.block_size;
        for (sample, &seq_len) in self.seq_lens.iter().enumerate() {
            let mut positions = self.new_positions(sample, seq_len, new_tokens)?;
            while !positions.is_empty() {
                // If there are positions, there are blocks that have slots. No operation here wraps, because
                // `offset` is a remainder, and `count` ends with the positions.
                let column = positions.start.checked_div(block_size).unwrap_or(0);
                let offset = positions.start.wrapping_sub(column.wrapping_mul(block_size));
                let count = block_size.wrapping_sub(offset).min(positions.len());
                positions.start = positions.start.wrapping_add(count);
                // `check_lists` has checked that every slot of a block that exists fits.
                let slot = self.block(sample, column)?.wrapping_mul(block_size).wrapping_add(offset);
                visit(i64::try_from(slot).unwrap_or(i64::MAX), count);
            }
        }
        Ok(())
    }

    /// Returns an entry of the table of a sample.
    fn block(&self, sample: usize, column: usize) -> Result<usize, Error> {
        // `check_lists` has checked that the table has the entry.
        let entry = sample.wrapping_mul(self.max_blocks).wrapping_add(column);
        let value = self.block_tables.get(entry).copied().unwrap_or(-1);
        let block = usize::try_from(value).ok().filter(|&block| block < self.num_blocks);
        block.ok_or(Error::BlockOutOfRange {
            argument: Argument::BlockTables,
            sample,
            index: column,
            value: value.into(),
            blocks: self.num_blocks,
        })
    }
}

impl From<usize> for NewTokens<'_> {
    fn from(count: usize) -> Self {
        Self::Same(count)
    }
}

impl<'a> From<&'a [i32]> for NewTokens<'a> {
    fn from(counts: &'a [i32]) -> Self {
        Self::Each(counts)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for NewTokens<'a> {
    fn from(counts: &'a [i32; N]) -> Self {
        Self::Each(counts)
    }
}

impl<'a> From<&'a alloc::vec::Vec<i32>> for NewTokens<'a> {
    fn from(counts: &'a alloc::vec::Vec<i32>) -> Self {
        Self::Each(counts)
    }
}
