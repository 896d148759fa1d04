//! Operators whose outputs are booleans, element by element.

use kvscatter::ElementType;

use super::elementwise::{of_kind, pairs, same_type};
use crate::fold::Values;
use crate::fold::call::{Call, Outputs};
use crate::fold::shapes::broadcast;
use crate::fold::values::NumberKind;

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
        of_kind(index, input, NumberKind::Bool)?;
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
    of_kind(0, input, NumberKind::Bool)?;
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
