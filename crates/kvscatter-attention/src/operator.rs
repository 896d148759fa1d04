//! The attributes of the operator.

use kvscatter::ElementType;

use crate::error::AttentionError;

/// ONNX `Attention` of operator sets 23 to 25. Attributes that are not set have ONNX's defaults.
///
/// [`prepare`](Self::prepare) checks shapes once and returns a [`Prepared`](crate::Prepared), which runs every
/// step with these shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Attention {
    pub(crate) is_causal: bool,
    pub(crate) scale: Option<f32>,
    pub(crate) softcap: f32,
    pub(crate) left: Option<usize>,
    pub(crate) right: Option<usize>,
    pub(crate) heads: Option<(usize, usize)>,
    pub(crate) softmax: Softmax,
    pub(crate) scores: Option<Scores>,
    pub(crate) is_ring: bool,
    pub(crate) has_sinks: bool,
    pub(crate) cache_by_head: bool,
    /// The number of blocks of a sample, in a cache of blocks.
    pub(crate) blocks: Option<usize>,
    pub(crate) cache_element: Option<ElementType>,
}

/// What `qk_matmul_output` contains, in the order of `qk_matmul_output_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scores {
    /// Mode 0: the scaled products of queries and keys.
    Products,
    /// Mode 1: the products after the soft cap.
    Capped,
    /// Mode 2: the products after the soft cap and the mask.
    Masked,
    /// Mode 3: the weights, after the softmax.
    Weights,
}

/// The precision in which scores are converted to weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Softmax {
    /// Use float32, which is also used if `softmax_precision` is float16 or bfloat16.
    #[default]
    Float32,
    /// Use float64.
    Float64,
}

impl Scores {
    /// Returns what a value of `qk_matmul_output_mode` requests, or `None` if ONNX does not define it.
    #[must_use]
    pub fn from_mode(mode: i64) -> Option<Self> {
        match mode {
            0 => Some(Self::Products),
            1 => Some(Self::Capped),
            2 => Some(Self::Masked),
            3 => Some(Self::Weights),
            _ => None,
        }
    }
}

impl Softmax {
    /// Returns the precision for a value of `softmax_precision`, which is ONNX's number of float (1), float16
    /// (10), double (11) or bfloat16 (16). Returns `None` for any other number.
    #[must_use]
    pub fn from_precision(number: i64) -> Option<Self> {
        match number {
            1 | 10 | 16 => Some(Self::Float32),
            11 => Some(Self::Float64),
            _ => None,
        }
    }
}

impl Attention {
    /// Creates the operator with ONNX's default attributes: not causal, scaled by `1 / sqrt(head size)`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `is_causal`. A query then sees no position after its own, which [`Valid`](crate::Valid) defines.
    #[must_use]
    pub fn causal(self, is_causal: bool) -> Self {
        Self { is_causal, ..self }
    }

    /// Sets `scale`, the factor of the products. It must be finite and at least 0.
    #[must_use]
    pub fn scale(self, scale: f32) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Sets `softcap`. A score `s` becomes `softcap * tanh(s / softcap)`. There is no cap if it is 0.
    /// It must be finite and at least 0.
    #[must_use]
    pub fn softcap(self, softcap: f32) -> Self {
        Self { softcap, ..self }
    }

    /// Sets `left_window_size` and `right_window_size` of operator set 25: how many positions before and
    /// after its own a query sees. `None` is ONNX's -1 and sets no limit.
    #[must_use]
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { left, right, ..self }
    }

    /// Sets `q_num_heads` and `kv_num_heads`. Tensors of rank 3 need them.
    #[must_use]
    pub fn heads(self, query: usize, key: usize) -> Self {
        Self { heads: Some((query, key)), ..self }
    }

    /// Sets `softmax_precision`.
    #[must_use]
    pub fn softmax(self, softmax: Softmax) -> Self {
        Self { softmax, ..self }
    }

    /// Requests the output `qk_matmul_output`, and sets `qk_matmul_output_mode`.
    ///
    /// In modes 0 and 1, the output contains the scores of hidden slots, so the operator reads every key. A
    /// [`ring`](Self::ring) cannot have this output.
    #[must_use]
    pub fn scores(self, scores: Scores) -> Self {
        Self { scores: Some(scores), ..self }
    }

    /// Reads keys and values as rings. This is a kvscatter extension; not part of the specification.
    ///
    /// The token at position `p` is in slot `p mod capacity`. The lengths of a call count all tokens of a
    /// sample so far, and may exceed the capacity. Windows count positions, and a mask has an element for each
    /// slot.
    #[must_use]
    pub fn ring(self) -> Self {
        Self { is_ring: true, ..self }
    }

    /// Adds a sink to each query head: a part of the weights that goes to no value. A call has the score of each sink
    /// in [`Inputs::sinks`](crate::Inputs::sinks). This is a kvscatter extension; not part of the specification.
    ///
    /// Sinks cannot be combined with an output of scores.
    #[must_use]
    pub fn sinks(self) -> Self {
        Self { has_sinks: true, ..self }
    }

    /// Reads keys and values `[batch, heads, keys, size]`, also if the queries have rank 3. This is a kvscatter
    /// extension; not part of the specification.
    #[must_use]
    pub fn cache_by_head(self) -> Self {
        Self { cache_by_head: true, ..self }
    }

    /// Reads keys, values and their past as elements of this type, which may differ from that of the queries. Int8
    /// elements are codes, and a call has their [`Scales`](crate::Scales). This is a kvscatter extension; not part of
    /// the specification.
    #[must_use]
    pub fn cache_element(self, element: ElementType) -> Self {
        Self { cache_element: Some(element), ..self }
    }

    /// Reads keys and values from blocks that samples share, `[blocks, heads, slots of a block, size]`. A call has the
    /// blocks of each sample, at most `blocks_per_sample`, in [`Inputs::block_table`](crate::Inputs::block_table). The
    /// token at position `p` is in slot `p mod n` of the block `p / n` of its sample, if a block has `n` slots. This is
    /// a kvscatter extension; not part of the specification.
    ///
    /// A mask has an element for each position, and scales are `[blocks, heads, slots of a block]`. Blocks cannot be
    /// combined with a past, a present, a [`ring`](Self::ring) or an output of scores.
    #[must_use]
    pub fn blocks(self, blocks_per_sample: usize) -> Self {
        Self { blocks: Some(blocks_per_sample), cache_by_head: true, ..self }
    }

    /// Checks `scale` and `softcap`, as [`prepare`](Self::prepare) does.
    ///
    /// # Errors
    /// Returns an error if one of them is negative, infinite or not a number.
    pub fn check(&self) -> Result<(), AttentionError> {
        let is_valid = |number: f32| number.is_finite() && number >= 0.0;
        match self.scale {
            Some(scale) if !is_valid(scale) => Err(AttentionError::Scale { scale }),
            _ if !is_valid(self.softcap) => Err(AttentionError::Softcap { softcap: self.softcap }),
            _ => Ok(()),
        }
    }

    /// Returns the numbers of query heads and of key and value heads, if they are set.
    #[must_use]
    pub fn head_counts(&self) -> Option<(usize, usize)> {
        self.heads
    }

    /// Returns `true` if the output `qk_matmul_output` is requested.
    #[must_use]
    pub fn has_scores(&self) -> bool {
        self.scores.is_some()
    }

    /// Returns `true` if an output contains scores of hidden slots.
    pub(crate) fn returns_hidden(&self) -> bool {
        matches!(self.scores, Some(Scores::Products | Scores::Capped))
    }
}
