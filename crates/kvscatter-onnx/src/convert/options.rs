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
}

impl ConvertOptions {
    /// Returns the default options for this many slots of each sample.
    #[must_use]
    pub fn new(max_seq: usize) -> Self {
        Self { max_seq, keep_attention: false }
    }

    /// Sets whether attention that consists of separate nodes stays as it is.
    #[must_use]
    pub fn keep_attention(self, keep_attention: bool) -> Self {
        Self { keep_attention, ..self }
    }
}

impl From<usize> for ConvertOptions {
    fn from(max_seq: usize) -> Self {
        Self::new(max_seq)
    }
}
