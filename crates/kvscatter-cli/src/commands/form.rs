//! The form of an exported decoder that is not a plain one, in text and in JSON.

use kvscatter_onnx::{ExportForm, Stack, TakenBranch};
use serde_json::{Value, json};

use crate::output::one_line;

/// Returns the boolean input that chooses the branch of a merged decoder, and its value.
pub(super) fn merged(form: &ExportForm) -> Option<Value> {
    match form {
        ExportForm::Merged(branch) => Some(json!({"input": branch.condition, "value": branch.value})),
        ExportForm::Stacked(_) => None,
    }
}

/// Returns the inputs that had all layers, and those that took their place.
pub(super) fn stacked(form: &ExportForm) -> Option<Value> {
    let ExportForm::Stacked(stacks) = form else { return None };
    let stack = |stack: &Stack| json!({"input": stack.input, "output": stack.output, "layers": stack.inputs});
    Some(json!({"offset": stacks.offset, "inputs": stacks.stacks.iter().map(stack).collect::<Value>()}))
}

/// Returns a line that names the branch that is used, or the inputs that are split.
pub(super) fn line(form: &ExportForm) -> String {
    match form {
        ExportForm::Merged(TakenBranch { condition, value }) => one_line(&format!(
            "Merged decoder: only the branch with a past is used, which {condition:?} = {value} chooses."
        )),
        ExportForm::Stacked(stacks) => {
            let names: Vec<_> = stacks.stacks.iter().map(|stack| format!("{:?}", stack.input)).collect();
            let layers = stacks.stacks.iter().map(|stack| stack.inputs.len()).max().unwrap_or_default();
            one_line(&format!(
                "Stacked caches: {} have all {layers} layers. The converted model has an input for each layer, and no input {:?}.",
                names.join(", "),
                stacks.offset
            ))
        }
    }
}
