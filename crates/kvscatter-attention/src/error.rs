//! The errors of the crate.

use kvscatter::ElementType;

/// An input or output of the operator. It is displayed with ONNX's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Operand {
    /// The queries.
    #[strum(to_string = "Q")]
    Query,
    /// The keys.
    #[strum(to_string = "K")]
    Key,
    /// The values.
    #[strum(to_string = "V")]
    Value,
    /// The mask.
    #[strum(to_string = "attn_mask")]
    Mask,
    /// The keys of earlier steps.
    PastKey,
    /// The values of earlier steps.
    PastValue,
    /// The number of valid slots of each sample, or the number of tokens of each sample of a ring.
    #[strum(to_string = "nonpad_kv_seqlen")]
    Lengths,
    /// The first position of each sample that is not padding.
    Starts,
    /// The block of each slot of each sample, in a cache of blocks.
    #[strum(to_string = "block_table")]
    BlockTable,
    /// The result.
    #[strum(to_string = "Y")]
    Output,
    /// The past keys followed by the new ones.
    PresentKey,
    /// The past values followed by the new ones.
    PresentValue,
    /// The products of queries and keys.
    #[strum(to_string = "qk_matmul_output")]
    Scores,
    /// The score of the sink of each query head.
    #[strum(to_string = "head_sink")]
    Sinks,
    /// The scales of keys that are codes.
    #[strum(to_string = "the scale of K")]
    KeyScales,
    /// The scales of values that are codes.
    #[strum(to_string = "the scale of V")]
    ValueScales,
}

