//! Imports arrays of libraries without DLPack, such as Numba, by `__cuda_array_interface__`.
//!
//! The interface is version 3 of <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.
//! Older versions have no stream.

use std::ptr;

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{Access, Array, Form, Owner, Shape};
use crate::element::Element;
use crate::failure::Failure;
use crate::strided;

/// Imports an array, and returns the stream that it is ready on.
pub(crate) fn array<'py>(
    interface: &Bound<'py, PyAny>,
    argument: &'static str,
    access: Access,
) -> PyResult<(Array<'py>, Option<usize>)> {
    let refuse = |why| Failure::Interface { argument, why };
    let unfit = |_| refuse("it must be a dict with shape, typestr and data as the protocol has them");
    let fields = interface.cast::<PyDict>().map_err(|_| refuse("it must be a dict"))?;
    let get = |name: &str| Ok::<_, PyErr>(fields.get_item(name)?.filter(|value| !value.is_none()));
    let needed =
        |name: &str| get(name)?.ok_or_else(|| PyErr::from(refuse("it lacks a field that it must have")));

    if get("mask")?.is_some() {
        return Err(refuse("it has a mask, which a write would ignore").into());
    }
    let (data, is_read_only): (usize, bool) = needed("data")?.extract().map_err(unfit)?;
    if access == Access::Write && is_read_only {
        return Err(Failure::ReadOnly { argument }.into());
    }
    let descr = PyArrayDescr::new(interface.py(), &needed("typestr")?).map_err(unfit)?;
    let element = Element::of_descr(&descr, argument)?;
    if element.is_string() {
        return Err(Failure::Dtype { argument, dtype: descr.to_string() }.into());
    }
    let shape = Shape::from_vec(needed("shape")?.extract().map_err(unfit)?);
    if data == 0 && !shape.contains(&0) {
        return Err(refuse("its data is null: was it freed?").into());
    }
    let form = match get("strides")? {
        None => Form::dense(element, shape),
        Some(strides) => {
            let strides: Vec<isize> = strides.extract().map_err(unfit)?;
            if strides.len() != shape.len() {
                return Err(refuse("it has another number of strides than dimensions").into());
            }
            let strides = strided::in_elements(&shape, &strides, descr.itemsize(), argument)?;
            Form::new(element, shape, strides)
        }
    };
    let stream: Option<usize> = get("stream")?.map(|stream| stream.extract()).transpose().map_err(unfit)?;
    if stream == Some(0) {
        return Err(refuse("its stream is 0, which the protocol does not allow").into());
    }
    Ok((Array::new(argument, form, ptr::without_provenance_mut(data), Owner::Caller), stream))
}
