//! Conversion of candle's element types and storage to those of the core.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType};
use kvscatter::spec::same_element_type;
use kvscatter::{Argument, ElementType, WritePlan, Written};

use crate::CandleError;

/// Returns the core's element type. The 6-bit floats have none.
pub(crate) fn element_of(argument: Argument, dtype: DType) -> Result<ElementType, CandleError> {
    match dtype {
        DType::U8 => Ok(ElementType::UInt8),
        DType::U32 => Ok(ElementType::UInt32),
        DType::I16 => Ok(ElementType::Int16),
        DType::I32 => Ok(ElementType::Int32),
        DType::I64 => Ok(ElementType::Int64),
        DType::BF16 => Ok(ElementType::BFloat16),
        DType::F16 => Ok(ElementType::Float16),
        DType::F32 => Ok(ElementType::Float32),
        DType::F64 => Ok(ElementType::Float64),
        DType::F8E4M3 => Ok(ElementType::Float8E4M3Fn),
        DType::F8E8M0 => Ok(ElementType::Float8E8M0),
        DType::F4 => Ok(ElementType::Float4E2M1),
        dtype => Err(CandleError::DType { argument, dtype }),
    }
}

/// Returns the element type of a cache and its update, which must have the same type.
pub(crate) fn element_of_both(cache: DType, update: DType) -> Result<ElementType, CandleError> {
    let cache = element_of(Argument::PastCache, cache)?;
    let update = element_of(Argument::Update, update)?;
    Ok(same_element_type(cache, Argument::Update, update)?)
}

pub(crate) fn element_of_storage(
    cache: &CpuStorage,
    update: &CpuStorage,
) -> Result<ElementType, CandleError> {
    element_of_both(cache.dtype(), update.dtype())
}

/// Writes one storage into another. 4-bit floats are packed, two in each byte.
#[inline]
pub(crate) fn write(
    plan: &WritePlan<'_>,
    cache: &mut CpuStorage,
    update: &CpuStorage,
) -> Result<Written, CandleError> {
    use CpuStorage as S;
    let written = match (cache, update) {
        (S::U8(cache), S::U8(update)) | (S::F8E8M0(cache), S::F8E8M0(update)) => plan.write(cache, update),
        (S::U32(cache), S::U32(update)) => plan.write(cache, update),
        (S::I16(cache), S::I16(update)) => plan.write(cache, update),
        (S::I32(cache), S::I32(update)) => plan.write(cache, update),
        (S::I64(cache), S::I64(update)) => plan.write(cache, update),
        (S::BF16(cache), S::BF16(update)) => plan.write(cache, update),
        (S::F16(cache), S::F16(update)) => plan.write(cache, update),
        (S::F32(cache), S::F32(update)) => plan.write(cache, update),
        (S::F64(cache), S::F64(update)) => plan.write(cache, update),
        (S::F8E4M3(cache), S::F8E4M3(update)) => plan.write(cache, update),
        (S::F4(cache), S::F4(update)) => plan.write_bytes(cache, update),
        (cache, update) => {
            // The two storages have different types, or a type that the operator lacks. This call returns the
            // error for it.
            element_of_storage(cache, update)?;
            return Err(CandleError::DType { argument: Argument::Update, dtype: update.dtype() });
        }
    };
    Ok(written?)
}
