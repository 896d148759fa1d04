//! The prepared handle: the geometry of fixed shapes, the rules for calls, and the kernels chosen for both.

use core::fmt;

use bytemuck::NoUninit;

use crate::cpu::{CpuKernels, Isa};
use crate::error::Error;
use crate::geometry::{Geometry, Operands, Samples};
use crate::plan::{Call, CallRules, Convention, Lengths, Mode, Moves, NegativeIndex, RuleOptions};
use crate::write::{BufferPairs, WritePlan, Written};

/// A write whose shapes are checked: build it once, run it every step.
///
/// Every operator's `prepare` makes one. The methods here make a [`WritePlan`] and execute it. To write keys and values
/// at the same positions, make the plan yourself and use it twice.
#[derive(Clone)]
pub struct Prepared {
    rules: CallRules,
    cpu: CpuKernels,
}

impl Prepared {
    /// The one constructor: the `prepare` of every operator ends here.
    ///
    /// # Errors
    /// Those of [`Geometry::new`].
    pub(crate) fn new(operands: &Operands<'_>, options: RuleOptions) -> Result<Self, Error> {
        let geometry = Geometry::new(operands)?;
        let cpu = CpuKernels::new(&geometry);
        Ok(Self { rules: CallRules::new(geometry, options), cpu })
    }

    /// Returns the shapes, normalised.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.rules.geometry
    }

    /// Returns the instruction set of the kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.cpu.isa
    }

    /// Returns what the lists of a call mean.
    #[must_use]
    pub fn convention(&self) -> Convention {
        self.rules.options.convention
    }

    /// Returns what positions beyond the capacity mean.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.rules.options.mode
    }

    /// Returns what a negative index means in a ring.
    #[must_use]
    pub fn negative_index(&self) -> NegativeIndex {
        self.rules.options.negative_index
    }

    /// Returns whether the samples of the update follow each other, with as many rows each as a list gives.
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

    /// Checks every index of a call. The operator says what a call is:
    ///
    /// | operator | call |
    /// |---|---|
    /// | ONNX `TensorScatter`, padded `KVCacheUpdate` | `write_indices`, one per sample of the update: anything that converts into [`Positions`](crate::Positions) |
    /// | packed `KVCacheUpdate` | [`PackedCall`](crate::spec::tensorrt::PackedCall) |
    /// | `KVCacheOperation` | [`KvCacheOperationCall`](crate::spec::ascend::KvCacheOperationCall) |
    ///
    /// # Errors
    /// * [`Error::ListLength`] for a list that is too short, too long or missing, [`Error::BatchTooLarge`];
    /// * [`Error::NegativeStart`], [`Error::StartOutOfRange`], [`Error::EndOutOfRange`] for the first position that does
    ///   not fit. The checks do not overflow, even at `i64::MAX`;
    /// * [`Error::IndexTooLarge`] for an unsigned value above `i64::MAX`;
    /// * [`Error::CumulativeStart`], [`Error::CumulativeOrder`], [`Error::CumulativeLength`],
    ///   [`Error::LengthOutOfRange`], [`Error::TokenSum`] for the rows that samples bring;
    /// * [`Error::LayerOutOfRange`].
    #[inline(always)]
    pub fn plan<'a>(&'a self, call: impl Into<Call<'a>>) -> Result<WritePlan<'a>, Error> {
        Ok(WritePlan::new(Moves::new(&self.rules, call.into())?, &self.cpu))
    }

    /// Checks a call that writes only the first `lengths[i]` rows of sample `i`, so that right padding never reaches the
    /// cache, nor a ring's live slots. No specification has this.
    ///
    /// A linear write needs `write_indices[i] + lengths[i] <= max_sequence_length`. For Ascend, `tokenOffset` still counts
    /// all rows, and `tokenOffset[i] - seqLen[i] + lengths[i] <= maxSeqLen` suffices. A length of 0 writes nothing, and
    /// its position is still checked.
    ///
    /// ```
    /// # use kvscatter::{ElementType, Error, spec::onnx::TensorScatter};
    /// # let scatter = TensorScatter::new().prepare(ElementType::Float32, &[2, 4, 1], &[2, 3, 1])?;
    /// // Sample 0 brings three rows, and sample 1 one row and two of padding.
    /// let plan = scatter.plan_with_lengths(&[0_i64, 3], &[3_i64, 1])?;
    /// assert_eq!(plan.elements(), 4);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`Error::LengthOutOfRange`] beyond the rows that the sample brings.
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
    /// As [`plan`](Self::plan) and [`WritePlan::write`].
    #[inline]
    pub fn write<'a, T: NoUninit>(
        &'a self,
        cache: &mut [T],
        update: &[T],
        call: impl Into<Call<'a>>,
    ) -> Result<Written, Error> {
        self.plan(call)?.write(cache, update)
    }

    /// Writes many caches at the same positions, all or none. See [`WritePlan::write_many`].
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
    /// As [`plan`](Self::plan) and [`WritePlan::write_many`].
    pub fn write_many<'a, T: NoUninit>(
        &'a self,
        pairs: &mut (impl BufferPairs<T> + ?Sized),
        call: impl Into<Call<'a>>,
    ) -> Result<Written, Error> {
        self.plan(call)?.write_many(pairs)
    }

    /// Writes the functional form, in ONNX's words and order: `present_cache` becomes `past_cache` with the update in it,
    /// in one pass.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::write_present`].
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

/// The sizes, the options and the instruction set; the kernels are left out.
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
