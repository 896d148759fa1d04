//! TensorRT [`KVCacheUpdate`](https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html).
//!
//! The document's rule is `writeIndices[i] + sequenceLength <= maxSequenceLength`; the C++ header adds that
//! updates out of bounds "will be ignored silently". Here they are an error;
//! [`OutOfRange::SkipSample`] leaves such samples as they are and says how many there were. Whether TensorRT
//! skips rows or whole samples is not known, so this is a policy of ours, not a claim to match it.
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
use crate::geometry::{ByTensor, Dim, Layout, Operands, View};
use crate::plan::{Call, Convention, OutOfRange, Positions, RuleOptions};
use crate::prepared::Prepared;

const NAMES: ArgumentNames = ArgumentNames {
    cache: Argument::Cache,
    update: Argument::Update,
    axis: None,
    positions: Argument::TensorRtWriteIndices,
    row_counts: Argument::UpdateLengths,
    present: Argument::Output,
    // It has none: the name of Ascend's, for a call that brings one.
    layer: Argument::LayerId,
};

/// The layer: `cache` is `[b, d, s_max, h]`, written in place.
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
    /// The types of caches that the layer takes.
    pub const ELEMENT_TYPES: &[ElementType] =
        &[ElementType::Float32, ElementType::Float16, ElementType::BFloat16];

    /// The types of `writeIndices` that the layer takes.
    pub const INDEX_TYPES: &[ElementType] = &[ElementType::Int32, ElementType::Int64];

    /// The types of `updateLengths` that the layer takes.
    pub const LENGTH_TYPES: &[ElementType] = &[ElementType::Int32];

    /// Makes a layer for which an index out of range is an error.
    #[must_use]
    pub const fn new() -> Self {
        Self { out_of_range: OutOfRange::Error }
    }

    /// Sets what happens to a sample whose index does not fit. The specification has only the default, an error.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// Prepares writes of a padded update, `[b, d, s, h]`. It may have fewer samples than the cache; the later ones stay as they
    /// are.
    ///
    /// # Errors
    /// [`Error::ElementType`] unless float32, float16 or bfloat16; [`Error::Rank`] unless both are 4-D;
    /// those of the layouts; [`Error::DimensionMismatch`] for heads or head size;
    /// [`Error::UpdateLongerThanCache`]; [`Error::BatchTooLarge`]; [`Error::CacheOverlapsItself`],
    /// [`Error::TooManyLoops`].
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

    /// Prepares writes of a packed update, `[totalTokens, d, h]`, as TensorRT 11 has it (`kPACKED_NHD`): the rows of one
    /// sample after those of the other. Each call brings `updateLengths`.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), the update being 3-D.
    pub fn prepare_packed<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (cache, update) = resolve(element, cache.into(), update.into(), &[3])?;
        let roles = Roles::of(cache.dims(), 2);
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
            batch: ByTensor { cache: of_cache.sample, update: None },
            rows: ByTensor { cache: of_cache.rows, update: *tokens },
            outer: pair_dimensions(Argument::Update, 1, of_cache.outer, &[*heads])?,
            inner: pair_dimensions(Argument::Update, 2, of_cache.inner, &[*head_size])?,
        };
        let convention = Convention::StartsAndCumulativeLengths;
        Prepared::new(&operands, RuleOptions::linear(convention, self.out_of_range))
    }
}

/// How the update holds its samples (`AttentionIOForm`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionIoForm {
    /// `kPADDED_BHND`: `[b, d, s, h]`.
    #[default]
    PaddedBhnd,
    /// `kPACKED_NHD`, since TensorRT 11.0: `[totalTokens, d, h]`, and `updateLengths` cumulative.
    PackedNhd,
}

/// One call of a packed `KVCacheUpdate`, for [`Prepared::plan`].
///
/// ```
/// use kvscatter::ElementType;
/// use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
///
/// // Two samples with 1 and 2 rows.
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
    /// The first slot written, per sample.
    pub write_indices: Positions<'a>,
    /// Cumulative lengths: one more than `write_indices`, the first 0, none smaller than the one before, the last
    /// `totalTokens`, no sample longer than `s_max`.
    pub update_lengths: &'a [i32],
}

impl<'a> PackedCall<'a> {
    /// Makes a call with these positions and cumulative lengths.
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

/// Whether the layer takes caches and updates of this type.
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
