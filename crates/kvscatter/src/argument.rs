//! The arguments of the operators, under the names that their specifications give them.

use core::ffi::CStr;
use core::fmt;

/// An argument of an operator, named by an [`Error`](crate::Error).
///
/// `Display` prints the name in the spelling of the argument's specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Argument {
    /// The ONNX input `past_cache`.
    PastCache,
    /// The ONNX and TensorRT input `update`, and the update of a paged write.
    Update,
    /// The ONNX input `write_indices`.
    WriteIndices,
    /// The ONNX output `present_cache`.
    PresentCache,
    /// The TensorRT input `cache`, and the cache of a paged write.
    Cache,
    /// The TensorRT input `writeIndices`.
    TensorRtWriteIndices,
    /// The TensorRT input `updateLengths`, the cumulative lengths of a packed update.
    UpdateLengths,
    /// The TensorRT output `output`.
    Output,
    /// The Ascend input `newKv`.
    NewKv,
    /// The Ascend input `layerId`.
    LayerId,
    /// The Ascend input `past`.
    Past,
    /// The Ascend input `tokenOffset`, the length after the write.
    TokenOffset,
    /// The Ascend input `seqLen`.
    SeqLen,
    /// The Ascend output `present`.
    Present,
    /// The input `lengths` of all three operators. kvscatter extension; not part of the specification.
    Lengths,
    /// The `slot_mapping` of a paged write, which has one slot for each token.
    SlotMapping,
    /// The `block_tables` of a paged cache, which list the blocks of each sample.
    BlockTables,
    /// The `seq_lens` of a paged cache, the number of tokens of each sample.
    SeqLens,
    /// The number of new tokens of each sample of a paged cache.
    NewTokens,
    /// The ONNX attribute `axis`, and the axis of the slots of a paged write.
    Axis,
    /// The ONNX attribute `mode`.
    Mode,
}

impl Argument {
    /// Returns the name in the spelling of the argument's specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.c_name().to_str() {
            Ok(name) => name,
            Err(_) => "", // every name is ASCII
        }
    }

    /// Returns the [name](Self::name) as a C string.
    #[must_use]
    pub const fn c_name(self) -> &'static CStr {
        match self {
            Self::PastCache => c"past_cache",
            Self::Update => c"update",
            Self::WriteIndices => c"write_indices",
            Self::PresentCache => c"present_cache",
            Self::Cache => c"cache",
            Self::TensorRtWriteIndices => c"writeIndices",
            Self::UpdateLengths => c"updateLengths",
            Self::Output => c"output",
            Self::NewKv => c"newKv",
            Self::LayerId => c"layerId",
            Self::Past => c"past",
            Self::TokenOffset => c"tokenOffset",
            Self::SeqLen => c"seqLen",
            Self::Present => c"present",
            Self::Lengths => c"lengths",
            Self::SlotMapping => c"slot_mapping",
            Self::BlockTables => c"block_tables",
            Self::SeqLens => c"seq_lens",
            Self::NewTokens => c"new_tokens",
            Self::Axis => c"axis",
            Self::Mode => c"mode",
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The names that one specification gives to the arguments of its writes.
///
/// The lower layers take the names in their errors from here, so they do not depend on a specification.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ArgumentNames {
    pub(crate) cache: Argument,
    pub(crate) update: Argument,
    /// The attribute that chooses the sequence dimension, if the operator has one.
    pub(crate) axis: Option<Argument>,
    pub(crate) positions: Argument,
    /// The list with the number of rows of each sample.
    pub(crate) row_counts: Argument,
    pub(crate) present: Argument,
    pub(crate) layer: Argument,
}
