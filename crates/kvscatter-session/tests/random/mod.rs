//! Random histories of a session, for any engine and any way to know the right logits.

pub(crate) mod faults;
pub(crate) mod oracle;
pub(crate) mod texts;
pub(crate) mod world;

use kvscatter_session::Tensor;

/// Returns the values of an int64 tensor.
pub(crate) fn int64s(tensor: &Tensor) -> Vec<i64> {
    tensor.bytes().as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
}
