//! The type, the shape and the place of a tensor in a file of any format.

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};

use super::error::Problem;
use super::nibbles::pack;

/// A tensor in a file, as the header of its format describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) element: ElementType,
    pub(super) shape: Vec<usize>,
    /// Whether each byte of the data contains one 4-bit element, as `ml_dtypes` stores them.
    pub(super) is_unpacked: bool,
    /// The number of bytes before the data.
    pub(super) offset: u64,
    /// The number of bytes of the data.
    pub(super) len: usize,
}

impl Header {
    /// Returns the tensor of these bytes, whose number is [`len`](Self::len).
    pub(super) fn tensor(self, data: Vec<u8>) -> Result<Tensor, Problem> {
        let data = if self.is_unpacked { pack(self.element, &data)? } else { data };
        Ok(Tensor::new(self.element, self.shape, Data::Bytes(data))?)
    }
}
