//! Operators that compute along axes.

use kvscatter::ElementType;

use super::movement::known_scalar;
use super::shape::distinct;
use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::number::{self, fit, round};
use crate::fold::shapes::{self, elements, signed, strides, walk};
use crate::fold::values::Uncomputed;
use crate::fold::{FoldError, Value, Values};

/// Evaluates a reduction. The axes are an input or an attribute. Without axes, all axes are reduced, or none
/// with `noop_with_empty_axes`.
pub(super) fn reduce(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let rank = input.rank();
    let named = call.ints_of(1, "axes")?.unwrap_or_default();
    if named.is_empty() && call.flag("noop_with_empty_axes", false)? {
        return match call.op_type {
            "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" => Ok(vec![input.clone()]),
            _ => call.shaped([(input.element, input.shape.clone())]),
        };
    }
    let axes = if named.is_empty() { (0..rank).collect() } else { distinct(&named, rank)? };
    let groups = Groups { shape: &input.shape, axes: &axes };
    call.output(input.element, groups.shape(call.flag("keepdims", true)?), |_| {
        call.work.charge(input.len())?;
        let element = input.element;
        Ok(match input.known()? {
            Values::Ints(values) => {
                Values::Ints(groups.each(values, |group| int_result(call, element, group))?)
            }
            Values::Floats(values) => {
                let result = |group: &[f64]| Ok(round(element, float_result(call, group)));
                Values::Floats(groups.each(values, result)?)
            }
            Values::Bools(values) => {
                let result = |group: &[bool]| match call.op_type {
                    "ReduceMax" => Ok(group.contains(&true)),
                    "ReduceMin" => Ok(!group.contains(&false)),
                    _ => Err(FoldError::NoForm { what: "booleans" }.into()),
                };
                Values::Bools(groups.each(values, result)?)
            }
        })
    })
}

fn int_result(call: &Call<'_>, element: ElementType, group: &[i64]) -> Result<i64, OnnxError> {
    let sum = || group.iter().try_fold(0_i64, |sum, &value| sum.checked_add(value));
    let result = match call.op_type {
        "ReduceSum" => sum(),
        "ReduceProd" => group.iter().try_fold(1_i64, |product, &value| product.checked_mul(value)),
        "ReduceMean" => {
            return match sum().map(|sum| sum.checked_div(signed(group.len()))) {
                Some(Some(mean)) => Ok(mean),
                Some(None) => Err(FoldError::DivisionByZero.into()),
                None => fit(element, None),
            };
        }
        "ReduceSumSquare" => group.iter().try_fold(0_i64, |sum, &value| {
            value.checked_mul(value).and_then(|square| sum.checked_add(square))
        }),
        "ReduceMax" => group.iter().copied().max(),
        "ReduceMin" => group.iter().copied().min(),
        _ => return Err(FoldError::NoForm { what: "integers" }.into()),
    };
    fit(element, result)
}

fn float_result(call: &Call<'_>, group: &[f64]) -> f64 {
    let sum = || total(group.iter().copied());
    let squares = || total(group.iter().map(|value| value * value));
    match call.op_type {
        "ReduceSum" => sum(),
        "ReduceMean" => sum() / number::to_float(group.len()),
        "ReduceProd" => group.iter().product(),
        "ReduceSumSquare" => squares(),
        "ReduceL2" => squares().sqrt(),
        "ReduceMin" => group
            .iter()
            .fold(f64::INFINITY, |least, &value| if value.is_nan() || value < least { value } else { least }),
        _ => group.iter().fold(
            f64::NEG_INFINITY,
            |most, &value| {
                if value.is_nan() || value > most { value } else { most }
            },
        ),
    }
}

/// Returns a sum that is 0 if there are no values. The sum of the standard library would be -0.
pub(super) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

pub(super) fn arg(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.axis("axis", 0, input)?;
    let (is_max, last) = (call.op_type == "ArgMax", call.flag("select_last_index", false)?);
    let along = [axis];
    let groups = Groups { shape: &input.shape, axes: &along };
    call.output(ElementType::Int64, groups.shape(call.flag("keepdims", true)?), |_| {
        call.work.charge(input.len())?;
        let best = |group: &[f64]| {
            let mut best: Option<(usize, f64)> = None;
            for (index, &value) in group.iter().enumerate() {
                let is_better = best.is_none_or(|(_, best)| {
                    (last && value == best) || if is_max { value > best } else { value < best }
                });
                if is_better {
                    best = Some((index, value));
                }
            }
            best.map_or(0, |(index, _)| signed(index))
        };
        // ONNX does not specify the order of NaN and other numbers.
        let is_ordered = |values: &Vec<f64>| !values.iter().any(|value| value.is_nan());
        let values = as_exact_floats(input).filter(is_ordered).ok_or(Uncomputed::Unknown)?;
        Ok(Values::Ints(groups.each(&values, |group| Ok(best(group)))?))
    })
}

/// Returns the values as 64-bit floats if all of them are exactly representable.
fn as_exact_floats(input: &Value) -> Option<Vec<f64>> {
    match &input.data {
        Some(Values::Floats(values)) => Some(values.clone()),
        Some(Values::Ints(values)) => {
            let are_small = values.iter().all(|value| value.unsigned_abs() <= 1 << 53);
            let float = |&value: &i64| number::int_to_float(ElementType::Float64, value);
            are_small.then(|| values.iter().map(float).collect())
        }
        _ => None,
    }
}

