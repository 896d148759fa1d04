//! Tensors in memory of ours: an engine reads and writes them where they lie.

use bytemuck::{Pod, Zeroable};
use kvscatter::ElementType;

use crate::Error;

/// As much as ONNX Runtime aligns its own tensors to.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; Line::BYTES]);

impl Line {
    const BYTES: usize = 64;
}

/// A dense tensor that stays where it is for as long as it lives, aligned to 64 bytes.
///
/// Elements are little-endian and 4-bit types packed, as ONNX stores them.
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    lines: Vec<Line>,
    len: usize,
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::TensorTooLarge`] for strings, for a shape larger than any buffer and for one that the system has no
    /// memory for.
    pub fn zeros(element: ElementType, shape: &[usize]) -> Result<Self, Error> {
        let too_large = || Error::TensorTooLarge { element, shape: shape.to_vec() };
        if element == ElementType::String {
            return Err(too_large());
        }
        let len = element.storage_len(shape).ok_or_else(too_large)?;
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(Line::BYTES)).map_err(|_| too_large())?;
        lines.resize(len.div_ceil(Line::BYTES), Line::zeroed());
        Ok(Self { element, shape: shape.to_vec(), lines, len })
    }

    /// An int64 tensor of these values.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros), and [`Error::ValueCount`] if they do not fill the shape.
    pub fn int64s(shape: &[usize], values: &[i64]) -> Result<Self, Error> {
        Self::integers(ElementType::Int64, shape, values)
    }

    /// A tensor of these integers in the type that an input has.
    ///
    /// # Errors
    /// As [`zeros`](Self::zeros); [`Error::ValueCount`] if they do not fill the shape; [`Error::InputType`] for a
    /// value that the type does not hold, and for types that no decoder takes masks or positions in: all but int64,
    /// int32, bool and float.
    pub fn integers(element: ElementType, shape: &[usize], values: &[i64]) -> Result<Self, Error> {
        let mut tensor = Self::zeros(element, shape)?;
        let want = shape.iter().product();
        if values.len() != want {
            return Err(Error::ValueCount { shape: shape.to_vec(), want, got: values.len() });
        }
        let bytes: Vec<u8> = values
            .iter()
            .map(|&value| encode(element, value).ok_or(Error::InputType { element, value }))
            .collect::<Result<Vec<_>, _>>()?
            .concat();
        tensor.bytes_mut().copy_from_slice(&bytes);
        Ok(tensor)
    }

    /// The element type.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The values' bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        bytemuck::must_cast_slice::<Line, u8>(&self.lines).get(..self.len).unwrap_or_default()
    }

    /// The values' bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::must_cast_slice_mut::<Line, u8>(&mut self.lines).get_mut(..self.len).unwrap_or_default()
    }

    /// Where the first byte lies.
    #[must_use]
    pub fn address(&self) -> usize {
        self.lines.as_ptr().addr()
    }

    /// The bytes, through a pointer that may be read but not written through.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    /// The bytes, through a pointer that may be written through.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}

/// An integer in the bytes of a type; `None` if the type does not hold it.
fn encode(element: ElementType, value: i64) -> Option<Vec<u8>> {
    Some(match element {
        ElementType::Int64 => value.to_le_bytes().to_vec(),
        ElementType::Int32 => i32::try_from(value).ok()?.to_le_bytes().to_vec(),
        ElementType::Bool => vec![u8::try_from(value).ok().filter(|byte| *byte <= 1)?],
        ElementType::Float32 => f32::from(i16::try_from(value).ok()?).to_le_bytes().to_vec(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::Tensor;
    use crate::Error;

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
            assert!(matches!(refused, Err(Error::TensorTooLarge { .. })), "{shape:?}");
        }
    }

    #[test]
    fn integers_come_in_the_type_of_the_input() {
        let tensor = Tensor::integers(ElementType::Int32, &[2], &[-1, 7]).unwrap();
        assert_eq!(tensor.bytes(), [255, 255, 255, 255, 7, 0, 0, 0]);
        assert!(matches!(
            Tensor::integers(ElementType::Int32, &[1], &[1 << 40]),
            Err(Error::InputType { .. })
        ));
        assert!(matches!(Tensor::int64s(&[2], &[1]), Err(Error::ValueCount { want: 2, got: 1, .. })));
    }
}
