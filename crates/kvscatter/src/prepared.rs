//! The prepared handle: the geometry, the rules for calls and the kernels.

use core::fmt;

use bytemuck::NoUninit;

use crate::cpu::{CpuKernels, Isa, Limits, Tuning};
use crate::error::Error;
use crate::geometry::{Geometry, Operands, Samples};
use crate::plan::{
    Call, CallRules, Convention, Lengths, Mode, Moves, NegativeIndex, OutOfRange, RuleOptions,
};
use crate::write::{BufferPairs, WritePlan, Written};

/// A write whose shapes have been checked. Create one per shape, and use it at every step.
///
/// The `prepare` method of every operator returns one. The methods here make a [`WritePlan`] and execute it.
/// To write keys and values at the same positions, call [`write_many`](Self::write_many), or make a
/// [`plan`](Self::plan) once and use it for each cache.
#[derive(Clone)]
pub struct Prepared {
    rules: CallRules,
    cpu: CpuKernels,
}

impl Prepared {
    /// Creates a handle. This is the only constructor, and the `prepare` method of every operator calls it.
    ///
    /// # Errors
    /// Returns the same errors as `Geometry::new`.
    pub(crate) fn new(operands: &Operands<'_>, options: RuleOptions) -> Result<Self, Error> {
        let geometry = Geometry::new(operands)?;
        let cpu = CpuKernels::new(&geometry, Tuning::up_to(Isa::allowed()));
        Ok(Self { rules: CallRules::new(geometry, options), cpu })
    }

