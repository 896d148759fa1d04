//! Normalizations and quantization.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::number::{self, to_float};
use crate::fold::shapes::{AxisSplit, spread};
use crate::fold::values::{Uncomputed, int_range};
use crate::fold::{FoldError, Value, Values, shapes};

/// Evaluates `LayerNormalization`, `RMSNormalization` and ONNX Runtime's `SimplifiedLayerNormalization`.
///
/// The outputs are the result and, for every index before the axis, an inverse deviation.
/// `LayerNormalization` also has a mean. The statistics have the type in which they are computed, and no
/// elements.
pub(super) fn layer(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.axis("axis", -1, input)?;
    let statistic = statistic(input, axis, call.element("stash_type")?);
    let result = norm(call, input, call.op_type == "LayerNormalization", axis, [1, 2])?;
    let others = match call.op_type {
        "LayerNormalization" => vec![statistic.clone(), statistic],
        "SimplifiedLayerNormalization" => vec![statistic],
        _ => Vec::new(),
    };
    let others = others.into_iter().map(|(element, shape)| Value::shaped(element, shape));
    [Ok(result)].into_iter().chain(others).take(call.outputs.max(1)).collect()
}

/// Evaluates ONNX Runtime's normalizations of a sum. They also return the sum.
pub(super) fn skip_layer(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let last = input.rank().checked_sub(1).ok_or_else(|| call.bad_shape(0, "rank 1 at least"))?;
    let (is_centered, bias, factors) = match call.op_type {
        "SkipLayerNormalization" => (true, 4, [2, 3]),
        _ => (false, 3, [2, usize::MAX]),
    };
    let sum = call.make(input.element, input.shape.clone(), |shape| {
        let mut sum = vec![0.0; shapes::elements(shape)];
        for index in [Some(0), Some(1), call.optional(bias).map(|_| bias)].into_iter().flatten() {
            let added = call.input(index)?;
            let floats = added.known_floats()?;
            let at = spread(&added.shape, shape);
            let at = at.map(|at| floats.get(at).copied().unwrap_or(f64::NAN));
            sum.iter_mut().zip(at).for_each(|(sum, added)| *sum += added);
        }
        Ok(number::rounded(input.element, sum.into_iter()))
    })?;
    let result = norm(call, &sum, is_centered, last, factors)?;
    let (element, shape) = statistic(input, last, None);
    let statistic = Value::shaped(element, shape)?;
    Ok([result, statistic.clone(), statistic, sum].into_iter().take(call.outputs.max(1)).collect())
}

/// Normalizes rows of a value, which begin at an axis. The indices are those of the scale and of the bias.
fn norm(
    call: &Call<'_>,
    input: &Value,
    is_centered: bool,
    axis: usize,
    [scale, bias]: [usize; 2],
) -> Result<Value, OnnxError> {
    let (scale, bias) = (call.input(scale)?, call.optional(bias));
    // ONNX Runtime's operators have the same default.
    let epsilon = match call.op_type {
        "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" => call.float("epsilon", 1e-12)?,
        _ => call.float("epsilon", 1e-5)?,
    };
    call.make(input.element, input.shape.clone(), |shape| {
        let scale = scale.known_floats()?;
        let bias = bias.map(Value::known_floats).transpose()?;
        let size = AxisSplit::new(shape, axis).block().max(1);
        let normed = input.known_floats()?.chunks(size).flat_map(|row| {
            let mean = if is_centered { row.iter().sum::<f64>() / to_float(row.len()) } else { 0.0 };
            let centered: Vec<_> = row.iter().map(|value| value - mean).collect();
            let scaled = rms(&centered, scale, epsilon);
            let bias = bias.into_iter().flatten().copied().chain(std::iter::repeat(0.0));
            scaled.into_iter().zip(bias).map(|(value, bias)| value + bias).collect::<Vec<_>>()
        });
        Ok(number::rounded(input.element, normed))
    })
}

