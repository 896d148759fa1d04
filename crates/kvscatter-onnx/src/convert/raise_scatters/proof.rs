//! Checks by evaluation that a decoder with `TensorScatter` computes the same as the exported one.

use super::samples::Operands;
use super::step::Sample;
use super::write::Write;
use crate::convert::equivalence::is_same_float;
use crate::convert::refusal::ConvertRefusal;
use crate::fold::{Fold, Value, Values, signed};
use crate::{Graph, OnnxError};

/// Checks that the indices of a scatter are the slots that `TensorScatter` writes from this start on.
///
/// # Errors
/// Returns [`ConvertRefusal::Writer`], and the errors of [`Fold::value`].
pub(super) fn check_slots(write: &Write<'_>, start: usize, fold: &mut Fold<'_>) -> Result<(), OnnxError> {
    let cache = fold.shape(write.writer.input(0).unwrap_or_default())?.to_vec();
    let update = fold.shape(write.writer.input(2).unwrap_or_default())?.to_vec();
    let is_same_size = |(axis, (has, rows)): (usize, (&usize, &usize))| axis == write.axis || rows == has;
    if cache.len() != update.len() || !cache.iter().zip(&update).enumerate().all(is_same_size) {
        return Err(write.refused("its new rows are not whole rows of all samples"));
    }
    let Value { shape, data: Some(Values::Ints(index)), .. } = charged(write.index, fold)? else {
        return Err(write.refused("its indices depend on more than positions"));
    };
    // An index of a row has its coordinates up to the slot, and one of an element has only the slot.
    let depth = write.axis.saturating_add(1);
    let (counted, own) = match (write.writer.is("ScatterND"), shape.split_last()) {
        (true, Some((&last, counted))) if last == depth && update.starts_with(counted) => (counted, 0..depth),
        (false, _) if *shape == update => (shape.as_slice(), write.axis..depth),
        _ => return Err(write.refused("its indices are not those of whole rows")),
    };
    let mut coordinates = vec![0_usize; counted.len()];
    for numbers in index.chunks(own.len()) {
        let own = coordinates.iter().enumerate().take(own.end).skip(own.start);
        let mut expected =
            own.map(|(axis, &place)| place.saturating_add(if axis == write.axis { start } else { 0 }));
        if !numbers.iter().all(|&number| expected.next().map(signed) == Some(number)) {
            return Err(write.refused("its slots are not those from the first position on"));
        }
        advance(&mut coordinates, counted);
    }
    Ok(())
}

/// Moves coordinates to the next element in row-major order.
fn advance(coordinates: &mut [usize], shape: &[usize]) {
    for (coordinate, &size) in coordinates.iter_mut().zip(shape).rev() {
        *coordinate = coordinate.saturating_add(1);
        if *coordinate < size {
            return;
        }
        *coordinate = 0;
    }
}

/// Compares the values of one sample in both decoders, as far as arithmetic uses them. The evaluations are those of the
/// exported decoder, in which all samples are at the position of this one, and of the new decoder.
///
/// # Errors
/// Returns [`ConvertRefusal::LengthDependence`], wrapped with the first node that reads a value that differs, and the
/// errors of [`Fold::value`].
pub(super) fn check_values(
    exported: &Graph<'_>,
    raised: &Graph<'_>,
    operands: &Operands<'_>,
    sample: Sample,
    [before, after]: [&mut Fold<'_>; 2],
) -> Result<(), OnnxError> {
    let dependence = |name: &str| ConvertRefusal::LengthDependence { value: name.to_owned() };
    for node in raised.nodes() {
        let mut is_arithmetic = false;
        for output in node.outputs() {
            is_arithmetic |= !is_known(output, after)?;
        }
        let inputs = node.proto().input.iter().enumerate();
        for (slot, name) in inputs.filter(|(_, name)| is_arithmetic && !name.is_empty()) {
            let is_same = match (exported.name(name), operands.get(name)) {
                (Some(_), _) => is_same([name, name], sample, before, after)?,
                (_, Some(operand)) => is_same([operand, name], sample, before, after)?,
                // Other new values are new rows in another order, and the slots of a scatter. The slots are checked.
                _ => (slot == 2 && node.is("TensorScatter")) || !is_known(name, after)?,
            };
            if !is_same {
                return Err(node.error(dependence(name)));
            }
        }
    }
    for name in raised.output_names() {
        if !is_same([name, name], sample, before, after)? {
            return Err(dependence(name).into());
        }
    }
    Ok(())
}

/// Returns a value, and charges its comparison, because many nodes may read the same one.
fn charged<'f>(name: &str, fold: &'f mut Fold<'_>) -> Result<&'f Value, OnnxError> {
    let elements = fold.value(name)?.data.as_ref().map_or(0, Values::len);
    fold.charge(elements)?;
    fold.value(name)
}

fn is_known(name: &str, fold: &mut Fold<'_>) -> Result<bool, OnnxError> {
    Ok(fold.known(name)?.is_some_and(|value| value.data.is_some()))
}

/// Returns `true` if a value is the same for a sample in both decoders, or if it is open in both. The new value may be
/// an operand of another name, which has an axis for the samples before those of the exported value.
fn is_same(
    [exported, raised]: [&str; 2],
    sample: Sample,
    before: &mut Fold<'_>,
    after: &mut Fold<'_>,
) -> Result<bool, OnnxError> {
    if before.known(exported)?.is_none() || after.known(raised)?.is_none() {
        return Ok(before.known(exported)?.is_none() == after.known(raised)?.is_none());
    }
    let (before, after) = (before.value(exported)?, charged(raised, after)?);
    let inner = after.shape.get(1..).filter(|_| after.shape.first() == Some(&sample.batch));
    // The exported decoder may have one row for all samples.
    let is_row_of_all = exported != raised
        || before.shape.split_first().is_some_and(|(&first, rest)| first == 1 && inner == Some(rest));
    let own = Some(sample).filter(|_| inner.is_some());
    let others = own.filter(|_| !is_row_of_all);
    Ok((is_row_of_all || before.shape == after.shape)
        && match (&before.data, &after.data) {
            (None, None) => true,
            (Some(Values::Ints(a)), Some(Values::Ints(b))) => rows(a, others) == rows(b, own),
            (Some(Values::Bools(a)), Some(Values::Bools(b))) => rows(a, others) == rows(b, own),
            (Some(Values::Floats(a)), Some(Values::Floats(b))) => {
                let (a, b) = (rows(a, others), rows(b, own));
                a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| is_same_float(a, b))
            }
            _ => false,
        })
}

/// Returns the elements of a sample, or all elements.
fn rows<T>(values: &[T], sample: Option<Sample>) -> &[T] {
    let Some(Sample { index, batch, .. }) = sample else { return values };
    let size = values.len().checked_div(batch).unwrap_or_default();
    values.chunks(size.max(1)).nth(index).unwrap_or_default()
}
