//! The type and the shape of a tensor, from the command line or from the header of a file.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use kvscatter::ElementType;

use super::indices::{first_beyond, list};
use crate::files::{self, Location, LocationError};

/// A shape such as `2,8,4096,128`, or a file whose header gives the shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Shape(Vec<usize>),
    File(Location),
}

/// The reason why a text is neither a shape nor a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OperandError {
    #[error("'{text}' is neither a shape, such as 2,8,4096,128, nor a .npy, .npz, .pb or .safetensors file")]
    Neither { text: String },
    #[error("dimension {index} is {number}: must be 0 to {}", isize::MAX)]
    Dimension { index: usize, number: String },
    #[error(transparent)]
    File(LocationError),
}

/// An element type and a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
}

impl Operand {
    /// Returns the types and shapes of a cache and its update. A shape without a file has the type `ty`, or
    /// else the type of the other operand's file, or else float16.
    pub(crate) fn describe_pair(
        cache: &Self,
        update: &Self,
        ty: Option<ElementType>,
    ) -> Result<[Described; 2], files::FileError> {
        let given = |operand: &Self| match operand {
            Self::Shape(shape) => Ok((None, shape.clone())),
            Self::File(location) => {
                files::describe(location, ty).map(|(element, shape)| (Some(element), shape))
            }
        };
        let [cache, update] = [given(cache)?, given(update)?];
        let default = ty.or(cache.0).or(update.0).unwrap_or(ElementType::Float16);
        let described =
            |(element, shape): (Option<_>, _)| Described { element: element.unwrap_or(default), shape };
        Ok([cache, update].map(described))
    }

    /// Returns the file whose header is read.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Shape(_) => None,
            Self::File(location) => Some(location.path()),
        }
    }
}

/// A size that fits `isize`, which is the limit of all sizes.
struct Dimension(usize);

impl FromStr for Dimension {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let size = text.parse().map_err(|_| ())?;
        isize::try_from(size).map(|_| Self(size)).map_err(|_| ())
    }
}

impl TryFrom<&OsStr> for Operand {
    type Error = OperandError;

    fn try_from(text: &OsStr) -> Result<Self, OperandError> {
        match list::<Dimension>(text) {
            Some(shape) => Ok(Self::Shape(shape.into_iter().map(|dimension| dimension.0).collect())),
            None => Location::try_from(text).map(Self::File).map_err(|error| match error {
                LocationError::Extension { text } => match first_beyond::<Dimension>(&text) {
                    Some((index, number)) => OperandError::Dimension { index, number },
                    None => OperandError::Neither { text },
                },
                error => OperandError::File(error),
            }),
        }
    }
}

impl ValueParserFactory for Operand {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text: OsString| Self::try_from(text.as_os_str())).into()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{Operand, OperandError};

    #[test]
    fn a_dimension_that_no_tensor_has_is_named() {
        let parse = |text: &'static str| Operand::try_from(OsStr::new(text));
        assert_eq!(parse("2,9223372036854775807"), Ok(Operand::Shape(vec![2, usize::MAX >> 1])));
        for (text, index, number) in [
            ("2,9223372036854775808,1", 1, "9223372036854775808"),
            ("99999999999999999999", 0, "99999999999999999999"),
            ("2,4,-1", 2, "-1"),
        ] {
            assert_eq!(parse(text), Err(OperandError::Dimension { index, number: number.to_owned() }));
        }
        for text in ["2,x", "2,", "1.5"] {
            assert!(matches!(parse(text), Err(OperandError::Neither { .. })), "{text}");
        }
    }
}
