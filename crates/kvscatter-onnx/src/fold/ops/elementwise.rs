//! Casts, and operators that compute each output element from one element of each of several inputs.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::attribute;
use crate::fold::call::{Call, Outputs};
use crate::fold::number::{self, fit, round};
use crate::fold::shapes::{self, broadcast, spread};
use crate::fold::values::NumberKind;
use crate::fold::{FoldError, Value, Values};

pub(super) fn cast(call: &Call<'_>) -> Outputs {
    let to = call.element("to")?.ok_or(FoldError::AttributeMissing { name: "to" })?;
    cast_to(call, to)
}

pub(super) fn cast_like(call: &Call<'_>) -> Outputs {
    cast_to(call, call.input(1)?.element)
}

fn cast_to(call: &Call<'_>, to: ElementType) -> Outputs {
    let input = call.input(0)?;
    let made = call.make(to, input.shape.clone(), |_| match &input.data {
        Some(data) => number::cast(data, to),
        None => Ok(None),
    });
    Ok(vec![made?])
}

pub(super) fn where_(call: &Call<'_>) -> Outputs {
    let [condition, yes, no] = [call.input(0)?, call.input(1)?, call.input(2)?];
    same_type(call, 2, yes)?;
    let shape = broadcast(&broadcast(&condition.shape, &yes.shape)?, &no.shape)?;
    let made = call.make(yes.element, shape, |shape| {
        let Some(all) = Values::chain([yes.data.as_ref(), no.data.as_ref()]) else { return Ok(None) };
        let Some(conditions) = condition.as_bools() else { return Ok(None) };
        let sides = spread(&yes.shape, shape).zip(spread(&no.shape, shape));
        let side = |(at, (left, right)): (usize, (usize, usize))| {
            let is_yes = conditions.get(at).copied().unwrap_or_default();
            if is_yes { left } else { right.saturating_add(yes.len()) }
        };
        let positions: Vec<usize> = spread(&condition.shape, shape).zip(sides).map(side).collect();
        all.pick(&positions).map(Some)
    });
    Ok(vec![made?])
}

/// Evaluates an operator on two inputs that broadcast. They must have the same type, but the exponent of
/// `Pow` may have another.
pub(super) fn binary(call: &Call<'_>) -> Outputs {
    let [left, right] = [call.input(0)?, call.input(1)?];
    let is_power = call.op_type == "Pow";
    if !is_power {
        same_type(call, 1, left)?;
    }
    let element = left.element;
    let made = call.make(element, broadcast(&left.shape, &right.shape)?, |shape| {
        let exponent = match &right.data {
            Some(data) if is_power => number::cast(data, element)?,
            data => data.clone(),
        };
        match (&left.data, &exponent) {
            (Some(Values::Ints(l)), Some(Values::Ints(r))) => {
                let compute = int_operator(call)?;
                let pairs = pairs(l, &left.shape, r, &right.shape, shape);
                let results = pairs.map(|(l, r)| compute(l, r).and_then(|value| fit(element, value)));
                Ok(Some(Values::Ints(results.collect::<Result<_, _>>()?)))
            }
            (Some(Values::Floats(l)), Some(Values::Floats(r))) => {
                let compute = float_operator(call)?;
                let pairs = pairs(l, &left.shape, r, &right.shape, shape);
                Ok(Some(Values::Floats(pairs.map(|(l, r)| round(element, compute(l, r))).collect())))
            }
            _ => Ok(None),
        }
    });
    Ok(vec![made?])
}

type IntOperator = fn(i64, i64) -> Result<Option<i64>, OnnxError>;

