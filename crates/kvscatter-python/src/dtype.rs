//! Converts NumPy's and DLPack's element types to the core's types.

use dlpark::DlpackFlags;
use dlpark::ffi::DLDataType;
use kvscatter::ElementType;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;

use crate::element::{Element, Storage};
use crate::failure::Failure;

impl Element {
    /// Converts a NumPy `dtype`.
    pub(crate) fn of_descr(descr: &Bound<'_, PyArrayDescr>, argument: &'static str) -> PyResult<Self> {
        let unknown = || Failure::Dtype { argument, dtype: descr.to_string() };
        if descr.is_native_byteorder() == Some(false) {
            return Err(Failure::ByteOrder { argument, dtype: descr.to_string() }.into());
        }
        let bits = descr.itemsize().wrapping_mul(8);
        let sized = |sizes: &[ElementType]| sizes.iter().copied().find(|ty| ty.bits() == Some(bits));
        let ty = match descr.kind() {
            b'b' => Some(ElementType::Bool),
            b'i' => sized(&[ElementType::Int8, ElementType::Int16, ElementType::Int32, ElementType::Int64]),
            b'u' => {
                sized(&[ElementType::UInt8, ElementType::UInt16, ElementType::UInt32, ElementType::UInt64])
            }
            b'f' => sized(&[ElementType::Float16, ElementType::Float32, ElementType::Float64]),
            b'c' => sized(&[ElementType::Complex64, ElementType::Complex128]),
            b'O' => Some(ElementType::String),
            _ => None,
        };
        match ty {
            Some(ty) if descr.num() < FIRST_USER_TYPE => Ok(Self::native(ty)),
            _ => Self::of_ml_dtype(descr)?.ok_or_else(|| unknown().into()),
        }
    }

    /// Converts a type of ml_dtypes by its name. These types are registered at run time and have no fixed
    /// number.
    fn of_ml_dtype(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<Self>> {
        let class = descr.typeobj();
        if class.module()? != "ml_dtypes" {
            return Ok(None);
        }
        let name = class.name()?;
        let known = ElementType::ALL.into_iter().find(|ty| name == ty.numpy_name());
        Ok(known.map(|ty| Self {
            ty,
            storage: if ty.bits() == Some(4) { Storage::Padded } else { Storage::Native },
        }))
    }

    pub(crate) fn of_dlpack(
        dtype: DLDataType,
        flags: DlpackFlags,
        argument: &'static str,
    ) -> Result<Self, Failure> {
        let DLDataType { code, bits, lanes } = dtype;
        let code = code.0;
        let storage = match (bits, lanes) {
            (4, 1) if flags.contains(DlpackFlags::IS_SUBBYTE_TYPE_PADDED) => Some(Storage::Padded),
            (4, 2) if !flags.contains(DlpackFlags::IS_SUBBYTE_TYPE_PADDED) => Some(Storage::Pair),
            (_, 1) => Some(Storage::Native),
            _ => None,
        };
        match (ElementType::from_dlpack(code, bits), storage) {
            (Some(ty), Some(storage)) => Ok(Self { ty, storage }),
            _ => {
                let dtype = format!("(DLPack code {code}, {bits} bits, lanes {lanes})");
                Err(Failure::Dtype { argument, dtype })
            }
        }
    }
}

/// The first number of types that are not built into NumPy.
const FIRST_USER_TYPE: i32 = 256;
