//! The rules that inputs can break, by their names in `refused.json`.

use kvscatter::error::ErrorKind;
use kvscatter::{Argument, Error};
use kvscatter_attention::{AttentionError, Operand};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

/// A rule of TensorScatter, KVCacheUpdate, KVCacheOperation or Attention that inputs can break. There is one rule for
/// each refusal of the oracle, and one for each rule of ONNX that a node can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum RefusedRule {
    TypesDiffer,
    /// Also `qk_matmul_output_mode` of Attention.
    Mode,
    Rank,
    RankMismatch,
    Axis,
    Dimension,
    UpdateTooLong,
    IndexCount,
    NegativeStart,
    OutOfRange,
    UnsupportedType,
    UpdateBatch,
    /// A length of a sample: `lengths`, or `nonpad_kv_seqlen` of Attention.
    Length,
    UpdateLengthsMissing,
    UpdateLengthsUnexpected,
    UpdateLengthsFirst,
    UpdateLengthsDecrease,
    UpdateLengthsTooLong,
    UpdateLengthsTotal,
    LayerId,
    SeqLen,
    SeqLenTotal,
    SoftmaxPrecision,
    Window,
    Scale,
    Ranks,
    HeadsMissing,
    Heads,
    Groups,
    PastAlone,
    PastRank,
    PastWithLengths,
    MaskRank,
    MaskDimension,
    LengthCount,
    OperatorSet,
    AttributeUnknown,
    AttributeType,
    InputCount,
    OutputCount,
    IndexType,
    IndexRank,
}

impl RefusedRule {
    /// Returns the name of the rule in the file.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the rule that an error of an operator that writes a cache reports, if it is one of these rules.
    pub(crate) fn of_write(error: &Error) -> Option<Self> {
        let details = error.details();
        match (details.kind, details.argument) {
            (ErrorKind::ElementType, Some(Argument::WriteIndices)) => Some(Self::IndexType),
            (ErrorKind::Rank, Some(Argument::WriteIndices)) => Some(Self::IndexRank),
            (ErrorKind::ElementType, _) => Some(Self::UnsupportedType),
            (ErrorKind::ElementTypeMismatch, _) => Some(Self::TypesDiffer),
            (ErrorKind::UnknownMode, _) => Some(Self::Mode),
            (ErrorKind::Rank, Some(Argument::Update | Argument::NewKv)) => Some(Self::RankMismatch),
            (ErrorKind::Rank | ErrorKind::RankTooLow, _) => Some(Self::Rank),
            (ErrorKind::RankMismatch, _) => Some(Self::RankMismatch),
            (ErrorKind::AxisOutOfRange | ErrorKind::AxisIsBatch, _) => Some(Self::Axis),
            (ErrorKind::DimensionMismatch | ErrorKind::HiddenSize, _) => Some(Self::Dimension),
            (ErrorKind::BatchTooLarge, _) => Some(Self::UpdateBatch),
            (ErrorKind::UpdateLongerThanCache, _) => Some(Self::UpdateTooLong),
            (ErrorKind::ListLength, _) => Some(Self::IndexCount),
            (ErrorKind::NegativeStart, _) => Some(Self::NegativeStart),
            (ErrorKind::StartOutOfRange, _) => Some(Self::OutOfRange),
            // The limit is the nearest end that fits.
            (ErrorKind::EndOutOfRange, _) if details.value < details.limit => Some(Self::NegativeStart),
            (ErrorKind::EndOutOfRange, _) => Some(Self::OutOfRange),
            (ErrorKind::LengthOutOfRange, Some(Argument::SeqLen)) => Some(Self::SeqLen),
            (ErrorKind::LengthOutOfRange, _) => Some(Self::Length),
            (ErrorKind::CumulativeStart, _) => Some(Self::UpdateLengthsFirst),
            (ErrorKind::CumulativeOrder, _) => Some(Self::UpdateLengthsDecrease),
            (ErrorKind::CumulativeLength, _) => Some(Self::UpdateLengthsTooLong),
            (ErrorKind::TokenSum, Some(Argument::SeqLen)) => Some(Self::SeqLenTotal),
            (ErrorKind::TokenSum, _) => Some(Self::UpdateLengthsTotal),
            (ErrorKind::LayerOutOfRange, _) => Some(Self::LayerId),
            _ => None,
        }
    }

    /// Returns the rule that an error of Attention reports, if it is one of these rules.
    pub(crate) fn of_attention(error: &AttentionError) -> Option<Self> {
        match error {
            AttentionError::Attribute { name, .. } => match *name {
                "qk_matmul_output_mode" => Some(Self::Mode),
                "softmax_precision" => Some(Self::SoftmaxPrecision),
                "left_window_size" | "right_window_size" => Some(Self::Window),
                "q_num_heads" | "kv_num_heads" => Some(Self::Heads),
                _ => None,
            },
            AttentionError::ElementType { .. } => Some(Self::UnsupportedType),
            AttentionError::Scale { .. } => Some(Self::Scale),
            AttentionError::Rank { operand: Operand::PastKey | Operand::PastValue, .. } => {
                Some(Self::PastRank)
            }
            AttentionError::Rank { operand: Operand::Query | Operand::Key | Operand::Value, .. } => {
                Some(Self::Ranks)
            }
            AttentionError::HeadsMissing => Some(Self::HeadsMissing),
            AttentionError::HeadsAlone | AttentionError::Heads { .. } | AttentionError::HiddenSize { .. } => {
                Some(Self::Heads)
            }
            AttentionError::Group { .. } => Some(Self::Groups),
            AttentionError::Shape { .. } => Some(Self::Dimension),
            AttentionError::PastAlone => Some(Self::PastAlone),
            AttentionError::LengthsAndPast => Some(Self::PastWithLengths),
            AttentionError::MaskShape { got, .. } if (1..=4).contains(&got.len()) => {
                Some(Self::MaskDimension)
            }
            AttentionError::MaskShape { .. } => Some(Self::MaskRank),
            AttentionError::Length { operand: Operand::Lengths, .. } => Some(Self::LengthCount),
            AttentionError::LengthOutOfRange { .. } => Some(Self::Length),
            _ => None,
        }
    }
}