/// Returns the integer form of an operator.
///
/// Division truncates, as ONNX requires. The remainder has the sign of the divisor, or with `fmod` the sign
/// of the dividend.
fn int_operator(call: &Call<'_>) -> Result<IntOperator, OnnxError> {
    Ok(match call.op_type {
        "Add" => |l, r| Ok(l.checked_add(r)),
        "Sub" => |l, r| Ok(l.checked_sub(r)),
        "Mul" => |l, r| Ok(l.checked_mul(r)),
        "Div" => |l, r| {
            non_zero(r)?;
            Ok(l.checked_div(r))
        },
        "Mod" if call.flag("fmod", false)? => |l, r| {
            non_zero(r)?;
            Ok(Some(remainder(l, r)))
        },
        "Mod" => |l, r| {
            non_zero(r)?;
            let rest = remainder(l, r);
            Ok(if rest != 0 && (rest < 0) != (r < 0) { rest.checked_add(r) } else { Some(rest) })
        },
        "Pow" => |l, r| match u32::try_from(r) {
            Ok(exponent) => Ok(l.checked_pow(exponent)),
            Err(_) if r < 0 => Err(FoldError::NoForm { what: "a negative exponent of integers" }.into()),
            Err(_) => Ok(None),
        },
        "BitShift" if call.string("direction", "")? == "RIGHT" => {
            |l, r| Ok(u32::try_from(r).ok().and_then(|places| l.checked_shr(places)))
        }
        "BitwiseAnd" => |l, r| Ok(Some(l & r)),
        "BitwiseOr" => |l, r| Ok(Some(l | r)),
        "BitwiseXor" => |l, r| Ok(Some(l ^ r)),
        _ => return Err(FoldError::NoForm { what: "integers" }.into()),
    })
}

fn float_operator(call: &Call<'_>) -> Result<fn(f64, f64) -> f64, OnnxError> {
    Ok(match call.op_type {
        "Add" => |l, r| l + r,
        "Sub" => |l, r| l - r,
        "Mul" => |l, r| l * r,
        "Div" => |l, r| l / r,
        "Mod" if call.flag("fmod", false)? => |l, r| l % r,
        "Pow" => f64::powf,
        _ => return Err(FoldError::NoForm { what: "floats" }.into()),
    })
}

/// Returns the remainder. The remainder of the smallest integer divided by -1 is 0, although that division
/// overflows.
fn remainder(left: i64, right: i64) -> i64 {
    left.checked_rem(right).unwrap_or(0)
}

fn non_zero(divisor: i64) -> Result<(), OnnxError> {
    if divisor == 0 { Err(FoldError::DivisionByZero.into()) } else { Ok(()) }
}

/// Computes the minimum, maximum, sum or mean of any number of inputs. If an element is NaN, the result is
/// NaN.
pub(super) fn variadic(call: &Call<'_>) -> Outputs {
    let inputs = call.all_inputs()?;
    let first = call.input(0)?;
    let element = first.element;
    let mut shape = first.shape.clone();
    for (index, input) in inputs.iter().enumerate() {
        same_type(call, index, first)?;
        shape = broadcast(&shape, &input.shape)?;
    }
    let ints: fn(i64, i64) -> Option<i64> = match call.op_type {
        "Min" => |l, r| Some(l.min(r)),
        "Max" => |l, r| Some(l.max(r)),
        _ => |l, r| l.checked_add(r),
    };
    let floats: fn(f64, f64) -> f64 = match call.op_type {
        "Min" => |l, r| if l.is_nan() || l < r { l } else { r },
        "Max" => |l, r| if l.is_nan() || l > r { l } else { r },
        _ => |l, r| l + r,
    };
    let made = call.make(element, shape, |shape| {
        let mut result: Option<Values> = None;
        for input in &inputs {
            let Some(data) = &input.data else { return Ok(None) };
            call.work.charge(shapes::elements(shape))?;
            let data = data.pick(&spread(&input.shape, shape).collect::<Vec<_>>())?;
            result = Some(match (result, data) {
                (None, data) => data,
                (Some(Values::Ints(l)), Values::Ints(r)) => {
                    let results = l.iter().zip(&r).map(|(&l, &r)| fit(element, ints(l, r)));
                    Values::Ints(results.collect::<Result<_, _>>()?)
                }
                (Some(Values::Floats(l)), Values::Floats(r)) => {
                    Values::Floats(l.iter().zip(&r).map(|(&l, &r)| round(element, floats(l, r))).collect())
                }
                _ => return Ok(None),
            });
        }
        match result {
            Some(Values::Floats(sums)) if call.op_type == "Mean" => {
                let count = number::to_float(inputs.len());
                Ok(Some(Values::Floats(sums.iter().map(|sum| round(element, sum / count)).collect())))
            }
            result => Ok(result),
        }
    });
    Ok(vec![made?])
}

