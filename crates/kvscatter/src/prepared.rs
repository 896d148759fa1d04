//! A write whose shapes are checked, for the specifications whose calls need positions alone.

use core::mem::MaybeUninit;

use bytemuck::NoUninit;

use crate::call::{Anchor, Call, Spans};
use crate::{Buffers, Error, Geometry, Lengths, Starts, WritePlan, Written};

/// A `TensorScatter` or a padded `KVCacheUpdate` whose shapes are checked: build it once, run it every step.
///
/// The methods here make a [`WritePlan`] and execute it; to write keys and values at the same positions, make
/// the plan yourself and use it twice. Starts convert from slices, arrays and vectors of `i64` or `i32`;
/// [`Starts::Zero`] is ONNX's absent `write_indices`.
#[derive(Clone, Debug)]
pub struct Prepared {
    geometry: Geometry,
}

impl Prepared {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry }
    }

    /// The shapes, normalised.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Checks this call's `write_indices`: one per sample of the update.
    ///
    /// # Errors
    /// [`Error::Count`]; [`Error::NegativeStart`] and [`Error::StartOutOfRange`] for the first index that does
    /// not fit. They are found by arithmetic that does not overflow, at `i64::MAX` as elsewhere.
    #[inline(always)]
    pub fn plan<'a>(&'a self, write_indices: impl Into<Starts<'a>>) -> Result<WritePlan<'a>, Error> {
        self.plan_lengths(write_indices, Lengths::Full)
    }

    /// An extension of ours: only the first `lengths[i]` rows of sample `i` are written, so that right padding
    /// never reaches the cache, nor a ring's live slots.
    ///
    /// Linear mode asks for `write_indices[i] + lengths[i] <= max_sequence_length`. A length of 0 writes
    /// nothing, and its index is still checked.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`Error::LengthOutOfRange`] beyond the rows of the update.
    #[inline(always)]
    pub fn plan_lengths<'a>(
        &'a self,
        write_indices: impl Into<Starts<'a>>,
        lengths: impl Into<Lengths<'a>>,
    ) -> Result<WritePlan<'a>, Error> {
        let (starts, lengths) = (write_indices.into(), lengths.into());
        let call = Call { layer: 0, starts, anchor: Anchor::First, spans: Spans::Uniform, lengths };
        WritePlan::new(&self.geometry, call)
    }

    /// Writes `update` into `cache`. See [`WritePlan::write`].
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::write`].
    #[inline]
    pub fn in_place<'a, T: NoUninit>(
        &'a self,
        cache: &mut [T],
        update: &[T],
        write_indices: impl Into<Starts<'a>>,
    ) -> Result<Written, Error> {
        self.plan(write_indices)?.write(cache, update)
    }

    /// Writes many caches at the same positions, all or none. See [`WritePlan::write_many`].
    ///
    /// ```
    /// # use kvscatter::{ElementType, spec::onnx::TensorScatter};
    /// # let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, &[1, 4], &[1, 1])?;
    /// let (mut k, mut v) = ([0_i8; 4], [0_i8; 4]);
    /// write.in_place_many(&mut [(&mut k, &[7]), (&mut v, &[9])], &[2_i64])?;
    /// assert_eq!((k, v), ([0, 0, 7, 0], [0, 0, 9, 0]));
    /// # Ok::<(), kvscatter::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::write_many`].
    pub fn in_place_many<'a, T: NoUninit, C: AsMut<[T]>, U: AsRef<[T]>>(
        &'a self,
        pairs: &mut [(C, U)],
        write_indices: impl Into<Starts<'a>>,
    ) -> Result<Written, Error> {
        self.plan(write_indices)?.write_many(pairs)
    }

    /// [`in_place_many`](Self::in_place_many) over a set that lends its pairs one at a time.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::write_many`].
    pub fn in_place_set<'a, T: NoUninit>(
        &'a self,
        set: &mut (impl Buffers<T> + ?Sized),
        write_indices: impl Into<Starts<'a>>,
    ) -> Result<Written, Error> {
        self.plan(write_indices)?.write_many(set)
    }

    /// The functional form, as ONNX words its operator: `present_cache` becomes `past_cache` with the update in it,
    /// in one pass.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::into_present`].
    pub fn into_present<'a, T: NoUninit>(
        &'a self,
        past_cache: &[T],
        update: &[T],
        write_indices: impl Into<Starts<'a>>,
        present_cache: &mut [T],
    ) -> Result<Written, Error> {
        self.plan(write_indices)?.into_present(past_cache, update, present_cache)
    }

    /// [`into_present`](Self::into_present) into memory that need not be initialised.
    ///
    /// # Errors
    /// As [`plan`](Self::plan) and [`WritePlan::into_present_uninit`].
    pub fn into_present_uninit<'a, 'p, T: NoUninit>(
        &'a self,
        past_cache: &[T],
        update: &[T],
        write_indices: impl Into<Starts<'a>>,
        present_cache: &'p mut [MaybeUninit<T>],
    ) -> Result<(&'p mut [T], Written), Error> {
        self.plan(write_indices)?.into_present_uninit(past_cache, update, present_cache)
    }
}