/// An error of this crate. A call that returns an error has written nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum AttentionError {
    /// The kernels do not support the element type.
    #[error("elements of type {element} are not supported, use float, float16 or bfloat16")]
    ElementType { element: ElementType },
    /// The elements of a call do not have the type that was prepared.
    #[error("{operand} has elements of type {got}, but the call was prepared for {expected}")]
    OtherElementType { operand: Operand, got: ElementType, expected: ElementType },
    /// A tensor has the wrong number of dimensions.
    #[error("{operand} has rank {rank}, must be {expected}")]
    Rank {
        operand: Operand,
        rank: usize,
        /// The rank that it must have: 3 or 4 for Q, that of Q for K and V, 4 for a past, and 1 for lengths.
        expected: &'static str,
    },
    /// ONNX does not define this value of an attribute.
    #[error("{name} = {value} is not supported")]
    Attribute { name: &'static str, value: i64 },
    /// A node has only one of the attributes `q_num_heads` and `kv_num_heads`.
    #[error("q_num_heads and kv_num_heads must be used together")]
    HeadsAlone,
    /// The tensors have rank 3, but [`Attention::heads`](crate::Attention::heads) was not called.
    #[error("inputs of rank 3 need q_num_heads and kv_num_heads")]
    HeadsMissing,
    /// The numbers of heads differ from those of tensors of rank 4.
    #[error("q_num_heads and kv_num_heads are {got:?}, but Q and K have {expected:?} heads")]
    Heads { got: (usize, usize), expected: (usize, usize) },
    /// The scale is negative, infinite or not a number. ONNX multiplies queries and keys by its square root.
    #[error("scale = {scale}: must be finite and at least 0")]
    Scale { scale: f32 },
    /// The cap is negative, infinite or not a number.
    #[error("softcap = {softcap}: must be finite and at least 0")]
    Softcap { softcap: f32 },
    /// The last dimension of a tensor of rank 3 is not a multiple of the number of heads.
    #[error("{operand} has {hidden} elements a token, which is not a multiple of {heads} heads")]
    HiddenSize { operand: Operand, hidden: usize, heads: usize },
    /// A dimension differs from the one that another tensor requires.
    #[error("{operand} is {got:?} as [batch, heads, length, size], must be {expected:?}")]
    Shape { operand: Operand, got: [usize; 4], expected: [usize; 4] },
    /// The number of query heads is not a multiple of the number of key heads.
    #[error("{query} heads of Q are not a multiple of {key} heads of K")]
    Group { query: usize, key: usize },
    /// The mask does not broadcast to `[batch, query heads, queries, keys]`. Its last dimension may be smaller.
    #[error("attn_mask has shape {got:?}, which does not broadcast to {expected:?}")]
    MaskShape {
        got: Vec<usize>,
        /// `[batch, query heads, queries, keys]`.
        expected: [usize; 4],
    },
    /// The product of the dimensions of a tensor exceeds `isize::MAX` bytes.
    #[error("{operand} is too large for this machine's address space")]
    TooLarge { operand: Operand },
    /// Keys and values without elements take no memory, but the scores of their slots would.
    #[error("keys and values without elements have {slots} slots, must have at most {max}")]
    EmptySlots { slots: usize, max: usize },
    /// An operand was prepared and is missing, or it is given and was not prepared.
    #[error("{operand} must be {}", if *is_expected { "given" } else { "absent" })]
    Presence { operand: Operand, is_expected: bool },
    /// A buffer has the wrong number of elements.
    #[error("{operand} has {got} element{}, must have {expected}", if *got == 1 { "" } else { "s" })]
    Length { operand: Operand, got: usize, expected: usize },
    /// A length lies outside the cache.
    #[error("nonpad_kv_seqlen[{index}] = {value}: must be between 0 and {max}")]
    LengthOutOfRange {
        index: usize,
        value: i64,
        /// The number of slots, or `i64::MAX` for a ring.
        max: i64,
    },
    /// The first position of a sample is negative.
    #[error("starts[{index}] = {value}: must be at least 0")]
    NegativeStart { index: usize, value: i64 },
    /// The scratch was made for a call with other shapes or attributes.
    #[error("the scratch was made for other shapes")]
    Scratch,
    /// Only one of `past_key` and `past_value` is given.
    #[error("past_key and past_value must be used together")]
    PastAlone,
    /// Lengths cannot be combined with past keys and values.
    #[error("nonpad_kv_seqlen cannot be used with past_key and past_value")]
    LengthsAndPast,
    /// An output of scores does not contain the sinks.
    #[error("head_sink cannot be used with qk_matmul_output")]
    SinksAndScores,
    /// Codes have no past, because a past has no scales.
    #[error("K and V of int8 cannot be used with {operand}")]
    Codes { operand: Operand },
    /// An operand with strides ends after its buffer.
    #[error("{operand} has {got} element{}, must have at least {needed} for its strides", if *got == 1 { "" } else { "s" })]
    TooShort { operand: Operand, got: usize, needed: usize },
    /// Rows of an output with strides share elements.
    #[error("rows of {operand} with the strides {strides:?} share elements")]
    Overlap {
        operand: Operand,
        /// The distances between samples, heads and rows, in elements.
        strides: [usize; 3],
    },
    /// Blocks of keys and values have no slots.
    #[error("blocks of K and V must have at least one slot")]
    EmptyBlocks,
    /// A cache of blocks has no past, no present, and no output of scores.
    #[error("block_table cannot be used with {operand}")]
    Blocks { operand: Operand },
    /// A sample sees a block that does not exist.
    #[error("block_table[{sample}][{index}] = {value}: must be between 0 and {max}")]
    BlockOutOfRange { sample: usize, index: usize, value: i32, max: i64 },
    /// A ring has no past, no blocks, and no output of scores.
    #[error("a ring cannot be used with {operand}")]
    Ring { operand: Operand },
}

/// The names of ONNX that messages contain, and those of the arguments of Python's functions.
const PYTHON_NAMES: [(&str, &str); 11] = [
    ("the scale of K", "k_scale"),
    ("the scale of V", "v_scale"),
    ("nonpad_kv_seqlen", "lengths"),
    ("attn_mask", "mask"),
    ("head_sink", "sink"),
    ("block_table", "block_tables"),
    ("float,", "float32,"),
    ("Q", "q"),
    ("K", "k"),
    ("V", "v"),
    ("Y", "out"),
];

impl AttentionError {
    /// Returns the message with the names that `kvscatter.attention` and `kvscatter.jax.attention` of Python give their
    /// arguments.
    #[doc(hidden)]
    #[must_use]
    pub fn python_message(&self) -> String {
        PYTHON_NAMES.iter().fold(self.to_string(), |message, (onnx, python)| {
            let mut parts = message.split(onnx);
            let mut renamed = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let is_inside =
                    |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
                let is_word = !is_inside(renamed.chars().next_back()) && !is_inside(part.chars().next());
                renamed.push_str(if is_word { python } else { onnx });
                renamed.push_str(part);
            }
            renamed
        })
    }
}