/// Evaluates `Clip`. The bounds are inputs, or attributes in old versions. Both may be absent.
pub(super) fn clip(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let element = input.element;
    let bound = |index: usize, name: &str| -> Result<Option<Option<Values>>, OnnxError> {
        Ok(match (call.optional(index), call.attribute(name)) {
            (Some(bound), _) => {
                same_type(call, index, input)?;
                if bound.len() != 1 {
                    return Err(call.bad_shape(index, "one element"));
                }
                Some(bound.data.clone())
            }
            (None, Some(attribute)) => {
                Some(Some(Values::Floats(vec![f64::from(attribute::float(attribute)?)])))
            }
            (None, None) => None,
        })
    };
    let (least, most) = (bound(1, "min")?, bound(2, "max")?);
    let made = call.make(element, input.shape.clone(), |_| {
        Ok(match (&input.data, least, most) {
            (None, ..) | (_, Some(None), _) | (.., Some(None)) => None,
            (Some(Values::Ints(values)), least, most) => {
                let (least, most) = (int_bound(least), int_bound(most));
                let clip = |&value: &i64| value.max(least.unwrap_or(value)).min(most.unwrap_or(i64::MAX));
                Some(Values::Ints(values.iter().map(clip).collect()))
            }
            (Some(Values::Floats(values)), least, most) => {
                let (least, most) = (float_bound(least), float_bound(most));
                let clip = |&value: &f64| {
                    let value = if value < least.unwrap_or(value) { least.unwrap_or(value) } else { value };
                    if value > most.unwrap_or(value) { most.unwrap_or(value) } else { value }
                };
                Some(Values::Floats(values.iter().map(clip).collect()))
            }
            _ => None,
        })
    });
    Ok(vec![made?])
}

fn int_bound(bound: Option<Option<Values>>) -> Option<i64> {
    match bound {
        Some(Some(Values::Ints(values))) => values.first().copied(),
        _ => None,
    }
}

fn float_bound(bound: Option<Option<Values>>) -> Option<f64> {
    match bound {
        Some(Some(Values::Floats(values))) => values.first().copied(),
        _ => None,
    }
}

/// Returns the operands of each element of a shape that both inputs broadcast to.
pub(super) fn pairs<'a, L: Copy, R: Copy>(
    left: &'a [L],
    left_shape: &[usize],
    right: &'a [R],
    right_shape: &[usize],
    shape: &[usize],
) -> impl Iterator<Item = (L, R)> + 'a {
    let positions = spread(left_shape, shape).zip(spread(right_shape, shape));
    positions.filter_map(|(l, r)| Some((*left.get(l)?, *right.get(r)?)))
}

pub(super) fn same_type(call: &Call<'_>, index: usize, as_that: &Value) -> Result<(), OnnxError> {
    let element = call.input(index)?.element;
    if element == as_that.element {
        return Ok(());
    }
    Err(FoldError::InputType { input: index, element, expected: "the other inputs' type" }.into())
}

pub(super) fn of_kind(index: usize, input: &Value, kind: NumberKind) -> Result<(), OnnxError> {
    let expected = match kind {
        NumberKind::Int => "an integer",
        NumberKind::Float => "a float",
        NumberKind::Bool => "bool",
    };
    if NumberKind::from_element(input.element) == Some(kind) {
        return Ok(());
    }
    Err(FoldError::InputType { input: index, element: input.element, expected }.into())
}
