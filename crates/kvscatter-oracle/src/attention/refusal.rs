/// The rule that a call of attention broke, with the offending numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttentionRefusal {
    /// `qk_matmul_output_mode` is not 0, 1, 2 or 3.
    Mode {
        /// The mode given.
        mode: i64,
    },
    /// `softmax_precision` is not a floating-point type of the specification.
    SoftmaxPrecision {
        /// The number of the type.
        precision: i64,
    },
    /// A bound of the window is below -1.
    Window {
        /// The name of the attribute.
        attribute: &'static str,
        /// The value given.
        bound: i64,
    },
    /// `scale` is negative or not a number, so that it has no square root.
    Scale,
    /// `Q`, `K` and `V` do not all have rank 3, or all rank 4.
    Ranks {
        /// The ranks of `Q`, `K` and `V`.
        ranks: [usize; 3],
    },
    /// An input of rank 3 needs this attribute, which is missing.
    HeadsMissing {
        /// The name of the attribute.
        attribute: &'static str,
    },
    /// A number of heads is not positive, does not divide the last dimension of an input of rank 3, or is not
    /// the dimension of an input of rank 4.
    Heads {
        /// The name of the input.
        input: &'static str,
        /// The number of heads given.
        heads: i64,
        /// The dimension of the input.
        dimension: usize,
    },
    /// The number of query heads is not a multiple of the number of key heads, or there are no key heads.
    Groups {
        /// The number of query heads.
        q_heads: usize,
        /// The number of key heads.
        kv_heads: usize,
    },
    /// A dimension of an input differs from the dimension that the other inputs require.
    Dimension {
        /// The name of the input.
        input: &'static str,
        /// The index of the dimension, counted with heads as a dimension: `[B, heads, rows, size]`.
        dimension: usize,
        /// The size given.
        given: usize,
        /// The size required.
        needed: usize,
    },
    /// Only one of `past_key` and `past_value` is given.
    PastAlone,
    /// `past_key` or `past_value` does not have rank 4.
    PastRank {
        /// The name of the input.
        input: &'static str,
        /// The rank given.
        rank: usize,
    },
    /// There is a past, and there are lengths or a ring.
    PastWithLengths,
    /// The mask has rank 0 or a rank above 4.
    MaskRank {
        /// The rank given.
        rank: usize,
    },
    /// A dimension of the mask cannot be repeated or padded.
    MaskDimension {
        /// The index of the dimension in `[B, q_heads, S, total]`.
        dimension: usize,
        /// The size given.
        given: usize,
        /// The size required.
        needed: usize,
    },
    /// There is not one length per sample.
    LengthCount {
        /// The number of lengths given.
        given: usize,
        /// The number of samples.
        batch: usize,
    },
    /// A length is negative, or exceeds the number of slots of a cache that is not a ring.
    Length {
        /// The index of the sample.
        sample: usize,
        /// The value given.
        length: i64,
        /// The number of slots.
        slots: usize,
    },
}