    /// Returns the normalised shapes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.rules.geometry
    }

    /// Returns the instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.cpu.tuning.isa
    }

    /// Returns this handle with kernels that use at most this instruction set, to compare several in one
    /// process.
    ///
    /// ```
    /// # use kvscatter::{ElementType, Isa, spec::onnx::TensorScatter};
    /// # let scatter = TensorScatter::new().prepare(ElementType::Float16, &[1, 4, 8], &[1, 1, 8])?;
    /// assert_eq!(scatter.with_isa(Isa::Portable).isa(), Isa::Portable);
    /// # Ok::<(), kvscatter::Error>(())
    /// ```
    #[must_use]
    pub fn with_isa(self, isa: Isa) -> Self {
        let limits = self.cpu.tuning.limits;
        self.with_tuning(Tuning { limits, ..Tuning::up_to(isa) })
    }

    /// Returns this handle with limits so small that tensors of a few bytes take every path.
    #[doc(hidden)]
    #[must_use]
    pub fn with_tiny_limits(self) -> Self {
        let isa = self.isa();
        self.with_tuning(Tuning { isa, limits: &Limits::TINY })
    }

    pub(crate) fn with_tuning(self, tuning: Tuning) -> Self {
        Self { cpu: CpuKernels::new(self.geometry(), tuning), ..self }
    }

    /// Returns the convention that defines the meaning of the lists of a call.
    #[must_use]
    pub fn convention(&self) -> Convention {
        self.rules.options.convention
    }

    /// Returns how positions beyond the capacity are treated.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.rules.options.mode
    }

    /// Returns what happens to a sample whose position does not fit.
    #[must_use]
    pub fn out_of_range(&self) -> OutOfRange {
        self.rules.options.out_of_range
    }

    /// Returns how a negative index in a ring is treated.
    #[must_use]
    pub fn negative_index(&self) -> NegativeIndex {
        self.rules.options.negative_index
    }

    /// Returns `true` if the update is packed.
    ///
    /// The samples of a packed update follow each other without padding, and a list gives the number of rows
    /// of each sample. The update of a paged cache has no samples, so it is not packed.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        matches!(self.geometry().samples(), Samples::Packed { .. })
    }

    pub(crate) fn rules(&self) -> &CallRules {
        &self.rules
    }

    pub(crate) fn cpu(&self) -> &CpuKernels {
        &self.cpu
    }

    /// Checks every index of a call. The type of the call depends on the operator:
    ///
    /// | operator | call |
    /// |---|---|
    /// | ONNX `TensorScatter`, padded `KVCacheUpdate` | `write_indices`, one per sample of the update, as anything that converts into [`Positions`](crate::Positions) |
    /// | packed `KVCacheUpdate` | [`PackedCall`](crate::spec::tensorrt::PackedCall) |
    /// | `KVCacheOperation` | [`KvCacheOperationCall`](crate::spec::ascend::KvCacheOperationCall) |
    /// | [`PagedWrite`](crate::spec::paged::PagedWrite) | `slot_mapping`, one slot per token of the update |
    ///
    /// # Errors
    /// * Returns [`Error::ListLength`] if a list is too short, too long or missing.
    /// * Returns [`Error::BatchTooLarge`] if the call has more samples than the cache.
    /// * Returns [`Error::NegativeStart`], [`Error::StartOutOfRange`] or [`Error::EndOutOfRange`] for the
    ///   first position that does not fit. The checks do not overflow, even at `i64::MAX`.
    /// * Returns [`Error::IndexTooLarge`] if an unsigned value exceeds `i64::MAX`.
    /// * Returns [`Error::CumulativeStart`], [`Error::CumulativeOrder`], [`Error::CumulativeLength`],
    ///   [`Error::LengthOutOfRange`] or [`Error::TokenSum`] if the row counts or lengths of the samples are
    ///   not valid.
    /// * Returns [`Error::LayerOutOfRange`] if the layer does not exist.
    /// * Returns [`Error::SlotOutOfRange`] or [`Error::DuplicateSlot`] for slots of a paged cache.
    #[inline(always)]
    pub fn plan<'a>(&'a self, call: impl Into<Call<'a>>) -> Result<WritePlan<'a>, Error> {
        Ok(WritePlan::new(Moves::new(&self.rules, call.into())?, &self.cpu))
    }

    /// Checks a call that writes only the first `lengths[i]` rows of sample `i`.
    ///
    /// With lengths, right padding never reaches the cache and never overwrites the live slots of a ring.
    /// kvscatter extension; not part of the specification.
    ///
    /// A linear write needs `write_indices[i] + lengths[i] <= max_sequence_length`. For Ascend, `tokenOffset`
    /// still counts all rows, and its upper limit becomes
    /// `tokenOffset[i] - seqLen[i] + lengths[i] <= maxSeqLen`. A length of 0 writes nothing, but its position
    /// is still checked.
    ///
    /// ```
    /// # use kvscatter::{ElementType, Error, spec::onnx::TensorScatter};
    /// # let scatter = TensorScatter::new().prepare(ElementType::Float32, &[2, 4, 1], &[2, 3, 1])?;
    /// // Sample 0 has three real rows. Sample 1 has one real row and two rows of padding.
    /// let plan = scatter.plan_with_lengths(&[0_i64, 3], &[3_i64, 1])?;
    /// assert_eq!(plan.elements(), 4);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan). Also returns [`Error::LengthOutOfRange`] if a length
    /// is negative or exceeds the rows of its sample.
    #[inline(always)]
    pub fn plan_with_lengths<'a>(
        &'a self,
        call: impl Into<Call<'a>>,
        lengths: impl Into<Lengths<'a>>,
    ) -> Result<WritePlan<'a>, Error> {
        self.plan(call.into().with_lengths(lengths))
    }

    /// Writes `update` into `cache`. See [`WritePlan::write`].
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan) and [`WritePlan::write`].
    #[inline]
    pub fn write<'a, T: NoUninit>(
        &'a self,
        cache: &mut [T],
        update: &[T],
        call: impl Into<Call<'a>>,
    ) -> Result<Written, Error> {
        self.plan(call)?.write(cache, update)
    }

    /// Writes many caches at the same positions, either all of them or none. See [`WritePlan::write_many`].
    ///
    /// ```
    /// # use kvscatter::{ElementType, spec::onnx::TensorScatter};
    /// # let scatter = TensorScatter::new().axis(1).prepare(ElementType::Int8, &[1, 4], &[1, 1])?;
    /// let (mut k, mut v) = ([0_i8; 4], [0_i8; 4]);
    /// let written = scatter.write_many(&mut [(&mut k, &[7]), (&mut v, &[9])], &[2_i64])?;
    /// assert_eq!(written.skipped, 0);
    /// assert_eq!((k, v), ([0, 0, 7, 0], [0, 0, 9, 0]));
    /// # Ok::<(), kvscatter::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan) and [`WritePlan::write_many`].
    pub fn write_many<'a, T: NoUninit>(
        &'a self,
        pairs: &mut (impl BufferPairs<T> + ?Sized),
        call: impl Into<Call<'a>>,
    ) -> Result<Written, Error> {
        self.plan(call)?.write_many(pairs)
    }

    /// Writes the functional form. The arguments have ONNX's names and order.
    ///
    /// `present_cache` becomes a copy of `past_cache` that contains the update. This takes one pass over
    /// memory.
    ///
    /// # Errors
    /// Returns the same errors as [`plan`](Self::plan) and [`WritePlan::write_present`].
    pub fn write_present<'a, T: NoUninit>(
        &'a self,
        past_cache: &[T],
        update: &[T],
        present_cache: &mut [T],
        call: impl Into<Call<'a>>,
    ) -> Result<Written, Error> {
        self.plan(call)?.write_present(past_cache, update, present_cache)
    }
}

/// Prints the sizes, the options and the instruction set, without the kernels.
impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RuleOptions { mode, out_of_range, negative_index, convention, .. } = self.rules.options;
        f.debug_struct("Prepared")
            .field("geometry", self.geometry())
            .field("mode", &mode)
            .field("out_of_range", &out_of_range)
            .field("negative_index", &negative_index)
            .field("convention", &convention)
            .field("isa", &self.isa())
            .finish_non_exhaustive()
    }
}
