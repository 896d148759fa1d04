//! What is known of a value: its type and shape always, its values where they are.

use kvscatter::ElementType;

use super::values::{NumberKind, Values};
use super::{FoldError, number, shapes};
use crate::eval::MAX_RANK;
use crate::proto::TensorProto;
use crate::{Data, ExternalData, OnnxError, Tensor, storage_len, tensor_proto};

/// The most elements of which values are computed or read: larger ones have only their shape. The causal masks that
/// older models store are triangles of 1024 or 2048 positions.
pub(crate) const MAX_VALUES: usize = 4 << 20;

/// A value of a graph. Its fields belong together as [`Value::new`] checks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// `None`: only the shape is known.
    pub(crate) data: Option<Values>,
}

impl Value {
    /// A value whose parts agree.
    ///
    /// # Errors
    /// [`FoldError::RankTooLarge`]; [`OnnxError::Tensor`] if the shape is larger than any buffer;
    /// [`FoldError::Values`] if the values are of another number or kind than the shape and the type ask for.
    pub(crate) fn new(
        element: ElementType,
        shape: Vec<usize>,
        data: Option<Values>,
    ) -> Result<Self, OnnxError> {
        if shape.len() > MAX_RANK {
            return Err(FoldError::RankTooLarge { rank: shape.len(), limit: MAX_RANK }.into());
        }
        storage_len(element, &shape)?;
        // A value without elements is known, even if its inputs are not.
        let data = data.or_else(|| if shape.contains(&0) { Values::empty(element) } else { None });
        let value = Self { element, shape, data };
        if let Some(data) = &value.data
            && (data.len() != value.len() || Some(data.kind()) != NumberKind::of(element))
        {
            let (shape, got) = (value.shape.clone(), data.len());
            return Err(FoldError::Values { element, shape, got }.into());
        }
        Ok(value)
    }

    /// A value of which only the shape is known; and thereby all, if it has no elements.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn shaped(element: ElementType, shape: Vec<usize>) -> Result<Self, OnnxError> {
        Self::new(element, shape, None)
    }

    /// int64 values along one axis.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn ints(values: Vec<i64>) -> Result<Self, OnnxError> {
        Self::new(ElementType::Int64, vec![values.len()], Some(Values::Ints(values)))
    }

    /// The values of a tensor; only its shape, if it has a type without [`NumberKind`], or an unsigned integer beyond
    /// int64's range.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of(tensor: &Tensor) -> Result<Self, OnnxError> {
        let data = match tensor.data() {
            Data::Bytes(bytes) => number::decode(tensor.element(), bytes, tensor.elements()),
            Data::Strings(_) => None,
        };
        Self::new(tensor.element(), tensor.shape().to_vec(), data)
    }

    /// The type and shape that a file declares of a tensor, without its values.
    ///
    /// # Errors
    /// Within [`OnnxError::InTensor`]: [`OnnxError::UndefinedType`], [`OnnxError::UnsupportedType`], [`OnnxError::NegativeDim`], and
    /// those of [`new`](Self::new).
    pub(crate) fn header(name: &str, message: &TensorProto) -> Result<Self, OnnxError> {
        let dims = message.dims.iter().enumerate();
        let shape = dims.map(|(axis, &dim)| tensor_proto::size(axis, dim)).collect::<Result<_, _>>();
        let element = tensor_proto::element_type(message.data_type);
        let header = element.and_then(|element| Self::shaped(element, shape?));
        header.map_err(|error| error.in_tensor(name))
    }

    /// The tensor of a file, its values only if they are at most [`MAX_VALUES`].
    ///
    /// # Errors
    /// Those of [`header`](Self::header) and of [`tensor_proto::decode`].
    pub(crate) fn read(
        name: &str,
        message: &TensorProto,
        external: Option<&ExternalData>,
    ) -> Result<Self, OnnxError> {
        let header = Self::header(name, message)?;
        if header.len() > MAX_VALUES {
            return Ok(header);
        }
        Self::of(&tensor_proto::decode(message.clone(), external)?)
    }

    /// How many dimensions.
    pub(crate) fn rank(&self) -> usize {
        self.shape.len()
    }

    /// How many elements.
    pub(crate) fn len(&self) -> usize {
        shapes::elements(&self.shape)
    }

    /// The values, where they are known integers.
    pub(crate) fn as_ints(&self) -> Option<&[i64]> {
        match &self.data {
            Some(Values::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// The values, where they are known floats.
    pub(crate) fn as_floats(&self) -> Option<&[f64]> {
        match &self.data {
            Some(Values::Floats(values)) => Some(values),
            _ => None,
        }
    }

    /// The values, where they are known booleans.
    pub(crate) fn as_bools(&self) -> Option<&[bool]> {
        match &self.data {
            Some(Values::Bools(values)) => Some(values),
            _ => None,
        }
    }
}
