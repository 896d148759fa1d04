//! Evaluates `Add` on integers, with NumPy's broadcasting.
//!
//! A sum that does not fit the type wraps, as in NumPy and ONNX Runtime. Signed and unsigned integers of one
//! width are therefore added in the same way.

use super::types::TensorType;
use crate::{Data, Tensor};

/// Returns the bytes of `left + right`, with the type `sum`.
pub(super) fn add(left: &Tensor, right: &Tensor, sum: &TensorType) -> Vec<u8> {
    let width = sum.element.bits().map_or(1, |bits| bits.div_ceil(8));
    if sum.shape.contains(&0) {
        return Vec::new();
    }
    let (left, right) = (broadcast(left, &sum.shape, width), broadcast(right, &sum.shape, width));
    left.chunks(width).zip(right.chunks(width)).flat_map(|(left, right)| wrapping_sum(left, right)).collect()
}

/// Adds two little-endian integers of one width.
fn wrapping_sum<'a>(left: &'a [u8], right: &'a [u8]) -> impl Iterator<Item = u8> + 'a {
    let mut carry = 0;
    left.iter().zip(right).map(move |(&left, &right)| {
        let [low, high] = u16::from(left).saturating_add(right.into()).saturating_add(carry).to_le_bytes();
        carry = high.into();
        low
    })
}

/// Returns the operand's bytes repeated to fill a shape that it broadcasts to. The shape has no empty
/// dimensions.
fn broadcast(operand: &Tensor, shape: &[usize], width: usize) -> Vec<u8> {
    let mut bytes = match operand.data() {
        Data::Bytes(bytes) => bytes.clone(),
        Data::Strings(_) => Vec::new(),
    };
    let from = operand.shape().iter().rev().copied().chain(std::iter::repeat(1));
    // The number of bytes of one index of the axis. All later axes already have their full size.
    let mut chunk = width;
    for (&to, from) in shape.iter().rev().zip(from) {
        if from != to {
            bytes = bytes.chunks_exact(chunk).flat_map(|chunk| chunk.repeat(to)).collect();
        }
        chunk = chunk.saturating_mul(to);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{TensorType, add};
    use crate::{Data, Tensor};

    fn int64(shape: &[usize], values: &[i64]) -> Tensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor::new(ElementType::Int64, shape.to_vec(), Data::Bytes(bytes)).unwrap()
    }

    fn sum(left: &Tensor, right: &Tensor, shape: &[usize]) -> Vec<i64> {
        let ty = TensorType { element: left.element(), shape: shape.into() };
        let bytes = add(left, right, &ty);
        bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
    }

    #[test]
    fn shapes_broadcast_from_the_right() {
        let (row, column) = (int64(&[3], &[1, 2, 3]), int64(&[2, 1], &[10, 20]));
        assert_eq!(sum(&row, &column, &[2, 3]), [11, 12, 13, 21, 22, 23]);
        assert_eq!(sum(&int64(&[], &[5]), &row, &[3]), [6, 7, 8]);
        let (outer, inner) = (int64(&[2, 1, 2], &[0, 1, 2, 3]), int64(&[2, 1], &[10, 20]));
        assert_eq!(sum(&outer, &inner, &[2, 2, 2]), [10, 11, 20, 21, 12, 13, 22, 23]);
        assert_eq!(sum(&int64(&[0], &[]), &int64(&[1], &[1]), &[0]), [0; 0]);
    }

    #[test]
    fn sums_wrap_around() {
        assert_eq!(
            sum(&int64(&[2], &[i64::MAX, i64::MIN]), &int64(&[2], &[1, -1]), &[2]),
            [i64::MIN, i64::MAX]
        );
        let byte = |element, value| Tensor::new(element, vec![], Data::Bytes(vec![value])).unwrap();
        for element in [ElementType::Int8, ElementType::UInt8] {
            let ty = TensorType { element, shape: [].into() };
            assert_eq!(add(&byte(element, 0xFF), &byte(element, 2), &ty), [1]);
        }
    }
}
