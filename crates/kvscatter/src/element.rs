//! The 24 element types of ONNX `TensorScatter`, with their widths, codes and names.
//!
//! The crate moves data by [width](ElementType::bits), so no code is written per type. The codes and names
//! are in this module so that every surface uses the same table.
//!
//! The crate documentation defines G1.

use core::fmt;
use core::str::FromStr;

use crate::size;

/// One of the 24 element types that ONNX `TensorScatter-24` accepts (its type constraint `T`).
///
/// The operator does not accept `int2`, `uint2` and the 6-bit floats of later ONNX versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ElementType {
    /// A 16-bit brain float.
    BFloat16,
    /// A Boolean, stored in one byte.
    Bool,
    /// A complex number of two 64-bit floats.
    Complex128,
    /// A complex number of two 32-bit floats.
    Complex64,
    /// A 64-bit float.
    Float64,
    /// A 32-bit float.
    Float32,
    /// A 16-bit IEEE float.
    Float16,
    /// A 4-bit float, packed two to a byte, with the first element in the low nibble.
    Float4E2M1,
    /// An 8-bit float without infinities, with NaN.
    Float8E4M3Fn,
    /// An 8-bit float without infinities, with NaN and an unsigned zero.
    Float8E4M3FnUz,
    /// An 8-bit float with infinities.
    Float8E5M2,
    /// An 8-bit float without infinities, with NaN and an unsigned zero.
    Float8E5M2FnUz,
    /// An 8-bit float that has only an exponent, used for scale factors.
    Float8E8M0,
    /// A 16-bit signed integer.
    Int16,
    /// A 32-bit signed integer.
    Int32,
    /// A 4-bit signed integer, packed two to a byte, with the first element in the low nibble.
    Int4,
    /// A 64-bit signed integer.
    Int64,
    /// An 8-bit signed integer.
    Int8,
    /// A string. Strings move as whole values, never as bytes.
    String,
    /// A 16-bit unsigned integer.
    UInt16,
    /// A 32-bit unsigned integer.
    UInt32,
    /// A 4-bit unsigned integer, packed two to a byte, with the first element in the low nibble.
    UInt4,
    /// A 64-bit unsigned integer.
    UInt64,
    /// An 8-bit unsigned integer.
    UInt8,
}

/// An element type in DLPack: a `DLDataType` without its lanes, which are always 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DlpackType {
    /// The type code (`DLDataTypeCode`).
    pub code: u8,
    /// The width of one element in bits.
    pub bits: u8,
}

/// The width, codes and names of one type.
struct TypeInfo {
    bits: Option<usize>,
    onnx_code: i32,
    onnx: &'static str,
    numpy: &'static str,
    dlpack_code: Option<u8>,
    safetensors: Option<&'static str>,
}

impl ElementType {
    /// All 24 types, in the order of the ONNX type constraint.
    pub const ALL: [Self; 24] = [
        Self::BFloat16,
        Self::Bool,
        Self::Complex128,
        Self::Complex64,
        Self::Float64,
        Self::Float32,
        Self::Float16,
        Self::Float4E2M1,
        Self::Float8E4M3Fn,
        Self::Float8E4M3FnUz,
        Self::Float8E5M2,
        Self::Float8E5M2FnUz,
        Self::Float8E8M0,
        Self::Int16,
        Self::Int32,
        Self::Int4,
        Self::Int64,
        Self::Int8,
        Self::String,
        Self::UInt16,
        Self::UInt32,
        Self::UInt4,
        Self::UInt64,
        Self::UInt8,
    ];

    /// Returns the width of one element in bits: 4, 8, 16, 32, 64 or 128. Returns `None` for
    /// [`String`](Self::String).
    #[must_use]
    pub const fn bits(self) -> Option<usize> {
        self.info().bits
    }

    /// Returns the size in bytes of a dense tensor of this shape. For strings, returns the number of strings.
    ///
    /// 4-bit elements are packed two to a byte. Returns `None` if the product of the non-zero dimensions
    /// exceeds `isize::MAX`, in elements or in bytes (G1).
    #[must_use]
    pub fn storage_len(self, shape: &[usize]) -> Option<usize> {
        let bits = self.size_bits();
        size::bytes(size::elements(shape, bits)?, bits)
    }

