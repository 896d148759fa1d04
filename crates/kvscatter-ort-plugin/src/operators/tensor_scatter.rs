//! ONNX `TensorScatter`. The operator of ONNX's domain has no `lengths`, and that of our domain has.

use core::ffi::CStr;
use std::borrow::Cow;

use kvscatter::spec::onnx;
use kvscatter::{Argument, Error, Mode, NegativeIndex};

use super::{Operator, partial};
use crate::context::Context;
use crate::input::InputTensor;
use crate::node::{Attributes, Node};
use crate::status::CallError;
use crate::tensor_info::TensorInfo;
use crate::write::{CheckedWrite, PreparedWrites};

/// The operator `TensorScatter(past_cache, update, write_indices?, lengths?)`. It follows the runtime's
/// rules, so a negative index is an error.
pub(crate) struct TensorScatter {
    operator: onnx::TensorScatter,
    writes: PreparedWrites,
}

impl Operator for TensorScatter {
    const NAME: &'static CStr = c"TensorScatter";

    fn new(node: &Node<'_>) -> Result<Self, CallError> {
        let operator = operator(node.integer(c"axis")?, node.string(c"mode")?)?;
        Ok(Self { operator, writes: PreparedWrites::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let cache = &context.input(0, Argument::PastCache)?;
        let update = &context.input(1, Argument::Update)?;
        let write_indices = context.optional_input(2, Argument::WriteIndices)?;
        let lengths = context.optional_input(3, Argument::Lengths)?;
        let prepare =
            |element, cache: &[usize], update: &[usize]| self.operator.prepare(element, cache, update);
        let prepared = self.writes.get(context, cache, update, prepare)?;
        let (write_indices, lengths) = (list(write_indices.as_ref())?, list(lengths.as_ref())?);
        let plan = prepared.plan_with_lengths(write_indices.as_deref(), lengths.as_deref())?;
        CheckedWrite::new(&prepared, context, cache, update.bytes()?, 0).write(&plan)
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), CallError> {
        let input = |index| partial(inputs, index);
        self.operator.infer(input(0), input(1), Some(input(2)))?;
        Ok(())
    }

    fn message(error: Error) -> String {
        runtime_message(error)
    }
}

/// Creates the operator from the attributes of a node. Returns an error if the mode does not exist.
pub(crate) fn operator(axis: Option<i64>, mode: Option<String>) -> Result<onnx::TensorScatter, CallError> {
    let mut operator = onnx::TensorScatter::new().negative_index(NegativeIndex::Reject);
    if let Some(axis) = axis {
        operator = operator.axis(axis);
    }
    if let Some(name) = mode {
        let mode = name
            .parse::<Mode>()
            .map_err(|_| CallError::fail(format!("mode must be 'linear' or 'circular', got '{name}'")))?;
        operator = operator.mode(mode);
    }
    Ok(operator)
}

/// Returns the values of an optional input.
pub(crate) fn list<'a>(tensor: Option<&InputTensor<'a>>) -> Result<Option<Cow<'a, [i64]>>, CallError> {
    tensor.map(InputTensor::list).transpose()
}

