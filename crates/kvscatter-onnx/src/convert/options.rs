//! Options of a conversion.

use super::cache_layout::CacheLayout;
use super::cache_type::CacheType;
use crate::RuntimeVersion;

/// What a conversion does.
///
/// A number of slots can be used in its place, and then means [`ConvertOptions::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The number of slots of each sample in the caches.
    pub max_seq: usize,
    /// Whether attention that consists of separate nodes stays as it is. It otherwise becomes one `Attention`
    /// node where that node is proved to compute the same.
    pub keep_attention: bool,
    /// The oldest ONNX Runtime that must run the model without kvscatter's plugin. Attention stays separate nodes if
    /// this version computes its `Attention` node in another way. With `None`, the metadata of the model name the
    /// version that it needs.
    pub onnxruntime: Option<RuntimeVersion>,
    /// How the caches of layers with a window are kept.
    pub windowed: WindowedCaches,
    /// The type of the caches, or `None` for that of the exported model.
    pub cache_type: Option<CacheType>,
    /// Whether keys and queries are rotated before keys become int8, so that no channel dominates the scale of a row.
    pub rotation: bool,
    /// The layout of the caches.
    pub layout: CacheLayout,
    /// Whether a decoder whose caches are static already may stay as it is, because only their names will change.
    pub may_stay: bool,
}

/// How the caches of layers with a window are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowedCaches {
    /// In rings, wherever a ring is smaller than a linear cache and one `Attention` node reads it.
    ///
    /// A ring for a window of `W` tokens has `W - 1 + chunk + rewind` slots. A sample may then be padded on the left
    /// and on the right, but not between two tokens.
    Ring {
        /// The largest number of rows that a step may write, padding included. The default is `W`, and at most 512.
        chunk: Option<usize>,
        /// The number of tokens below the furthest one that a sample may be taken back.
        rewind: usize,
    },
    /// In linear caches of all tokens, with a mask.
    Mask,
}

impl WindowedCaches {
    /// The default number of tokens that a sample may be taken back.
    pub const REWIND: usize = 32;
}

impl Default for WindowedCaches {
    /// Returns rings with the default chunk and [`REWIND`](Self::REWIND).
    fn default() -> Self {
        Self::Ring { chunk: None, rewind: Self::REWIND }
    }
}

impl ConvertOptions {
    /// Returns the default options for this many slots of each sample.
    #[must_use]
    pub fn new(max_seq: usize) -> Self {
        Self {
            max_seq,
            keep_attention: false,
            onnxruntime: None,
            windowed: WindowedCaches::default(),
            cache_type: None,
            rotation: true,
            layout: CacheLayout::default(),
            may_stay: false,
        }
    }

    /// Sets whether attention that consists of separate nodes stays as it is.
    #[must_use]
    pub fn keep_attention(self, keep_attention: bool) -> Self {
        Self { keep_attention, ..self }
    }

    /// Sets the oldest ONNX Runtime that must run the model without kvscatter's plugin.
    #[must_use]
    pub fn onnxruntime(self, oldest: RuntimeVersion) -> Self {
        Self { onnxruntime: Some(oldest), ..self }
    }

    /// Returns `true` if attention whose scores are capped may become an `Attention` node.
    pub(super) fn may_cap(self) -> bool {
        self.onnxruntime.is_none_or(|oldest| oldest >= RuntimeVersion::WITH_CAP)
    }

    /// Sets how the caches of layers with a window are kept.
    #[must_use]
    pub fn windowed(self, windowed: WindowedCaches) -> Self {
        Self { windowed, ..self }
    }

    /// Sets the type of the caches, and whether keys and queries are rotated before keys become int8.
    #[must_use]
    pub fn caches(self, cache_type: Option<CacheType>, rotation: bool) -> Self {
        Self { cache_type, rotation, ..self }
    }

    /// Sets the layout of the caches.
    #[must_use]
    pub fn layout(self, layout: CacheLayout) -> Self {
        Self { layout, ..self }
    }

    /// Sets whether a decoder whose caches are static already may stay as it is.
    #[must_use]
    pub fn may_stay(self, may_stay: bool) -> Self {
        Self { may_stay, ..self }
    }

    /// Returns `true` if caches that are static are taken.
    pub(super) fn takes_static(self) -> bool {
        self.cache_type.is_some() || self.layout != CacheLayout::default() || self.may_stay
    }
}

impl From<usize> for ConvertOptions {
    fn from(max_seq: usize) -> Self {
        Self::new(max_seq)
    }
}
