//! Casts, and operators that compute each output element from one element of each of several inputs.

use std::borrow::Cow;

use kvscatter::ElementType;

use crate::fold::call::{Call, Outputs};
use crate::fold::number;
use crate::fold::shapes::{self, broadcast, spread};
use crate::fold::values::{NumberKind, Uncomputed};
use crate::fold::{FoldError, Value, Values};
use crate::{OnnxError, attribute};

pub(super) fn cast(call: &Call<'_>) -> Outputs {
    let to = call.element("to")?.ok_or(FoldError::AttributeMissing { name: "to" })?;
    cast_to(call, to)
}

pub(super) fn cast_like(call: &Call<'_>) -> Outputs {
    cast_to(call, call.input(1)?.element)
}

fn cast_to(call: &Call<'_>, to: ElementType) -> Outputs {
    let input = call.input(0)?;
    call.output(to, input.shape.clone(), |_| number::cast(input.known()?, to))
}

pub(super) fn where_(call: &Call<'_>) -> Outputs {
    let [condition, yes, no] = [call.input(0)?, call.input(1)?, call.input(2)?];
    same_type(call, 2, yes)?;
    let shape = broadcast(&broadcast(&condition.shape, &yes.shape)?, &no.shape)?;
    call.output(yes.element, shape, |shape| {
        let all = Values::chain([yes.known()?, no.known()?])?;
        let flags = condition.known_bools()?;
        let sides = spread(&yes.shape, shape).zip(spread(&no.shape, shape));
        let side = |(at, (left, right)): (usize, (usize, usize))| match flags.get(at) {
            Some(true) => left,
            _ => right.saturating_add(yes.len()),
        };
        let positions: Vec<usize> = spread(&condition.shape, shape).zip(sides).map(side).collect();
        Ok(all.pick(&positions)?)
    })
}

/// Evaluates an operator on two inputs that broadcast. They must have the same type, but the exponent of
/// `Pow` may have another.
pub(super) fn binary(call: &Call<'_>) -> Outputs {
    let inputs = [call.input(0)?, call.input(1)?];
    let [left, right] = inputs;
    let is_power = call.op_type == "Pow";
    if !is_power {
        same_type(call, 1, left)?;
    }
    let element = left.element;
    call.output(element, broadcast(&left.shape, &right.shape)?, |shape| {
        let second = match is_power {
            true => Cow::Owned(number::cast(right.known()?, element)?),
            false => Cow::Borrowed(right.known()?),
        };
        match (left.known()?, &*second) {
            (Values::Ints(l), Values::Ints(r)) => {
                let compute = int_operator(call, r)?;
                let pairs = pairs([l, r], inputs, shape);
                Ok(number::fitted(element, pairs.map(|(l, r)| compute(l, r)))?)
            }
            (Values::Floats(l), Values::Floats(r)) => {
                let compute = float_operator(call)?;
                Ok(number::rounded(element, pairs([l, r], inputs, shape).map(|(l, r)| compute(l, r))))
            }
            _ => Err(Uncomputed::Unknown),
        }
    })
}

/// Returns `None` if 64 bits overflow.
type IntOperator = fn(i64, i64) -> Option<i64>;

