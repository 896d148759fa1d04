//! TensorRT [`KVCacheUpdate`](https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html).
//!
//! The document's rule is `writeIndices[i] + sequenceLength <= maxSequenceLength`; the C++ header adds that
//! updates out of bounds "will be ignored silently". Here they are an error;
//! [`OutOfRange::SkipSample`] leaves such samples as they are and says how many there were. Whether TensorRT
//! skips rows or whole samples is not known, so this is a policy of ours, not a claim to match it.
//!
//! `LINEAR` is the only cache mode up to TensorRT 11.4, so a negative index never fits.

mod network;
mod rules;

pub use network::{
    AttentionIoForm, KvCacheMode, KvCacheUpdateLayer, Network, NetworkError, NetworkTensor, TensorSource,
};

use crate::argument::Words;
use crate::call::{Anchor, Call, Spans};
use crate::geometry::{Geometry, Normalised, Roles, Rules, agree};
use crate::indices::Values;
use crate::layout::{Dim, View};
use crate::lists::Lists;
use crate::{Argument, ElementType, Error, Layout, Lengths, OutOfRange, Prepared, Starts, WritePlan};

/// The layer: `cache` is `[b, d, s_max, h]`, written in place.
///
/// ```
/// use kvscatter::{ElementType, spec::tensorrt::KvCacheUpdate};
///
/// let write = KvCacheUpdate::new().prepare(ElementType::Float32, &[2, 1, 4, 1], &[2, 1, 1, 1])?;
/// let mut cache = [0.0_f32; 8];
/// write.in_place(&mut cache, &[1.0, 2.0], &[3_i32, 0])?;
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

    /// An index out of range is an error.
    #[must_use]
    pub const fn new() -> Self {
        Self { out_of_range: OutOfRange::Error }
    }

    /// An extension of ours: what happens to a sample whose index does not fit.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.out_of_range = policy;
        self
    }

    /// A padded update, `[b, d, s, h]`. It may have fewer samples than the cache; the later ones stay as they
    /// are.
    ///
    /// # Errors
    /// [`Error::ElementType`] unless float32, float16 or bfloat16; [`Error::Rank`] unless both are 4-D;
    /// those of the layouts; [`Error::DimensionMismatch`] for heads or head size;
    /// [`Error::UpdateLongerThanCache`]; [`Error::BatchTooLarge`].
    pub fn prepare<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<Prepared, Error> {
        let (cache, update) = resolve(element, cache.into(), update.into(), &[4])?;
        let rules = Rules::linear(Lists::Starts, self.out_of_range);
        let geometry =
            Geometry::new(&Normalised::padded(&Words::TENSORRT, element, rules, &cache, &update, 2)?)?;
        Ok(Prepared::new(geometry))
    }

    /// A packed update of TensorRT 11 (`kPACKED_NHD`), `[totalTokens, d, h]`: the samples' rows one after the
    /// other, as many each as `updateLengths` says when it is planned.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare), the update being 3-D.
    pub fn prepare_packed<'a>(
        &self,
        element: ElementType,
        cache: impl Into<Layout<'a>>,
        update: impl Into<Layout<'a>>,
    ) -> Result<PreparedPacked, Error> {
        let (cache, update) = resolve(element, cache.into(), update.into(), &[3])?;
        let old = Roles::of(&cache.dims, 2);
        let (Some(old), [tokens, heads, head_size]) = (old, update.dims.as_slice()) else {
            return Err(Error::Rank { argument: Argument::Update, rank: update.dims.len(), expected: &[3] });
        };
        let geometry = Geometry::new(&Normalised {
            words: &Words::TENSORRT,
            element,
            rules: Rules::linear(Lists::RunningTotals, self.out_of_range),
            cache: &cache,
            update: &update,
            layers: Dim::ONE,
            batch: (old.sample, None),
            rows: (old.rows, *tokens),
            outer: agree(Argument::Update, 1, old.outer, &[*heads])?,
            inner: agree(Argument::Update, 2, old.inner, &[*head_size])?,
        })?;
        Ok(PreparedPacked { geometry })
    }
}

/// A packed `KVCacheUpdate` whose shapes are checked: build it once, run it every step.
#[derive(Clone, Debug)]
pub struct PreparedPacked {
    geometry: Geometry,
}

impl PreparedPacked {
    /// The shapes, normalised.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Checks this call's `writeIndices` and `updateLengths`: cumulative, one more than `writeIndices`, the
    /// first 0, none smaller than the one before, the last `totalTokens`, no sample longer than `s_max`.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::BatchTooLarge`], [`Error::CumulativeStart`], [`Error::CumulativeOrder`],
    /// [`Error::LengthOutOfRange`], [`Error::TokenSum`]; then as [`Prepared::plan`].
    pub fn plan<'a>(
        &'a self,
        write_indices: impl Into<Starts<'a>>,
        update_lengths: &'a [i32],
    ) -> Result<WritePlan<'a>, Error> {
        self.plan_lengths(write_indices, update_lengths, Lengths::Full)
    }

    /// An extension of ours: only the first `lengths[i]` rows of sample `i` are written.
    ///
    /// # Errors
    /// As [`plan`](Self::plan), and [`Error::LengthOutOfRange`] beyond the sample's rows.
    pub fn plan_lengths<'a>(
        &'a self,
        write_indices: impl Into<Starts<'a>>,
        update_lengths: &'a [i32],
        lengths: impl Into<Lengths<'a>>,
    ) -> Result<WritePlan<'a>, Error> {
        let call = Call {
            layer: 0,
            starts: write_indices.into(),
            anchor: Anchor::First,
            spans: Spans::Cumulative(Values::I32(update_lengths)),
            lengths: lengths.into(),
        };
        WritePlan::new(&self.geometry, call)
    }
}

/// Whether the layer takes caches and updates of this type.
fn check_element(argument: Argument, element: ElementType) -> Result<(), Error> {
    let taken = KvCacheUpdate::ELEMENT_TYPES.contains(&element);
    if taken { Ok(()) } else { Err(Error::ElementType { argument, element }) }
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
