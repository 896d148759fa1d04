//! A call that is prepared for one set of shapes. It checks the buffers and lengths of each call, and runs it.

use kvscatter::{ElementType, Executor, Isa};

use crate::block::CallMemory;
use crate::error::{AttentionError, Operand};
use crate::float::Float;
use crate::kernel::CacheElement;
use crate::operands::{Inputs, Outputs, Scales, Shapes, Valid};
use crate::operator::Attention;
use crate::partial::Partial;
use crate::places::{Place, Strides};
use crate::room::{Room, Scratch};
use crate::setup::{Limits, Setup};
use crate::sizes::Sizes;
use crate::threads;

impl Attention {
    /// Checks the shapes and chooses the kernels.
    ///
    /// # Errors
    /// Returns an error if the element type is not supported, an attribute is out of range, numbers of heads are
    /// missing, a tensor is too large, attributes and operands cannot be combined, or two shapes disagree.
    pub fn prepare(&self, shapes: &Shapes<'_>) -> Result<Prepared, AttentionError> {
        self.prepare_strided(shapes, &Strides::default())
    }

    /// Checks the shapes of operands that need not be dense, and chooses the kernels. The buffer of an operand with
    /// strides may end after its last row.
    ///
    /// # Errors
    /// Returns the errors of [`prepare`](Self::prepare), and an error if strides exceed the address space, or if rows
    /// of the output share elements.
    pub fn prepare_strided(
        &self,
        shapes: &Shapes<'_>,
        strides: &Strides,
    ) -> Result<Prepared, AttentionError> {
        Setup::new(*self, shapes, strides).map(Prepared)
    }
}

/// The largest number of threads that a scratch has memory for.
const MAX_THREADS: usize = 1024;

/// An [`Attention`] whose shapes are checked.
#[derive(Clone, Debug)]
pub struct Prepared(Setup);

impl Prepared {
    /// Returns this call with kernels that use at most this instruction set, to compare several in one process.
    #[must_use]
    pub fn with_isa(self, isa: Isa) -> Self {
        Self(self.0.with_isa(isa.min(Isa::allowed())))
    }

