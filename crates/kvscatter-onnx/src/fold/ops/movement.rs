//! Operators that move elements without computing any.

use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::shapes::{self, AxisSplit, signed, strides, walk};
use crate::fold::values::{Elements, Uncomputed};
use crate::fold::{FoldError, Value, Values, number};
use crate::{GraphError, attribute};

use super::elementwise::same_type;
use super::shape::distinct;

pub(super) fn transpose(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let rank = input.rank();
    let order = match call.attribute("perm") {
        Some(perm) => distinct(attribute::ints(perm)?, rank)?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank {
        return Err(call.bad_shape(0, "as many axes as perm names"));
    }
    let shape = order.iter().filter_map(|&axis| input.shape.get(axis).copied()).collect();
    call.moved(input, shape, |shape| {
        let own = strides(&input.shape);
        let steps: Vec<i64> = order.iter().filter_map(|&axis| own.get(axis).copied()).collect();
        Ok(walk(shape, 0, &steps))
    })
}

/// Evaluates `Expand`. Both shapes broadcast, so the result may be larger than the requested shape.
pub(super) fn expand(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let target = call.ints(1)?.iter().map(|&size| dim(size)).collect::<Result<Vec<_>, _>>()?;
    let shape = shapes::broadcast(&input.shape, &target)?;
    call.moved(input, shape, |shape| Ok(shapes::spread(&input.shape, shape).collect()))
}

pub(super) fn tile(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let repeats = call.ints(1)?;
    if repeats.len() != input.rank() {
        return Err(call.bad_shape(1, "a number for each axis"));
    }
    let sizes = input.shape.iter().zip(repeats);
    let shape =
        sizes.map(|(&size, &times)| dim(signed(size).saturating_mul(times))).collect::<Result<_, _>>()?;
    call.moved(input, shape, |_| {
        // Each axis is split into two: the repetitions, with a stride of 0, and the values.
        let (mut split, mut steps) = (Vec::new(), Vec::new());
        for ((&size, &times), stride) in input.shape.iter().zip(repeats).zip(strides(&input.shape)) {
            split.extend([dim(times)?, size]);
            steps.extend([0, stride]);
        }
        Ok(walk(&split, 0, &steps))
    })
}

pub(super) fn concat(call: &Call<'_>) -> Outputs {
    let inputs = call.all_inputs()?;
    let first = call.input(0)?;
    let axis = call.attribute("axis").ok_or(FoldError::AttributeMissing { name: "axis" })?;
    let axis = shapes::axis(attribute::int(axis)?, first.rank())?;
    let mut size: usize = 0;
    for (index, input) in inputs.iter().enumerate() {
        let own = input.shape.get(axis).copied().unwrap_or_default();
        if shapes::with_dim(&input.shape, axis, 0) != shapes::with_dim(&first.shape, axis, 0) {
            return Err(call.bad_shape(index, "input 0's on every axis but the one of the concatenation"));
        }
        call.check_type(index, first.element, "input 0's type")?;
        size = size.saturating_add(own);
    }
    call.output(first.element, shapes::with_dim(&first.shape, axis, size), |_| {
        let all = Values::chain(inputs.iter().map(|input| input.known()).collect::<Result<Vec<_>, _>>()?)?;
        let mut positions = Vec::new();
        for outer in 0..AxisSplit::new(&first.shape, axis).outer {
            let mut start: usize = 0;
            for input in &inputs {
                let block = AxisSplit::new(&input.shape, axis).block();
                let from = start.saturating_add(outer.saturating_mul(block));
                positions.extend(from..from.saturating_add(block));
                start = start.saturating_add(input.len());
            }
        }
        Ok(all.pick(&positions)?)
    })
}

/// Evaluates `Split`. The sizes are an input or an attribute. Without sizes, the number of equal parts is the
/// number of outputs, and the last part may be smaller.
pub(super) fn split(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.axis("axis", 0, input)?;
    let split = AxisSplit::new(&input.shape, axis);
    let sizes = match call.ints_of(1, "split")? {
        Some(sizes) => sizes.into_iter().map(dim).collect::<Result<Vec<_>, _>>()?,
        None => equal_parts(split.dim, call.outputs)?,
    };
    let all = sizes.iter().fold(0, |all: usize, &size| all.saturating_add(size));
    if all != split.dim || sizes.len() != call.outputs {
        return Err(call.bad_shape(0, "the sum of as many parts as outputs on the axis that is split"));
    }
    let mut parts = Vec::new();
    let mut start: usize = 0;
    for size in sizes {
        let offset = signed(start.saturating_mul(split.inner));
        let shape = shapes::with_dim(&input.shape, axis, size);
        parts.extend(call.moved(input, shape, |shape| Ok(walk(shape, offset, &strides(&input.shape))))?);
        start = start.saturating_add(size);
    }
    Ok(parts)
}

fn equal_parts(dim: usize, parts: usize) -> Result<Vec<usize>, OnnxError> {
    let size = dim.checked_add(parts.saturating_sub(1)).and_then(|dim| dim.checked_div(parts));
    let size = size.ok_or(FoldError::NoOutput { output: 0 })?;
    Ok((0..parts).map(|part| dim.saturating_sub(part.saturating_mul(size)).min(size)).collect())
}

/// Evaluates `Slice`. Negative bounds count from the end. All bounds are then clamped, so any large number
/// stands for the end.
pub(super) fn slice(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let given = |index, name| call.ints_of(index, name);
    let starts = given(1, "starts")?.ok_or(GraphError::InputAbsent { index: 1 })?;
    let ends = given(2, "ends")?.ok_or(GraphError::InputAbsent { index: 2 })?;
    let axes = match given(3, "axes")? {
        Some(axes) => distinct(&axes, input.rank())?,
        None => (0..starts.len()).collect(),
    };
    let steps = call.optional_ints(4)?.map_or_else(|| vec![1; starts.len()], <[i64]>::to_vec);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(call.bad_shape(1, "as many numbers as the other bounds"));
    }
    let (mut shape, mut walked, mut offset) = (input.shape.clone(), strides(&input.shape), 0_i64);
    for (((&axis, &start), &end), &step) in axes.iter().zip(&starts).zip(&ends).zip(&steps) {
        let (Some(size), Some(stride)) = (shape.get_mut(axis), walked.get_mut(axis)) else {
            return Err(FoldError::Axis { axis: signed(axis), rank: input.rank() }.into());
        };
        let (start, count) = bounds(signed(*size), start, end, step)?;
        offset = offset.saturating_add(start.saturating_mul(*stride));
        (*size, *stride) = (count, stride.saturating_mul(step));
    }
    call.moved(input, shape, |shape| Ok(walk(shape, offset, &walked)))
}

