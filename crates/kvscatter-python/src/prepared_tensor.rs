//! One of the two tensors of a prepared write: its form, and a quick check whether an array has that form.

use dlpark::ffi::DLDataType;
use dlpark::tensor::TensorRef;
use kvscatter::{ElementType, RawBuffer};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use smallvec::SmallVec;

use crate::array::{Access, Array, Form, Shape};
use crate::element::{Element, Storage};
use crate::failure::Failure;
use crate::integer::{decimal, integer};
use crate::{dlpack, strided, torch};

/// One of the two tensors in the form that the write was prepared for.
pub(crate) struct PreparedTensor {
    pub(crate) form: Form,
    numpy: Option<NumpyForm>,
    dlpack: Option<DLDataType>,
}

/// The same form as NumPy stores it, so that a call compares fields without translating them.
struct NumpyForm {
    descr: Py<PyArrayDescr>,
    strides: SmallVec<[isize; 6]>,
}

/// See [`PreparedTensor::pickled`].
pub(crate) type PickledTensor = (String, String, Vec<usize>, Vec<isize>);

impl NumpyForm {
    fn new(descr: Bound<'_, PyArrayDescr>, form: &Form) -> Self {
        let itemsize = descr.itemsize().cast_signed();
        let strides = form.strides().iter().map(|stride| stride.wrapping_mul(itemsize)).collect();
        Self { descr: descr.unbind(), strides }
    }
}

