//! A tensor of which only type and shape matter: typed on the command line or read from a file.

use std::str::FromStr;

use kvscatter::ElementType;

use crate::files::{self, Location};

/// `2,8,4096,128`, or a file whose header says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Shape(Vec<usize>),
    File(Location),
}

/// Text that is neither.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is neither a shape, such as 2,8,4096,128, nor a .npy, .npz, .pb or .safetensors file")]
pub(crate) struct OperandError {
    text: String,
}

/// An element type and a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
}

impl Operand {
    /// Type and shape of a cache and its update. A bare shape has the type asked for, or else that of the other
    /// operand's file, or else float16.
    ///
    /// # Errors
    /// [`files::Error`] if a file cannot be read.
    pub(crate) fn describe_pair(
        cache: &Self,
        update: &Self,
        ty: Option<ElementType>,
    ) -> Result<[Described; 2], files::Error> {
        let from_file = |operand: &Self| match operand {
            Self::File(location) => {
                files::describe(location, ty).map(|(element, shape)| Some(Described { element, shape }))
            }
            Self::Shape(_) => Ok(None),
        };
        let files = [from_file(cache)?, from_file(update)?];
        let of_a_file = files.iter().flatten().next().map(|described| described.element);
        let element = ty.or(of_a_file).unwrap_or(ElementType::Float16);
        let [cache_file, update_file] = files;
        let described = |operand: &Self, file: Option<Described>| match (operand, file) {
            (Self::Shape(shape), _) => Described { element, shape: shape.clone() },
            (Self::File(_), Some(file)) => file,
            (Self::File(_), None) => Described { element, shape: Vec::new() },
        };
        Ok([described(cache, cache_file), described(update, update_file)])
    }
}

impl FromStr for Operand {
    type Err = OperandError;

    fn from_str(text: &str) -> Result<Self, OperandError> {
        let shape: Result<_, _> = text.split(',').map(|dim| dim.trim().parse()).collect();
        match (shape, text.parse()) {
            (Ok(shape), _) => Ok(Self::Shape(shape)),
            (Err(_), Ok(location)) => Ok(Self::File(location)),
            (Err(_), Err(_)) => Err(OperandError { text: text.to_owned() }),
        }
    }
}
