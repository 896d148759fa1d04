//! Tensors in memory: an element type, a shape, and values that fill the shape.

use kvscatter::{Argument, ElementType, WritePlan, Written};

/// The default limit on the number of bytes of values that are allocated or read from other files: 16 GiB.
pub const DEFAULT_MEMORY_LIMIT: u64 = 16 << 30;

/// The values of a [`Tensor`] in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Fixed-width elements in little-endian byte order, as in ONNX `raw_data`.
    ///
    /// 4-bit elements are packed without gaps over the whole tensor. The first of two elements is in the low
    /// nibble. An unused last nibble is 0.
    Bytes(Vec<u8>),
    /// Strings, one per element. ONNX strings are bytes that need not be UTF-8.
    Strings(Vec<Vec<u8>>),
}

/// An element type, a shape, and exactly as many values as the shape requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    data: Data,
}

/// An error about values that do not fill a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The product of the dimensions is larger than any buffer.
    #[error("shape {shape:?} of {element} is larger than any buffer (at most {} bytes)", isize::MAX)]
    TooLarge {
        /// The requested element type.
        element: ElementType,
        /// The requested shape.
        shape: Vec<usize>,
    },
    /// The number of values does not match the shape.
    #[error("shape {shape:?} of {element} takes {expected} {}, got {got}", if *.element == ElementType::String { "strings" } else { "bytes" })]
    DataLength {
        /// The requested element type.
        element: ElementType,
        /// The requested shape.
        shape: Vec<usize>,
        /// The number of bytes (strings for `string`) that the shape requires.
        expected: usize,
        /// The number of bytes or strings that were given.
        got: usize,
    },
    /// Bytes were given for `string`, or strings for another type.
    #[error("{element} is not stored this way: the string type stores strings, every other type bytes")]
    DataKind {
        /// The requested element type.
        element: ElementType,
    },
}

crate::cause!(TensorError, |_| "tensor");

impl Tensor {
    /// Creates a tensor from these values.
    ///
    /// After an odd number of 4-bit elements, the unused nibble is set to 0.
    ///
    /// # Errors
    /// Returns [`TensorError::TooLarge`] if the shape is larger than any buffer, and another [`TensorError`]
    /// if the values do not fill it exactly.
    pub fn new(element: ElementType, shape: Vec<usize>, data: Data) -> Result<Self, TensorError> {
        let expected = storage_len(element, &shape)?;
        let got = match (&data, element.bits()) {
            (Data::Bytes(bytes), Some(_)) => bytes.len(),
            (Data::Strings(strings), None) => strings.len(),
            _ => return Err(TensorError::DataKind { element }),
        };
        if got != expected {
            return Err(TensorError::DataLength { element, shape, expected, got });
        }
        let mut tensor = Self { element, shape, data };
        let is_odd = !tensor.elements().is_multiple_of(2);
        if let (Some(4), true, Data::Bytes(bytes)) = (element.bits(), is_odd, &mut tensor.data)
            && let Some(last) = bytes.last_mut()
        {
            *last &= 0x0F;
        }
        Ok(tensor)
    }

    /// Returns the element type.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the dimensions, outermost first. A scalar has none.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // The product cannot wrap, because `new` has checked that the product of the non-zero dimensions
        // fits.
        self.shape.iter().fold(1, |elements: usize, &dim| elements.wrapping_mul(dim))
    }

    /// Returns the dimensions as `i64`, the type that ONNX uses.
    #[expect(clippy::as_conversions, reason = "`new` has seen that every dimension fits `isize`")]
    pub fn dims_i64(&self) -> impl ExactSizeIterator<Item = i64> {
        self.shape.iter().map(|&dim| dim as i64)
    }

    /// Returns the values of an int64 tensor, or `None` for another type.
    #[must_use]
    pub fn int64s(&self) -> Option<impl ExactSizeIterator<Item = i64>> {
        match &self.data {
            Data::Bytes(bytes) if self.element == ElementType::Int64 => {
                Some(bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)))
            }
            _ => None,
        }
    }

    /// Returns the address of the first value. The address has no meaning if there are no values.
    #[must_use]
    pub fn address(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.as_ptr().addr(),
            Data::Strings(strings) => strings.as_ptr().addr(),
        }
    }

    /// Returns the values.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Writes `update` into this cache at the slots of the plan.
    ///
    /// # Errors
    /// * Returns the errors of [`WritePlan::write_bytes`] and [`WritePlan::write_cloned`].
    /// * Returns [`kvscatter::Error::ElementTypeMismatch`] if one tensor contains strings and the other
    ///   bytes.
    pub fn write(&mut self, plan: &WritePlan<'_>, update: &Self) -> Result<Written, kvscatter::Error> {
        let (cache, element) = (self.element, update.element);
        match (&mut self.data, &update.data) {
            (Data::Bytes(cache), Data::Bytes(update)) => plan.write_bytes(cache, update),
            (Data::Strings(cache), Data::Strings(update)) => plan.write_cloned(cache, update),
            (Data::Bytes(_), Data::Strings(_)) | (Data::Strings(_), Data::Bytes(_)) => {
                let argument = Argument::Update;
                Err(kvscatter::Error::ElementTypeMismatch { cache, argument, element })
            }
        }
    }

    /// Returns the element type, the shape and the values.
    #[must_use]
    pub fn into_parts(self) -> (ElementType, Vec<usize>, Data) {
        (self.element, self.shape, self.data)
    }
}

/// Returns the number of bytes (strings, for `string`) that a dense tensor takes.
///
/// # Errors
/// Returns [`TensorError::TooLarge`] if the product of the non-zero dimensions, in elements or in bytes,
/// exceeds `isize::MAX`.
pub fn storage_len(element: ElementType, shape: &[usize]) -> Result<usize, TensorError> {
    element.storage_len(shape).ok_or_else(|| TensorError::TooLarge { element, shape: shape.to_vec() })
}