    /// Returns the width in bits that size computations use.
    ///
    /// A string counts as one byte here. The slice that contains the strings accounts for their real size.
    pub(crate) const fn size_bits(self) -> usize {
        match self.bits() {
            Some(bits) => bits,
            None => 8,
        }
    }

    /// Returns the number of this type in ONNX's `TensorProto.DataType`.
    #[must_use]
    pub const fn onnx_code(self) -> i32 {
        self.info().onnx_code
    }

    /// Returns the type with this number in ONNX's `TensorProto.DataType`, if it is one of the 24.
    #[must_use]
    pub fn from_onnx_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.onnx_code() == code)
    }

    /// Returns the name that ONNX writes inside `tensor(…)`, such as `float16`.
    #[must_use]
    pub const fn onnx_name(self) -> &'static str {
        self.info().onnx
    }

    /// Returns the name of the NumPy dtype, such as `float16`.
    ///
    /// If NumPy has no such type, the name is that of `ml_dtypes`, such as `float8_e4m3fn`.
    #[must_use]
    pub const fn numpy_name(self) -> &'static str {
        self.info().numpy
    }

    /// Returns the name of the safetensors dtype, such as `BF16`, or `None` if the format has no such type.
    #[must_use]
    pub const fn safetensors_name(self) -> Option<&'static str> {
        self.info().safetensors
    }

    /// Returns the DLPack 1.3 type, or `None` for [`String`](Self::String).
    #[must_use]
    pub fn dlpack(self) -> Option<DlpackType> {
        let names = self.info();
        let bits = u8::try_from(names.bits?).ok()?;
        Some(DlpackType { code: names.dlpack_code?, bits })
    }

    /// Returns the type with this DLPack code and width, or `None` if it is not one of the 24.
    #[must_use]
    pub fn from_dlpack(code: u8, bits: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.dlpack() == Some(DlpackType { code, bits }))
    }

    /// Returns the type with this name, in the spelling of ONNX or NumPy.
    ///
    /// For example, `double` and `float64` are the same type, and so are `float8e5m2` and `float8_e5m2`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.onnx_name() == name || ty.numpy_name() == name)
    }

    /// Returns the type with this safetensors dtype name.
    #[must_use]
    pub fn from_safetensors_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.safetensors_name() == Some(name))
    }

    const fn info(self) -> TypeInfo {
        let (bits, onnx_code, onnx, numpy, dlpack_code, safetensors) = match self {
            Self::BFloat16 => (Some(16), 16, "bfloat16", "bfloat16", Some(4), Some("BF16")),
            Self::Bool => (Some(8), 9, "bool", "bool", Some(6), Some("BOOL")),
            Self::Complex128 => (Some(128), 15, "complex128", "complex128", Some(5), None),
            Self::Complex64 => (Some(64), 14, "complex64", "complex64", Some(5), Some("C64")),
            Self::Float64 => (Some(64), 11, "double", "float64", Some(2), Some("F64")),
            Self::Float32 => (Some(32), 1, "float", "float32", Some(2), Some("F32")),
            Self::Float16 => (Some(16), 10, "float16", "float16", Some(2), Some("F16")),
            Self::Float4E2M1 => (Some(4), 23, "float4e2m1", "float4_e2m1fn", Some(17), Some("F4")),
            Self::Float8E4M3Fn => (Some(8), 17, "float8e4m3fn", "float8_e4m3fn", Some(10), Some("F8_E4M3")),
            Self::Float8E4M3FnUz => {
                (Some(8), 18, "float8e4m3fnuz", "float8_e4m3fnuz", Some(11), Some("F8_E4M3FNUZ"))
            }
            Self::Float8E5M2 => (Some(8), 19, "float8e5m2", "float8_e5m2", Some(12), Some("F8_E5M2")),
            Self::Float8E5M2FnUz => {
                (Some(8), 20, "float8e5m2fnuz", "float8_e5m2fnuz", Some(13), Some("F8_E5M2FNUZ"))
            }
            Self::Float8E8M0 => (Some(8), 24, "float8e8m0", "float8_e8m0fnu", Some(14), Some("F8_E8M0")),
            Self::Int16 => (Some(16), 5, "int16", "int16", Some(0), Some("I16")),
            Self::Int32 => (Some(32), 6, "int32", "int32", Some(0), Some("I32")),
            Self::Int4 => (Some(4), 22, "int4", "int4", Some(0), None),
            Self::Int64 => (Some(64), 7, "int64", "int64", Some(0), Some("I64")),
            Self::Int8 => (Some(8), 3, "int8", "int8", Some(0), Some("I8")),
            Self::String => (None, 8, "string", "object", None, None),
            Self::UInt16 => (Some(16), 4, "uint16", "uint16", Some(1), Some("U16")),
            Self::UInt32 => (Some(32), 12, "uint32", "uint32", Some(1), Some("U32")),
            Self::UInt4 => (Some(4), 21, "uint4", "uint4", Some(1), None),
            Self::UInt64 => (Some(64), 13, "uint64", "uint64", Some(1), Some("U64")),
            Self::UInt8 => (Some(8), 2, "uint8", "uint8", Some(1), Some("U8")),
        };
        TypeInfo { bits, onnx_code, onnx, numpy, dlpack_code, safetensors }
    }
}