/// Divides a row by the root of its mean square, and multiplies it by a scale.
pub(super) fn rms(row: &[f64], scale: &[f64], epsilon: f64) -> Vec<f64> {
    let square = row.iter().map(|value| value * value).sum::<f64>() / to_float(row.len().max(1));
    let factor = (square + epsilon).sqrt().recip();
    // One number scales all elements.
    let scale = scale.iter().copied().cycle();
    row.iter().zip(scale).map(|(value, scale)| value * factor * scale).collect()
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

/// Evaluates `QuantizeLinear`. Its type is `output_dtype`, or the type of the zero point, or uint8. The elements are
/// computed as [`scales`] describes.
pub(super) fn quantize(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let zero_point = call.optional(2).map(|zero_point| zero_point.element);
    let element = call.element("output_dtype")?.or(zero_point).unwrap_or(ElementType::UInt8);
    call.output(element, input.shape.clone(), |shape| {
        let (least, most) = int_range(element).ok_or(Uncomputed::Unknown)?;
        let [least, most] = [least, most].map(|limit| number::int_to_float(ElementType::Float64, limit));
        let numbers = input.known_floats()?.iter().zip(scales(call, shape)?);
        let codes = numbers.map(|(number, (scale, zero))| {
            let code = number::round(ElementType::Float32, number / scale).round_ties_even() + zero;
            number::float_to_int(element, code.clamp(least, most))
        });
        Ok(Values::Ints(codes.collect::<Result<_, _>>()?))
    })
}

/// Evaluates `DequantizeLinear`. Its type is `output_dtype`, or the type of the scale. The elements are computed as
/// [`scales`] describes.
pub(super) fn dequantize(call: &Call<'_>) -> Outputs {
    let codes = call.input(0)?;
    let element = call.element("output_dtype")?.unwrap_or(call.input(1)?.element);
    call.output(element, codes.shape.clone(), |shape| {
        let codes = number::cast(codes.known()?, ElementType::Float32)?;
        let Values::Floats(codes) = codes else { return Err(Uncomputed::Unknown) };
        let numbers =
            codes.iter().zip(scales(call, shape)?).map(|(code, (scale, zero))| (code - zero) * scale);
        Ok(number::rounded(element, numbers))
    })
}

/// Returns the scale and the zero point of each element of a value of this shape. They are known for one float32 scale,
/// as exporters quantize weights, and for float32 scales without zero points if one block takes a whole axis, which is
/// how rows of caches are quantized.
fn scales(call: &Call<'_>, shape: &[usize]) -> Result<Vec<(f64, f64)>, Uncomputed> {
    let (scale, zero) = (call.input(1)?, call.optional(2));
    let is_single = |element| element == ElementType::Float32;
    let block = call.int("block_size", 0)?;
    let is_known = match *scale.shape {
        [] => block == 0,
        _ => {
            let axis = call.axis("axis", 1, call.input(0)?)?;
            let size = shape.get(axis).copied().unwrap_or_default();
            zero.is_none() && block == shapes::signed(size) && scale.shape == shapes::with_dim(shape, axis, 1)
        }
    };
    if !is_known || !is_single(scale.element) || !call.element("precision")?.is_none_or(is_single) {
        return Err(Uncomputed::Unknown);
    }
    let zero = match zero.map(|zero| number::cast(zero.known()?, ElementType::Float32)).transpose()? {
        None => 0.0,
        Some(Values::Floats(zero)) if zero.len() == 1 => zero.first().copied().unwrap_or_default(),
        Some(_) => return Err(Uncomputed::Unknown),
    };
    let scales = scale.known_floats()?;
    let scale_at = |at| scales.get(at).copied().unwrap_or(f64::NAN);
    Ok(spread(&scale.shape, shape).map(|at| (scale_at(at), zero)).collect())
}

/// Returns the shape of ONNX Runtime's product with blockwise quantized weights, which maps `K` columns to
/// `N`.
pub(super) fn mat_mul_n_bits(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let last = input.rank().checked_sub(1).ok_or_else(|| call.bad_shape(0, "rank 1 at least"))?;
    let size = |name: &'static str| -> Result<usize, OnnxError> {
        call.attribute(name).ok_or(FoldError::AttributeMissing { name })?;
        Ok(dim(call.int(name, 0)?)?)
    };
    if input.shape.last() != Some(&size("K")?) {
        return Err(call.bad_shape(0, "K on the last axis"));
    }
    call.shaped([(input.element, shapes::with_dim(&input.shape, last, size("N")?))])
}

/// Returns the shape of the rows that ONNX Runtime's operator picks from a blockwise quantized table. The
/// attribute `bits` determines how many elements a byte of the table has.
pub(super) fn gather_block_quantized(call: &Call<'_>) -> Outputs {
    let [table, indices, scales] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let axis = call.axis("gather_axis", 0, table)?;
    let mut shape = table.shape.clone();
    if table.element == ElementType::UInt8
        && let Some(last) = shape.last_mut()
    {
        let each = 8_usize.checked_div(dim(call.int("bits", 4)?)?).unwrap_or_default();
        *last = last.saturating_mul(each);
    }
    call.shaped([(scales.element, shapes::with_axes(&shape, axis, &indices.shape))])
}
