//! What is known about a value: its type and shape, and sometimes its elements.

use kvscatter::ElementType;

use super::values::{NumberKind, Uncomputed, Values};
use super::{FoldError, number, shapes};
use crate::eval::MAX_RANK;
use crate::proto::TensorProto;
use crate::{Data, ErrorPlace, ExternalData, OnnxError, Tensor, storage_len, tensor_proto};

/// The maximum number of elements of a value that are computed or read. Of larger values, only the shape is
/// known.
///
/// Older models store causal masks as triangles of 1024 or 2048 positions.
pub(crate) const MAX_VALUES: usize = 4 << 20;

/// A value of a graph: its type and shape, and its elements if they are known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// The elements, or `None` if only the shape is known.
    pub(crate) data: Option<Values>,
}

impl Value {
    /// Creates a value and checks that its parts agree.
    ///
    /// # Errors
    /// * Returns [`FoldError::RankTooLarge`] if the rank is too large.
    /// * Returns [`TensorError`](crate::TensorError) if the shape is larger than any buffer.
    /// * Returns [`FoldError::Values`] if the number or kind of the elements does not match the shape and the
    ///   type.
    pub(crate) fn new(
        element: ElementType,
        shape: Vec<usize>,
        data: Option<Values>,
    ) -> Result<Self, OnnxError> {
        if shape.len() > MAX_RANK {
            return Err(FoldError::RankTooLarge { rank: shape.len(), limit: MAX_RANK }.into());
        }
        storage_len(element, &shape)?;
        // A value with 0 elements is completely known, even if its inputs are not.
        let data = data.or_else(|| if shape.contains(&0) { Values::empty(element) } else { None });
        let value = Self { element, shape, data };
        if let Some(data) = &value.data
            && (data.len() != value.len() || Some(data.kind()) != NumberKind::from_element(element))
        {
            let (shape, got) = (value.shape.clone(), data.len());
            return Err(FoldError::Values { element, shape, got }.into());
        }
        Ok(value)
    }

    /// Creates a value of which only the shape is known. A value with 0 elements is completely known.
    pub(crate) fn shaped(element: ElementType, shape: Vec<usize>) -> Result<Self, OnnxError> {
        Self::new(element, shape, None)
    }

    /// Creates an int64 vector.
    pub(crate) fn ints(values: Vec<i64>) -> Result<Self, OnnxError> {
        Self::new(ElementType::Int64, vec![values.len()], Some(Values::Ints(values)))
    }

    /// Creates a value from a tensor. Only the shape is known if the type has no [`NumberKind`], or if an
    /// unsigned integer is beyond the range of int64.
    pub(crate) fn from_tensor(tensor: &Tensor) -> Result<Self, OnnxError> {
        let data = match tensor.data() {
            Data::Bytes(bytes) => number::decode(tensor.element(), bytes, tensor.elements()),
            Data::Strings(_) => None,
        };
        Self::new(tensor.element(), tensor.shape().to_vec(), data)
    }

    /// Creates a value with the type and shape that a file declares for a tensor, without its elements.
    ///
    /// # Errors
    /// Returns the errors of the type, of the dimensions and of [`new`](Self::new), wrapped in
    /// [`OnnxError::InTensor`].
    pub(crate) fn header(name: &str, message: &TensorProto) -> Result<Self, OnnxError> {
        let (element, shape, _) = tensor_proto::extent(message).in_tensor(name)?;
        Self::shaped(element, shape).in_tensor(name)
    }

    /// Creates a value from a tensor in a file. Its elements are read if there are at most [`MAX_VALUES`] of
    /// them.
    ///
    /// # Errors
    /// Returns the errors of [`header`](Self::header) and of [`tensor_proto::decode`].
    pub(crate) fn read(
        name: &str,
        message: &TensorProto,
        external: Option<&ExternalData>,
    ) -> Result<Self, OnnxError> {
        let header = Self::header(name, message)?;
        if header.len() > MAX_VALUES {
            return Ok(header);
        }
        Self::from_tensor(&tensor_proto::decode(message.clone(), external)?)
    }

    /// Returns the number of dimensions.
    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        shapes::elements(&self.shape)
    }

    /// Returns the elements.
    pub(super) fn known(&self) -> Result<&Values, Uncomputed> {
        self.data.as_ref().ok_or(Uncomputed::Unknown)
    }

    pub(super) fn known_ints(&self) -> Result<&[i64], Uncomputed> {
        self.as_ints().ok_or(Uncomputed::Unknown)
    }

    pub(super) fn known_floats(&self) -> Result<&[f64], Uncomputed> {
        self.as_floats().ok_or(Uncomputed::Unknown)
    }

    pub(super) fn known_bools(&self) -> Result<&[bool], Uncomputed> {
        self.as_bools().ok_or(Uncomputed::Unknown)
    }

    /// Returns the elements if they are known integers.
    pub(crate) fn as_ints(&self) -> Option<&[i64]> {
        let Some(Values::Ints(values)) = &self.data else { return None };
        Some(values)
    }

    /// Returns the elements if they are known floats.
    pub(crate) fn as_floats(&self) -> Option<&[f64]> {
        let Some(Values::Floats(values)) = &self.data else { return None };
        Some(values)
    }

    /// Returns the elements if they are known booleans.
    pub(crate) fn as_bools(&self) -> Option<&[bool]> {
        let Some(Values::Bools(values)) = &self.data else { return None };
        Some(values)
    }
}
