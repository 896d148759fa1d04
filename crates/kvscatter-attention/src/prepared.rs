//! A call that is prepared for one set of shapes.

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Executor, Isa};

use crate::block::{Call, Room};
use crate::element::Float;
use crate::error::{AttentionError, Operand};
use crate::kernel::LANES;
use crate::mask::MaskLayout;
use crate::operands::{Inputs, Outputs, Shapes, Valid};
use crate::operator::{Attention, Softmax};
use crate::sizes::Sizes;
use crate::threads;

/// The number of positions that are processed together. Blocks of positions begin at multiples of this number,
/// so the order of the sums depends on positions only.
const CHUNK: usize = 512;

/// The largest number of rows of a head that are processed together. Each key is read from memory once for these
/// rows. 16 rows and the keys that they share fit in the second-level cache.
const ROWS: usize = 16;

/// The number of consecutive slots of which all heads are read before the next slots, if the heads of one slot
/// are neighbours in memory.
const INTERLEAVED_SLOTS: usize = 8;

/// An [`Attention`] whose shapes are checked.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub(crate) op: Attention,
    pub(crate) sizes: Sizes,
    pub(crate) element: ElementType,
    pub(crate) mask: Option<MaskLayout>,
    pub(crate) has_past: bool,
    pub(crate) rule: Visibility,
    pub(crate) isa: Isa,
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
    /// The number of slots of one head that are read before those of the next head.
    pub(crate) slots: usize,
    /// Whether every position is processed in one chunk, read or not. An output of scores needs this.
    pub(crate) is_whole: bool,
}

impl Blocking {
    fn new(op: &Attention, sizes: &Sizes) -> Self {
        let is_whole = op.scores.is_some() || op.softmax == Softmax::Float64;
        let rows = sizes.rows().min(ROWS);
        let chunk = if is_whole { sizes.total().next_multiple_of(LANES).max(LANES) } else { CHUNK };
        let interleaves = sizes.is_rank_3 && !is_whole;
        Self {
            heads: if interleaves { sizes.heads } else { 1 },
            rows,
            chunk,
            slots: if interleaves { INTERLEAVED_SLOTS } else { usize::MAX },
            is_whole,
        }
    }
}

/// The memory that a call works in. A call that is prepared uses it again and again and allocates nothing.
#[derive(Debug)]
pub struct Scratch {
    pub(crate) workers: Vec<Room>,
}

impl Prepared {
    pub(crate) fn new(op: Attention, sizes: Sizes, shapes: &Shapes<'_>) -> Result<Self, AttentionError> {
        let element = shapes.element;
        if !matches!(element, ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16) {
            return Err(AttentionError::ElementType { element });
        }
        let expected = [sizes.batch, sizes.query_heads, sizes.queries, sizes.total()];
        let mask = shapes.mask.map(|shape| MaskLayout::new(shape, expected)).transpose()?;
        Ok(Self {
            op,
            sizes,
            element,
            mask,
            has_past: shapes.past.is_some(),
            rule: sizes.visibility(&op),
            isa: Isa::allowed(),
            blocking: Blocking::new(&op, &sizes),
        })
    }

    /// Uses at most this instruction set. This is for benchmarks that compare several in one process.
    #[doc(hidden)]
    #[must_use]
    pub fn up_to(self, isa: Isa) -> Self {
        // The kernels of this value's own instruction set run on this machine, and so do those of AVX2 where
        // it has AVX-512.
        let isa = if (isa, self.isa) == (Isa::Avx2, Isa::Avx512) { isa } else { self.isa };
        Self { isa, ..self }
    }

    /// Returns the shape of `Y`.
    #[must_use]
    pub fn output_shape(&self) -> Vec<usize> {
        let Sizes { batch, query_heads, queries, value_size, is_rank_3, .. } = self.sizes;
        if is_rank_3 {
            vec![batch, queries, query_heads * value_size]
        } else {
            vec![batch, query_heads, queries, value_size]
        }
    }

    /// Returns the shapes of `present_key` and `present_value`.
    #[must_use]
    pub fn present_shapes(&self) -> [[usize; 4]; 2] {
        let Sizes { batch, heads, head_size, value_size, .. } = self.sizes;
        [head_size, value_size].map(|size| [batch, heads, self.sizes.total(), size])
    }

    /// Returns the shape of `qk_matmul_output`.
    #[must_use]
    pub fn scores_shape(&self) -> [usize; 4] {
        let Sizes { batch, query_heads, queries, .. } = self.sizes;
        [batch, query_heads, queries, self.sizes.total()]
    }

