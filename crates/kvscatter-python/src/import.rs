//! Reads a Python object as an array, by the way that its library has for it.

use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::array::{Access, Array, Owner};
use crate::failure::Failure;
use crate::{dlpack, strided, torch};

impl<'py> Array<'py> {
    /// An array that is read: any library's.
    pub(crate) fn read(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::of(object, argument, Access::Read)
    }

    /// An array that is written: refused where it is read-only or immutable.
    pub(crate) fn written(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::of(object, argument, Access::Write)
    }

    fn of(object: &Bound<'py, PyAny>, argument: &'static str, access: Access) -> PyResult<Self> {
        match object.cast::<PyUntypedArray>() {
            Ok(array) => strided::array(array, argument, access),
            Err(_) => dlpack::array(object, argument, access),
        }
    }

    /// Whether it still lies where it was found. Code that ran since, asked for another argument, may have given its
    /// memory back although it is borrowed: with `resize(refcheck=False)` in NumPy, with `set_` in PyTorch.
    pub(crate) fn check_unmoved(&self) -> PyResult<()> {
        let argument = self.argument;
        let current = match &self.owner {
            Owner::Numpy(array) => Some(strided::array(array, argument, Access::Read)?),
            Owner::Dlpack { object, .. } => dlpack::reimport(object, argument)?,
            Owner::Caller => None,
        };
        if current.is_none_or(|current| self.is(&current)) {
            Ok(())
        } else {
            Err(Failure::Moved { argument }.into())
        }
    }

    /// Tells the array's library that it was written, where it keeps count.
    pub(crate) fn note_written(&self) -> PyResult<()> {
        match &self.owner {
            Owner::Dlpack { object, .. } if dlpack::library(object)? == "torch" => {
                torch::note_written(object)
            }
            _ => Ok(()),
        }
    }
}
