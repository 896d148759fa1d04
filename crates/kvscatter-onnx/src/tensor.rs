//! A tensor in memory: an element type, a shape, and values that are known to fill it.

use kvscatter::{Argument, ElementType, WritePlan, Written};

/// The values of a [`Tensor`], in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Fixed-width elements, little-endian; 4-bit types packed flat over the whole tensor, first element in
    /// the low nibble, the last pad nibble 0. This is the layout of ONNX `raw_data`.
    Bytes(Vec<u8>),
    /// Strings, one per element. ONNX strings are bytes that need not be UTF-8.
    Strings(Vec<Vec<u8>>),
}

/// An element type, a shape and exactly the values that shape asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    element: ElementType,
    shape: Vec<usize>,
    data: Data,
}

/// Why values do not make a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The dimensions multiply to more than a buffer can hold.
    #[error("shape {shape:?} of {element} is larger than any buffer (at most {} bytes)", isize::MAX)]
    TooLarge {
        /// The element type.
        element: ElementType,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The data is shorter or longer than the shape.
    #[error("shape {shape:?} of {element} takes {expected} {}, got {got}", if *.element == ElementType::String { "strings" } else { "bytes" })]
    DataLength {
        /// The element type.
        element: ElementType,
        /// The shape.
        shape: Vec<usize>,
        /// Bytes (strings for `string`) the shape asks for.
        expected: usize,
        /// Bytes (strings) given.
        got: usize,
    },
    /// Bytes for `string`, or strings for another type.
    #[error("{element} is not stored this way: strings hold strings, every other type holds bytes")]
    DataKind {
        /// The element type.
        element: ElementType,
    },
}

impl Tensor {
    /// A tensor of these values.
    ///
    /// The nibble after an odd number of 4-bit elements belongs to none of them: it is set to 0.
    ///
    /// # Errors
    /// [`TensorError`] if the values do not fill the shape exactly.
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

    /// The element type.
    #[must_use]
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// The shape; empty for a scalar.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // Nothing wraps: `new` has seen that the product of the dimensions other than 0 fits.
        self.shape.iter().fold(1, |elements: usize, &dim| elements.wrapping_mul(dim))
    }

    /// The shape as ONNX writes it.
    #[expect(clippy::as_conversions, reason = "`new` has seen that every dimension fits `isize`")]
    pub fn dims_i64(&self) -> impl ExactSizeIterator<Item = i64> {
        self.shape.iter().map(|&dim| dim as i64)
    }

    /// The values of an int64 tensor; `None` for any other type.
    #[must_use]
    pub fn int64s(&self) -> Option<impl ExactSizeIterator<Item = i64>> {
        match &self.data {
            Data::Bytes(bytes) if self.element == ElementType::Int64 => {
                Some(bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)))
            }
            _ => None,
        }
    }

    /// The address of the first value; of nothing in particular if there are no values.
    #[must_use]
    pub fn address(&self) -> usize {
        match &self.data {
            Data::Bytes(bytes) => bytes.as_ptr().addr(),
            Data::Strings(strings) => strings.as_ptr().addr(),
        }
    }

    /// The values.
    #[must_use]
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// The values, to be changed in place. Their number must not change.
    pub fn data_mut(&mut self) -> DataMut<'_> {
        match &mut self.data {
            Data::Bytes(bytes) => DataMut::Bytes(bytes),
            Data::Strings(strings) => DataMut::Strings(strings),
        }
    }

    /// Writes `update` into this cache, at the slots of the plan.
    ///
    /// # Errors
    /// Those of [`WritePlan::write_bytes`] and [`WritePlan::write_cloned`];
    /// [`kvscatter::Error::ElementTypeMismatch`] if one holds strings and the other bytes.
    pub fn write(&mut self, plan: &WritePlan<'_>, update: &Self) -> Result<Written, kvscatter::Error> {
        let (cache, element) = (self.element, update.element);
        match (self.data_mut(), &update.data) {
            (DataMut::Bytes(cache), Data::Bytes(update)) => plan.write_bytes(cache, update),
            (DataMut::Strings(cache), Data::Strings(update)) => plan.write_cloned(cache, update),
            (DataMut::Bytes(_), Data::Strings(_)) | (DataMut::Strings(_), Data::Bytes(_)) => {
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

/// [`Tensor::data_mut`]: slices, so that no caller can change how many values there are.
#[derive(Debug)]
pub enum DataMut<'a> {
    /// Fixed-width elements, as in [`Data::Bytes`].
    Bytes(&'a mut [u8]),
    /// Strings, as in [`Data::Strings`].
    Strings(&'a mut [Vec<u8>]),
}

/// How many bytes (strings, for `string`) a dense tensor takes.
///
/// # Errors
/// [`TensorError::TooLarge`] if the product of the non-zero dimensions, in elements or in bytes, exceeds
/// `isize::MAX`.
pub fn storage_len(element: ElementType, shape: &[usize]) -> Result<usize, TensorError> {
    element.storage_len(shape).ok_or_else(|| TensorError::TooLarge { element, shape: shape.to_vec() })
}
