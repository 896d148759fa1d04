//! Tensors that an engine reads and writes in place. Their memory is the crate's or an engine's.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};
use kvscatter::ElementType;

use crate::error::SessionError;

/// A block of 64 bytes, the alignment of ONNX Runtime's own tensors.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; Line::BYTES]);

impl Line {
    const BYTES: usize = 64;
}

/// A dense tensor, in memory that it owns or in an engine's memory.
///
/// Owned memory does not move and is aligned to 64 bytes. Elements are little-endian, and 4-bit types are
/// packed, as in ONNX.
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    bytes: Bytes,
    len: usize,
}

enum Bytes {
    Own(Vec<Line>),
    Engine(Box<dyn Memory>),
}

/// Memory that an engine allocates. It is moved into a run and back.
pub trait Memory: Any + Send {
    /// Returns the values' bytes.
    fn bytes(&self) -> &[u8];

    /// Returns the values' bytes for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Returns tensors with their names, in the form in which runs and sessions take them.
pub fn by_name<'t>(tensors: impl IntoIterator<Item = &'t (String, Tensor)>) -> Vec<(&'t str, &'t Tensor)> {
    tensors.into_iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

impl Tensor {
    /// Allocates a tensor of zeros.
    ///
    /// # Errors
    /// Returns [`SessionError::TensorTooLarge`] for strings, for a shape that is larger than any buffer, and
    /// if the system has no memory for the tensor.
    pub fn zeros(element: ElementType, shape: &[usize]) -> Result<Self, SessionError> {
        let too_large = || SessionError::TensorTooLarge { element, shape: shape.to_vec() };
        if element == ElementType::String {
            return Err(too_large());
        }
        let len = element.storage_len(shape).ok_or_else(too_large)?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(Line::BYTES)).map_err(|_| too_large())?;
        lines.resize(len.div_ceil(Line::BYTES), Line::zeroed());
        Ok(Self { element, shape: shape.to_vec(), bytes: Bytes::Own(lines), len })
    }

    /// Creates a tensor in an engine's memory.
    ///
    /// # Errors
    /// - Returns [`SessionError::TensorTooLarge`] for strings and for a shape that is larger than any buffer.
    /// - Returns [`SessionError::ByteCount`] if the number of bytes of the memory differs from the number
    ///   that the shape needs.
    pub fn of_memory(
        element: ElementType,
        shape: &[usize],
        memory: Box<dyn Memory>,
    ) -> Result<Self, SessionError> {
        let expected = (element != ElementType::String).then(|| element.storage_len(shape)).flatten();
        let expected =
            expected.ok_or_else(|| SessionError::TensorTooLarge { element, shape: shape.to_vec() })?;
        let got = memory.bytes().len();
        if got != expected {
            return Err(SessionError::ByteCount { element, shape: shape.to_vec(), expected, got });
        }
        Ok(Self { element, shape: shape.to_vec(), bytes: Bytes::Engine(memory), len: expected })
    }

    /// Returns the engine's memory. Returns `None` if the tensor does not use an engine's memory, or if that
    /// has another type.
    pub fn memory_mut<M: Memory>(&mut self) -> Option<&mut M> {
        match &mut self.bytes {
            Bytes::Own(_) => None,
            Bytes::Engine(memory) => {
                let memory: &mut dyn Any = memory.as_mut();
                memory.downcast_mut()
            }
        }
    }

    /// Returns the engine's memory, like [`memory_mut`](Self::memory_mut), to read from it.
    pub fn memory<M: Memory>(&self) -> Option<&M> {
        match &self.bytes {
            Bytes::Own(_) => None,
            Bytes::Engine(memory) => {
                let memory: &dyn Any = memory.as_ref();
                memory.downcast_ref()
            }
        }
    }

    /// Creates an int64 tensor of these values.
    ///
    /// # Errors
    /// - Returns [`SessionError::ValueCount`] if the values do not fill the shape.
    /// - Returns the errors of [`zeros`](Self::zeros).
    pub fn int64s(shape: &[usize], values: &[i64]) -> Result<Self, SessionError> {
        Self::integers(ElementType::Int64, shape, values)
    }

    /// Creates a tensor of these integers in the element type of an input.
    ///
    /// # Errors
    /// - Returns [`SessionError::ValueCount`] if the values do not fill the shape.
    /// - Returns [`SessionError::InputType`] if the type cannot represent a value. Only int64, int32, bool,
    ///   float, float16 and bfloat16 are supported, because no decoder takes masks, positions or embeddings in
    ///   another type. A float must fit an int16, and a 16-bit float an int8, so that it is exact.
    /// - Returns the errors of [`zeros`](Self::zeros).
    pub fn integers(element: ElementType, shape: &[usize], values: &[i64]) -> Result<Self, SessionError> {
        let mut tensor = Self::zeros(element, shape)?;
        let expected = shape.iter().product();
        if values.len() != expected {
            return Err(SessionError::ValueCount { shape: shape.to_vec(), expected, got: values.len() });
        }
        for (index, &value) in values.iter().enumerate() {
            tensor.fill(index..index + 1, value)?;
        }
        Ok(tensor)
    }

    /// Returns a copy in memory that the tensor owns.
    pub(crate) fn copied(&self) -> Result<Self, SessionError> {
        let mut copy = Self::zeros(self.element, &self.shape)?;
        copy.bytes_mut().copy_from_slice(self.bytes());
        Ok(copy)
    }

    /// Sets a range of elements to an integer. Elements after the last one are ignored. Returns
    /// [`SessionError::InputType`] if the type cannot represent the integer.
    pub(crate) fn fill(&mut self, elements: Range<usize>, value: i64) -> Result<(), SessionError> {
        let element = self.element;
        let (code, width) = encode(element, value).ok_or(SessionError::InputType { element, value })?;
        let code = code.to_le_bytes();
        let (code, _) = code.split_at(width);
        let targets = self.bytes_mut().chunks_exact_mut(width).skip(elements.start).take(elements.len());
        targets.for_each(|target| target.copy_from_slice(code));
        Ok(())
    }

    /// Returns the element type, which is never a string.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the dimensions, outermost first. A scalar has none.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the bytes of the values, in row-major order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let bytes = match &self.bytes {
            Bytes::Own(lines) => bytemuck::must_cast_slice::<Line, u8>(lines),
            Bytes::Engine(memory) => memory.bytes(),
        };
        bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the bytes of the values so that they can be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.bytes {
            Bytes::Own(lines) => bytemuck::must_cast_slice_mut::<Line, u8>(lines),
            Bytes::Engine(memory) => memory.bytes_mut(),
        };
        bytes.get_mut(..self.len).unwrap_or_default()
    }

    /// Returns the number of bytes of the values.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "the length is in bytes, and a tensor is not a collection of bytes"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the place of some samples of a tensor whose first dimension is the batch: their bytes and their shape.
    ///
    /// Returns `None` if the tensor does not have these samples, or if they share a byte with others.
    #[must_use]
    pub fn part(&self, samples: &Range<usize>) -> Option<(Range<usize>, Vec<usize>)> {
        let batch = *self.shape.first()?;
        let sample = self.len.checked_div(batch)?;
        if samples.end > batch || sample * batch != self.len {
            return None;
        }
        let mut shape = self.shape.clone();
        *shape.first_mut()? = samples.len();
        Some((samples.start * sample..samples.end * sample, shape))
    }

    /// Returns the address of the first byte, which shows whether two tensors use the same memory.
    #[must_use]
    pub fn address(&self) -> usize {
        match &self.bytes {
            Bytes::Own(lines) => lines.as_ptr().addr(),
            Bytes::Engine(memory) => memory.bytes().as_ptr().addr(),
        }
    }

    /// Returns a pointer to the bytes that may be used only to read.
    ///
    /// Returns `None` for an engine's memory, because it may move and change its size.
    #[must_use]
    pub fn as_ptr(&self) -> Option<*const u8> {
        match &self.bytes {
            Bytes::Own(lines) => Some(lines.as_ptr().cast()),
            Bytes::Engine(_) => None,
        }
    }

    /// Returns a pointer to the bytes that may also be used to write, as long as nothing else uses the bytes.
    ///
    /// Returns `None` for an engine's memory, because it may move and change its size.
    pub fn as_mut_ptr(&mut self) -> Option<*mut u8> {
        match &mut self.bytes {
            Bytes::Own(lines) => Some(lines.as_mut_ptr().cast()),
            Bytes::Engine(_) => None,
        }
    }
}

