//! Options of a conversion.

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
    /// Whether attention whose scores are capped also becomes one `Attention` node, with the attribute
    /// `softcap`. ONNX Runtime before 1.27 caps scores after the mask, so that hidden slots count, and returns
    /// other results than the separate nodes. Its users need kvscatter's plugin.
    pub fuse_softcap: bool,
    /// How the caches of layers with a window are kept.
    pub windowed: WindowedCaches,
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
        Self { max_seq, keep_attention: false, fuse_softcap: false, windowed: WindowedCaches::default() }
    }

    /// Sets whether attention that consists of separate nodes stays as it is.
    #[must_use]
    pub fn keep_attention(self, keep_attention: bool) -> Self {
        Self { keep_attention, ..self }
    }

    /// Sets whether attention whose scores are capped also becomes one `Attention` node.
    #[must_use]
    pub fn fuse_softcap(self, fuse_softcap: bool) -> Self {
        Self { fuse_softcap, ..self }
    }

    /// Sets how the caches of layers with a window are kept.
    #[must_use]
    pub fn windowed(self, windowed: WindowedCaches) -> Self {
        Self { windowed, ..self }
    }
}

impl From<usize> for ConvertOptions {
    fn from(max_seq: usize) -> Self {
        Self::new(max_seq)
    }
}
