//! Operators that compute each element of the output from one element of each input.

use kvscatter::ElementType;

use crate::Error;
use crate::attribute;
use crate::fold::call::{Call, Outputs};
use crate::fold::number::{self, Kind, fit, round};
use crate::fold::shapes::{broadcast, spread};
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
        let (Some(Values::Bools(condition)), from) = (&condition.data, spread(&condition.shape, shape))
        else {
            return Ok(None);
        };
        let sides = spread(&yes.shape, shape).into_iter().zip(spread(&no.shape, shape));
        let side = |(&at, (left, right)): (&usize, (usize, usize))| {
            let is_yes = condition.get(at).copied().unwrap_or_default();
            if is_yes { left } else { right.saturating_add(yes.len()) }
        };
        let positions: Vec<usize> = from.iter().zip(sides).map(side).collect();
        all.pick(&positions).map(Some)
    });
    Ok(vec![made?])
}

/// Two inputs of one type, broadcast; only `Pow` has an exponent of another.
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

type IntOperator = fn(i64, i64) -> Result<Option<i64>, Error>;

/// Division truncates, as ONNX has it; the remainder has the divisor's sign, or with `fmod` the dividend's.
fn int_operator(call: &Call<'_>) -> Result<IntOperator, Error> {
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
            Ok(Some(l.wrapping_rem(r)))
        },
        "Mod" => |l, r| {
            non_zero(r)?;
            let rest = l.wrapping_rem(r);
            Ok(if rest != 0 && (rest < 0) != (r < 0) { rest.checked_add(r) } else { Some(rest) })
        },
        "Pow" => |l, r| match u32::try_from(r) {
            Ok(exponent) => Ok(l.checked_pow(exponent)),
            Err(_) if r < 0 => Err(FoldError::NoForm { what: "a negative exponent of integers" }.into()),
            Err(_) => Ok(None),
        },
        "BitwiseAnd" => |l, r| Ok(Some(l & r)),
        "BitwiseOr" => |l, r| Ok(Some(l | r)),
        "BitwiseXor" => |l, r| Ok(Some(l ^ r)),
        _ => return Err(FoldError::NoForm { what: "integers" }.into()),
    })
}

