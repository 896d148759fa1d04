//! TensorRT [`KVCacheUpdate`](https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html).
//!
//! The document's rule is `writeIndices[i] + sequenceLength <= maxSequenceLength`. The C++ header adds that
//! updates out of bounds "will be ignored silently". In this module, such an update is an error by default.
//! [`OutOfRange::SkipSample`] skips the samples that do not fit, and the write returns their number. It is
//! not known whether TensorRT skips rows or whole samples, so this policy is a kvscatter extension and may
//! differ from TensorRT.
//!
//! `LINEAR` is the only cache mode up to TensorRT 11.4, so a negative index never fits.

mod infer;
mod network;
mod rules;

pub use network::{KvCacheUpdateLayer, NetworkError, NetworkTensor, TensorSource};
pub use rules::Network;

use super::operands::{Roles, check_accepted, padded, pair_dimensions};
use crate::argument::{Argument, ArgumentNames};
use crate::element::ElementType;
use crate::error::Error;
use crate::geometry::{ByTensor, Dim, Layout, Operands, UpdateBatch, View};
use crate::plan::{Call, Convention, OutOfRange, Positions, RuleOptions};
use crate::prepared::Prepared;

const NAMES: ArgumentNames = ArgumentNames {
    cache: Argument::Cache,
    update: Argument::Update,
    axis: None,
    positions: Argument::TensorRtWriteIndices,
    row_counts: Argument::UpdateLengths,
    present: Argument::Output,
    // KVCacheUpdate has no layers. An error for a call that has them uses Ascend's name.
    layer: Argument::LayerId,
};

/// The layer. It writes in place into `cache`, a `[b, d, s_max, h]` tensor.
///
/// ```
/// use kvscatter::{ElementType, spec::tensorrt::KvCacheUpdate};
///
/// let update = KvCacheUpdate::new().prepare(ElementType::Float32, &[2, 1, 4, 1], &[2, 1, 1, 1])?;
/// let mut cache = [0.0_f32; 8];
/// let written = update.write(&mut cache, &[1.0, 2.0], &[3_i32, 0])?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(cache, [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCacheUpdate {
    out_of_range: OutOfRange,
}

impl KvCacheUpdate {
    /// The element types that the layer accepts for caches.
    pub const ELEMENT_TYPES: &[ElementType] =
        &[ElementType::Float32, ElementType::Float16, ElementType::BFloat16];

    /// The element types that the layer accepts for `writeIndices`.
    pub const INDEX_TYPES: &[ElementType] = &[ElementType::Int32, ElementType::Int64];

    /// The element types that the layer accepts for `updateLengths`.
    pub const LENGTH_TYPES: &[ElementType] = &[ElementType::Int32];

    /// Creates a layer that returns an error for an index out of range.
    #[must_use]
    pub const fn new() -> Self {
        Self { out_of_range: OutOfRange::Error }
    }

    /// Sets what happens to a sample whose index does not fit. kvscatter extension; not part of the
    /// specification. The default is an error.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// Prepares writes of a padded update, a `[b, d, s, h]` tensor.
    ///
    /// The update may have fewer samples than the cache. The remaining samples of the cache then stay
    /// unchanged.
    ///
    /// # Errors
    /// * Returns [`Error::ElementType`] unless the element type is float32, float16 or bfloat16.
    /// * Returns [`Error::Rank`] unless both tensors are 4-D.
    /// * Returns [`Error::StrideCount`], [`Error::TooLarge`] or [`Error::BeforeBuffer`] if a layout is
    ///   invalid.
    /// * Returns [`Error::DimensionMismatch`] if the number of heads or the head size differs.
    /// * Returns [`Error::UpdateLongerThanCache`] if the update has more rows than the cache has slots.
    /// * Returns [`Error::BatchTooLarge`] if the update has more samples than the cache.
    /// * Returns [`Error::CacheOverlapsItself`] if two positions of the cache share memory.
    /// * Returns [`Error::TooManyLoops`] if the two layouts need too many loops.
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (cache, update) = resolve(element, cache.into(), update.into(), &[4])?;
        let options = RuleOptions::linear(Convention::Starts, self.out_of_range);
        Prepared::new(&padded(&NAMES, element, &cache, &update, 2)?, options)
    }

    /// Prepares writes of a packed update, a `[totalTokens, d, h]` tensor (`kPACKED_NHD` in TensorRT 11).
    ///
    /// The rows of each sample follow the rows of the previous sample. Each call passes `updateLengths`.
    ///
    /// # Errors
    /// Returns the same errors as [`prepare`](Self::prepare), except that the update must be 3-D.
    pub fn prepare_packed<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (cache, update) = resolve(element, cache.into(), update.into(), &[3])?;
        let roles = Roles::new(cache.dims(), 2);
        let (Some(of_cache), [tokens, heads, head_size]) = (roles, update.dims()) else {
            return Err(Error::Rank {
                argument: Argument::Update,
                rank: update.dims().len(),
                expected: &[3],
            });
        };
        let operands = Operands {
            names: &NAMES,
            element,
            cache: &cache,
            update: &update,
            layers: Dim::ONE,
            batch: ByTensor { cache: of_cache.sample, update: UpdateBatch::Packed },
            rows: ByTensor { cache: of_cache.rows, update: *tokens },
            outer: pair_dimensions(Argument::Update, 1, of_cache.outer, &[*heads])?,
            inner: pair_dimensions(Argument::Update, 2, of_cache.inner, &[*head_size])?,
        };
        let convention = Convention::StartsAndCumulativeLengths;
        Prepared::new(&operands, RuleOptions::linear(convention, self.out_of_range))
    }
}