pub(super) fn cum_sum(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let element = input.element;
    let (exclusive, reverse) = (call.flag("exclusive", false)?, call.flag("reverse", false)?);
    call.mapped(input, |values| {
        let along = [shapes::axis(known_scalar(call, 1)?, input.rank())?];
        let groups = Groups { shape: &input.shape, axes: &along };
        match values {
            Values::Ints(values) => {
                let add = |l: i64, r: i64| fit(element, l.checked_add(r));
                Ok(Values::Ints(groups.map(values, |group| running(group, exclusive, reverse, add))?))
            }
            Values::Floats(values) => {
                let add = |l: f64, r: f64| Ok(round(element, l + r));
                Ok(Values::Floats(groups.map(values, |group| running(group, exclusive, reverse, add))?))
            }
            Values::Bools(_) => Err(Uncomputed::Unknown),
        }
    })
}

fn running<T: Copy + Default>(
    group: &mut [T],
    exclusive: bool,
    reverse: bool,
    add: impl Fn(T, T) -> Result<T, OnnxError>,
) -> Result<(), OnnxError> {
    if reverse {
        group.reverse();
    }
    let mut sum = T::default();
    for value in &mut *group {
        let next = add(sum, *value)?;
        *value = if exclusive { sum } else { next };
        sum = next;
    }
    if reverse {
        group.reverse();
    }
    Ok(())
}

/// Evaluates `Softmax` and `LogSoftmax`. Before version 13, the given axis and all later axes counted as one.
pub(super) fn softmax(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let is_old = call.version < 13;
    let axis = call.axis("axis", if is_old { 1 } else { -1 }, input)?;
    let axes: Vec<usize> = if is_old { (axis..input.rank()).collect() } else { vec![axis] };
    let is_log = call.op_type == "LogSoftmax";
    call.mapped(input, |_| {
        let shares = Groups { shape: &input.shape, axes: &axes }.map(input.known_floats()?, |group| {
            let most = group.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum = total(group.iter().map(|value| (value - most).exp()));
            for value in group {
                let above = *value - most;
                *value = round(input.element, if is_log { above - sum.ln() } else { above.exp() / sum });
            }
            Ok(())
        })?;
        Ok(Values::Floats(shares))
    })
}

/// Returns the shapes of the values of `TopK` and of their indices.
pub(super) fn top_k(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    let axis = call.axis("axis", -1, input)?;
    let shape = shapes::with_dim(&input.shape, axis, dim(call.scalar(1)?)?);
    call.shaped([(input.element, shape.clone()), (ElementType::Int64, shape)])
}

/// The elements that an operator along some axes combines. There is one group for each index of the other
/// axes.
struct Groups<'a> {
    shape: &'a [usize],
    axes: &'a [usize],
}

impl Groups<'_> {
    /// Returns the shape of one result for each group.
    fn shape(&self, keep_dims: bool) -> Vec<usize> {
        let sizes = self.shape.iter().enumerate();
        let size = |(axis, &size): (usize, &usize)| match self.axes.contains(&axis) {
            true => keep_dims.then_some(1),
            false => Some(size),
        };
        sizes.filter_map(size).collect()
    }

    /// Returns the positions of all elements, group by group, and the size of a group.
    fn positions(&self) -> (Vec<usize>, usize) {
        let all = self.shape.iter().copied().zip(strides(self.shape)).enumerate();
        let (along, kept): (Vec<_>, Vec<_>) = all.partition(|(axis, _)| self.axes.contains(axis));
        let (shape, steps): (Vec<_>, Vec<_>) = kept.iter().chain(&along).map(|&(_, dim)| dim).unzip();
        let group = elements(&along.iter().map(|&(_, (size, _))| size).collect::<Vec<_>>());
        (walk(&shape, 0, &steps), group)
    }

    /// Returns one result for each group.
    fn each<T: Copy, R>(
        &self,
        values: &[T],
        compute: impl Fn(&[T]) -> Result<R, OnnxError>,
    ) -> Result<Vec<R>, OnnxError> {
        let (positions, group) = self.positions();
        let values: Vec<T> = positions.iter().filter_map(|&at| values.get(at).copied()).collect();
        if group == 0 {
            return (0..elements(&self.shape(false))).map(|_| compute(&[])).collect();
        }
        values.chunks(group).map(compute).collect()
    }

    /// Returns the same number of values, after `compute` has changed the values of each group.
    fn map<T: Copy>(
        &self,
        values: &[T],
        compute: impl Fn(&mut [T]) -> Result<(), OnnxError>,
    ) -> Result<Vec<T>, OnnxError> {
        let (positions, group) = self.positions();
        let mut grouped: Vec<T> = positions.iter().filter_map(|&at| values.get(at).copied()).collect();
        grouped.chunks_mut(group.max(1)).try_for_each(compute)?;
        let mut results = values.to_vec();
        for (at, value) in positions.into_iter().zip(grouped) {
            if let Some(result) = results.get_mut(at) {
                *result = value;
            }
        }
        Ok(results)
    }
}
