//! The rules of the corpus.

/// A rule of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A name that is unique in the corpus. It consists of lower-case letters, digits and `-`.
    pub id: &'static str,
    /// The operator.
    pub operator: Operator,
    /// The rule in words.
    pub rule: &'static str,
    /// Where the rule comes from.
    pub basis: Basis,
}

/// An operator of the corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// ONNX `TensorScatter`.
    TensorScatter,
    /// ONNX `Attention` over a static cache.
    Attention,
    /// TensorRT `KVCacheUpdate`.
    KvCacheUpdate,
    /// Ascend ATB `KVCacheOperation`.
    KvCacheOperation,
}

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The operator's document states it.
    Document,
    /// The document is silent or contradicts itself. The rule is what kvscatter does there. A kernel that does
    /// something else breaks no document.
    Choice,
}

impl Operator {
    /// All operators.
    pub const ALL: [Self; 4] =
        [Self::TensorScatter, Self::Attention, Self::KvCacheUpdate, Self::KvCacheOperation];

    /// Returns the name of the operator in its document.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TensorScatter => "TensorScatter",
            Self::Attention => "Attention",
            Self::KvCacheUpdate => "KVCacheUpdate",
            Self::KvCacheOperation => "KVCacheOperation",
        }
    }
}

const fn document(operator: Operator, id: &'static str, rule: &'static str) -> Rule {
    Rule { id, operator, rule, basis: Basis::Document }
}

const fn choice(operator: Operator, id: &'static str, rule: &'static str) -> Rule {
    Rule { id, operator, rule, basis: Basis::Choice }
}

use Operator::{Attention, KvCacheOperation, KvCacheUpdate, TensorScatter};

