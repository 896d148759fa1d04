//! Strings: object arrays of `str`, whose elements are counted references.

use std::slice;

use kvscatter::{RawBuffer, WritePlan};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{Borrowed, ffi};

use crate::array::Array;
use crate::error::ArgumentNames;
use crate::failure::{Failure, class_name};

/// An element of an object array: null, or a reference that the array owns. A clone is another reference.
/// Dropping an element does not release its reference, because the release may run code, and no code may run
/// while arrays are half written.
#[derive(Debug)]
#[repr(transparent)]
struct ObjectElement(*mut ffi::PyObject);

/// Writes every pair, or none. All pairs have the form that the plan was prepared for.
pub(crate) fn in_place(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    pairs: &[(&Array<'_>, &Array<'_>)],
) -> PyResult<usize> {
    for (index, (cache, update)) in pairs.iter().enumerate() {
        check_strings(py, update)?;
        for (other, (other_cache, other_update)) in pairs.iter().enumerate() {
            check_disjoint(cache, other_update)?;
            if other < index {
                check_disjoint(cache, other_cache)?;
            }
        }
    }
    let mut replaced = Replaced(Vec::new());
    for (cache, update) in pairs {
        // SAFETY: No Python code runs before the write is done. Nothing else reads the cache meanwhile,
        // because `check_disjoint` has compared it with every update and every other cache.
        let cache = unsafe { elements_mut(bytes(cache)) };
        // SAFETY: No Python code runs before the write is done. Nothing writes to an update, because
        // `check_disjoint` has compared it with every cache.
        let update = unsafe { elements(bytes(update)) };
        let before = replaced.0.len();
        plan.for_each_block(|block| {
            block.for_each_run(|to, _| {
                let run = cache.get(to..to.wrapping_add(block.len)).unwrap_or_default();
                replaced.0.extend(run.iter().map(|element| ObjectElement(element.0)));
            });
        });
        if let Err(refused) = plan.write_cloned(cache, update) {
            // The references of the failed pair are still in its cache.
            replaced.0.truncate(before);
            replaced.release(py);
            return Err(ArgumentNames::Functional.raise(py, refused));
        }
    }
    replaced.release(py);
    Ok(plan.skipped())
}

/// Copies `past` to `out` with the update in it.
pub(crate) fn write_present(
    py: Python<'_>,
    plan: &WritePlan<'_>,
    past: &Array<'_>,
    update: &Array<'_>,
    out: &Array<'_>,
) -> PyResult<usize> {
    check_strings(py, update)?;
    check_disjoint(out, past)?;
    check_disjoint(out, update)?;
    // SAFETY: No Python code runs before the write is done. Nothing else reads `out` meanwhile, because
    // `check_disjoint` has compared it with the past and the update.
    let present = unsafe { elements_mut(bytes(out)) };
    let replaced = Replaced(present.iter().map(|element| ObjectElement(element.0)).collect());
    // SAFETY: No Python code runs before the write is done. Nothing writes to the past, which `out` does not
    // overlap.
    let past = unsafe { elements(bytes(past)) };
    // SAFETY: No Python code runs before the write is done. Nothing writes to the update, which `out` does
    // not overlap.
    let update = unsafe { elements(bytes(update)) };
    // This writes every element of the present exactly once.
    let written = plan
        .write_present_cloned(past, update, present)
        .map_err(|refused| ArgumentNames::Functional.raise(py, refused))?;
    replaced.release(py);
    Ok(written.skipped)
}

/// Checks that every element that will be written is a string. The old elements of a cache may be any
/// objects.
fn check_strings(py: Python<'_>, array: &Array<'_>) -> PyResult<()> {
    // SAFETY: The array owns its memory, and no Python code that could write to it runs while the elements
    // are read.
    let elements = unsafe { elements(bytes(array)) };
    for offset in array.form.offsets() {
        let Some(&ObjectElement(object)) = elements.get(offset) else { continue };
        // SAFETY: The pointer is null, or points to an object that the array refers to.
        let object: Option<Borrowed<'_, '_, PyAny>> = unsafe { Borrowed::from_ptr_or_opt(py, object) };
        if !object.is_some_and(|object| object.is_instance_of::<PyString>()) {
            let class = object.map_or_else(|| "None".to_owned(), |object| class_name(&object.get_type()));
            return Err(Failure::NotAString { argument: array.argument, class }.into());
        }
    }
    Ok(())
}

fn check_disjoint(written: &Array<'_>, other: &Array<'_>) -> Result<(), Failure> {
    if bytes(written).overlaps(bytes(other)) {
        return Err(Failure::Overlap { argument: written.argument, with_: other.argument });
    }
    Ok(())
}

fn bytes(array: &Array<'_>) -> RawBuffer {
    array.buffer(Some(array.form.extent().wrapping_mul(size_of::<ObjectElement>())))
}

/// # Safety
/// The memory is that of an array of objects. It outlives the slice and is not written while the slice
/// lives.
unsafe fn elements<'a>(RawBuffer { ptr, len }: RawBuffer) -> &'a [ObjectElement] {
    let count = len.wrapping_div(size_of::<ObjectElement>());
    // SAFETY: The memory is that of an array of objects, which outlives the slice and is not written
    // meanwhile (this function's contract). `strided` has checked that the elements are aligned as pointers.
    // The memory between the elements of a view belongs to the array that it is a view of.
    if count == 0 { &[] } else { unsafe { slice::from_raw_parts(ptr.cast(), count) } }
}

/// # Safety
/// The memory is that of an array of objects. It outlives the slice, and nothing else reads or writes it
/// while the slice lives.
unsafe fn elements_mut<'a>(RawBuffer { ptr, len }: RawBuffer) -> &'a mut [ObjectElement] {
    let count = len.wrapping_div(size_of::<ObjectElement>());
    // SAFETY: The memory is that of an array of objects, which outlives the slice, and nothing else reads or
    // writes it meanwhile (this function's contract). `strided` has checked that the elements are aligned as
    // pointers. The memory between the elements of a view belongs to the array that it is a view of.
    if count == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(ptr.cast(), count) } }
}

impl Clone for ObjectElement {
    fn clone(&self) -> Self {
        // SAFETY: The pointer is null, or points to an object that an array refers to. Elements are cloned
        // only while the interpreter is attached.
        unsafe { ffi::Py_XINCREF(self.0) };
        Self(self.0)
    }
}

/// References that arrays no longer own.
struct Replaced(Vec<ObjectElement>);

impl Replaced {
    /// Releases the references. This may run code, so all writes must be finished before.
    fn release(self, _py: Python<'_>) {
        for ObjectElement(object) in self.0 {
            // SAFETY: The pointer is null, or a reference that an array owned until the write replaced it.
            unsafe { ffi::Py_XDECREF(object) };
        }
    }
}