/// Returns the first index of a slice and the number of its indices.
fn bounds(size: i64, start: i64, end: i64, step: i64) -> Result<(i64, usize), OnnxError> {
    if size == 0 {
        return Ok((0, 0));
    }
    let from_start = |bound: i64| if bound < 0 { bound.saturating_add(size) } else { bound };
    let (start, end) = (from_start(start), from_start(end));
    let last = size.saturating_sub(1);
    // With a negative step, the end is before the first index.
    let (start, span) = if step > 0 {
        let start = start.clamp(0, size);
        (start, end.clamp(0, size).saturating_sub(start))
    } else {
        let start = start.clamp(0, last);
        (start, start.saturating_sub(end.clamp(-1, last)))
    };
    let step = step.saturating_abs();
    let count = span.max(0).saturating_add(step.saturating_sub(1)).checked_div(step);
    Ok((start, dim(count.ok_or(FoldError::DivisionByZero)?)?))
}

/// Evaluates `Pad`. The pads are listed as all begins and then all ends, for all axes or for those of input
/// 3. A negative pad removes elements.
pub(super) fn pad(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let pads = call.ints_of(1, "pads")?.ok_or(GraphError::InputAbsent { index: 1 })?;
    let axes = match call.optional_ints(3)? {
        Some(axes) => distinct(axes, input.rank())?,
        None => (0..input.rank()).collect(),
    };
    let (begins, ends) = pads.split_at_checked(axes.len()).unwrap_or_default();
    if ends.len() != axes.len() {
        return Err(call.bad_shape(1, "two numbers for each axis"));
    }
    let mut before = vec![0_i64; input.rank()];
    let mut shape = input.shape.clone();
    for ((&axis, &begin), &end) in axes.iter().zip(begins).zip(ends) {
        if let (Some(before), Some(size)) = (before.get_mut(axis), shape.get_mut(axis)) {
            *before = begin;
            *size = dim(signed(*size).saturating_add(begin).saturating_add(end))?;
        }
    }
    let source = padded_from(call.string("mode", "constant")?)?;
    let fill = call.optional(2);
    if fill.is_some() {
        same_type(call, 2, input)?;
    }
    call.output(input.element, shape, |shape| {
        call.work.charge(input.len())?;
        let all = match fill {
            Some(fill) => Values::chain([input.known()?, fill.known()?])?,
            None => and_zero(input)?,
        };
        let own = strides(&input.shape);
        // The padding value is stored after the elements of the input.
        let outside = signed(input.len());
        let mut positions = vec![Some(0_i64)];
        for (((&to, &from), &before), &stride) in shape.iter().zip(&input.shape).zip(&before).zip(&own) {
            let place = |base: Option<i64>, index: i64| {
                let at = source(index.saturating_sub(before), signed(from))?;
                Some(base?.saturating_add(at.saturating_mul(stride)))
            };
            positions = positions
                .iter()
                .flat_map(|&base| (0..signed(to)).map(move |index| place(base, index)))
                .collect();
        }
        let positions: Vec<usize> =
            positions.into_iter().map(|at| dim(at.unwrap_or(outside))).collect::<Result<_, _>>()?;
        Ok(all.pick(&positions)?)
    })
}

