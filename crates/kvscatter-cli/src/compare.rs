//! Compares outputs with expected outputs.

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;
use serde::{Serialize, Serializer};

pub(crate) use crate::values::Tolerance;
use crate::values::{Difference, difference};

/// The first difference between outputs and the expected ones.
#[derive(Debug, thiserror::Error, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Mismatch {
    #[error("{actual} outputs, expected {expected}")]
    OutputCount { actual: usize, expected: usize },
    #[error("output {output} is {actual}, expected {expected}")]
    Type {
        output: usize,
        #[serde(serialize_with = "name")]
        actual: ElementType,
        #[serde(serialize_with = "name")]
        expected: ElementType,
    },
    #[error("output {output} has shape {actual:?}, expected {expected:?}")]
    Shape { output: usize, actual: Vec<usize>, expected: Vec<usize> },
    #[error(
        "output {output}: element {:?} is {}, expected {}; {} of {elements} elements differ",
        .first.index, .first.actual, .first.expected, .first.differing
    )]
    Values {
        output: usize,
        #[serde(flatten)]
        first: Difference,
        elements: usize,
    },
}

impl Mismatch {
    /// Returns the mismatch as that of this output.
    pub(crate) fn of_output(mut self, number: usize) -> Self {
        match &mut self {
            Self::OutputCount { .. } => {}
            Self::Type { output, .. } | Self::Shape { output, .. } | Self::Values { output, .. } => {
                *output = number;
            }
        }
        self
    }
}

/// Compares outputs with the expected ones, in order. Returns `None` if they agree. Without a tolerance,
/// every bit must agree.
pub(crate) fn compare(
    actual: &[&Tensor],
    expected: &[Tensor],
    tolerance: Option<Tolerance>,
) -> Option<Mismatch> {
    if actual.len() != expected.len() {
        return Some(Mismatch::OutputCount { actual: actual.len(), expected: expected.len() });
    }
    actual.iter().zip(expected).enumerate().find_map(|(output, (actual, expected))| {
        if actual.element() != expected.element() {
            let (actual, expected) = (actual.element(), expected.element());
            return Some(Mismatch::Type { output, actual, expected });
        }
        if actual.shape() != expected.shape() {
            let (actual, expected) = (actual.shape().to_vec(), expected.shape().to_vec());
            return Some(Mismatch::Shape { output, actual, expected });
        }
        let elements = expected.elements();
        difference(actual, expected, tolerance).map(|first| Mismatch::Values { output, first, elements })
    })
}

fn name<S: Serializer>(element: &ElementType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(element.onnx_name())
}
