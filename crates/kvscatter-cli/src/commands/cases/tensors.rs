//! Converts the oracle's types and values.

use kvscatter::ElementType;
use kvscatter_onnx::{Data, Tensor};
use kvscatter_oracle::cases::{Element, Values};

use crate::error::CommandError;

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
    Ok(Tensor::new(element, shape.to_vec(), data).map_err(kvscatter_onnx::OnnxError::from)?)
}