    /// Returns this call with limits so small that short calls take every path.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tiny_limits(self) -> Self {
        Self(self.0.with_limits(Limits::TINY))
    }

    /// Returns this call with wide blocks for any number of rows.
    #[doc(hidden)]
    #[must_use]
    pub fn with_wide_blocks(self) -> Self {
        let limits = self.0.limits.with_wide_blocks();
        Self(self.0.with_limits(limits))
    }

    /// Returns the shape of `Y`, which has the rank of the queries.
    #[must_use]
    pub fn output_shape(&self) -> Vec<usize> {
        let [batch, heads, queries, size] = self.0.sizes.shape(Operand::Output);
        if self.0.sizes.is_query_by_token {
            vec![batch, queries, heads * size]
        } else {
            vec![batch, heads, queries, size]
        }
    }

    /// Returns the shapes of `present_key` and `present_value`.
    #[must_use]
    pub fn present_shapes(&self) -> [[usize; 4]; 2] {
        [Operand::PresentKey, Operand::PresentValue].map(|operand| self.0.sizes.shape(operand))
    }

    /// Returns the shape of `qk_matmul_output`.
    #[must_use]
    pub fn scores_shape(&self) -> [usize; 4] {
        self.0.sizes.shape(Operand::Scores)
    }

    /// Returns the number of elements of an operand's buffer. For an operand with strides, it counts those from the
    /// first element to the last one. For a mask that was not prepared, it is 0.
    #[must_use]
    pub fn elements(&self, operand: Operand) -> usize {
        match operand {
            Operand::Query | Operand::Key | Operand::Value | Operand::Output => self.0.place(operand).span,
            Operand::Mask => self.0.mask.as_ref().map_or(0, |layout| layout.len),
            _ => self.0.sizes.shape(operand).iter().product(),
        }
    }

    /// Allocates the working memory of calls that use at most this many threads, and at most 1024. Each thread has
    /// memory for the scores of a chunk. If `qk_matmul_output` or a softmax in float64 is requested, it has memory for
    /// the scores of all slots.
    #[must_use]
    pub fn scratch(&self, threads: usize) -> Scratch {
        let mut scratch = Scratch {
            rooms: Vec::new(),
            partials: Vec::new(),
            threads: threads.clamp(1, MAX_THREADS),
            made_for: self.0.dimensions(),
            min_shared: self.0.limits.min_shared,
        };
        self.add_memory(&mut scratch);
        scratch
    }

    /// Returns whether [`fit`](Self::fit) keeps the memory of a scratch.
    #[must_use]
    pub fn keeps(&self, scratch: &Scratch) -> bool {
        scratch.made_for.memory() == self.0.dimensions().memory()
    }

    /// Makes a scratch fit this call. If the call that it was made for differs only in the number of keys, as in the
    /// steps of a growing cache, it keeps its memory, and gets more only if more threads can share the keys.
    pub fn fit(&self, scratch: &mut Scratch) {
        let dimensions = self.0.dimensions();
        if scratch.made_for == dimensions {
            return;
        }
        if !self.keeps(scratch) {
            scratch.rooms.clear();
            scratch.partials.clear();
        }
        scratch.made_for = dimensions;
        self.add_memory(scratch);
    }

    /// Adds the memory that a scratch needs for the longest call and does not have.
    fn add_memory(&self, scratch: &mut Scratch) {
        let (items, chunks) = (self.0.items(), self.0.max_chunks());
        let threads = scratch.threads.min(items.saturating_mul(chunks));
        let partials = if self.0.divides_items(threads) { items * chunks } else { 0 };
        let (rooms, all) = (&mut scratch.rooms, &mut scratch.partials);
        rooms.resize_with(rooms.len().max(threads), || Room::new(&self.0));
        all.resize_with(all.len().max(partials), || Partial::new(&self.0));
    }

    /// Computes the outputs.
    ///
    /// The scratch must come from [`scratch`](Self::scratch) of this value. The call uses at most as many
    /// threads of the executor as the scratch was made for. The results do not depend on their number.
    ///
    /// # Errors
    /// Returns an error if the elements do not have the prepared type, a buffer has the wrong length, an operand
    /// is missing, a length lies outside the cache, lengths are used with a past, or the scratch was made for
    /// other shapes. Nothing has been written then.
    pub fn run<T: Float, C: CacheElement>(
        &self,
        inputs: &Inputs<'_, T, C>,
        outputs: &mut Outputs<'_, T, C>,
        scratch: &mut Scratch,
        executor: Option<&dyn Executor>,
    ) -> Result<(), AttentionError> {
        self.check(inputs, outputs)?;
        // The kernels write to the scratch without further checks.
        if scratch.made_for != self.0.dimensions() {
            return Err(AttentionError::Scratch);
        }
        let call = CallMemory::new(&self.0, inputs, outputs);
        call.copy_present();
        threads::run(&call, scratch, executor);
        Ok(())
    }

    /// Checks the valid slots of a call, as [`run`](Self::run) does. A program that allocates outputs for each
    /// call can so refuse a call before it allocates them.
    ///
    /// # Errors
    /// Returns an error if there is not one length for each sample, if a length lies outside the cache, or if
    /// lengths are used with a past.
    pub fn check_valid(&self, valid: Valid<'_>) -> Result<(), AttentionError> {
        let (Valid::Lengths(lengths) | Valid::Prompt(lengths)) = valid else {
            return Ok(());
        };
        if self.0.has_past {
            return Err(AttentionError::LengthsAndPast);
        }
        let expected = self.0.sizes.batch;
        if lengths.len() != expected {
            return Err(AttentionError::Length { operand: Operand::Lengths, got: lengths.len(), expected });
        }
        let max =
            if self.0.op.is_ring { i64::MAX } else { i64::try_from(self.0.sizes.keys).unwrap_or(i64::MAX) };
        match lengths.iter().enumerate().find(|(_, length)| !(0..=max).contains(*length)) {
            None => Ok(()),
            Some((index, &value)) => Err(AttentionError::LengthOutOfRange { index, value, max }),
        }
    }

    fn check<T: Float, C: CacheElement>(
        &self,
        inputs: &Inputs<'_, T, C>,
        outputs: &Outputs<'_, T, C>,
    ) -> Result<(), AttentionError> {
        for (operand, got, expected) in
            [(Operand::Query, T::ELEMENT, self.0.element), (Operand::Key, C::ELEMENT, self.0.cache_element)]
        {
            if got != expected {
                return Err(AttentionError::OtherElementType { operand, got, expected });
            }
        }
        let same = |operand, got, expected| {
            if got == expected { Ok(()) } else { Err(AttentionError::Length { operand, got, expected }) }
        };
        let length = |operand, got| same(operand, got, self.elements(operand));
        let spans = |operand, got| match self.0.place(operand) {
            place if place.is_dense => length(operand, got),
            Place { span: needed, .. } if got < needed => {
                Err(AttentionError::TooShort { operand, got, needed })
            }
            _ => Ok(()),
        };
        spans(Operand::Query, inputs.query.len())?;
        spans(Operand::Key, inputs.key.len())?;
        spans(Operand::Value, inputs.value.len())?;
        spans(Operand::Output, outputs.output.len)?;
        let presence = |operand, is_given: bool, is_expected: bool| {
            if is_given == is_expected {
                Ok(())
            } else {
                Err(AttentionError::Presence { operand, is_expected })
            }
        };
        presence(Operand::Mask, inputs.mask.is_some(), self.0.mask.is_some())?;
        if let Some(mask) = &inputs.mask {
            length(Operand::Mask, mask.len())?;
        }
        presence(Operand::Sinks, inputs.sinks.is_some(), self.0.op.has_sinks)?;
        if let Some(sinks) = inputs.sinks {
            length(Operand::Sinks, sinks.len())?;
        }
        presence(Operand::KeyScales, inputs.scales.is_some(), C::ELEMENT == ElementType::Int8)?;
        match inputs.scales {
            None => {}
            Some(Scales::Rows { key, value }) => {
                length(Operand::KeyScales, key.len())?;
                length(Operand::ValueScales, value.len())?;
            }
            Some(Scales::Channels { key, value }) => {
                let Sizes { heads, head_size, value_size, .. } = self.0.sizes;
                same(Operand::KeyScales, key.len(), heads * head_size)?;
                same(Operand::ValueScales, value.len(), heads * value_size)?;
            }
        }
        presence(Operand::PastKey, inputs.past.is_some(), self.0.has_past)?;
        if let Some([key, value]) = inputs.past {
            length(Operand::PastKey, key.len())?;
            length(Operand::PastValue, value.len())?;
        }
        if let Some([key, value]) = &outputs.present {
            if self.0.sizes.blocks.is_some() {
                return Err(AttentionError::Blocks { operand: Operand::PresentKey });
            }
            length(Operand::PresentKey, key.len)?;
            length(Operand::PresentValue, value.len)?;
        }
        presence(Operand::Scores, outputs.scores.is_some(), self.0.op.scores.is_some())?;
        if let Some(scores) = &outputs.scores {
            length(Operand::Scores, scores.len)?;
        }
        presence(Operand::BlockTable, inputs.block_table.is_some(), self.0.sizes.blocks.is_some())?;
        if let Some(table) = inputs.block_table {
            length(Operand::BlockTable, table.len())?;
        }
        self.check_valid(inputs.valid)?;
        if let Some(starts) = inputs.starts {
            length(Operand::Starts, starts.len())?;
            if let Some((index, &value)) = starts.iter().enumerate().find(|(_, start)| **start < 0) {
                return Err(AttentionError::NegativeStart { index, value });
            }
        }
        self.check_blocks(inputs.valid, inputs.starts, inputs.block_table)
    }

    /// Checks every entry of a block table whose block contains a position that a query sees.
    fn check_blocks(
        &self,
        valid: Valid<'_>,
        starts: Option<&[i64]>,
        table: Option<&[i32]>,
    ) -> Result<(), AttentionError> {
        let (Some(table), Some(blocks)) = (table, self.0.sizes.blocks) else { return Ok(()) };
        for sample in 0..self.0.sizes.batch {
            let (tokens, first) = self.0.tokens_of(valid, sample);
            let start = starts.map_or(0, |starts| starts[sample]);
            let of_query = |query: usize| self.0.positions(tokens, first + query as i64, start);
            let (Some(last), seen) = (self.0.sizes.queries.checked_sub(1), of_query(0)) else { continue };
            let seen = seen.start..of_query(last).end.max(seen.end).min(tokens);
            if seen.is_empty() {
                continue;
            }
            let slots = seen.start as usize..seen.end as usize;
            for index in slots.start / blocks.size..slots.end.div_ceil(blocks.size) {
                let value = table[sample * blocks.per_sample + index];
                if usize::try_from(value).is_ok_and(|block| block < blocks.count) {
                    continue;
                }
                let max = i64::try_from(blocks.count).unwrap_or(i64::MAX) - 1;
                return Err(AttentionError::BlockOutOfRange { sample, index, value, max });
            }
        }
        Ok(())
    }
}