/// Every rule, grouped by operator.
pub const RULES: &[Rule] = &[
    document(
        TensorScatter,
        "write",
        "Row j of the update of sample b is written to slot write_indices[b] + j. Every other slot keeps its value.",
    ),
    document(
        TensorScatter,
        "ring-wrap",
        "In circular mode, a write that reaches the end of the cache continues at slot 0.",
    ),
    document(
        TensorScatter,
        "ring-index-at-or-above-capacity",
        "In circular mode, an index at or above the capacity is taken modulo the capacity.",
    ),
    choice(
        TensorScatter,
        "ring-modulo-coordinate",
        "The modulo applies to the sequence coordinate only, and not to the batch or to heads.",
    ),
    choice(
        TensorScatter,
        "ring-negative-index",
        "In circular mode, a negative index counts from the end of the ring: -1 is the last slot.",
    ),
    choice(
        TensorScatter,
        "ring-extreme-index",
        "In circular mode, every int64 index is valid, and no sum overflows.",
    ),
    choice(TensorScatter, "linear-negative-index", "In linear mode, a negative index is refused."),
    document(
        TensorScatter,
        "linear-end",
        "In linear mode, a write up to the last slot is valid, and a write past it is refused.",
    ),
    choice(
        TensorScatter,
        "nothing-written-after-error",
        "A call that is refused changes no byte of the cache.",
    ),
    document(
        TensorScatter,
        "update-length",
        "The update may be as long as the cache. A longer update is refused in both modes.",
    ),
    document(
        TensorScatter,
        "axis",
        "The axis may be any dimension except the first. A negative axis counts from the last dimension.",
    ),
    choice(TensorScatter, "rank", "The cache has a rank of 2 or more, and the update has the same rank."),
    document(
        TensorScatter,
        "dimensions",
        "Every dimension of the update except the sequence equals the cache's.",
    ),
    choice(
        TensorScatter,
        "no-rows",
        "An update without rows writes nothing. Its indices are still checked in linear mode.",
    ),
    choice(TensorScatter, "empty-dimensions", "A cache without elements is valid. Its indices are checked."),
    choice(
        TensorScatter,
        "no-slots",
        "A cache of capacity 0 takes an update without rows. In linear mode the index must be 0.",
    ),
    document(TensorScatter, "absent-indices", "Without write_indices, every sample starts at slot 0."),
    document(
        TensorScatter,
        "indices-tensor",
        "write_indices has exactly the shape [batch] and the type int64.",
    ),
    document(
        TensorScatter,
        "past-used-again",
        "The past keeps its value for every other node that reads it.",
    ),
    document(TensorScatter, "element-types", "All 24 element types are supported."),
    document(
        TensorScatter,
        "bits-unchanged",
        "Values move bit for bit: NaN payloads, negative zeros and subnormal numbers do not change.",
    ),
    choice(TensorScatter, "strings", "Strings are written whole, with their lengths."),
    choice(
        TensorScatter,
        "four-bit-elements",
        "A row of an odd number of 4-bit elements does not change its neighbours.",
    ),
    document(TensorScatter, "equal-types", "Cache and update have one element type."),
    document(TensorScatter, "mode", "The mode is linear or circular. Linear is the default."),
    document(
        TensorScatter,
        "node",
        "The node needs operator set 24, two or three inputs, one output, and no other attributes.",
    ),
    document(
        TensorScatter,
        "shape-inference",
        "The present has the type and the shape of the past, also if dimensions are symbols.",
    ),
    document(
        TensorScatter,
        "stored-tensors",
        "The values of a tensor file may be in the typed fields instead of raw_data.",
    ),
    document(
        Attention,
        "attention-lengths",
        "Slots from nonpad_kv_seqlen[b] on are hidden from every query of sample b.",
    ),
    document(
        Attention,
        "attention-causal-offset",
        "With is_causal and lengths, query i of n sees slot j only if j <= i + nonpad_kv_seqlen[b] - n.",
    ),
    choice(Attention, "attention-nothing-visible", "A query that sees no slot gives zeros."),
    choice(
        Attention,
        "attention-hidden-values",
        "A slot has no influence on a query that does not see it, not even if it contains NaN or infinity.",
    ),
    document(Attention, "attention-boolean-mask", "A slot is hidden where a boolean mask is false."),
    document(
        Attention,
        "attention-float-mask",
        "A mask of numbers is added to the scores. Minus infinity hides a slot.",
    ),
    choice(
        Attention,
        "attention-lowest-value",
        "The lowest number of the type hides a slot, unless every visible slot of the query has it.",
    ),
    document(
        Attention,
        "attention-mask-broadcast",
        "A mask of rank 2 to 4 broadcasts to [batch, query heads, queries, slots].",
    ),
    document(
        Attention,
        "attention-short-mask",
        "A mask whose last dimension is shorter than the cache hides the slots after it.",
    ),
    document(
        Attention,
        "attention-window-by-mask",
        "A mask that shows a window combines with lengths and causality: a slot is seen if all three show it.",
    ),
    document(
        Attention,
        "attention-window-attributes",
        "In operator set 25, the attributes of the window hide slots further than that before or after the query.",
    ),
    choice(
        Attention,
        "attention-ring-by-mask",
        "A mask by slot describes a ring that has wrapped. The result does not depend on where its tokens lie.",
    ),
    document(
        Attention,
        "attention-shared-heads",
        "Query head h reads the key head h / (query heads / key heads), rounded down.",
    ),
    document(
        Attention,
        "attention-layouts",
        "Inputs of rank 3 and 4 have the same meaning. Keys and values may have different sizes.",
    ),
    choice(
        Attention,
        "attention-present-without-past",
        "Without a past, present_key and present_value are the keys and the values, in rank 4.",
    ),
    document(
        Attention,
        "attention-scores",
        "Scores are scaled, then bounded by the softcap, then masked, then their softmax weighs the values.",
    ),
    document(Attention, "attention-half-types", "float16 and bfloat16 give the result of float32, rounded."),
    document(
        Attention,
        "attention-refused-lengths",
        "Lengths below 0, above the number of slots or of another number than the batch are refused, and so are lengths with a past.",
    ),
    document(
        Attention,
        "attention-refused-shapes",
        "Shapes of queries, keys, values and masks that do not fit together are refused.",
    ),
    document(
        KvCacheUpdate,
        "tensorrt-write",
        "Row s of sample i is written to slot writeIndices[i] + s. Every other slot keeps its value.",
    ),
    document(KvCacheUpdate, "tensorrt-end", "writeIndices[i] + s <= s_max. A write past the end is refused."),
    choice(KvCacheUpdate, "tensorrt-negative-index", "A negative writeIndices value is refused."),
    document(
        KvCacheUpdate,
        "tensorrt-packed",
        "A packed update has the rows of all samples in turn, and updateLengths has their cumulative numbers.",
    ),
    document(
        KvCacheUpdate,
        "tensorrt-update-lengths",
        "updateLengths starts at 0, does not decrease, ends at the number of tokens and gives no sample more than s_max rows.",
    ),
    document(
        KvCacheUpdate,
        "tensorrt-smaller-batch",
        "The update may have fewer samples than the cache. Later samples do not change.",
    ),
    document(KvCacheUpdate, "tensorrt-no-rows", "An update without rows writes nothing."),
    document(
        KvCacheUpdate,
        "tensorrt-types",
        "Caches are float32, float16 or bfloat16. Indices are int32 or int64.",
    ),
    document(KvCacheUpdate, "tensorrt-mode", "The mode is linear. There is no other."),
    document(
        KvCacheUpdate,
        "tensorrt-builder",
        "Heads, head sizes, lengths and numbers of samples that do not fit the cache are refused.",
    ),
    document(
        KvCacheOperation,
        "ascend-write",
        "Token j of sample i is written to row tokenOffset[i] - seqLen[i] + j: tokenOffset is the length after the write.",
    ),
    document(
        KvCacheOperation,
        "ascend-packed",
        "The first token of sample i is at the sum of the earlier seqLen.",
    ),
    choice(
        KvCacheOperation,
        "ascend-range",
        "seqLen[i] <= tokenOffset[i] <= maxSeqLen. Anything else is refused.",
    ),
    document(
        KvCacheOperation,
        "ascend-seq-len",
        "Every seqLen is above 0, and their sum is the number of tokens.",
    ),
    document(
        KvCacheOperation,
        "ascend-layer",
        "Only layer layerId[0] is written. There is exactly one layerId, and it is a layer of the cache.",
    ),
    document(KvCacheOperation, "ascend-types", "Caches are float16, int8 or bfloat16."),
    choice(
        KvCacheOperation,
        "ascend-rank-4",
        "newKv may be [batch, seq_len, head_num, head_size]. Then every seqLen is seq_len.",
    ),
];
