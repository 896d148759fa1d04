//! `Attention` with a sink.
//!
//! A sink is a score of each head that has no value. A softmax over the scores and the sink gives the slots the
//! weights of a softmax without it, times one factor for each row:
//!
//! > sum(exp(scores)) / (sum(exp(scores)) + exp(sink))
//!
//! `Attention` has no sink, but it can return its scores. So the result is multiplied by this factor. The largest
//! score of a row is subtracted first, so that no exponential overflows.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::edit::{Editor, NewNode};

/// The value of `qk_matmul_output_mode` for scores after the mask. Before ONNX Runtime 1.27, it meant scores after
/// mask and cap, which are the same without a cap.
const MASKED: i64 = 2;

/// The finite score of the sink of each head.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::convert) struct Sinks(pub(super) Vec<f64>);

impl Sinks {
    /// Adds an `Attention` node of this type, and the nodes that compute the factor. Returns the node that
    /// multiplies by it.
    pub(super) fn attended(
        &self,
        editor: &mut Editor<'_>,
        attention: NewNode,
        element: ElementType,
    ) -> Result<NewNode, OnnxError> {
        let [attended, scores] = ["attention", "scores"].map(|name| editor.fresh(name));
        let attention = attention.int("qk_matmul_output_mode", MASKED);
        editor.add(attention.outputs(&[&attended, "", "", &scores]));
        // A softmax of 16 bits is computed in float32, too.
        let wide = if element == ElementType::Float64 { element } else { ElementType::Float32 };
        let scores = editor.cast(&scores, element, wide);
        let sink = editor.floats(wide, vec![1, self.0.len(), 1, 1], &self.0)?;
        let slots = editor.ints(&[-1])?;
        let largest = editor.node("ReduceMax", &[&scores, &slots]);
        let largest = editor.node("Max", &[&largest, &sink]);
        let mut weights = |scores: &str| {
            let below = editor.node("Sub", &[scores, &largest]);
            editor.node("Exp", &[&below])
        };
        let (of_slots, of_sink) = (weights(&scores), weights(&sink));
        let sum = editor.node("ReduceSum", &[&of_slots, &slots]);
        let all = editor.node("Add", &[&sum, &of_sink]);
        let factor = editor.node("Div", &[&sum, &all]);
        let factor = editor.cast(&factor, wide, element);
        Ok(NewNode::new("Mul", &[&attended, &factor]))
    }
}
