//! ONNX [`TensorScatter-24`](https://onnx.ai/onnx/operators/onnx__TensorScatter.html).

mod infer;

use super::operands::{axis_from_front, padded, pair_dimensions};
use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::Error;
use crate::geometry::Layout;
use crate::plan::{Convention, Mode, NegativeIndex, OutOfRange, RuleOptions};
use crate::prepared::Prepared;

const NAMES: ArgumentNames = ArgumentNames {
    cache: Argument::PastCache,
    update: Argument::Update,
    axis: Some(Argument::Axis),
    positions: Argument::WriteIndices,
    // TensorScatter has no row counts and no layers. An error for a call that has them uses these names.
    row_counts: Argument::UpdateLengths,
    present: Argument::PresentCache,
    layer: Argument::LayerId,
};

/// The operator and its attributes.
///
/// ```
/// use kvscatter::{ElementType, Mode, spec::onnx::TensorScatter};
///
/// let scatter = TensorScatter::new().mode(Mode::Circular).prepare(
///     ElementType::Float32,
///     &[2, 4, 1], // past_cache: batch, max_sequence_length, head_size
///     &[2, 2, 1], // update: batch, sequence_length, head_size
/// )?;
/// let mut cache = [0.0_f32; 8];
/// let written = scatter.write(&mut cache, &[1.0, 2.0, 3.0, 4.0], &[1_i64, 3])?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(cache, [0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorScatter {
    axis: i64,
    rules: RuleOptions,
}

impl TensorScatter {
    /// The value of `axis` that ONNX uses by default.
    pub const DEFAULT_AXIS: i64 = -2;

    /// Creates the operator with ONNX's defaults: `axis` -2 and `mode` linear.
    #[must_use]
    pub const fn new() -> Self {
        let rules = RuleOptions {
            mode: Mode::Linear,
            out_of_range: OutOfRange::Error,
            negative_index: NegativeIndex::Modulo,
            optional_positions: true,
            convention: Convention::Starts,
            min_rows: 0,
            has_layers: false,
            skip_negative: false,
        };
        Self { axis: Self::DEFAULT_AXIS, rules }
    }

    /// Sets the sequence dimension. It lies in `1..rank`, or in `-rank + 1..=-1` if it counts from the end.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Sets whether the cache is linear or a ring.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.rules.mode = mode;
        self
    }

    /// Sets what happens to a sample whose index does not fit. kvscatter extension; not part of the
    /// specification. The default is an error.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.rules.out_of_range = policy;
        self
    }

    /// Sets what a negative index means in circular mode. ONNX's reference implementation takes it modulo the
    /// capacity, and ONNX Runtime rejects it. kvscatter extension; not part of the specification.
    #[must_use]
    pub const fn negative_index(mut self, policy: NegativeIndex) -> Self {
        self.rules.negative_index = policy;
        self
    }

    /// Returns the sequence dimension of a cache of this rank, counted from the front. It lies in `1..rank`.
    ///
    /// # Errors
    /// * Returns [`Error::RankTooLow`] if the rank is less than 2.
    /// * Returns [`Error::AxisOutOfRange`] if the axis lies outside `[-rank, rank)`.
    /// * Returns [`Error::AxisIsBatch`] if the axis is 0 or `-rank`.
    pub fn resolve_axis(&self, rank: usize) -> Result<usize, Error> {
        if rank < 2 {
            return Err(Error::RankTooLow { argument: Argument::PastCache, rank, min: 2 });
        }
        axis_from_front(self.axis, rank)
    }

    /// Checks everything about the shapes, once per shape.
    ///
    /// A plain shape describes a dense tensor. See [`Layout`] for views. `past_cache` is
    /// `(batch_size, D1, …, max_sequence_length, …, Dn)`. `update` may differ from `past_cache` only in the
    /// sequence dimension, where it must not be larger.
    ///
    /// # Errors
    /// The errors are listed in the order of the checks:
    ///
    /// * Returns the errors of [`resolve_axis`](Self::resolve_axis).
    /// * Returns [`Error::RankMismatch`] if the ranks differ.
    /// * Returns [`Error::StrideCount`], [`Error::TooLarge`] or [`Error::BeforeBuffer`] if a layout is
    ///   invalid.
    /// * Returns [`Error::DimensionMismatch`] if a dimension other than the sequence differs.
    /// * Returns [`Error::CacheOverlapsItself`] if two positions of the cache share memory.
    /// * Returns [`Error::UpdateLongerThanCache`] if the update has more rows than the cache has slots.
    /// * Returns [`Error::TooManyLoops`] if the two layouts need too many loops.
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
            let argument = Argument::Update;
            return Err(Error::RankMismatch { argument, cache: rank, update: update_rank });
        }
        let cache = past_cache.resolve(Argument::PastCache, element.size_bits())?;
        let update = update.resolve(Argument::Update, element.size_bits())?;

        let (cache_batch, update_batch) = (cache.dims().get(..1), update.dims().get(..1));
        pair_dimensions(
            Argument::Update,
            0,
            cache_batch.unwrap_or_default(),
            update_batch.unwrap_or_default(),
        )?;
        Prepared::new(&padded(&NAMES, element, &cache, &update, axis)?, self.rules)
    }
}

impl Default for TensorScatter {
    fn default() -> Self {
        Self::new()
    }
}
