//! Operators that read shapes, change them, or create values from them.

use kvscatter::ElementType;

use super::elementwise::same_type;
use crate::OnnxError;
use crate::eval::{MAX_RANK, constant_tensor};
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::shapes::{self, AxisSplit, signed};
use crate::fold::values::NumberKind;
use crate::fold::{FoldError, Value, Values, number};
use crate::{EvalError, GraphError, attribute};

pub(super) fn shape(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let rank = signed(input.rank());
    let bound = |bound: i64| if bound < 0 { bound.saturating_add(rank) } else { bound }.clamp(0, rank);
    let (start, end) = (bound(call.int("start", 0)?), bound(call.int("end", rank)?));
    let (start, end) = (dim(start)?, dim(end)?);
    let dims = input.shape.get(start..end.max(start)).unwrap_or_default();
    Ok(vec![Value::ints(dims.iter().map(|&dim| signed(dim)).collect())?])
}

pub(super) fn size(call: &Call<'_>) -> Outputs {
    let count = Values::Ints(vec![signed(call.input(0)?.len())]);
    Ok(vec![Value::new(ElementType::Int64, vec![], Some(count))?])
}

pub(super) fn identity(call: &Call<'_>) -> Outputs {
    Ok(vec![call.input(0)?.clone()])
}

/// Evaluates `Dropout` without training. Its mask keeps everything.
pub(super) fn dropout(call: &Call<'_>) -> Outputs {
    if let Some(training) = call.optional(2)
        && training.as_bools() != Some(&[false])
    {
        return Err(FoldError::NoForm { what: "training" }.into());
    }
    let input = call.input(0)?;
    let mask =
        call.make(ElementType::Bool, input.shape.clone(), |_| Ok(Values::Bools(vec![true; input.len()])))?;
    Ok(vec![input.clone(), mask])
}

pub(super) fn constant(call: &Call<'_>) -> Outputs {
    let mut attributes = call.attributes.iter();
    let (Some((name, attribute)), None) = (attributes.next(), attributes.next()) else {
        return Err(EvalError::ConstantAttributes { got: call.attributes.iter().len() }.into());
    };
    Ok(vec![Value::read("value", &*constant_tensor(name, attribute)?, call.external)?])
}

pub(super) fn constant_of_shape(call: &Call<'_>) -> Outputs {
    let shape = call.ints(0)?.iter().map(|&size| dim(size)).collect::<Result<Vec<_>, _>>()?;
    let fill = match call.attribute("value") {
        Some(value) => Value::read("value", attribute::tensor(value)?, call.external)?,
        None => Value::new(ElementType::Float32, vec![1], Some(Values::Floats(vec![0.0])))?,
    };
    if fill.len() != 1 {
        return Err(
            FoldError::AttributeValue { name: "value", value: format!("{} values", fill.len()) }.into()
        );
    }
    call.moved(&fill, shape, |shape| Ok(vec![0; shapes::elements(shape)]))
}

/// Evaluates `Reshape`. A 0 stands for the dimension of the input unless `allowzero` is set, and one -1
/// stands for the remaining size.
pub(super) fn reshape(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let allow_zero = call.flag("allowzero", false)?;
    let target = call.ints_of(1, "shape")?.ok_or(GraphError::InputAbsent { index: 1 })?;
    let refused = || FoldError::Reshape { from: input.shape.clone(), to: target.clone() };
    let mut shape = Vec::new();
    let mut open = None;
    for (axis, &size) in target.iter().enumerate() {
        shape.push(match size {
            0 if !allow_zero => *input.shape.get(axis).ok_or_else(refused)?,
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            size => usize::try_from(size).map_err(|_| refused())?,
        });
    }
    let known = Value::shaped(input.element, shape.clone())?.len();
    if let Some(open) = open {
        // If another dimension is 0, any size would fit. ONNX Runtime and NumPy reject this too.
        let left = input.len().checked_div(known).ok_or_else(refused)?;
        shape = shapes::with_dim(&shape, open, left);
    }
    if shapes::elements(&shape) != input.len() {
        return Err(refused().into());
    }
    call.reshaped(input, shape)
}

pub(super) fn flatten(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.int("axis", 1)?;
    let rank = input.rank();
    // The axis may equal the rank, which splits the shape at its end.
    let axis = if axis == signed(rank) { rank } else { shapes::axis(axis, rank)? };
    let split = AxisSplit::new(&input.shape, axis);
    call.reshaped(input, vec![split.outer, split.block()])
}