/// Returns the integer form of an operator with these right operands.
///
/// Division truncates, as ONNX requires. The remainder has the sign of the divisor, or with `fmod` the sign
/// of the dividend.
fn int_operator(call: &Call<'_>, right: &[i64]) -> Result<IntOperator, OnnxError> {
    Ok(match call.op_type {
        "Div" | "Mod" if right.contains(&0) => return Err(FoldError::DivisionByZero.into()),
        "Pow" if right.iter().any(|&exponent| exponent < 0) => {
            return Err(FoldError::NoForm { what: "a negative exponent of integers" }.into());
        }
        "Add" => i64::checked_add,
        "Sub" => i64::checked_sub,
        "Mul" => i64::checked_mul,
        "Div" => i64::checked_div,
        "Mod" if call.flag("fmod", false)? => |l, r| Some(remainder(l, r)),
        "Mod" => |l, r| {
            let rest = remainder(l, r);
            if rest != 0 && (rest < 0) != (r < 0) { rest.checked_add(r) } else { Some(rest) }
        },
        "Pow" => |l, r| l.checked_pow(u32::try_from(r).ok()?),
        "BitShift" if call.string("direction", "")? == "RIGHT" => {
            |l, r| l.checked_shr(u32::try_from(r).ok()?)
        }
        "BitwiseAnd" => |l, r| Some(l & r),
        "BitwiseOr" => |l, r| Some(l | r),
        "BitwiseXor" => |l, r| Some(l ^ r),
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
        _ => i64::checked_add,
    };
    let floats: fn(f64, f64) -> f64 = match call.op_type {
        "Min" => |l, r| if l.is_nan() || l < r { l } else { r },
        "Max" => |l, r| if l.is_nan() || l > r { l } else { r },
        _ => |l, r| l + r,
    };
    call.output(element, shape, |shape| {
        let mut result: Option<Values> = None;
        for input in &inputs {
            let data = input.known()?;
            call.work.charge(shapes::elements(shape))?;
            let data = data.pick(&spread(&input.shape, shape).collect::<Vec<_>>())?;
            result = Some(match (result, data) {
                (None, data) => data,
                (Some(Values::Ints(l)), Values::Ints(r)) => {
                    number::fitted(element, l.iter().zip(&r).map(|(&l, &r)| ints(l, r)))?
                }
                (Some(Values::Floats(l)), Values::Floats(r)) => {
                    number::rounded(element, l.iter().zip(&r).map(|(&l, &r)| floats(l, r)))
                }
                _ => return Err(Uncomputed::Unknown),
            });
        }
        match result.ok_or(Uncomputed::Unknown)? {
            Values::Floats(sums) if call.op_type == "Mean" => {
                let count = number::to_float(inputs.len());
                Ok(number::rounded(element, sums.iter().map(|sum| sum / count)))
            }
            result => Ok(result),
        }
    })
}

/// Evaluates `Clip`. The bounds are inputs, or attributes in old versions. Both may be absent.
pub(super) fn clip(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let bounds = [bound(call, 1, "min")?, bound(call, 2, "max")?];
    call.mapped(input, |values| {
        bounds.iter().flatten().try_for_each(|bound| bound.known().map(|_| ()))?;
        match values {
            Values::Ints(values) => {
                let [least, most] =
                    bounds.each_ref().map(|bound| bound.as_ref()?.as_ints()?.first().copied());
                let clip = |&value: &i64| value.max(least.unwrap_or(value)).min(most.unwrap_or(i64::MAX));
                Ok(Values::Ints(values.iter().map(clip).collect()))
            }
            Values::Floats(values) => {
                let [least, most] =
                    bounds.each_ref().map(|bound| bound.as_ref()?.as_floats()?.first().copied());
                let clip = |&value: &f64| {
                    let value = if value < least.unwrap_or(value) { least.unwrap_or(value) } else { value };
                    if value > most.unwrap_or(value) { most.unwrap_or(value) } else { value }
                };
                Ok(Values::Floats(values.iter().map(clip).collect()))
            }
            Values::Bools(_) => Err(Uncomputed::Unknown),
        }
    })
}

fn bound(call: &Call<'_>, index: usize, name: &str) -> Result<Option<Value>, OnnxError> {
    let Some(bound) = call.optional(index) else {
        let Some(attribute) = call.attribute(name) else { return Ok(None) };
        let bound = Values::Floats(vec![attribute::float(attribute)?.into()]);
        return Value::new(ElementType::Float32, vec![], Some(bound)).map(Some);
    };
    same_type(call, index, call.input(0)?)?;
    if bound.len() == 1 { Ok(Some(bound.clone())) } else { Err(call.bad_shape(index, "one element")) }
}

pub(super) fn compare(call: &Call<'_>) -> Outputs {
    fn compared<T: PartialOrd>(op_type: &str, pairs: impl Iterator<Item = (T, T)>) -> Values {
        let holds = match op_type {
            "Less" => T::lt,
            "LessOrEqual" => T::le,
            "Greater" => T::gt,
            "GreaterOrEqual" => T::ge,
            _ => T::eq,
        };
        Values::Bools(pairs.map(|(l, r)| holds(&l, &r)).collect())
    }
    let inputs = [call.input(0)?, call.input(1)?];
    let [left, right] = inputs;
    same_type(call, 1, left)?;
    call.output(ElementType::Bool, broadcast(&left.shape, &right.shape)?, |shape| {
        Ok(match (left.known()?, right.known()?) {
            (Values::Ints(l), Values::Ints(r)) => compared(call.op_type, pairs([l, r], inputs, shape)),
            (Values::Floats(l), Values::Floats(r)) => compared(call.op_type, pairs([l, r], inputs, shape)),
            (Values::Bools(l), Values::Bools(r)) => compared(call.op_type, pairs([l, r], inputs, shape)),
            _ => return Err(Uncomputed::Unknown),
        })
    })
}

pub(super) fn logic(call: &Call<'_>) -> Outputs {
    let inputs = [call.input(0)?, call.input(1)?];
    for (index, input) in inputs.into_iter().enumerate() {
        of_kind(index, input, NumberKind::Bool)?;
    }
    let holds: fn(bool, bool) -> bool = match call.op_type {
        "And" => |l, r| l && r,
        "Or" => |l, r| l || r,
        _ => |l, r| l != r,
    };
    let [left, right] = inputs;
    call.output(ElementType::Bool, broadcast(&left.shape, &right.shape)?, |shape| {
        let pairs = pairs([left.known_bools()?, right.known_bools()?], inputs, shape);
        Ok(Values::Bools(pairs.map(|(l, r)| holds(l, r)).collect()))
    })
}

pub(super) fn not(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    of_kind(0, input, NumberKind::Bool)?;
    call.mapped(input, |_| Ok(Values::Bools(input.known_bools()?.iter().map(|value| !value).collect())))
}

pub(super) fn is_special(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
    let is_nan = call.op_type == "IsNaN";
    let holds = |&value: &f64| match is_nan {
        true => value.is_nan(),
        false => (negative && value == f64::NEG_INFINITY) || (positive && value == f64::INFINITY),
    };
    call.output(ElementType::Bool, input.shape.clone(), |_| {
        Ok(Values::Bools(input.known_floats()?.iter().map(holds).collect()))
    })
}

/// Returns the operands of each element of a shape that both inputs broadcast to.
pub(super) fn pairs<'a, T: Copy>(
    elements: [&'a [T]; 2],
    inputs: [&Value; 2],
    shape: &[usize],
) -> impl Iterator<Item = (T, T)> + use<'a, T> {
    let [left, right] = elements;
    let [left_at, right_at] = inputs.map(|input| spread(&input.shape, shape));
    left_at.into_iter().zip(right_at).filter_map(|(l, r)| Some((*left.get(l)?, *right.get(r)?)))
}

pub(super) fn same_type(call: &Call<'_>, index: usize, as_that: &Value) -> Result<(), OnnxError> {
    call.check_type(index, as_that.element, "the other inputs' type")
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
