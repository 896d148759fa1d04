//! Checks by evaluation that a decoder with `TensorScatter` computes the same as the exported one.

use std::collections::BTreeSet;

use super::samples::ExportedNames;
use super::write::Write;
use crate::convert::equivalence::{Comparison, Correspondence, Sample};
use crate::fold::{Fold, Value, Values, signed};
use crate::{Graph, OnnxError};

/// Checks that the indices of a scatter are the slots that `TensorScatter` writes from this start on.
///
/// # Errors
/// Returns [`ConvertRefusal::Writer`](crate::convert::ConvertRefusal::Writer), and the errors of [`Fold::value`].
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
/// Returns the errors of [`Comparison::check`].
pub(super) fn check_values<'r>(
    exported: &Graph<'r>,
    raised: &Graph<'r>,
    operands: &ExportedNames<'r>,
    sample: Sample,
    [before, after]: [&mut Fold<'r>; 2],
) -> Result<(), OnnxError> {
    let scatters = raised.nodes().iter().filter(|node| node.is("TensorScatter"));
    let starts: BTreeSet<_> = scatters.filter_map(|scatter| scatter.input(2)).collect();
    let correspondence = |name| match (exported.name(name), operands.get(name)) {
        (Some(exported), _) => Correspondence::Exported(exported),
        (_, Some(exported)) => Correspondence::PerSample(exported),
        // The slots of the scatters are checked.
        _ if starts.contains(name) => Correspondence::NotCompared,
        // Other new values are new rows in another order.
        _ => Correspondence::Unknown,
    };
    let sample = Some(sample);
    Comparison {
        exported: before,
        changed: after,
        correspondence: &correspondence,
        sample,
        may_be_open: false,
    }
    .check(raised)
}

/// Returns a value, and charges its comparison, because many scatters may read the same one.
fn charged<'f>(name: &str, fold: &'f mut Fold<'_>) -> Result<&'f Value, OnnxError> {
    let elements = fold.value(name)?.data.as_ref().map_or(0, Values::len);
    fold.charge(elements)?;
    fold.value(name)
}