pub(super) fn squeeze(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let rank = input.rank();
    let axes = call.ints_of(1, "axes")?.map(|axes| distinct(&axes, rank)).transpose()?;
    let mut shape = Vec::new();
    for (axis, &size) in input.shape.iter().enumerate() {
        match &axes {
            Some(axes) if axes.contains(&axis) => {
                if size != 1 {
                    return Err(call.bad_shape(0, "a size of 1 on every axis that is removed"));
                }
            }
            None if size == 1 => {}
            _ => shape.push(size),
        }
    }
    call.reshaped(input, shape)
}

pub(super) fn unsqueeze(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axes = call.ints_of(1, "axes")?.ok_or(GraphError::InputAbsent { index: 1 })?;
    let rank = input.rank().saturating_add(axes.len());
    let axes = distinct(&axes, rank)?;
    let mut rest = input.shape.iter().copied();
    let shape = (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { rest.next().unwrap_or(1) });
    call.reshaped(input, shape.collect())
}

/// Evaluates `Range`, which has `max(ceil((limit - start) / delta), 0)` numbers, beginning with `start`.
pub(super) fn range(call: &Call<'_>) -> Outputs {
    let [start, limit, delta] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let element = start.element;
    same_type(call, 1, start)?;
    same_type(call, 2, start)?;
    match NumberKind::from_element(element) {
        Some(NumberKind::Int) => {
            let [start, limit, delta] = [call.scalar(0)?, call.scalar(1)?, call.scalar(2)?].map(i128::from);
            let span = limit.saturating_sub(start);
            let towards = if delta > 0 { span } else { span.saturating_neg() };
            let step = i128::try_from(delta.unsigned_abs()).unwrap_or(i128::MAX);
            let count = towards.max(0).saturating_add(step).saturating_sub(1).checked_div(step);
            let count = usize::try_from(count.ok_or(FoldError::DivisionByZero)?).unwrap_or(usize::MAX);
            call.output(element, vec![count], |_| {
                let number = |step: i64| start.saturating_add(delta.saturating_mul(step.into()));
                let numbers = (0..signed(count)).map(|step| i64::try_from(number(step)).ok());
                Ok(number::fitted(element, numbers)?)
            })
        }
        Some(NumberKind::Float) => {
            let one = |value: &Value, input| match value.as_floats() {
                Some(&[value]) => Ok(value),
                _ => Err(FoldError::ValuesUnknown { input }),
            };
            let (start, limit, delta) = (one(start, 0)?, one(limit, 1)?, one(delta, 2)?);
            let count = ((limit - start) / delta).ceil().max(0.0);
            let count = number::float_to_int(ElementType::Int64, count)?;
            call.output(element, vec![dim(count)?], |_| {
                let steps = (0..count).map(|step| number::int_to_float(ElementType::Float64, step));
                Ok(number::rounded(element, steps.map(|step| start + step * delta)))
            })
        }
        _ => Err(FoldError::InputType { input: 0, element, expected: "a number" }.into()),
    }
}

pub(super) fn eye_like(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let &[rows, columns] = input.shape.as_slice() else {
        return Err(call.bad_shape(0, "rank 2"));
    };
    let element = call.element("dtype")?.unwrap_or(input.element);
    let diagonal = call.int("k", 0)?;
    call.output(element, input.shape.clone(), |_| {
        let is_one = |position| shapes::above_diagonal(position, rows, columns) == Some(diagonal);
        number::cast(&Values::Bools((0..input.len()).map(is_one).collect()), element)
    })
}

/// Returns the axes counted from the start. Each may occur only once.
pub(super) fn distinct(axes: &[i64], rank: usize) -> Result<Vec<usize>, OnnxError> {
    if rank.max(axes.len()) > MAX_RANK {
        return Err(FoldError::RankTooLarge { rank: rank.max(axes.len()), limit: MAX_RANK }.into());
    }
    let mut seen = Vec::new();
    for &axis in axes {
        let axis = shapes::axis(axis, rank)?;
        if seen.contains(&axis) {
            return Err(FoldError::AxisTwice { axis }.into());
        }
        seen.push(axis);
    }
    Ok(seen)
}
