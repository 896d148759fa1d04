//! The names in `refused.json` of the oracle's refusals.

use kvscatter_oracle::Refusal;
use kvscatter_oracle::attention::AttentionRefusal;
use kvscatter_oracle::corpus::Fault;

use super::rule::RefusedRule;

/// Returns the rule that a write breaks.
pub(crate) fn write(refusal: &Refusal) -> RefusedRule {
    match refusal {
        Refusal::TypesDiffer { .. } => RefusedRule::TypesDiffer,
        Refusal::UnsupportedType { .. } => RefusedRule::UnsupportedType,
        Refusal::Mode { .. } => RefusedRule::Mode,
        Refusal::CacheRank { .. } => RefusedRule::Rank,
        Refusal::UpdateRank { .. } => RefusedRule::RankMismatch,
        Refusal::Axis { .. } => RefusedRule::Axis,
        Refusal::Dimension { .. } => RefusedRule::Dimension,
        Refusal::UpdateBatch { .. } => RefusedRule::UpdateBatch,
        Refusal::UpdateTooLong { .. } => RefusedRule::UpdateTooLong,
        Refusal::IndexCount { .. } => RefusedRule::IndexCount,
        Refusal::Length { .. } => RefusedRule::Length,
        Refusal::NegativeStart { .. } => RefusedRule::NegativeStart,
        Refusal::OutOfRange { .. } => RefusedRule::OutOfRange,
        Refusal::UpdateLengthsMissing => RefusedRule::UpdateLengthsMissing,
        Refusal::UpdateLengthsUnexpected => RefusedRule::UpdateLengthsUnexpected,
        Refusal::UpdateLengthsFirst { .. } => RefusedRule::UpdateLengthsFirst,
        Refusal::UpdateLengthsDecrease { .. } => RefusedRule::UpdateLengthsDecrease,
        Refusal::UpdateLengthsTooLong { .. } => RefusedRule::UpdateLengthsTooLong,
        Refusal::UpdateLengthsTotal { .. } => RefusedRule::UpdateLengthsTotal,
        Refusal::LayerId { .. } => RefusedRule::LayerId,
        Refusal::SeqLen { .. } => RefusedRule::SeqLen,
        Refusal::SeqLenTotal { .. } => RefusedRule::SeqLenTotal,
    }
}

/// Returns the rule that a call of attention breaks.
pub(crate) fn attention(refusal: &AttentionRefusal) -> RefusedRule {
    match refusal {
        AttentionRefusal::Mode { .. } => RefusedRule::Mode,
        AttentionRefusal::SoftmaxPrecision { .. } => RefusedRule::SoftmaxPrecision,
        AttentionRefusal::Window { .. } => RefusedRule::Window,
        AttentionRefusal::Scale => RefusedRule::Scale,
        AttentionRefusal::Ranks { .. } => RefusedRule::Ranks,
        AttentionRefusal::HeadsMissing { .. } => RefusedRule::HeadsMissing,
        AttentionRefusal::Heads { .. } => RefusedRule::Heads,
        AttentionRefusal::Groups { .. } => RefusedRule::Groups,
        AttentionRefusal::Dimension { .. } => RefusedRule::Dimension,
        AttentionRefusal::PastAlone => RefusedRule::PastAlone,
        AttentionRefusal::PastRank { .. } => RefusedRule::PastRank,
        AttentionRefusal::PastWithLengths => RefusedRule::PastWithLengths,
        AttentionRefusal::MaskRank { .. } => RefusedRule::MaskRank,
        AttentionRefusal::MaskDimension { .. } => RefusedRule::MaskDimension,
        AttentionRefusal::LengthCount { .. } => RefusedRule::LengthCount,
        AttentionRefusal::Length { .. } => RefusedRule::Length,
    }
}

/// Returns the rule that a model breaks.
pub(crate) fn fault(fault: Fault) -> RefusedRule {
    match fault {
        Fault::OperatorSet(_) => RefusedRule::OperatorSet,
        Fault::UnknownAttribute => RefusedRule::AttributeUnknown,
        Fault::AxisIsString => RefusedRule::AttributeType,
        Fault::OneInput | Fault::FourInputs => RefusedRule::InputCount,
        Fault::TwoOutputs => RefusedRule::OutputCount,
        Fault::CircularCacheMode => RefusedRule::Mode,
        Fault::Int32Indices => RefusedRule::IndexType,
        Fault::IndicesOfRank2 => RefusedRule::IndexRank,
    }
}