impl fmt::Debug for Tensor {
    /// Shows the type, the shape and the address, without the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("element", &self.element)
            .field("shape", &self.shape)
            .field("address", &format_args!("{:#x}", self.address()))
            .finish_non_exhaustive()
    }
}

/// Checks that an input of this type can represent an integer.
pub(crate) fn check_value(element: ElementType, value: i64) -> Result<(), SessionError> {
    encode(element, value).map(|_| ()).ok_or(SessionError::InputType { element, value })
}

/// Returns the bits of an integer in a type, and the number of bytes of the type. Returns `None` if the type
/// cannot represent the integer.
fn encode(element: ElementType, value: i64) -> Option<(u64, usize)> {
    Some(match element {
        ElementType::Int64 => (value.cast_unsigned(), 8),
        ElementType::Int32 => (i32::try_from(value).ok()?.cast_unsigned().into(), 4),
        ElementType::Bool => (u8::try_from(value).ok().filter(|byte| *byte <= 1)?.into(), 1),
        ElementType::Float32 => (f32::from(i16::try_from(value).ok()?).to_bits().into(), 4),
        ElementType::Float16 => (f16::from_f32(i8::try_from(value).ok()?.into()).to_bits().into(), 2),
        ElementType::BFloat16 => (bf16::from_f32(i8::try_from(value).ok()?.into()).to_bits().into(), 2),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::Tensor;
    use crate::error::SessionError;

    #[test]
    fn memory_is_aligned_zeroed_and_of_the_right_length() {
        for (element, shape, len) in [
            (ElementType::Float16, vec![2, 3, 5], 60),
            (ElementType::Int4, vec![3, 5], 8),
            (ElementType::Float32, vec![2, 0, 5], 0),
            (ElementType::Int64, vec![], 8),
        ] {
            let tensor = Tensor::zeros(element, &shape).unwrap();
            assert_eq!((tensor.bytes().len(), tensor.address() % 64), (len, 0), "{element} {shape:?}");
            assert!(tensor.bytes().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_shape_of_no_possible_size_is_an_error() {
        for shape in [vec![usize::MAX, 2], vec![1 << 60]] {
            let refused = Tensor::zeros(ElementType::Float32, &shape);
            assert!(matches!(refused, Err(SessionError::TensorTooLarge { .. })), "{shape:?}");
        }
    }

    #[test]
    fn a_tensor_shows_its_type_shape_and_address() {
        let mut tensor = Tensor::zeros(ElementType::Float16, &[2, 3]).unwrap();
        let address = tensor.as_ptr().unwrap();
        assert_eq!(address, tensor.as_mut_ptr().unwrap().cast_const());
        assert_eq!((address.addr(), address), (tensor.address(), tensor.bytes().as_ptr()));
        let expected = format!("Tensor {{ element: Float16, shape: [2, 3], address: {address:?}, .. }}");
        assert_eq!(format!("{tensor:?}"), expected);
    }

    #[test]
    fn integers_come_in_the_type_of_the_input() {
        let tensor = Tensor::integers(ElementType::Int32, &[2], &[-1, 7]).unwrap();
        assert_eq!(tensor.bytes(), [255, 255, 255, 255, 7, 0, 0, 0]);
        for (element, bytes) in [
            (ElementType::Bool, &[1][..]),
            (ElementType::Float32, &1_f32.to_le_bytes()),
            (ElementType::Float16, &half::f16::ONE.to_le_bytes()),
            (ElementType::BFloat16, &half::bf16::ONE.to_le_bytes()),
        ] {
            assert_eq!(Tensor::integers(element, &[1], &[1]).unwrap().bytes(), bytes, "{element}");
        }
        assert!(matches!(
            Tensor::integers(ElementType::Int32, &[1], &[1 << 40]),
            Err(SessionError::InputType { .. })
        ));
        assert!(matches!(
            Tensor::int64s(&[2], &[1]),
            Err(SessionError::ValueCount { expected: 2, got: 1, .. })
        ));
    }
}
