//! The output shapes of normalizations and quantization.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::shapes;
use crate::fold::{FoldError, Value};

/// Returns the shapes of `LayerNormalization` and `SimplifiedLayerNormalization`.
///
/// The outputs are the result and, for every index before the axis, an inverse deviation.
/// `LayerNormalization` also has a mean. The statistics have the type in which they are computed.
pub(super) fn layer(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.axis("axis", -1, input)?;
    let statistic = statistic(input, axis, call.element("stash_type")?);
    let result = (input.element, input.shape.clone());
    match call.op_type {
        "LayerNormalization" => call.shaped([result, statistic.clone(), statistic]),
        _ => call.shaped([result, statistic]),
    }
}

/// Returns the shapes of ONNX Runtime's normalizations of a sum. They also return the sum.
pub(super) fn skip_layer(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let last = input.rank().checked_sub(1).ok_or_else(|| call.bad_shape(0, "rank 1 at least"))?;
    let statistic = statistic(input, last, None);
    let result = (input.element, input.shape.clone());
    call.shaped([result.clone(), statistic.clone(), statistic, result])
}

fn statistic(input: &Value, axis: usize, stash: Option<ElementType>) -> (ElementType, Vec<usize>) {
    let ones = |(at, &size): (usize, &usize)| if at < axis { size } else { 1 };
    (stash.unwrap_or(ElementType::Float32), input.shape.iter().enumerate().map(ones).collect())
}

/// Returns the shapes of `DynamicQuantizeLinear`: bytes, one scale and one zero point.
pub(super) fn dynamic_quantize(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let byte = ElementType::UInt8;
    call.shaped([(byte, input.shape.clone()), (ElementType::Float32, vec![]), (byte, vec![])])
}

/// Returns the shape of `QuantizeLinear`. Its type is `output_dtype`, or the type of the zero point, or
/// uint8.
pub(super) fn quantize(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let zero_point = call.optional(2).map(|zero_point| zero_point.element);
    let element = call.element("output_dtype")?.or(zero_point).unwrap_or(ElementType::UInt8);
    call.shaped([(element, input.shape.clone())])
}

/// Returns the shape of `DequantizeLinear`. Its type is `output_dtype`, or the type of the scale.
pub(super) fn dequantize(call: &Call<'_>) -> Outputs {
    let element = call.element("output_dtype")?.unwrap_or(call.input(1)?.element);
    call.shaped([(element, call.input(0)?.shape.clone())])
}

/// Returns the shape of ONNX Runtime's product with blockwise quantized weights, which maps `K` columns to
/// `N`.
pub(super) fn mat_mul_n_bits(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let last = input.rank().checked_sub(1).ok_or_else(|| call.bad_shape(0, "rank 1 at least"))?;
    let size = |name: &'static str| -> Result<usize, OnnxError> {
        call.attribute(name).ok_or(FoldError::AttributeMissing { name })?;
        dim(call.int(name, 0)?)
    };
    if input.shape.last() != Some(&size("K")?) {
        return Err(call.bad_shape(0, "K on the last axis"));
    }
    call.shaped([(input.element, shapes::with_dim(&input.shape, last, size("N")?))])
}