impl FromStr for ElementType {
    type Err = ParseElementTypeError;

    /// Parses a name in the spelling of ONNX (`float`, `bfloat16`), NumPy (`float32`) or safetensors (`f32`,
    /// `bf16`). The case of the letters does not matter.
    fn from_str(name: &str) -> Result<Self, ParseElementTypeError> {
        let is_name = |other: &str| other.eq_ignore_ascii_case(name);
        let is_named = |ty: &Self| {
            is_name(ty.onnx_name()) || is_name(ty.numpy_name()) || ty.safetensors_name().is_some_and(is_name)
        };
        Self::ALL.into_iter().find(is_named).ok_or(ParseElementTypeError)
    }
}

/// The error returned for a name that is not the name of an element type. See `ElementType`'s [`FromStr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParseElementTypeError;

impl fmt::Display for ParseElementTypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown element type: must be a name such as float16, float32 or bf16")
    }
}

impl core::error::Error for ParseElementTypeError {}

impl fmt::Display for ElementType {
    /// Writes the ONNX name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.onnx_name())
    }
}

#[cfg(test)]
mod tests {
    use super::{ElementType, ParseElementTypeError};

    /// The list in the specification, in its order and spelling.
    const ONNX_CONSTRAINT: &str = "bfloat16 bool complex128 complex64 double float float16 float4e2m1 \
        float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float8e8m0 int16 int32 int4 int64 int8 string \
        uint16 uint32 uint4 uint64 uint8";

    #[test]
    fn the_24_types_of_the_operator() {
        let names: Vec<_> = ElementType::ALL.iter().map(|ty| ty.onnx_name()).collect();
        assert_eq!(names, ONNX_CONSTRAINT.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn codes_and_names_lead_back() {
        for ty in ElementType::ALL {
            assert_eq!(ElementType::from_onnx_code(ty.onnx_code()), Some(ty));
            assert_eq!(ElementType::from_name(ty.onnx_name()), Some(ty));
            let dlpack = ty.dlpack().map(|dlpack| ElementType::from_dlpack(dlpack.code, dlpack.bits));
            assert_eq!(dlpack, (ty != ElementType::String).then_some(Some(ty)));
            assert_eq!(ElementType::from_name(ty.numpy_name()), Some(ty));
            if let Some(name) = ty.safetensors_name() {
                assert_eq!(ElementType::from_safetensors_name(name), Some(ty));
            }
        }
    }

    #[test]
    fn names_parse_in_any_spelling_and_case() {
        for name in ["bfloat16", "BFLOAT16", "bf16", "BF16"] {
            assert_eq!(name.parse(), Ok(ElementType::BFloat16), "{name}");
        }
        for ty in ElementType::ALL {
            for name in [Some(ty.onnx_name()), Some(ty.numpy_name()), ty.safetensors_name()] {
                assert!(name.is_none_or(|name| name.parse() == Ok(ty)), "{name:?}");
            }
        }
        assert_eq!("float128".parse::<ElementType>(), Err(ParseElementTypeError));
    }

    #[test]
    fn undefined_and_later_codes_are_no_types() {
        for code in [i32::MIN, -1, 0, 25, 26, 27, i32::MAX] {
            assert_eq!(ElementType::from_onnx_code(code), None, "{code}");
        }
    }
}
