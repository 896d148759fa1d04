//! `Attention` with a sink.
//!
//! A sink is a score of each head that has no value. A softmax over the scores and the sink gives the slots the
//! weights of a softmax without it, times one factor for each row:
//!
//! > sum(exp(scores)) / (sum(exp(scores)) + exp(sink))
//!
//! `Attention` has no sink, but it can return its scores. So the result is multiplied by this factor. The largest
//! score of a row is subtracted first, so that no exponential overflows. Only the scores of slots in use are read, so
//! that a step takes the same time for every capacity.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::convert::kept::{KeptForm, KeptReason};
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, Value, Values};
use crate::onnx_attention::MASKED_SCORES;

/// The scores of the sinks of an attention operation.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::convert) struct Sinks<'m> {
    /// The value that contains them, `[batch, heads, new tokens, 1]`.
    pub(super) value: &'m str,
    /// The finite score of each head.
    by_head: Vec<f64>,
}

impl<'m> Sinks<'m> {
    /// Reads the sinks of a value `[batch, heads, new tokens, 1]`.
    ///
    /// # Errors
    /// Returns an error if the elements are not known, or if those of a head are not one finite number.
    pub(super) fn read(fold: &mut Fold<'m>, value: &'m str) -> Result<Self, KeptReason> {
        let unknown = || KeptReason::Unknown { value: value.to_owned() };
        let known = fold.known(value)?.ok_or_else(unknown)?;
        let scores = known.as_floats().ok_or_else(unknown)?;
        let &[_, heads, tokens, 1] = known.shape.as_slice() else {
            return Err(KeptForm::SinkShape.into());
        };
        let sample = scores.chunks(heads.saturating_mul(tokens).max(1)).next().unwrap_or_default();
        let sinks: Vec<f64> = sample.iter().copied().step_by(tokens.max(1)).collect();
        let expected = sinks.iter().flat_map(|sink| std::iter::repeat_n(sink, tokens)).cycle();
        let differs = scores.iter().zip(expected).any(|(score, sink)| score != sink);
        if differs || !sinks.iter().all(|sink| sink.is_finite()) {
            return Err(KeptForm::SinkNumbers.into());
        }
        let compared = scores.len();
        fold.charge(compared)?;
        Ok(Self { value, by_head: sinks })
    }

    /// Returns sinks that take a moderate share of the weights, and differ between neighbouring heads.
    ///
    /// A proof uses them. Large sinks leave so little of the result that every result would be equal.
    pub(super) fn moderate(&self) -> Self {
        let by_head = [-1.5, 0.0, 1.5].into_iter().cycle().take(self.by_head.len()).collect();
        Self { value: self.value, by_head }
    }

    /// Returns the elements of a value of this shape that contains the sinks.
    ///
    /// # Errors
    /// Returns the errors of [`Value::new`].
    pub(super) fn spread(&self, element: ElementType, shape: &[usize]) -> Result<Value, OnnxError> {
        let tokens = shape.get(2).copied().unwrap_or_default();
        let samples = shape.first().copied().unwrap_or_default();
        let sample = self.by_head.iter().flat_map(|sink| std::iter::repeat_n(*sink, tokens));
        let all = std::iter::repeat_n(sample, samples).flatten().collect();
        Value::new(element, shape.to_vec(), Some(Values::Floats(all)))
    }

    /// Adds an `Attention` node of this type and the nodes that compute the factor. `lengths` is the number of slots in
    /// use of each sample. Returns the node that multiplies by the factor, which the caller adds.
    pub(super) fn add_before_last(
        &self,
        editor: &mut Editor<'_>,
        attention: NewNode,
        lengths: &str,
        element: ElementType,
    ) -> Result<NewNode, OnnxError> {
        let [attended, scores] = ["attention", "scores"].map(|name| editor.fresh(name));
        let attention = attention.int("qk_matmul_output_mode", MASKED_SCORES);
        editor.add(attention.outputs(&[&attended, "", "", &scores]));
        // A softmax of 16 bits is computed in float32, too.
        let wide = if element == ElementType::Float64 { element } else { ElementType::Float32 };
        let sink = editor.floats(wide, vec![1, self.by_head.len(), 1, 1], &self.by_head)?;
        let longest = editor.shared(NewNode::new("ReduceMax", &[lengths]).int("keepdims", 0))?;
        let used = editor.range(&longest)?;
        let scores = editor.add(NewNode::new("Gather", &[&scores, &used]).int("axis", 3));
        let slots = editor.ints(&[-1])?;
        let scores = editor.cast(&scores, element, wide);
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
