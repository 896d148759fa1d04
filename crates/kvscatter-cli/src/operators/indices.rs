//! Arguments with one number per sample, as a list on the command line or in a file.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};

use crate::error::CommandError;
use crate::files::{self, Location, LocationError};

/// A list such as `3,0,5`, or a file with a vector of integers. Empty text is the empty list, for an empty
/// batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Indices {
    Inline(Vec<i64>),
    File(Location),
}

/// The reason why a text is neither a list nor a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IndicesError {
    #[error(
        "'{text}' is neither a list of 64-bit integers, such as 3,0,5, nor a .npy, .npz, .pb or .safetensors file"
    )]
    Neither { text: String },
    #[error("number {index} of the list is {number}: must be {} to {}", i64::MIN, i64::MAX)]
    BeyondInt64 { index: usize, number: String },
    #[error(transparent)]
    File(LocationError),
}

impl Indices {
    /// Returns the numbers of the input that the specification calls `argument`.
    ///
    /// # Errors
    /// - Returns [`CommandError::NotIndices`] if the file does not contain a vector of an accepted type.
    /// - Returns [`CommandError::File`] if the file cannot be read.
    pub(crate) fn load(
        &self,
        argument: &'static str,
        accepted: &[ElementType],
    ) -> Result<Vec<i64>, CommandError> {
        match self {
            Self::Inline(values) => Ok(values.clone()),
            Self::File(location) => {
                let tensor = files::read(location, None)?;
                let numbers = vector(&tensor).filter(|_| accepted.contains(&tensor.element()));
                numbers.ok_or_else(|| CommandError::NotIndices {
                    argument,
                    element: tensor.element(),
                    shape: tensor.shape().to_vec(),
                    expected: any_of(accepted),
                })
            }
        }
    }

    /// Returns the file that the numbers are read from.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Inline(_) => None,
            Self::File(location) => Some(location.path()),
        }
    }
}

/// Returns the numbers of a vector of integers.
fn vector(tensor: &Tensor) -> Option<Vec<i64>> {
    let (Data::Bytes(bytes), [_]) = (tensor.data(), tensor.shape()) else {
        return None;
    };
    match tensor.element() {
        ElementType::Int64 => tensor.int64s().map(Iterator::collect),
        ElementType::Int32 => {
            let values = bytes.as_chunks().0.iter().copied();
            Some(values.map(i32::from_le_bytes).map(i64::from).collect())
        }
        _ => None,
    }
}

fn any_of(types: &[ElementType]) -> String {
    let names: Vec<_> = types.iter().map(|ty| ty.onnx_name()).collect();
    names.join(" or ")
}

impl TryFrom<&OsStr> for Indices {
    type Error = IndicesError;

    fn try_from(text: &OsStr) -> Result<Self, IndicesError> {
        if text.is_empty() {
            return Ok(Self::Inline(Vec::new()));
        }
        match list(text) {
            Some(numbers) => Ok(Self::Inline(numbers)),
            None => Location::try_from(text).map(Self::File).map_err(|error| match error {
                LocationError::Extension { text } => match first_beyond::<i64>(&text) {
                    Some((index, number)) => IndicesError::BeyondInt64 { index, number },
                    None => IndicesError::Neither { text },
                },
                error => IndicesError::File(error),
            }),
        }
    }
}

impl ValueParserFactory for Indices {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text: OsString| Self::try_from(text.as_os_str())).into()
    }
}

/// Parses numbers that are separated by commas.
pub(super) fn list<T: FromStr>(text: &OsStr) -> Option<Vec<T>> {
    text.to_str()?.split(',').map(|number| number.trim().parse().ok()).collect()
}

/// Returns the first whole number of a list that does not fit the type, and its index. Returns `None` if the
/// text is not a list of whole numbers.
pub(super) fn first_beyond<T: FromStr>(text: &str) -> Option<(usize, String)> {
    let numbers: Vec<_> = text.split(',').map(str::trim).collect();
    let is_whole = |number: &str| {
        let digits = number.strip_prefix('-').unwrap_or(number);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    if !numbers.iter().all(|number| is_whole(number)) {
        return None;
    }
    let beyond = numbers.iter().enumerate().find(|(_, number)| number.parse::<T>().is_err());
    beyond.map(|(index, number)| (index, (*number).to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{Indices, IndicesError};

    #[test]
    fn lists_and_files() {
        let parse = |text: &'static str| Indices::try_from(OsStr::new(text));
        let inline = |values: &[i64]| Ok(Indices::Inline(values.to_vec()));
        assert_eq!(parse("3,0,5"), inline(&[3, 0, 5]));
        assert_eq!(parse("-1"), inline(&[-1]));
        assert_eq!(parse(" 3, -4"), inline(&[3, -4]));
        assert_eq!(parse(""), inline(&[]));
        assert!(matches!(parse("indices.npy"), Ok(Indices::File(_))));
        for text in ["3,", "3;4", "9223372036854775808", "1.5", "indices.txt"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let beyond = IndicesError::BeyondInt64 { index: 1, number: "9223372036854775808".to_owned() };
        assert_eq!(parse("3,9223372036854775808"), Err(beyond));
    }
}
