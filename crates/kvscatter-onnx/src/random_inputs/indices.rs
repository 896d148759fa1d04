//! Determines the values of inputs that make every `write_indices` valid, by walking from the writes back to
//! the inputs.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use kvscatter::Mode;

use super::{Evaluator, Op, Types};
use crate::{EvalError, OnnxError, Tensor};

/// Returns the range for every element of each value that is constrained.
pub(super) fn ranges<'m>(
    evaluator: &Evaluator<'m>,
    types: &Types<'m>,
    given: &BTreeMap<&str, &Tensor>,
) -> Result<BTreeMap<&'m str, RangeInclusive<i64>>, OnnxError> {
    let known = known(evaluator, given);
    let mut ranges = BTreeMap::new();
    // Later nodes are visited first, so that all constraints on the output of a node are known when it is
    // visited.
    for op in evaluator.ops.iter().rev() {
        match *op {
            Op::TensorScatter { write_indices: Some(indices), present_cache, .. } => {
                let prepared = types.prepared(present_cache)?;
                let capacity = prepared.geometry().capacity();
                // All samples of a padded update have the same number of rows.
                let rows = prepared.device_interface().row_limits().max;
                let last = capacity.saturating_sub(if prepared.mode() == Mode::Circular { 1 } else { rows });
                narrow(&mut ranges, indices, 0..=i64::try_from(last).unwrap_or(i64::MAX));
            }
            Op::Identity { input, output } => {
                if let Some(range) = ranges.get(output).cloned() {
                    narrow(&mut ranges, input, range);
                }
            }
            Op::Add { left, right, output } => {
                if let Some(range) = ranges.get(output).cloned() {
                    match (known.get(left), known.get(right)) {
                        (Some(known), None) => narrow(&mut ranges, right, minus(&range, known)),
                        (None, Some(known)) => narrow(&mut ranges, left, minus(&range, known)),
                        // If both operands are unknown, the first gets the whole range and the second is 0.
                        _ => {
                            narrow(&mut ranges, left, range);
                            narrow(&mut ranges, right, 0..=0);
                        }
                    }
                }
            }
            Op::TensorScatter { .. } | Op::Constant { .. } => {}
        }
    }
    for input in evaluator.required_inputs().filter(|input| !given.contains_key(input.name)) {
        let is_empty = types.get(input.name).is_some_and(|ty| ty.shape.contains(&0));
        if !is_empty && ranges.get(input.name).is_some_and(RangeInclusive::is_empty) {
            return Err(EvalError::NoValidIndices { name: input.name.to_owned() }.into());
        }
    }
    Ok(ranges)
}

/// Returns the values that are known before anything is computed, under all their names.
fn known<'a>(
    evaluator: &'a Evaluator<'_>,
    given: &BTreeMap<&'a str, &'a Tensor>,
) -> BTreeMap<&'a str, &'a Tensor> {
    let mut known: BTreeMap<_, _> =
        evaluator.constants.iter().map(|(&name, tensor)| (name, tensor)).collect();
    // A fed value takes precedence over the initializer that is the default of the input.
    known.extend(given);
    for op in &evaluator.ops {
        if let Op::Identity { input, output } = *op
            && let Some(&tensor) = known.get(input)
        {
            known.insert(output, tensor);
        }
    }
    known
}

fn narrow<'m>(
    ranges: &mut BTreeMap<&'m str, RangeInclusive<i64>>,
    name: &'m str,
    range: RangeInclusive<i64>,
) {
    let range = match ranges.get(name) {
        Some(other) => *range.start().max(other.start())..=*range.end().min(other.end()),
        None => range,
    };
    ranges.insert(name, range);
}

/// Returns the range of `x` for which `x` plus any element of a known addend is in the given range.
fn minus(range: &RangeInclusive<i64>, addend: &Tensor) -> RangeInclusive<i64> {
    let least = addend.int64s().and_then(Iterator::min).unwrap_or_default();
    let most = addend.int64s().and_then(Iterator::max).unwrap_or_default();
    range.start().saturating_sub(least)..=range.end().saturating_sub(most)
}
