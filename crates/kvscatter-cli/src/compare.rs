//! Outputs against expected outputs.

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;

pub(crate) use crate::values::Tolerance;
use crate::values::{Difference, difference};

/// How outputs differ from the expected ones: the first thing that does.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("{got} outputs, expected {want}")]
    OutputCount { got: usize, want: usize },
    #[error("output {output} is {got}, expected {want}")]
    Type { output: usize, got: ElementType, want: ElementType },
    #[error("output {output} has shape {got:?}, expected {want:?}")]
    Shape { output: usize, got: Vec<usize>, want: Vec<usize> },
    #[error(
        "output {output}: element {:?} is {}, expected {}; {} of {elements} elements differ",
        .first.index, .first.got, .first.want, .first.count
    )]
    Values { output: usize, first: Difference, elements: usize },
}

/// Compares outputs with the expected ones, in order. `None` if they agree; without a tolerance, in every bit.
pub(crate) fn compare(
    got: &[&Tensor],
    expected: &[Tensor],
    tolerance: Option<Tolerance>,
) -> Option<Mismatch> {
    if got.len() != expected.len() {
        return Some(Mismatch::OutputCount { got: got.len(), want: expected.len() });
    }
    got.iter().zip(expected).enumerate().find_map(|(output, (got, want))| {
        if got.element() != want.element() {
            return Some(Mismatch::Type { output, got: got.element(), want: want.element() });
        }
        if got.shape() != want.shape() {
            let (got, want) = (got.shape().to_vec(), want.shape().to_vec());
            return Some(Mismatch::Shape { output, got, want });
        }
        let elements = want.shape().iter().product();
        difference(got, want, tolerance).map(|first| Mismatch::Values { output, first, elements })
    })
}