fn float_operator(call: &Call<'_>) -> Result<fn(f64, f64) -> f64, Error> {
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

fn non_zero(divisor: i64) -> Result<(), Error> {
    if divisor == 0 { Err(FoldError::DivisionByZero.into()) } else { Ok(()) }
}

/// The smallest, largest, sum or mean of any number of inputs. NaN is smaller and larger than everything.
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
            let data = data.pick(&spread(&input.shape, shape))?;
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

pub(super) fn compare(call: &Call<'_>) -> Outputs {
    fn ordered<T: PartialOrd>(op_type: &str) -> fn(&T, &T) -> bool {
        match op_type {
            "Less" => T::lt,
            "LessOrEqual" => T::le,
            "Greater" => T::gt,
            "GreaterOrEqual" => T::ge,
            _ => T::eq,
        }
    }
    let [left, right] = [call.input(0)?, call.input(1)?];
    same_type(call, 1, left)?;
    let made = call.make(ElementType::Bool, broadcast(&left.shape, &right.shape)?, |shape| {
        let (ls, rs) = (&left.shape, &right.shape);
        Ok(match (&left.data, &right.data) {
            (Some(Values::Ints(l)), Some(Values::Ints(r))) => {
                let holds = ordered::<i64>(call.op_type);
                Some(pairs(l, ls, r, rs, shape).map(|(l, r)| holds(&l, &r)).collect())
            }
            (Some(Values::Floats(l)), Some(Values::Floats(r))) => {
                let holds = ordered::<f64>(call.op_type);
                Some(pairs(l, ls, r, rs, shape).map(|(l, r)| holds(&l, &r)).collect())
            }
            (Some(Values::Bools(l)), Some(Values::Bools(r))) => {
                let holds = ordered::<bool>(call.op_type);
                Some(pairs(l, ls, r, rs, shape).map(|(l, r)| holds(&l, &r)).collect())
            }
            _ => None,
        }
        .map(Values::Bools))
    });
    Ok(vec![made?])
}

pub(super) fn logic(call: &Call<'_>) -> Outputs {
    let [left, right] = [call.input(0)?, call.input(1)?];
    for (index, input) in [left, right].into_iter().enumerate() {
        of_kind(index, input, Kind::Bool)?;
    }
    let holds: fn(bool, bool) -> bool = match call.op_type {
        "And" => |l, r| l && r,
        "Or" => |l, r| l || r,
        _ => |l, r| l != r,
    };
    let made = call.make(ElementType::Bool, broadcast(&left.shape, &right.shape)?, |shape| {
        let (Some(l), Some(r)) = (left.as_bools(), right.as_bools()) else { return Ok(None) };
        let pairs = pairs(l, &left.shape, r, &right.shape, shape);
        Ok(Some(Values::Bools(pairs.map(|(l, r)| holds(l, r)).collect())))
    });
    Ok(vec![made?])
}

pub(super) fn not(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    of_kind(0, input, Kind::Bool)?;
    let made = call.make(ElementType::Bool, input.shape.clone(), |_| {
        Ok(input.as_bools().map(|values| Values::Bools(values.iter().map(|value| !value).collect())))
    });
    Ok(vec![made?])
}

pub(super) fn is_special(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let (negative, positive) = (call.flag("detect_negative", true)?, call.flag("detect_positive", true)?);
    let is_nan = call.op_type == "IsNaN";
    let holds = |value: f64| match is_nan {
        true => value.is_nan(),
        false => (negative && value == f64::NEG_INFINITY) || (positive && value == f64::INFINITY),
    };
    let made = call.make(ElementType::Bool, input.shape.clone(), |_| {
        Ok(input.as_floats().map(|values| Values::Bools(values.iter().map(|&value| holds(value)).collect())))
    });
    Ok(vec![made?])
}

pub(super) fn signed(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let element = input.element;
    let ints: fn(i64) -> Option<i64> = match call.op_type {
        "Neg" => i64::checked_neg,
        "Abs" => i64::checked_abs,
        _ => |value| Some(value.signum()),
    };
    let floats: fn(f64) -> f64 = match call.op_type {
        "Neg" => |value| -value,
        "Abs" => f64::abs,
        // Zeros and NaN are their own sign.
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
    let made = call.make(element, input.shape.clone(), |_| {
        Ok(match &input.data {
            Some(Values::Ints(values)) => {
                let results = values.iter().map(|&value| fit(element, ints(value)));
                Some(Values::Ints(results.collect::<Result<_, _>>()?))
            }
            Some(Values::Floats(values)) => {
                Some(Values::Floats(values.iter().copied().map(floats).collect()))
            }
            _ => None,
        })
    });
    Ok(vec![made?])
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
    if Kind::of(input.element) == Some(Kind::Int) {
        return call.shaped([(input.element, input.shape.clone())]);
    }
    each(call, input, |value| if value < 0.0 { 0.0 } else { value })
}

pub(super) fn leaky_relu(call: &Call<'_>) -> Outputs {
    let alpha = call.float("alpha", 0.01)?;
    each(call, call.input(0)?, |value| if value < 0.0 { alpha * value } else { value })
}

/// `Swish`, and `QuickGelu` by its default.
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

/// ONNX Runtime's `BiasGelu` and `FastGelu`: a sum first.
pub(super) fn bias_gelu(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let shape = match call.optional(1) {
        Some(bias) => broadcast(&input.shape, &bias.shape)?,
        None => input.shape.clone(),
    };
    call.shaped([(input.element, shape)])
}

/// The bounds are inputs, attributes in old versions, or open.
pub(super) fn clip(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let element = input.element;
    let bound = |index: usize, name: &str| -> Result<Option<Option<Values>>, Error> {
        Ok(match (call.optional(index), call.attribute(name)) {
            (Some(bound), _) => Some(bound.data.clone()),
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

fn each(call: &Call<'_>, input: &Value, compute: impl Fn(f64) -> f64) -> Outputs {
    of_kind(0, input, Kind::Float)?;
    let element = input.element;
    let made = call.make(element, input.shape.clone(), |_| {
        let values = input.as_floats();
        Ok(values.map(|values| {
            Values::Floats(values.iter().map(|&value| round(element, compute(value))).collect())
        }))
    });
    Ok(vec![made?])
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

/// The operands of each element of a shape that both inputs broadcast to.
fn pairs<'a, L: Copy, R: Copy>(
    left: &'a [L],
    left_shape: &[usize],
    right: &'a [R],
    right_shape: &[usize],
    shape: &[usize],
) -> impl Iterator<Item = (L, R)> + 'a {
    let positions = spread(left_shape, shape).into_iter().zip(spread(right_shape, shape));
    positions.filter_map(|(l, r)| Some((*left.get(l)?, *right.get(r)?)))
}

fn same_type(call: &Call<'_>, index: usize, as_that: &Value) -> Result<(), Error> {
    let element = call.input(index)?.element;
    if element == as_that.element {
        return Ok(());
    }
    Err(FoldError::InputType { input: index, element, want: "the other inputs' type" }.into())
}

fn of_kind(index: usize, input: &Value, kind: Kind) -> Result<(), Error> {
    let want = match kind {
        Kind::Int => "an integer",
        Kind::Float => "a float",
        Kind::Bool => "bool",
    };
    if Kind::of(input.element) == Some(kind) {
        return Ok(());
    }
    Err(FoldError::InputType { input: index, element: input.element, want }.into())
}
