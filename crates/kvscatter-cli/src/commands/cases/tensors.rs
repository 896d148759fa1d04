//! Converts the oracle's types and values.

use kvscatter::ElementType;
use kvscatter_onnx::{Data, OnnxError, Tensor};
use kvscatter_oracle::cases::{Case, Element, Values};

use crate::error::CommandError;

/// Returns the cache and the update.
pub(super) fn tensors(case: &Case) -> Result<[Tensor; 2], CommandError> {
    let [cache, update] = case.elements;
    Ok([
        tensor(element(cache)?, &case.cache_shape, &case.cache)?,
        tensor(element(update)?, &case.update_shape, &case.update)?,
    ])
}

pub(super) fn element(element: &'static Element) -> Result<ElementType, CommandError> {
    ElementType::from_name(element.name).ok_or(CommandError::ElementName { name: element.name })
}

pub(super) fn tensor(element: ElementType, shape: &[usize], values: &Values) -> Result<Tensor, CommandError> {
    let data = match values {
        Values::Bytes(bytes) => Data::Bytes(bytes.clone()),
        Values::Strings(strings) => {
            Data::Strings(strings.iter().map(|text| text.as_bytes().to_vec()).collect())
        }
    };
    Ok(Tensor::new(element, shape.to_vec(), data).map_err(OnnxError::from)?)
}

pub(super) fn int64s(values: &[i64]) -> Result<Tensor, CommandError> {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    data(ElementType::Int64, vec![values.len()], bytes.collect())
}

pub(super) fn int32s(values: &[i32]) -> Result<Tensor, CommandError> {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    data(ElementType::Int32, vec![values.len()], bytes.collect())
}

/// Returns a tensor with these bytes.
pub(super) fn data(element: ElementType, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Tensor, CommandError> {
    Ok(Tensor::new(element, shape, Data::Bytes(bytes)).map_err(OnnxError::from)?)
}