/// The form of an update (`AttentionIOForm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionIoForm {
    /// A padded update (`kPADDED_BHND`), a `[b, d, s, h]` tensor.
    #[default]
    PaddedBhnd,
    /// A packed update (`kPACKED_NHD`, since TensorRT 11.0), a `[totalTokens, d, h]` tensor with cumulative
    /// `updateLengths`.
    PackedNhd,
}

/// One call of a packed `KVCacheUpdate`, for [`Prepared::plan`].
///
/// ```
/// use kvscatter::ElementType;
/// use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
///
/// // The two samples have 1 and 2 rows.
/// let update = KvCacheUpdate::new().prepare_packed(ElementType::Float32, &[2, 1, 4, 1], &[3, 1, 1])?;
/// let mut cache = [0.0_f32; 8];
/// let written = update.write(&mut cache, &[1.0, 2.0, 3.0], PackedCall::new(&[3_i32, 0], &[0, 1, 3]))?;
/// assert_eq!(written.skipped, 0);
/// assert_eq!(cache, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[doc(alias = "cu_seqlens")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedCall<'a> {
    /// The first slot written of each sample.
    pub write_indices: Positions<'a>,
    /// The cumulative lengths.
    ///
    /// * There is one length more than there are `write_indices`.
    /// * The first is 0, none is smaller than the one before, and the last is `totalTokens`.
    /// * No sample is longer than `s_max`.
    pub update_lengths: &'a [i32],
}

impl<'a> PackedCall<'a> {
    /// Creates a call with these positions and cumulative lengths.
    #[must_use]
    pub fn new(write_indices: impl Into<Positions<'a>>, update_lengths: &'a [i32]) -> Self {
        Self { write_indices: write_indices.into(), update_lengths }
    }
}

impl<'a> From<PackedCall<'a>> for Call<'a> {
    fn from(call: PackedCall<'a>) -> Self {
        let PackedCall { write_indices, update_lengths } = call;
        Self { row_counts: Some(update_lengths), ..Self::from(write_indices) }
    }
}

/// Checks that the layer accepts this element type.
fn check_element(argument: Argument, element: ElementType) -> Result<(), Error> {
    check_accepted(argument, element, KvCacheUpdate::ELEMENT_TYPES)
}

fn resolve(
    element: ElementType,
    cache: Layout<'_>,
    update: Layout<'_>,
    update_rank: &'static [usize],
) -> Result<(View, View), Error> {
    check_element(Argument::Cache, element)?;
    let resolve = |argument, layout: Layout<'_>, expected: &'static [usize]| {
        let rank = layout.shape().len();
        if !expected.contains(&rank) {
            return Err(Error::Rank { argument, rank, expected });
        }
        layout.resolve(argument, element.size_bits())
    };
    Ok((resolve(Argument::Cache, cache, &[4])?, resolve(Argument::Update, update, update_rank)?))
}
