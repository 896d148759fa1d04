//! The types that a conversion can give to caches.

use std::str::FromStr;

use kvscatter::ElementType;

/// The element type of the caches of a converted decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "lowercase")]
pub enum CacheType {
    /// The caches are float32.
    Float32,
    /// New rows are cast to float16. A number above 65504 becomes infinite.
    Float16,
    /// New rows are cast to bfloat16.
    BFloat16,
    /// New rows become int8 codes with one float32 scale for each token and head. The scales are a second cache.
    Int8,
}

/// The reason why a conversion does not offer a type of caches.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum CacheTypeError {
    /// The type has 4 bits.
    #[error("{name:?} is too coarse: keys of 4 bits change the next tokens (mean KL up to 1.5). Use int8")]
    FourBits { name: String },
    /// The type is a float of 8 bits.
    #[error("{name:?} takes as many bytes as int8, and its error is 6 to 26 times as large. Use int8")]
    Float8 { name: String },
    /// A scale belongs to a channel.
    #[error(
        "{name:?} needs calibration, and its error is larger than that of a scale for each token and head (KL 1.8e-3 \
         instead of 6.4e-4). Use int8"
    )]
    ByChannel { name: String },
    /// There is no such type of caches.
    #[error("{name:?} is no type of caches: use float32, float16, bfloat16 or int8")]
    Unknown { name: String },
}

impl CacheType {
    /// Returns the type of the elements, which are codes for int8.
    #[must_use]
    pub fn element(self) -> ElementType {
        match self {
            Self::Float32 => ElementType::Float32,
            Self::Float16 => ElementType::Float16,
            Self::BFloat16 => ElementType::BFloat16,
            Self::Int8 => ElementType::Int8,
        }
    }

    /// Reads the name of a type, such as `int8`.
    ///
    /// # Errors
    /// Returns [`CacheTypeError`] with the reason why the type is not offered.
    pub fn parse(name: &str) -> Result<Self, CacheTypeError> {
        if let Ok(cache_type) = Self::from_str(name) {
            return Ok(cache_type);
        }
        let (lower, owned) = (name.to_ascii_lowercase(), name.to_owned());
        let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        Err(match owned {
            name if has(&["channel"]) => CacheTypeError::ByChannel { name },
            name if has(&["int4", "fp4", "float4", "q4", "4bit", "4-bit"]) => {
                CacheTypeError::FourBits { name }
            }
            name if has(&["fp8", "float8", "e4m3", "e5m2"]) => CacheTypeError::Float8 { name },
            name => CacheTypeError::Unknown { name },
        })
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::{CacheType, CacheTypeError};

    #[test]
    fn names_lead_back() {
        for cache_type in CacheType::VARIANTS {
            assert_eq!(CacheType::parse(&cache_type.to_string()), Ok(*cache_type));
        }
    }

    #[test]
    fn a_type_that_is_not_offered_has_a_reason() {
        let refused = |name: &str| CacheType::parse(name).unwrap_err();
        for name in ["int4", "uint4", "INT4", "q4_0"] {
            assert_eq!(refused(name), CacheTypeError::FourBits { name: name.to_owned() });
        }
        for name in ["fp8", "float8e4m3fn", "e5m2"] {
            assert_eq!(refused(name), CacheTypeError::Float8 { name: name.to_owned() });
        }
        let name = "int8-channel".to_owned();
        assert_eq!(refused(&name), CacheTypeError::ByChannel { name });
        for name in ["", "double", "uint8", "int8 "] {
            assert_eq!(refused(name), CacheTypeError::Unknown { name: name.to_owned() });
        }
    }
}
