//! Operators that pick values by indices, and operators that write values at indices.

use kvscatter::ElementType;

use super::elementwise::same_type;
use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::shapes::{self, AxisSplit, elements, signed, strides};
use crate::fold::values::{Elements, Uncomputed};
use crate::fold::{FoldError, Value, Values, number};

pub(super) fn gather(call: &Call<'_>) -> Outputs {
    let [input, indices] = [call.input(0)?, call.input(1)?];
    let axis = call.axis("axis", 0, input)?;
    call.moved(input, shapes::with_axes(&input.shape, axis, &indices.shape), |_| {
        let split = AxisSplit::new(&input.shape, axis);
        let mut positions = Vec::new();
        for outer in 0..split.outer {
            for &index in indices.known_ints()? {
                let at = outer.saturating_mul(split.dim).saturating_add(place(index, split.dim)?);
                let start = at.saturating_mul(split.inner);
                positions.extend(start..start.saturating_add(split.inner));
            }
        }
        Ok(positions)
    })
}

pub(super) fn gather_elements(call: &Call<'_>) -> Outputs {
    let [input, indices] = [call.input(0)?, call.input(1)?];
    let axis = call.axis("axis", 0, input)?;
    if indices.rank() != input.rank() {
        return Err(call.bad_shape(1, "input 0's rank"));
    }
    call.moved(input, indices.shape.clone(), |shape| {
        Ok(along_axis(input, axis, shape, indices.known_ints()?)?)
    })
}

/// Evaluates `ScatterElements`. With a `reduction`, only the shape is known.
pub(super) fn scatter_elements(call: &Call<'_>) -> Outputs {
    let [input, indices, updates] = [call.input(0)?, call.input(1)?, call.input(2)?];
    same_type(call, 2, input)?;
    let axis = call.axis("axis", 0, input)?;
    if indices.rank() != input.rank() || indices.shape != updates.shape {
        return Err(call.bad_shape(1, "input 0's rank and input 2's shape"));
    }
    let is_plain = call.string("reduction", "none")? == "none";
    call.mapped(input, |old| {
        if !is_plain {
            return Err(Uncomputed::Unknown);
        }
        overwrite(old, updates, &along_axis(input, axis, &indices.shape, indices.known_ints()?)?)
    })
}

/// Returns the positions in `input` that indices along one axis select. The coordinates along the other axes
/// are those of the element itself.
fn along_axis(input: &Value, axis: usize, shape: &[usize], indices: &[i64]) -> Result<Vec<usize>, OnnxError> {
    let own = strides(&input.shape);
    let size = input.shape.get(axis).copied().unwrap_or_default();
    let stride = own.get(axis).copied().unwrap_or_default();
    let others: Vec<i64> =
        own.iter().enumerate().map(|(at, &stride)| if at == axis { 0 } else { stride }).collect();
    for (at, (&has, &asked)) in input.shape.iter().zip(shape).enumerate() {
        if at != axis && asked > has {
            return Err(FoldError::Index { index: signed(asked).saturating_sub(1), limit: has }.into());
        }
    }
    let place = |(base, &index): (usize, &i64)| {
        let step = usize::try_from(stride).unwrap_or(usize::MAX);
        Ok(base.saturating_add(place(index, size)?.saturating_mul(step)))
    };
    shapes::walk(shape, 0, &others).into_iter().zip(indices).map(place).collect()
}

pub(super) fn gather_nd(call: &Call<'_>) -> Outputs {
    let [input, indices] = [call.input(0)?, call.input(1)?];
    let batch = dim(call.int("batch_dims", 0)?)?;
    let (batch_shape, own) =
        input.shape.split_at_checked(batch).ok_or_else(|| call.bad_shape(0, "batch_dims axes"))?;
    let Some((&depth, rows)) = indices.shape.split_last() else {
        return Err(call.bad_shape(1, "rank 1 at least"));
    };
    let (Some(slices), true) = (own.get(depth..), rows.get(..batch) == Some(batch_shape)) else {
        return Err(call.bad_shape(1, "input 0's batch axes, and no more indices than its other axes"));
    };
    call.moved(input, [rows, slices].concat(), |_| {
        let per_batch = elements(rows.get(batch..).unwrap_or_default()).max(1);
        let mut positions = Vec::new();
        let starts = starts(own, elements(rows), depth, indices.known_ints()?)?;
        for (row, start) in starts.into_iter().enumerate() {
            let batch = row.checked_div(per_batch).unwrap_or_default().saturating_mul(elements(own));
            let start = batch.saturating_add(start);
            positions.extend(start..start.saturating_add(elements(slices)));
        }
        Ok(positions)
    })
}

