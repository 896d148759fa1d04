//! What the files of a case contain.

use kvscatter_onnx::Tensor;
use serde::Serialize;

use super::super::model::ModelParts;
use crate::compare::Tolerance;
use crate::refused::Refused;

/// What the files of a case contain.
pub(super) struct Contents {
    pub(super) parts: ModelParts,
    pub(super) inputs: Vec<Tensor>,
    /// The expected outputs, or the reason why there are none.
    pub(super) expected: Result<Vec<Tensor>, Refused>,
    pub(super) tolerance: Option<Tolerance>,
    pub(super) in_place: Option<InPlace>,
    /// Whether the values of the inputs are in typed fields.
    pub(super) is_typed: bool,
}

/// What a write in place means for a case.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum InPlace {
    /// The past and the present may be one buffer.
    Yes,
    /// The past is used again after the write, so it must not change.
    No,
    /// The call is refused, and the past must not change.
    Unchanged,
}
