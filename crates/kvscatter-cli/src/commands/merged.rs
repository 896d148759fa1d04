//! The branch of a merged decoder, in text and in JSON.

use kvscatter_onnx::TakenBranch;
use serde::Serialize;

use crate::output::one_line;

/// The branch of a merged decoder that is the decoder with a past.
#[derive(Serialize)]
pub(super) struct BranchDocument<'a> {
    /// The boolean input that chooses the branch in the merged decoder.
    input: &'a str,
    /// The value of the input that chooses the branch.
    value: bool,
}

impl<'a> From<&'a TakenBranch> for BranchDocument<'a> {
    fn from(branch: &'a TakenBranch) -> Self {
        Self { input: &branch.condition, value: branch.value }
    }
}

/// Returns a line that names the branch.
pub(super) fn line(branch: &TakenBranch) -> String {
    let TakenBranch { condition, value } = branch;
    one_line(&format!(
        "Merged decoder: only the branch with a past is used, which {condition:?} = {value} chooses."
    ))
}