    /// Allocates the memory for calls that use at most this many threads.
    #[must_use]
    pub fn scratch(&self, threads: usize) -> Scratch {
        let threads = if self.items() == 0 { 0 } else { threads.max(1) };
        Scratch { workers: (0..threads).map(|_| Room::new(self)).collect() }
    }

    /// Computes the outputs.
    ///
    /// The scratch must come from [`scratch`](Self::scratch) of this value. The executor's threads help, as
    /// many as the scratch was made for. The results do not depend on the number of threads.
    ///
    /// # Errors
    /// Returns an error if a buffer has the wrong length, an operand is missing, or a length lies outside the
    /// cache. Nothing has been written then.
    pub fn run<T: Float>(
        &self,
        inputs: &Inputs<'_, T>,
        outputs: &mut Outputs<'_, T>,
        scratch: &mut Scratch,
        executor: Option<&dyn Executor>,
    ) -> Result<(), AttentionError> {
        self.check(inputs, outputs)?;
        let call = Call::new(self, inputs, outputs);
        call.copy_present();
        threads::run(&call, scratch, executor);
        Ok(())
    }

    /// Returns the number of parts that threads can claim.
    pub(crate) fn items(&self) -> usize {
        let Sizes { batch, heads, .. } = self.sizes;
        batch * heads.div_ceil(self.blocking.heads) * self.sizes.rows().div_ceil(self.blocking.rows.max(1))
    }

    fn check<T: Float>(
        &self,
        inputs: &Inputs<'_, T>,
        outputs: &Outputs<'_, T>,
    ) -> Result<(), AttentionError> {
        let Sizes { batch, query_heads, heads, queries, keys, past, head_size, value_size, .. } = self.sizes;
        if T::ELEMENT != self.element {
            return Err(AttentionError::ElementType { element: T::ELEMENT });
        }
        let length = |operand, got, expected| {
            if got == expected { Ok(()) } else { Err(AttentionError::Length { operand, got, expected }) }
        };
        length(Operand::Query, inputs.query.len(), batch * query_heads * queries * head_size)?;
        length(Operand::Key, inputs.key.len(), batch * heads * keys * head_size)?;
        length(Operand::Value, inputs.value.len(), batch * heads * keys * value_size)?;
        length(Operand::Output, outputs.output.len, batch * query_heads * queries * value_size)?;
        let presence = |operand, is_given: bool, is_expected: bool| {
            if is_given == is_expected {
                Ok(())
            } else {
                Err(AttentionError::Presence { operand, is_expected })
            }
        };
        presence(Operand::Mask, inputs.mask.is_some(), self.mask.is_some())?;
        if let (Some(mask), Some(layout)) = (&inputs.mask, &self.mask) {
            length(Operand::Mask, mask.len(), layout.len)?;
        }
        presence(Operand::PastKey, inputs.past.is_some(), self.has_past)?;
        if let Some([key, value]) = inputs.past {
            length(Operand::PastKey, key.len(), batch * heads * past * head_size)?;
            length(Operand::PastValue, value.len(), batch * heads * past * value_size)?;
        }
        if let Some([key, value]) = &outputs.present {
            length(Operand::PresentKey, key.len, batch * heads * self.sizes.total() * head_size)?;
            length(Operand::PresentValue, value.len, batch * heads * self.sizes.total() * value_size)?;
        }
        presence(Operand::Scores, outputs.scores.is_some(), self.op.scores.is_some())?;
        if let Some(scores) = &outputs.scores {
            length(Operand::Scores, scores.len, batch * query_heads * queries * self.sizes.total())?;
        }
        self.check_lengths(inputs.valid)
    }

    fn check_lengths(&self, valid: Valid<'_>) -> Result<(), AttentionError> {
        let Valid::Lengths(lengths) = valid else {
            return Ok(());
        };
        if self.has_past {
            return Err(AttentionError::LengthsAndPast);
        }
        let expected = self.sizes.batch;
        if lengths.len() != expected {
            return Err(AttentionError::Length { operand: Operand::Lengths, got: lengths.len(), expected });
        }
        let max = if self.op.is_ring { i64::MAX } else { i64::try_from(self.sizes.keys).unwrap_or(i64::MAX) };
        match lengths.iter().enumerate().find(|(_, length)| !(0..=max).contains(*length)) {
            None => Ok(()),
            Some((index, &value)) => Err(AttentionError::LengthOutOfRange { index, value, max }),
        }
    }
}
