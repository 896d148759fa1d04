//! The pseudocode of the three specifications, slow and obvious: what every backend and surface is tested against.
//!
//! - [`onnx::TensorScatter`]: ONNX `TensorScatter-24`, with the modulo taken on the sequence coordinate only.
//! - [`tensorrt::KvCacheUpdate`]: TensorRT `KVCacheUpdate`, padded and packed.
//! - [`ascend::KvCacheOperation`]: Ascend ATB `KVCacheOperation`.
//! - [`cases`]: the adversarial cases that everything is run on, and an exhaustive small domain.
//!
//! Each operator visits the elements of the update one at a time, asks where the element goes, and puts it there. It
//! shares no code with the `kvscatter` crate, not even the table of element types, so that a mistake has to be made
//! twice to go unseen. It is generic over the element: numbers, strings, unpacked [`nibbles`] and plain
//! [origins](cases::Origin) behave alike.
//!
//! When a call breaks several rules, the first of this order is reported: attributes and shapes, numbers of indices,
//! the layer, cumulative lengths, then sample by sample the rows it brings, its length and its start, then the total.
#![forbid(unsafe_code)]

pub mod ascend;
pub mod cases;
pub mod nibbles;
pub mod onnx;
mod refusal;
mod rule;
pub mod tensorrt;

pub use refusal::Refusal;

/// A dense row-major tensor: `data.len()` is the product of `shape`.
#[derive(Debug)]
pub struct Tensor<'a, E> {
    /// The elements, last dimension fastest.
    pub data: &'a [E],
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
}

impl<'a, E> Tensor<'a, E> {
    /// A tensor over `data`.
    ///
    /// # Panics
    /// If `data` does not fill `shape`: the caller is a test, and wrong.
    #[must_use]
    pub fn new(data: &'a [E], shape: &'a [usize]) -> Self {
        assert_eq!(data.len(), size(shape), "data of shape {shape:?}");
        Self { data, shape }
    }
}

/// The result of a call that was not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<E> {
    /// The cache after the write, in the cache's shape.
    pub present: Vec<E>,
    /// Samples left out under [`OutOfRange::SkipSample`].
    pub skipped: usize,
}

/// What to do with a sample that does not fit the cache. An extension of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// Refuse the call.
    #[default]
    Error,
    /// Leave out the whole sample and count it.
    SkipSample,
}

/// What a negative write index means in circular mode; in linear mode it is out of range. An extension of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NegativeIndex {
    /// Floor modulo: -1 is the last slot.
    #[default]
    Modulo,
    /// Out of range, as in onnxruntime.
    Reject,
}

/// Number of elements in a tensor of this shape.
#[must_use]
pub fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The multi-index of the element at `flat`.
fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (position, &dimension) in index.iter_mut().zip(shape).rev() {
        *position = flat % dimension;
        flat /= dimension;
    }
    index
}

/// Returns the offset of the element at `index` in row-major order.
fn ravel(index: &[usize], shape: &[usize]) -> usize {
    assert!(index.iter().zip(shape).all(|(i, dimension)| i < dimension), "{index:?} in {shape:?}");
    index.iter().zip(shape).fold(0, |flat, (&i, &dimension)| flat * dimension + i)
}

#[cfg(test)]
mod tests {
    use super::{ravel, size, unravel};

    #[test]
    fn row_major_order() {
        let shape = [2, 3, 4];
        assert_eq!(unravel(0, &shape), [0, 0, 0]);
        assert_eq!(unravel(1, &shape), [0, 0, 1]);
        assert_eq!(unravel(4, &shape), [0, 1, 0]);
        assert_eq!(unravel(23, &shape), [1, 2, 3]);
        for flat in 0..size(&shape) {
            assert_eq!(ravel(&unravel(flat, &shape), &shape), flat);
        }
    }

    #[test]
    #[should_panic(expected = "[0, 3] in [2, 3]")]
    fn an_index_outside_its_shape_is_never_folded_into_the_next_row() {
        ravel(&[0, 3], &[2, 3]);
    }
}