impl PreparedTensor {
    /// Prepares for arrays like this one, or for a dense array of this shape.
    pub(crate) fn from_object(
        object: &Bound<'_, PyAny>,
        argument: &'static str,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if object.is_instance_of::<PyTuple>() || object.is_instance_of::<PyList>() {
            let shape = shape(object, argument)?;
            let Some(dtype) = dtype else { return Err(Failure::DtypeMissing { argument: "dtype" }.into()) };
            let descr = descr(dtype)?;
            let form = Form::dense(Element::of_descr(&descr, "dtype")?, shape);
            let numpy = NumpyForm::new(descr, &form);
            return Ok(Self::new(form, Some(numpy)));
        }
        if dtype.is_some() {
            return Err(Failure::DtypeUseless { argument: "dtype" }.into());
        }
        Ok(Self::from_array(Array::read(object, argument)?))
    }

    pub(crate) fn from_array(array: Array<'_>) -> Self {
        let numpy = array.numpy().map(|array| NumpyForm {
            descr: array.dtype().unbind(),
            strides: SmallVec::from_slice(array.strides()),
        });
        Self::new(array.form, numpy)
    }

    /// Returns the element type, its storage, the shape and the strides in elements, for pickle.
    pub(crate) fn pickled(&self) -> PickledTensor {
        let Form { element, shape, .. } = &self.form;
        (
            element.ty.numpy_name().to_owned(),
            element.storage.name().to_owned(),
            shape.to_vec(),
            self.form.strides().to_vec(),
        )
    }

    /// Prepares for arrays like those of a pickled write.
    pub(crate) fn restore(py: Python<'_>, (ty, storage, shape, strides): PickledTensor) -> PyResult<Self> {
        let damaged = || PyValueError::new_err("the pickle of a kvscatter object is damaged");
        let element = ElementType::from_name(&ty).zip(Storage::from_name(&storage));
        let element = element.map(|(ty, storage)| Element { ty, storage }).ok_or_else(damaged)?;
        if strides.len() != shape.len() {
            return Err(damaged());
        }
        let form = Form::new(element, shape.into(), strides.into());
        // Types that NumPy does not have are those of other libraries.
        let descr = descr(&PyString::new(py, &ty).into_any()).ok();
        let descr =
            descr.filter(|descr| Element::of_descr(descr, "dtype").is_ok_and(|found| found == element));
        let numpy = descr.map(|descr| NumpyForm::new(descr, &form));
        Ok(Self::new(form, numpy))
    }

    fn new(form: Form, numpy: Option<NumpyForm>) -> Self {
        let dlpack = form.element.dlpack().filter(|_| !form.element.is_padded());
        Self { form, numpy, dlpack }
    }

    /// Returns `true` if the values of an array are those in its memory.
    ///
    /// PyTorch has views whose values differ from their memory. The only real one is the imaginary part of a
    /// conjugated tensor, which uses every other number. A real tensor with adjacent elements therefore skips
    /// the check, which takes longer than writing a row. Only `as_strided` on such a view defeats this.
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        if object.is_instance_of::<PyUntypedArray>() {
            return true;
        }
        let real = !matches!(self.form.element.ty, ElementType::Complex64 | ElementType::Complex128);
        let needs_no_look = real && self.form.has_neighbours();
        torch::check_gradient(object, "").is_ok()
            && (needs_no_look || torch::check_values(object, "").is_ok())
    }

    /// Returns the memory of an array if quick comparisons show that the write was prepared for it. All
    /// other arrays, including those that are errors, are imported as an [`Array`].
    pub(crate) fn memory(
        &self,
        object: &Bound<'_, PyAny>,
        access: Access,
        bytes: Option<usize>,
    ) -> Option<RawBuffer> {
        let Ok(array) = object.cast::<PyUntypedArray>() else {
            let data = torch::look(object, |tensor| self.data_of_tensor(tensor))?;
            return Some(self.form.buffer(data, bytes));
        };
        let numpy = self.numpy.as_ref()?;
        let same = bytes.is_some()
            && strided::is_exact(array)
            && strided::descr_address(array) == numpy.descr.as_ptr().addr()
            && array.shape() == self.form.shape.as_slice()
            && array.strides() == numpy.strides.as_slice()
            && (access == Access::Read || strided::is_writable(array));
        same.then(|| self.form.buffer(strided::data(array), bytes))
    }

    fn data_of_tensor(&self, tensor: &TensorRef<'_>) -> Option<*mut u8> {
        let sizes = tensor.shape().iter().zip(&self.form.shape);
        let same_shape = tensor.ndim() == self.form.shape.len()
            && sizes.into_iter().all(|(&got, &expected)| usize::try_from(got) == Ok(expected));
        let strides = tensor.strides()?.iter().zip(self.form.strides()).zip(&self.form.shape);
        let mut strides =
            strides.map(|((&got, &expected), &size)| size == 1 || isize::try_from(got) == Ok(expected));
        let same = Some(tensor.dtype()) == self.dlpack && same_shape && strides.all(|same| same);
        // SAFETY: PyTorch filled in the description, whose offset leads to the first element.
        same.then(|| unsafe { tensor.offset_bytes_ptr() }.ok().map(<*const u8>::cast_mut)).flatten()
    }
}

fn shape(sizes: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Shape> {
    let size = |(dimension, size): (usize, PyResult<Bound<'_, PyAny>>)| {
        let size = size?;
        let fits = integer(&size)?.and_then(|size| size.extract::<isize>().ok());
        let refused = || {
            let value = size.repr().map_or_else(|_| decimal(&size), |text| text.to_string());
            Failure::Dimension { argument, dimension, value }
        };
        fits.and_then(|size| usize::try_from(size).ok()).ok_or_else(|| refused().into())
    };
    sizes.try_iter()?.enumerate().map(size).collect()
}

/// Returns NumPy's dtype for a name, a class, or a dtype of PyTorch, which has the same name. NumPy knows
/// the names of ml_dtypes after that package was imported.
fn descr<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyArrayDescr>> {
    let py = dtype.py();
    let name = match &*dlpack::library(dtype)? {
        "torch" => dtype.str()?.call_method1("removeprefix", ("torch.",))?,
        _ => dtype.clone(),
    };
    PyArrayDescr::new(py, &name)
        .or_else(|_| py.import("ml_dtypes").and_then(|_| PyArrayDescr::new(py, &name)))
        .map_err(|_| Failure::DtypeName { argument: "dtype", dtype: dtype.to_string() }.into())
}
