//! What is known of a value: its type and shape always, its values where they are.

use kvscatter::ElementType;

use super::number::{self, Kind};
use super::{FoldError, MAX_VALUES, shapes};
use crate::eval::MAX_RANK;
use crate::proto::TensorProto;
use crate::{Data, ExternalData, OnnxError, Tensor, storage_len, tensor_proto};

/// A value of a graph. Its fields belong together as [`Value::new`] checks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    /// `None`: only the shape is known.
    pub(crate) data: Option<Values>,
}

/// Values in row-major order. Integers of every width are kept in 64 bits and floats in 64 bits, both in the range
/// and precision of their element type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
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
        // What has no elements is known, whatever it is made of.
        let data = data.or_else(|| if shape.contains(&0) { Values::empty(element) } else { None });
        let value = Self { element, shape, data };
        if let Some(data) = &value.data
            && (data.len() != value.len() || Some(data.kind()) != Kind::of(element))
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

    /// The values of a tensor; only its shape, if it has a type without [`Kind`], or an unsigned integer beyond
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

    /// What a file says of a tensor, without its values.
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

impl Values {
    /// No values; `None` if the type has no [`Kind`].
    pub(crate) fn empty(element: ElementType) -> Option<Self> {
        Kind::of(element).map(|kind| match kind {
            Kind::Int => Self::Ints(Vec::new()),
            Kind::Float => Self::Floats(Vec::new()),
            Kind::Bool => Self::Bools(Vec::new()),
        })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Bools(values) => values.len(),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Ints(_) => Kind::Int,
            Self::Floats(_) => Kind::Float,
            Self::Bools(_) => Kind::Bool,
        }
    }

    /// The values at these positions: every operator that only moves values is this.
    ///
    /// # Errors
    /// [`FoldError::Position`] for a position where there is no value.
    pub(crate) fn pick(&self, positions: &[usize]) -> Result<Self, OnnxError> {
        fn each<T: Copy>(values: &[T], positions: &[usize]) -> Result<Vec<T>, OnnxError> {
            let at = |&position: &usize| {
                let count = values.len();
                values.get(position).copied().ok_or_else(|| FoldError::Position { position, count }.into())
            };
            positions.iter().map(at).collect()
        }
        Ok(match self {
            Self::Ints(values) => Self::Ints(each(values, positions)?),
            Self::Floats(values) => Self::Floats(each(values, positions)?),
            Self::Bools(values) => Self::Bools(each(values, positions)?),
        })
    }

    /// All values of several, one behind the other; `None` unless all are known and of one kind.
    pub(crate) fn chain<'a>(parts: impl IntoIterator<Item = Option<&'a Self>>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let mut all = parts.next()??.clone();
        for part in parts {
            match (&mut all, part?) {
                (Self::Ints(all), Self::Ints(part)) => all.extend(part),
                (Self::Floats(all), Self::Floats(part)) => all.extend(part),
                (Self::Bools(all), Self::Bools(part)) => all.extend(part),
                _ => return None,
            }
        }
        Some(all)
    }
}
