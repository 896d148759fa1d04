//! Imports a Python object as an array, by the interface of its library.

use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::array::{Access, Array, Owner};
use crate::failure::Failure;
use crate::{dlpack, strided, torch};

impl<'py> Array<'py> {
    /// Imports an array of any library for reading.
    pub(crate) fn read(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::import(object, argument, Access::Read)
    }

    /// Imports an array for writing. Returns an error for an array that is read-only or immutable.
    pub(crate) fn written(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::import(object, argument, Access::Write)
    }

    fn import(object: &Bound<'py, PyAny>, argument: &'static str, access: Access) -> PyResult<Self> {
        match object.cast::<PyUntypedArray>() {
            Ok(array) => strided::array(array, argument, access),
            Err(_) => dlpack::array(object, argument, access),
        }
    }

    /// Checks that the memory of the array has not moved since the import.
    ///
    /// Python code that ran since, for example during the import of another argument, may have freed the
    /// memory although it is borrowed. NumPy allows this with `resize(refcheck=False)`, and PyTorch with
    /// `set_`.
    pub(crate) fn check_unmoved(&self) -> PyResult<()> {
        let argument = self.argument;
        let current = match &self.owner {
            Owner::Numpy(array) => Some(strided::array(array, argument, Access::Read)?),
            Owner::Dlpack { object, .. } => dlpack::reimport(object, argument)?,
            Owner::Torch(_) | Owner::Caller => None,
        };
        if current.is_none_or(|current| self.is(&current)) {
            Ok(())
        } else {
            Err(Failure::Moved { argument }.into())
        }
    }

    /// Notifies the array's library of a write, if that library counts writes.
    pub(crate) fn note_written(&self) -> PyResult<()> {
        match &self.owner {
            Owner::Dlpack { object, .. } if dlpack::library(object)? == "torch" => {
                torch::note_written(object)
            }
            Owner::Torch(tensor) => torch::note_written(tensor),
            _ => Ok(()),
        }
    }
}