/// Returns the elements of a value, followed by a zero.
fn and_zero(value: &Value) -> Elements {
    Values::chain([value.known()?, &number::cast(&Values::Ints(vec![0]), value.element)?])
}

/// A function from the index of an element in the result and the size of the axis to the index of its source.
/// It returns `None` for the padding value.
type PadSource = fn(i64, i64) -> Option<i64>;

/// Returns the function for a mode of `Pad`.
fn padded_from(mode: &str) -> Result<PadSource, OnnxError> {
    Ok(match mode {
        "constant" => |at, size| (0..size).contains(&at).then_some(at),
        "edge" => |at, size| (size > 0).then(|| at.clamp(0, size.saturating_sub(1))),
        "wrap" => |at, size| at.checked_rem_euclid(size),
        "reflect" => |at, size| {
            let last = size.saturating_sub(1);
            let at = if last == 0 { Some(0) } else { at.checked_rem_euclid(last.saturating_mul(2)) };
            at.map(|at| if at > last { last.saturating_mul(2).saturating_sub(at) } else { at })
        },
        other => return Err(FoldError::AttributeValue { name: "mode", value: other.to_owned() }.into()),
    })
}

/// Evaluates `Trilu`, which keeps the upper or lower triangle of the last two axes and sets the rest to zero.
pub(super) fn trilu(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let [.., rows, columns] = *input.shape.as_slice() else {
        return Err(call.bad_shape(0, "rank 2 at least"));
    };
    let upper = call.flag("upper", true)?;
    call.output(input.element, input.shape.clone(), |_| {
        let all = and_zero(input)?;
        let diagonal = if call.optional(1).is_some() { known_scalar(call, 1)? } else { 0 };
        let is_kept = |above: i64| if upper { above >= diagonal } else { above <= diagonal };
        let place = |position: usize| match shapes::above_diagonal(position, rows, columns) {
            Some(above) if is_kept(above) => position,
            _ => input.len(),
        };
        Ok(all.pick(&(0..input.len()).map(place).collect::<Vec<_>>())?)
    })
}

/// Returns the single integer of an input that does not affect a shape.
pub(super) fn known_scalar(call: &Call<'_>, index: usize) -> Result<i64, Uncomputed> {
    call.input(index)?.known()?;
    Ok(call.scalar(index)?)
}
