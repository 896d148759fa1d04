//! Reads NumPy arrays by address and strides, because those of ml_dtypes have neither the buffer protocol
//! nor `__dlpack__`.

use std::slice;

use kvscatter::RawBuffer;
use numpy::npyffi::{NPY_ARRAY_WRITEABLE, PyArrayObject_fields};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{Access, Array, Form, Owner, Shape, Strides};
use crate::element::Element;
use crate::failure::Failure;

pub(crate) fn array<'py>(
    array: &Bound<'py, PyUntypedArray>,
    argument: &'static str,
    access: Access,
) -> PyResult<Array<'py>> {
    if !is_exact(array) && is_masked(array)? {
        let why = "is a masked array, whose mask a write would ignore: pass its data";
        return Err(Failure::Tensor { argument, why }.into());
    }
    let descr = array.dtype();
    let element = Element::of_descr(&descr, argument)?;
    let strides = in_elements(array.shape(), array.strides(), descr.itemsize(), argument)?;
    if element.is_string() && !array.is_aligned() {
        return Err(
            Failure::Tensor { argument, why: "contains objects at addresses that are not aligned" }.into()
        );
    }
    if access == Access::Write && !is_writable(array) {
        return Err(Failure::ReadOnly { argument }.into());
    }
    let form = Form::new(element, Shape::from_slice(array.shape()), strides);
    Ok(Array::new(argument, form, data(array), Owner::Numpy(array.clone())))
}

/// Converts strides in bytes to strides in elements.
pub(crate) fn in_elements(
    shape: &[usize],
    strides: &[isize],
    itemsize: usize,
    argument: &'static str,
) -> Result<Strides, Failure> {
    let size = itemsize.max(1).cast_signed();
    let dims = shape.iter().zip(strides).enumerate();
    dims.map(|(dimension, (&count, &stride))| {
        if count > 1 && stride.wrapping_rem(size) != 0 {
            return Err(Failure::Strides { argument, dimension, stride, itemsize });
        }
        Ok(stride.wrapping_div(size))
    })
    .collect()
}

/// Returns `true` if the array is of NumPy's own class and not of a subclass.
pub(crate) fn is_exact(array: &Bound<'_, PyUntypedArray>) -> bool {
    array.is_exact_instance_of::<PyUntypedArray>()
}

fn is_masked(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    let py = array.py();
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?;
    // Without this module, there is no masked array. It takes long to import, so it is not imported here.
    let Some(module) = modules.get_item(intern!(py, "numpy.ma"))? else { return Ok(false) };
    // While the module is imported, it lacks the class.
    let Some(masked) = module.getattr_opt(intern!(py, "MaskedArray"))? else { return Ok(false) };
    // The check uses only the class, so it runs no Python code of the array.
    array.get_type().is_subclass(&masked)
}

pub(crate) fn is_writable(array: &Bound<'_, PyUntypedArray>) -> bool {
    fields(array).flags & NPY_ARRAY_WRITEABLE != 0
}

/// Returns the address of element `[0, 0, …]`.
pub(crate) fn data(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    fields(array).data.cast()
}

/// Returns the values of a dense array of int64 and their memory without an import, or `None` for any other
/// array.
pub(crate) fn i64s<'a>(array: &'a Bound<'_, PyUntypedArray>) -> Option<(&'a [i64], RawBuffer)> {
    let dtype = numpy::dtype::<i64>(array.py());
    let same = is_exact(array) && descr_address(array) == dtype.as_ptr().addr();
    let [count] = *array.shape() else { return None };
    if !same || !array.is_c_contiguous() || !array.is_aligned() || count == 0 {
        return None;
    }
    let first = data(array);
    // SAFETY: NumPy keeps `count` values there, contiguous and aligned. They are read before any other code
    // runs.
    let values = unsafe { slice::from_raw_parts(first.cast::<i64>(), count) };
    Some((values, RawBuffer { ptr: first, len: size_of_val(values) }))
}

/// Returns the address of the dtype. NumPy has one object for each built-in dtype, and arrays made alike
/// share the others.
pub(crate) fn descr_address(array: &Bound<'_, PyUntypedArray>) -> usize {
    fields(array).descr.addr()
}

fn fields<'a>(array: &'a Bound<'_, PyUntypedArray>) -> &'a PyArrayObject_fields {
    let array = array.as_array_ptr();
    // SAFETY: A NumPy array begins with these fields and is alive as long as the reference to it. The fields
    // change only while Python code runs, and no Python code runs before the caller has copied what it
    // reads. (Without an interpreter lock, another thread may reshape an array while it is read. NumPy
    // itself leaves this race to its callers.)
    unsafe { &(*array).fields }
}
