//! The arguments of the three operators, by the names that their specifications give them.

use core::ffi::CStr;
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
    /// ONNX `axis`, an attribute.
    Axis,
    /// ONNX `mode`, an attribute.
    Mode,
}

impl Argument {
    /// Returns the name as the argument's own specification spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.c_name().to_str() {
            Ok(name) => name,
            Err(_) => "", // every name is ASCII
        }
    }

    /// Returns the same with a NUL after it, for an interface in C.
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

/// What one specification calls the arguments of its writes. The layers below take the names for their errors
/// from here, and know no specification.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ArgumentNames {
    pub(crate) cache: Argument,
    pub(crate) update: Argument,
    /// The attribute that chooses the sequence dimension, if the operator has one.
    pub(crate) axis: Option<Argument>,
    pub(crate) positions: Argument,
    /// The list that gives the rows of each sample.
    pub(crate) row_counts: Argument,
    pub(crate) present: Argument,
    pub(crate) layer: Argument,
}
