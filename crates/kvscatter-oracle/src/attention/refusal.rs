/// The rule that a call of attention broke, with the offending numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's comment and its names describe the fields")]
pub enum AttentionRefusal {
    /// `qk_matmul_output_mode` is not 0, 1, 2 or 3.
    Mode { mode: i64 },
    /// `softmax_precision` is not a floating-point type of the specification.
    SoftmaxPrecision { precision: i64 },
    /// A bound of the window is below -1.
    Window { attribute: &'static str, bound: i64 },
    /// `scale` is negative or not a number, so that it has no square root.
    Scale,
    /// `Q`, `K` and `V` do not all have rank 3, or all rank 4.
    Ranks { ranks: [usize; 3] },
    /// An input of rank 3 needs this attribute, which is missing.
    HeadsMissing { attribute: &'static str },
    /// A number of heads is not positive, does not divide the last dimension of an input of rank 3, or is not
    /// the dimension of an input of rank 4.
    Heads { input: &'static str, heads: i64, dimension: usize },
    /// The number of query heads is not a multiple of the number of key heads, or there are no key heads.
    Groups { q_heads: usize, kv_heads: usize },
    /// A dimension of an input differs from the dimension that the other inputs require.
    Dimension {
        input: &'static str,
        /// The index of the dimension, counted with heads as a dimension: `[B, heads, rows, size]`.
        dimension: usize,
        given: usize,
        needed: usize,
    },
    /// Only one of `past_key` and `past_value` is given.
    PastAlone,
    /// `past_key` or `past_value` does not have rank 4.
    PastRank { input: &'static str, rank: usize },
    /// There is a past, and there are lengths or a ring.
    PastWithLengths,
    /// The mask has rank 0 or a rank above 4.
    MaskRank { rank: usize },
    /// A dimension of the mask cannot be repeated or padded.
    MaskDimension { dimension: usize, given: usize, needed: usize },
    /// There is not one length per sample.
    LengthCount { given: usize, batch: usize },
    /// A length is negative, or exceeds the number of slots of a cache that is not a ring.
    Length { sample: usize, length: i64, slots: usize },
}
