//! ONNX [`TensorScatter-24`](https://onnx.ai/onnx/operators/onnx__TensorScatter.html).

mod infer;

pub use infer::{Dimension, Inferred};

use core::mem::MaybeUninit;

use bytemuck::NoUninit;

use crate::argument::Words;
use crate::call::{Anchor, Call, Spans};
use crate::geometry::{Geometry, Normalised, Roles, Rules, agree, width};
use crate::layout::Dim;
use crate::{
    Argument, Buffers, ElementType, Error, Layout, Lengths, Mode, NegativeIndex, OutOfRange, Starts,
    WritePlan, Written,
};

/// The operator and its attributes.
///
/// ```
/// use kvscatter::{ElementType, Mode, spec::onnx::TensorScatter};
///
/// let write = TensorScatter::new().mode(Mode::Circular).prepare(
///     ElementType::Float32,
///     &[2, 4, 1], // past_cache: batch, max_sequence_length, head_size
///     &[2, 2, 1], // update: batch, sequence_length, head_size
/// )?;
/// let mut cache = [0.0_f32; 8];
/// write.in_place(&mut cache, &[1.0, 2.0, 3.0, 4.0], &[1_i64, 3])?;
/// assert_eq!(cache, [0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorScatter {
    axis: i64,
    rules: Rules,
}

impl TensorScatter {
    /// `axis` -2, `mode` linear.
    #[must_use]
    pub const fn new() -> Self {
        let rules = Rules {
            mode: Mode::Linear,
            out_of_range: OutOfRange::Error,
            negative_index: NegativeIndex::Modulo,
        };
        Self { axis: -2, rules }
    }

    /// The sequence dimension: `1..rank`, or counted from the end, `-rank + 1..=-1`.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Whether the cache is a ring.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.rules.mode = mode;
        self
    }

    /// An extension of ours: what happens to a sample whose index does not fit.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.rules.out_of_range = policy;
        self
    }

    /// What a negative index means in circular mode. ONNX's reference takes it modulo, ONNX Runtime refuses it.
    #[must_use]
    pub const fn negative_index(mut self, policy: NegativeIndex) -> Self {
        self.rules.negative_index = policy;
        self
    }

    /// The sequence dimension of a cache of this rank, counted from the front: `1..rank`.
    ///
    /// # Errors
    /// [`Error::Rank`] below 2, [`Error::AxisOutOfRange`] outside `[-rank, rank)`, [`Error::AxisIsBatch`] for 0
    /// and `-rank`.
    pub fn resolve_axis(&self, rank: usize) -> Result<usize, Error> {
        if rank < 2 {
            return Err(Error::Rank { argument: Argument::PastCache, rank, min: 2, max: usize::MAX });
        }
        let out_of_range = Error::AxisOutOfRange { axis: self.axis, rank };
        let from_front = match usize::try_from(self.axis) {
            Ok(axis) => Some(axis),
            Err(_) => self.axis.checked_neg().and_then(|back| rank.checked_sub(usize::try_from(back).ok()?)),
        };
        match from_front {
            Some(0) => Err(Error::AxisIsBatch { axis: self.axis, rank }),
            Some(axis) if axis < rank => Ok(axis),
            _ => Err(out_of_range),
        }
    }

    /// Checks everything about shapes, once. A plain shape is dense; see [`Layout`] for views.
    ///
    /// `past_cache` is `(batch_size, D1, …, max_sequence_length, …, Dn)`, `update` differs from it in the
    /// sequence dimension alone and is no longer there.
    ///
    /// # Errors
    /// The first rule of the specification that the shapes break: rank, axis, dimensions that differ, an update
    /// longer than the cache; then those of the layouts.
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        past_cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (past_cache, update) = (past_cache.into(), update.into());
        let (rank, update_rank) = (past_cache.shape().len(), update.shape().len());
        let axis = self.resolve_axis(rank)?;
        if rank != update_rank {
            return Err(Error::RankMismatch { cache: rank, update: update_rank });
        }
        let cache = past_cache.resolve(Argument::PastCache, width(element))?;
        let update = update.resolve(Argument::Update, width(element))?;

        let misplaced = Error::AxisOutOfRange { axis: self.axis, rank };
        let old = Roles::of(&cache.dims, axis).ok_or(misplaced)?;
        let new = Roles::of(&update.dims, axis).ok_or(misplaced)?;
        agree(Argument::Update, 0, &[old.sample], &[new.sample])?;
        let geometry = Geometry::new(&Normalised {
            words: &Words::ONNX,
            element,
            rules: self.rules,
            cache: &cache,
            update: &update,
            layers: Dim::ONE,
            batch: (old.sample, Some(new.sample)),
            rows: (old.rows, new.rows),
            outer: agree(Argument::Update, 1, old.outer, new.outer)?,
            inner: agree(Argument::Update, axis.saturating_add(1), old.inner, new.inner)?,
        })?;
        Ok(Prepared { geometry })
    }
}

impl Default for TensorScatter {
    fn default() -> Self {
        Self::new()
    }
}

/// A `TensorScatter` whose shapes are checked: build it once, run it every step.
///
/// The methods here make a [`WritePlan`] and execute it; to write keys and values at the same positions, make
/// the plan yourself and use it twice. Starts convert from slices, arrays and vectors of `i64` or `i32`;
/// [`Starts::Zero`] is ONNX's absent `write_indices`.
#[derive(Clone, Debug)]
pub struct Prepared {
    geometry: Geometry,
}

impl Prepared {
    /// The shapes, normalised.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Checks this call's `write_indices`: one per sample.
    ///
    /// # Errors
    /// [`Error::Count`]; [`Error::NegativeStart`] and [`Error::StartOutOfRange`] for the first index that does
    /// not fit. They are found by arithmetic that does not overflow, at `i64::MAX` as elsewhere.
    pub fn plan<'a>(&'a self, write_indices: impl Into<Starts<'a>>) -> Result<WritePlan<'a>, Error> {
        self.plan_lengths(write_indices, Lengths::Full)
    }

    /// An extension of ours: only the first `lengths[i]` rows of sample `i` are written, so that right padding
    /// never reaches the cache, in a ring neither.
    ///
    /// Linear mode asks for `write_indices[i] + lengths[i] <= max_sequence_length`. A length of 0 writes
    /// nothing, and its index is still checked.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`Error::LengthOutOfRange`] outside `0..=sequence_length`.
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

    /// The operator as ONNX words it: `present_cache` becomes `past_cache` with the update in it, in one pass.
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
    ) -> Result<&'p mut [T], Error> {
        self.plan(write_indices)?.into_present_uninit(past_cache, update, present_cache)
    }
}
