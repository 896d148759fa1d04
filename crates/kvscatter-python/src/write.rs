//! Executes a plan on arrays. This is the only path from Python to the functions of the core that write
//! bytes.

use kvscatter::{Error, RawBuffer, WritePlan, Written};
use pyo3::prelude::*;

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::failure::Failure;
use crate::indices::Indices;
use crate::object_array;

/// Writes of at least this size release the interpreter lock. Moving 256 KiB takes longer than reacquiring
/// the lock.
const DETACHED: usize = 256 << 10;

/// Writes `update` into `cache` and returns the number of samples that were skipped.
pub(crate) fn in_place(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    cache: &Array<'_>,
    update: &Array<'_>,
    indices: &[&Indices],
) -> PyResult<usize> {
    check_unmoved([cache, update])?;
    check_disjoint(indices, buffer(plan, cache), cache.argument)?;
    if cache.element().is_string() {
        return object_array::in_place(py, plan, &[(cache, update)]);
    }
    let skipped = in_place_raw(py, plan, buffer(plan, cache), update.buffer(plan.geometry().update_bytes()))?;
    cache.note_written()?;
    Ok(skipped)
}

/// Does the work of [`in_place`] once the memory of the arrays is known.
pub(crate) fn in_place_raw(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    cache: RawBuffer,
    update: RawBuffer,
) -> PyResult<usize> {
    let pair = BorrowedBuffers([cache, update]);
    run(py, plan, ArgumentNames::InPlace, move || {
        let BorrowedBuffers([cache, update]) = pair.into_inner();
        // SAFETY: Both buffers are initialised memory of arrays that the calling function borrows until the
        // write is done, so their owners keep it alive. Nothing else uses the memory meanwhile, unless the
        // program writes to one array from two threads. It must not do that, as with NumPy.
        unsafe { plan.write_raw(cache, update) }
    })
}

/// Writes every pair, or none.
pub(crate) fn write_many(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    pairs: &[(Array<'_>, Array<'_>)],
    indices: &[&Indices],
) -> PyResult<usize> {
    check_unmoved(pairs.iter().flat_map(|(cache, update)| [cache, update]))?;
    for (cache, _) in pairs {
        check_disjoint(indices, buffer(plan, cache), cache.argument)?;
    }
    if pairs.first().is_some_and(|(cache, _)| cache.element().is_string()) {
        let pairs: Vec<_> = pairs.iter().map(|(cache, update)| (cache, update)).collect();
        return object_array::in_place(py, plan, &pairs);
    }
    let bytes = plan.geometry().update_bytes();
    let buffers: Vec<_> =
        pairs.iter().map(|(cache, update)| (buffer(plan, cache), update.buffer(bytes))).collect();
    let buffers = BorrowedBuffers(buffers);
    let skipped = run(py, plan, ArgumentNames::InPlace, move || {
        let BorrowedBuffers(buffers) = buffers.into_inner();
        // SAFETY: All buffers are initialised memory of arrays that are borrowed until the write is done, so
        // their owners keep it alive. A vector yields the same pairs each time. Nothing else uses the memory
        // meanwhile, unless the program writes to one array from two threads. It must not do that, as with
        // NumPy.
        unsafe { plan.write_many_raw(buffers.iter().copied()) }
    })?;
    pairs.iter().try_for_each(|(cache, _)| cache.note_written())?;
    Ok(skipped)
}

/// Copies `past` to `out` with the update in it.
pub(crate) fn write_present(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    past: &Array<'_>,
    update: &Array<'_>,
    out: &Array<'_>,
    indices: &[&Indices],
) -> PyResult<usize> {
    check_unmoved([past, update, out])?;
    past.form.check_out(out)?;
    check_disjoint(indices, out.buffer(plan.geometry().present_bytes()), out.argument)?;
    if past.element().is_string() {
        return object_array::write_present(py, plan, past, update, out);
    }
    let geometry = plan.geometry();
    let buffers = BorrowedBuffers([
        buffer(plan, past),
        update.buffer(geometry.update_bytes()),
        out.buffer(geometry.present_bytes()),
    ]);
    let skipped = run(py, plan, ArgumentNames::Functional, move || {
        let BorrowedBuffers([past, update, out]) = buffers.into_inner();
        // SAFETY: All three buffers are initialised memory of arrays that are borrowed until the write is
        // done, so their owners keep it alive. Nothing else uses the memory meanwhile, unless the program
        // writes to one array from two threads. It must not do that, as with NumPy.
        unsafe { plan.write_present_raw(past, update, out) }
    })?;
    out.note_written()?;
    Ok(skipped)
}

/// Checks that no array has moved. From here to the last byte no Python code runs.
fn check_unmoved<'a, 'py: 'a>(arrays: impl IntoIterator<Item = &'a Array<'py>>) -> PyResult<()> {
    arrays.into_iter().try_for_each(Array::check_unmoved)
}

/// Rejects indices that the write would overwrite, although the write uses a copy of them.
pub(crate) fn check_disjoint(
    indices: &[&Indices],
    written: RawBuffer,
    argument: &'static str,
) -> Result<(), Failure> {
    indices.iter().try_for_each(|list| list.check_disjoint(written, argument))
}

fn buffer(plan: &WritePlan<'_>, cache: &Array<'_>) -> RawBuffer {
    cache.buffer(plan.geometry().cache_bytes())
}

fn run(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    names: ArgumentNames,
    write: impl FnOnce() -> Result<Written, Error> + Send,
) -> PyResult<usize> {
    let written =
        if plan.bytes().is_some_and(|bytes| bytes >= DETACHED) { py.detach(write) } else { write() };
    written.map(|written| written.skipped).map_err(|refused| names.raise(py, refused))
}

/// Memory of arrays that are borrowed until [`run`] returns, for its closure.
struct BorrowedBuffers<T>(T);

impl<T> BorrowedBuffers<T> {
    /// Returns `self`, so that closures capture the whole and not the field.
    fn into_inner(self) -> Self {
        self
    }
}

// SAFETY: A `RawBuffer` is an address and a length. The arrays at these addresses are borrowed until `run`
// returns, and `run` waits for the closure.
unsafe impl<const N: usize> Send for BorrowedBuffers<[RawBuffer; N]> {}

// SAFETY: A `RawBuffer` is an address and a length. The arrays at these addresses are borrowed until `run`
// returns, and `run` waits for the closure.
unsafe impl Send for BorrowedBuffers<Vec<(RawBuffer, RawBuffer)>> {}
