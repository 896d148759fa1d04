//! The branch of a merged decoder, in text and in JSON.

use kvscatter_onnx::TakenBranch;
use serde_json::{Value, json};

use crate::output::one_line;

/// Returns the boolean input that chooses the branch in the merged decoder, and its value.
pub(super) fn document(branch: &TakenBranch) -> Value {
    json!({"input": branch.condition, "value": branch.value})
}

/// Returns a line that names the branch.
pub(super) fn line(branch: &TakenBranch) -> String {
    let TakenBranch { condition, value } = branch;
    one_line(&format!(
        "Merged decoder: only the branch with a past is used, which {condition:?} = {value} chooses."
    ))
}
