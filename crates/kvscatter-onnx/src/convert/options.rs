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
    /// Whether operators with quantized weights become operators of ONNX: `MatMulNBits` becomes
    /// `DequantizeLinear` and `MatMul`, and `GatherBlockQuantized` becomes `Gather` and `DequantizeLinear`. The
    /// weights keep their values, but in another order, so that they are written to a new file.
    pub standard_weights: bool,
}

impl ConvertOptions {
    /// Returns the default options for this many slots of each sample.
    #[must_use]
    pub fn new(max_seq: usize) -> Self {
        Self { max_seq, keep_attention: false, fuse_softcap: false, standard_weights: false }
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

    /// Sets whether operators with quantized weights become operators of ONNX.
    #[must_use]
    pub fn standard_weights(self, standard_weights: bool) -> Self {
        Self { standard_weights, ..self }
    }
}

impl From<usize> for ConvertOptions {
    fn from(max_seq: usize) -> Self {
        Self::new(max_seq)
    }
}
