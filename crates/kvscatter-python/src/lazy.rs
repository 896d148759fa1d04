//! Values that Python code makes when they are first needed.
//!
//! Python code may run a signal handler or the finalizer of an object, and both may call this package again. The
//! locks of `pyo3` and of other libraries do not allow this: the second call would wait for the first one, which
//! waits for it. No code of Python may therefore run under a lock.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyMapping, PySequence};
use pyo3::{PyTypeCheck, PyTypeInfo};

/// A value that is made when it is first needed, without a lock. Several calls may make it, and all of them use the
/// first one that is finished.
pub(crate) struct Lazy<T>(PyOnceLock<T>);

impl<T> Lazy<T> {
    pub(crate) const fn new() -> Self {
        Self(PyOnceLock::new())
    }

    /// Returns the value if it exists.
    pub(crate) fn get(&self, py: Python<'_>) -> Option<&T> {
        self.0.get(py)
    }

    /// Returns the value, and makes it first if it does not exist.
    pub(crate) fn get_or_try_make<E>(
        &self,
        py: Python<'_>,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<&T, E> {
        match self.get(py) {
            Some(value) => Ok(value),
            None => make().map(|made| self.0.get_or_init(py, || made)),
        }
    }
}

impl<T: PyTypeCheck> Lazy<Py<T>> {
    /// Returns an attribute of a module.
    pub(crate) fn import<'py>(
        &self,
        py: Python<'py>,
        module: &str,
        attribute: &str,
    ) -> PyResult<&Bound<'py, T>> {
        let import = || PyResult::Ok(py.import(module)?.getattr(attribute)?.cast_into()?.unbind());
        self.get_or_try_make(py, import).map(|value| value.bind(py))
    }
}

/// Makes every value of `pyo3` and `numpy` that this package uses and that they would make under a lock.
pub(crate) fn initialize_libraries(py: Python<'_>) -> PyResult<()> {
    // NumPy's C functions, and the list of arrays that are borrowed.
    PyArray1::from_slice(py, &[0_u8]).try_readonly()?;
    // The classes that arguments are compared with.
    PySequence::type_object(py);
    PyMapping::type_object(py);
    // The function that an iterator calls when its items are collected.
    let _length = PyList::empty(py).try_iter()?.size_hint();
    Ok(())
}
