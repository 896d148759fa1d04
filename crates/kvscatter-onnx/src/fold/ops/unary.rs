//! Functions of one number, element by element.

use super::elementwise::{of_kind, pairs};
use crate::fold::call::{Call, Outputs};
use crate::fold::shapes::broadcast;
use crate::fold::values::{NumberKind, Uncomputed};
use crate::fold::{FoldError, Value, Values, number};

pub(super) fn signed(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let ints: fn(i64) -> Option<i64> = match call.op_type {
        "Neg" => i64::checked_neg,
        "Abs" => i64::checked_abs,
        _ => |value| Some(value.signum()),
    };
    let floats: fn(f64) -> f64 = match call.op_type {
        "Neg" => |value| -value,
        "Abs" => f64::abs,
        // The sign of zero is zero, and the sign of NaN is NaN.
        _ => |value| {
            if value > 0.0 {
                1.0
            } else if value < 0.0 {
                -1.0
            } else {
                value
            }
        },
    };
    call.mapped(input, |values| match values {
        Values::Ints(values) => Ok(number::fitted(input.element, values.iter().map(|&value| ints(value)))?),
        Values::Floats(values) => Ok(Values::Floats(values.iter().copied().map(floats).collect())),
        Values::Bools(_) => Err(Uncomputed::Unknown),
    })
}

pub(super) fn unary(call: &Call<'_>) -> Outputs {
    let compute: fn(f64) -> f64 = match call.op_type {
        "Sqrt" => f64::sqrt,
        "Reciprocal" => f64::recip,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Sin" => f64::sin,
        "Cos" => f64::cos,
        "Tan" => f64::tan,
        "Tanh" => f64::tanh,
        "Erf" => libm::erf,
        "Sigmoid" => sigmoid,
        "Softplus" => |value| value.exp().ln_1p(),
        _ => return Err(FoldError::NoRule.into()),
    };
    each(call, call.input(0)?, compute)
}

pub(super) fn relu(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    if NumberKind::from_element(input.element) == Some(NumberKind::Int) {
        return call.shaped([(input.element, input.shape.clone())]);
    }
    each(call, input, |value| if value < 0.0 { 0.0 } else { value })
}

pub(super) fn leaky_relu(call: &Call<'_>) -> Outputs {
    let alpha = call.float("alpha", 0.01)?;
    each(call, call.input(0)?, |value| if value < 0.0 { alpha * value } else { value })
}

/// Evaluates `Swish`, and `QuickGelu` with its default.
pub(super) fn swish(call: &Call<'_>) -> Outputs {
    let alpha = call.float("alpha", if call.op_type == "QuickGelu" { 1.702 } else { 1.0 })?;
    each(call, call.input(0)?, |value| value * sigmoid(alpha * value))
}

pub(super) fn gelu(call: &Call<'_>) -> Outputs {
    match call.string("approximate", "none")? {
        "tanh" => each(call, call.input(0)?, gelu_by_tanh),
        "none" => each(call, call.input(0)?, gelu_by_erf),
        other => Err(FoldError::AttributeValue { name: "approximate", value: other.to_owned() }.into()),
    }
}

/// Evaluates ONNX Runtime's `BiasGelu` and `FastGelu`, which add a bias first.
pub(super) fn bias_gelu(call: &Call<'_>) -> Outputs {
    let compute = if call.op_type == "FastGelu" { gelu_by_tanh } else { gelu_by_erf };
    let input = call.input(0)?;
    let Some(bias) = call.optional(1) else { return each(call, input, compute) };
    let sum = call.make(input.element, broadcast(&input.shape, &bias.shape)?, |shape| {
        let pairs = pairs([input.known_floats()?, bias.known_floats()?], [input, bias], shape);
        Ok(number::rounded(input.element, pairs.map(|(value, bias)| value + bias)))
    })?;
    each(call, &sum, compute)
}

fn each(call: &Call<'_>, input: &Value, compute: impl Fn(f64) -> f64) -> Outputs {
    of_kind(0, input, NumberKind::Float)?;
    call.mapped(input, |_| {
        Ok(number::rounded(input.element, input.known_floats()?.iter().map(|&value| compute(value))))
    })
}

fn sigmoid(value: f64) -> f64 {
    1.0 / (1.0 + (-value).exp())
}

fn gelu_by_erf(value: f64) -> f64 {
    0.5 * value * (1.0 + libm::erf(value * std::f64::consts::FRAC_1_SQRT_2))
}

fn gelu_by_tanh(value: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (value + 0.044715 * value * value * value);
    0.5 * value * (1.0 + inner.tanh())
}
