//! The pseudocode of the specifications, written to be obvious and not to be fast. Every backend and
//! surface is tested against it.
//!
//! - [`onnx::TensorScatter`]: ONNX `TensorScatter-24`, with the modulo taken on the sequence coordinate only.
//! - [`tensorrt::KvCacheUpdate`]: TensorRT `KVCacheUpdate`, padded and packed.
//! - [`ascend::KvCacheOperation`]: Ascend ATB `KVCacheOperation`.
//! - [`paged::PagedWrite`]: a write by slots into a paged cache, and the slots of block tables.
//! - [`attention::Attention`]: ONNX `Attention` of operator sets 23 to 25, in float64, also over rings.
//! - [`quantized::Row`]: a row of a cache of int8.
//! - [`visibility::Visibility`]: which slots of a cache a query sees.
//! - [`ring::Ring`]: a ring of one sample, filled slot by slot.
//! - [`cases`]: the adversarial cases that everything is tested on, and an exhaustive small domain.
//! - [`corpus`]: small cases that are chosen by hand and named after the rules that they test.
//!
//! Each operator that writes a cache visits the elements of the update one at a time, computes where the
//! element goes, and stores it there.
//!
//! This crate shares no code with the `kvscatter` crate, not even the table of element types. A mistake goes
//! unnoticed only if both crates make it.
//!
//! These operators are generic over the element. Numbers, strings, unpacked [`nibbles`] and plain
//! [origins](cases::Origin) are all treated in the same way.
//!
//! If a call breaks several rules, an operator of a specification reports the first one in this order:
//!
//! 1. attributes and shapes
//! 2. the numbers of indices
//! 3. the layer
//! 4. cumulative lengths
//! 5. for each sample in turn: the number of its rows, its length and its start
//! 6. the total number of rows
#![forbid(unsafe_code)]

pub mod ascend;
pub mod attention;
pub mod cases;
pub mod corpus;
pub mod nibbles;
pub mod onnx;
pub mod paged;
pub mod quantized;
mod refusal;
pub mod ring;
mod rule;
pub mod tensorrt;
pub mod visibility;

pub use refusal::Refusal;

/// A dense row-major tensor. `data.len()` is the product of `shape`.
#[derive(Debug)]
pub struct Tensor<'a, E> {
    /// The elements, last dimension fastest.
    pub data: &'a [E],
    /// The dimensions, outermost first.
    pub shape: &'a [usize],
}

impl<'a, E> Tensor<'a, E> {
    /// Creates a tensor over `data`.
    ///
    /// # Panics
    /// Panics if `data` does not fill `shape`, because the calling test is then wrong.
    #[must_use]
    pub fn new(data: &'a [E], shape: &'a [usize]) -> Self {
        assert_eq!(data.len(), size(shape), "data of shape {shape:?}");
        Self { data, shape }
    }
}

/// The result of a call that does not break a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<E> {
    /// The cache after the write, in the cache's shape.
    pub present: Vec<E>,
    /// The number of samples left unchanged under [`OutOfRange::SkipSample`].
    pub skipped: usize,
}

/// What to do with a sample that does not fit the cache. This is a kvscatter extension; not part of the
/// specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// Returns an error for the call.
    #[default]
    Error,
    /// Leaves the whole sample unchanged and counts it.
    SkipSample,
}

/// What a negative write index means in circular mode. In linear mode it is always out of range. This is a
/// kvscatter extension; not part of the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NegativeIndex {
    /// Takes the floor modulo, so -1 is the last slot.
    #[default]
    Modulo,
    /// Treats the index as out of range, as onnxruntime does.
    Reject,
}

/// Returns the number of elements in a tensor of this shape.
#[must_use]
pub fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Returns the multi-index of the element at offset `flat` in row-major order.
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
