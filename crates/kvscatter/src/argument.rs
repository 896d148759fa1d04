//! The arguments of the three operators, by the names their specifications give them.

use core::fmt;

/// An argument of an operator: what an [`Error`](crate::Error) points at.
///
/// `Display` prints the name as the argument's own specification spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Argument {
    /// ONNX `past_cache`.
    PastCache,
    /// ONNX and TensorRT `update`.
    Update,
    /// ONNX `write_indices`.
    WriteIndices,
    /// ONNX `present_cache`.
    PresentCache,
    /// TensorRT `cache`.
    Cache,
    /// TensorRT `writeIndices`.
    TensorRtWriteIndices,
    /// TensorRT `updateLengths`, the cumulative lengths of a packed update.
    UpdateLengths,
    /// TensorRT `output`.
    Output,
    /// Ascend `newKv`.
    NewKv,
    /// Ascend `layerId`.
    LayerId,
    /// Ascend `past`.
    Past,
    /// Ascend `tokenOffset`, the length after the write.
    TokenOffset,
    /// Ascend `seqLen`.
    SeqLen,
    /// Ascend `present`.
    Present,
    /// `lengths`, an extension of ours to all three.
    Lengths,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PastCache => "past_cache",
            Self::Update => "update",
            Self::WriteIndices => "write_indices",
            Self::PresentCache => "present_cache",
            Self::Cache => "cache",
            Self::TensorRtWriteIndices => "writeIndices",
            Self::UpdateLengths => "updateLengths",
            Self::Output => "output",
            Self::NewKv => "newKv",
            Self::LayerId => "layerId",
            Self::Past => "past",
            Self::TokenOffset => "tokenOffset",
            Self::SeqLen => "seqLen",
            Self::Present => "present",
            Self::Lengths => "lengths",
        })
    }
}

/// What one specification calls the things every write has. Layers below the fronts carry these words into
/// their errors without knowing whose they are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) cache: Argument,
    pub(crate) update: Argument,
    pub(crate) starts: Argument,
    pub(crate) spans: Argument,
    pub(crate) present: Argument,
}

impl Words {
    pub(crate) const ONNX: Self = Self {
        cache: Argument::PastCache,
        update: Argument::Update,
        starts: Argument::WriteIndices,
        spans: Argument::Update,
        present: Argument::PresentCache,
    };
    pub(crate) const TENSORRT: Self = Self {
        cache: Argument::Cache,
        update: Argument::Update,
        starts: Argument::TensorRtWriteIndices,
        spans: Argument::UpdateLengths,
        present: Argument::Output,
    };
    pub(crate) const ASCEND: Self = Self {
        cache: Argument::Past,
        update: Argument::NewKv,
        starts: Argument::TokenOffset,
        spans: Argument::SeqLen,
        present: Argument::Present,
    };
}