/// Evaluates `ScatterND`. With a `reduction`, only the shape is known.
pub(super) fn scatter_nd(call: &Call<'_>) -> Outputs {
    let [input, indices, updates] = [call.input(0)?, call.input(1)?, call.input(2)?];
    same_type(call, 2, input)?;
    let Some((&depth, rows)) = indices.shape.split_last() else {
        return Err(call.bad_shape(1, "rank 1 at least"));
    };
    let slices =
        input.shape.get(depth..).ok_or_else(|| call.bad_shape(1, "no more indices than input 0 has axes"))?;
    if updates.shape != [rows, slices].concat() {
        return Err(call.bad_shape(2, "a slice of input 0 for each row of input 1"));
    }
    let is_plain = call.string("reduction", "none")? == "none";
    call.mapped(input, |old| {
        if !is_plain {
            return Err(Uncomputed::Unknown);
        }
        let indices = indices.known_ints()?;
        if updates.len() == 0 {
            return Ok(old.clone());
        }
        let starts = starts(&input.shape, elements(rows), depth, indices)?.into_iter();
        let positions = starts.flat_map(|start| start..start.saturating_add(elements(slices)));
        overwrite(old, updates, &positions.collect::<Vec<_>>())
    })
}

/// Returns the position at which the slice of each row of indices begins.
fn starts(shape: &[usize], rows: usize, depth: usize, indices: &[i64]) -> Result<Vec<usize>, OnnxError> {
    let own = strides(shape);
    let start = |row: usize| {
        let from = row.saturating_mul(depth);
        let row = indices.get(from..from.saturating_add(depth)).unwrap_or_default();
        row.iter().zip(shape).zip(&own).try_fold(0_usize, |start, ((&index, &size), &stride)| {
            let stride = usize::try_from(stride).unwrap_or(usize::MAX);
            Ok(start.saturating_add(place(index, size)?.saturating_mul(stride)))
        })
    };
    (0..rows).map(start).collect()
}

/// Returns the elements of the input after those at the positions have been replaced. If a position occurs
/// several times, its last value remains.
fn overwrite(old: &Values, updates: &Value, positions: &[usize]) -> Elements {
    let all = Values::chain([old, updates.known()?])?;
    let count = old.len();
    let mut from: Vec<usize> = (0..count).collect();
    for (update, &position) in positions.iter().enumerate() {
        let at = from.get_mut(position).ok_or(FoldError::Position { position, count })?;
        *at = count.saturating_add(update);
    }
    Ok(all.pick(&from)?)
}

/// Evaluates `NonZero`. Its shape depends on the elements of its input, so these must be known.
pub(super) fn non_zero(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let values = input.data.as_ref().ok_or(FoldError::ValuesUnknown { input: 0 })?;
    call.work.charge(values.len())?;
    let Ok(Values::Bools(is_set)) = number::cast(values, ElementType::Bool) else {
        return Err(FoldError::ValuesUnknown { input: 0 }.into());
    };
    let positions = is_set.into_iter().enumerate();
    let set: Vec<usize> = positions.filter_map(|(position, is_set)| is_set.then_some(position)).collect();
    call.output(ElementType::Int64, vec![input.rank(), set.len()], |_| {
        let own = strides(&input.shape);
        let axes = own.iter().zip(&input.shape);
        let index = |position: usize, (&stride, &size): (&i64, &usize)| {
            let stride = usize::try_from(stride).unwrap_or(usize::MAX);
            signed(position.checked_div(stride).and_then(|at| at.checked_rem(size)).unwrap_or_default())
        };
        let indices = axes.flat_map(|axis| set.iter().map(move |&position| index(position, axis)));
        Ok(Values::Ints(indices.collect()))
    })
}

/// Returns the shape of `OneHot`.
pub(super) fn one_hot(call: &Call<'_>) -> Outputs {
    let [indices, values] = [call.input(0)?, call.input(2)?];
    let depth = dim(call.scalar(1)?)?;
    let axis = shapes::axis(call.int("axis", -1)?, indices.rank().saturating_add(1))?;
    let (before, after) = indices.shape.split_at_checked(axis).unwrap_or_default();
    call.shaped([(values.element, [before, &[depth], after].concat())])
}

/// Returns an index counted from the start. A negative index counts from the end.
fn place(index: i64, limit: usize) -> Result<usize, OnnxError> {
    shapes::axis(index, limit).map_err(|_| FoldError::Index { index, limit }.into())
}