/// Returns the message of the runtime's own kernel for an error, or the core's message if that kernel has
/// none.
///
/// The execution provider takes nodes that the runtime's kernel would take otherwise. The messages are the
/// same so that programs that compare or search messages work with both. `python-tests/test_errors.py`
/// compares them with the runtime's messages.
fn runtime_message(error: Error) -> String {
    use Argument::WriteIndices;
    match error {
        Error::NegativeStart { argument, index, value } => {
            format!("TensorScatter: {argument}[{index}] = {value} is negative")
        }
        Error::StartOutOfRange { argument, index, value, rows, capacity } => format!(
            "TensorScatter linear mode: {argument}[{index}] + sequence_length ({value} + {rows}) exceeds max_sequence_length ({capacity})"
        ),
        Error::UpdateLongerThanCache { rows, capacity, .. } => {
            format!("TensorScatter: update sequence_length ({rows}) exceeds max_sequence_length ({capacity})")
        }
        Error::DimensionMismatch { argument, dimension, expected, got, .. } => format!(
            "TensorScatter: shape mismatch in dimension {dimension}: past_cache={expected} vs {argument}={got}"
        ),
        Error::RankTooLow { argument, .. } => {
            format!("TensorScatter: {argument} must have at least 2 dimensions")
        }
        Error::RankMismatch { .. } => {
            "TensorScatter: past_cache and update must have the same number of dimensions".to_owned()
        }
        Error::AxisOutOfRange { axis, rank } | Error::AxisIsBatch { axis, rank } => {
            let rank = i64::try_from(rank).unwrap_or(i64::MAX);
            let axis = if axis < 0 { axis.saturating_add(rank) } else { axis };
            format!("TensorScatter: axis must be in [1, ndim-1] after normalization, got {axis}")
        }
        Error::ListLength { argument: WriteIndices, .. } | Error::Rank { argument: WriteIndices, .. } => {
            "TensorScatter: write_indices must have shape [batch_size]".to_owned()
        }
        _ => format!("TensorScatter: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::spec::onnx;
    use kvscatter::{Argument, ElementType, Error, Mode, NegativeIndex};

    use super::runtime_message;

    /// The messages are those of onnxruntime 1.25 to 1.31.
    #[test]
    fn refusals_read_as_the_runtimes_own() {
        let operator = onnx::TensorScatter::new().negative_index(NegativeIndex::Reject);
        let shapes = |operator: onnx::TensorScatter, cache: &[usize], update: &[usize]| {
            runtime_message(operator.prepare(ElementType::Float32, cache, update).unwrap_err())
        };
        let write = operator.prepare(ElementType::Float32, &[2, 4, 1], &[2, 2, 1]).unwrap();
        let indices = |indices: &[i64]| runtime_message(write.plan(indices).unwrap_err());

        for (refused, expected) in [
            (indices(&[0, -1]), "write_indices[1] = -1 is negative"),
            (indices(&[0]), "write_indices must have shape [batch_size]"),
            (
                shapes(operator, &[1, 4, 1], &[1, 5, 1]),
                "update sequence_length (5) exceeds max_sequence_length (4)",
            ),
            (
                shapes(operator, &[1, 4, 1], &[1, 1, 2]),
                "shape mismatch in dimension 2: past_cache=1 vs update=2",
            ),
            (
                shapes(operator, &[1, 4, 1], &[1, 1]),
                "past_cache and update must have the same number of dimensions",
            ),
            (shapes(operator, &[4], &[1]), "past_cache must have at least 2 dimensions"),
        ] {
            assert_eq!(refused, format!("TensorScatter: {expected}"));
        }
        assert_eq!(
            indices(&[3, 0]),
            "TensorScatter linear mode: write_indices[0] + sequence_length (3 + 2) exceeds max_sequence_length (4)"
        );
        for (axis, normalised) in
            [(0, "0"), (-3, "0"), (3, "3"), (-4, "-1"), (i64::MAX, "9223372036854775807")]
        {
            assert_eq!(
                shapes(operator.axis(axis), &[1, 4, 1], &[1, 1, 1]),
                format!("TensorScatter: axis must be in [1, ndim-1] after normalization, got {normalised}")
            );
        }
        let ring =
            operator.mode(Mode::Circular).prepare(ElementType::Float32, &[1, 4, 1], &[1, 2, 1]).unwrap();
        let refused = runtime_message(ring.plan(&[-1_i64]).unwrap_err());
        assert_eq!(refused, "TensorScatter: write_indices[0] = -1 is negative", "in a ring as well");
    }

    #[test]
    fn errors_without_a_message_of_the_runtime_have_ours() {
        let (argument, with) = (Argument::PastCache, Argument::Update);
        assert_eq!(
            runtime_message(Error::Overlap { argument, with, pair: 0, with_pair: 0 }),
            "TensorScatter: the buffer of past_cache shares memory with that of update"
        );
    }
}
