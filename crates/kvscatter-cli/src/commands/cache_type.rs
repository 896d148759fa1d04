//! The options `--cache-type` and `--no-rotation`.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, Error, ValueEnum};
use kvscatter_onnx::convert::CacheType;

use crate::error::CommandError;

/// The type that the caches of a converted model get.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct CacheTypeArgs {
    /// The type of the caches in a converted model [default: that of the export]
    #[arg(long, value_name = "TYPE", value_parser = CacheTypeParser)]
    pub(crate) cache_type: Option<CacheType>,

    /// Store int8 keys without the Hadamard rotation. This increases their error
    #[arg(long, requires = "cache_type")]
    pub(crate) no_rotation: bool,
}

impl CacheTypeArgs {
    /// Returns the type, and whether keys of int8 are rotated.
    ///
    /// # Errors
    /// Returns an error if only caches of int8 could use the options.
    pub(crate) fn checked(self) -> Result<(Option<CacheType>, bool), CommandError> {
        if self.no_rotation && self.cache_type != Some(CacheType::Int8) {
            return Err(CommandError::RotationUnused);
        }
        Ok((self.cache_type, !self.no_rotation))
    }
}

/// The types that the help lists.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Offered {
    /// The type of most exports
    Float32,
    /// Half the bytes of float32; numbers above 65504 become infinite
    Float16,
    /// Half the bytes of float32, with the range of float32
    #[value(name = "bfloat16")]
    BFloat16,
    /// About a quarter of the bytes of float32: int8 codes, and one float32 scale for each token and head
    Int8,
}

/// Reads a type of caches, and gives the reason why another type is not offered.
#[derive(Clone, Debug)]
struct CacheTypeParser;

impl TypedValueParser for CacheTypeParser {
    type Value = CacheType;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<CacheType, Error> {
        CacheType::parse(&value.to_string_lossy())
            .map_err(|error| command.clone().error(ErrorKind::InvalidValue, format!("--cache-type {error}")))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Offered::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use kvscatter_onnx::convert::CacheType;

    use super::Offered;

    #[test]
    fn listed_types_are_those_that_are_read() {
        for offered in Offered::value_variants() {
            let name = offered.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(CacheType::parse(&name).unwrap().to_string(), name);
        }
    }
}
