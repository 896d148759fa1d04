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
