//! An array on a CUDA device, of any library: its form, its address, and the object that keeps it alive.

use dlpark::python::ImportedDlpack;
use kvscatter::{Argument, ElementType};
use kvscatter_cuda::{DeviceBuffer, DeviceList};
use numpy::PyUntypedArray;
use pyo3::intern;
use pyo3::prelude::*;

use super::interface;
use super::operator::ASCEND;
use crate::array::{Access, Array};
use crate::dlpack;
use crate::failure::{Failure, MemoryKind, class_name};

/// An array on a CUDA device.
pub(crate) struct DeviceArray<'py> {
    /// The description of the array. The host never dereferences its address.
    pub(crate) array: Array<'py>,
    pub(crate) object: Bound<'py, PyAny>,
    /// The device's number, if the library reports it.
    device: Option<i32>,
    /// The stream on which the array is ready, if its library names one.
    pub(crate) stream: Option<usize>,
}

/// The objects that keep an array at its address.
pub(crate) struct KeptAlive {
    #[expect(dead_code, reason = "kept alive, not read")]
    object: Py<PyAny>,
    #[expect(dead_code, reason = "kept alive, not read: dropping it releases the memory")]
    dlpack: Option<ImportedDlpack>,
}

impl<'py> DeviceArray<'py> {
    /// Imports an array for reading.
    pub(crate) fn read(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::import(object, argument, Access::Read)
    }

    /// Imports an array for writing.
    pub(crate) fn written(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Self> {
        Self::import(object, argument, Access::Write)
    }

    fn import(object: &Bound<'py, PyAny>, argument: &'static str, access: Access) -> PyResult<Self> {
        let py = object.py();
        if object.is_instance_of::<PyUntypedArray>() {
            let (device, is) = ("the CPU".to_owned(), Some(MemoryKind::Host));
            return Err(Failure::Device { argument, device, is, wanted: MemoryKind::Cuda }.into());
        }
        let made = |array, device, stream| Self { array, object: object.clone(), device, stream };
        if object.hasattr(intern!(py, "__dlpack__"))? {
            let (array, device) = dlpack::on_cuda(object, argument, access)?;
            return Ok(made(array, Some(device), None));
        }
        let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? else {
            return Err(Failure::NotOnDevice { argument, class: class_name(&object.get_type()) }.into());
        };
        let (array, stream) = interface::array(&interface, argument, access)?;
        Ok(made(array, None, stream))
    }

    /// Checks that the array is on this device, if its library reports the device.
    pub(crate) fn check_on(&self, current: i32) -> Result<(), Failure> {
        match self.device {
            Some(device) if device != current => {
                let device = format!("cuda:{device}");
                Err(Failure::NotCurrent { argument: self.array.argument, device, current })
            }
            _ => Ok(()),
        }
    }

    /// Returns the memory as a buffer of the size that the core requires.
    pub(crate) fn buffer(&self, bytes: Option<usize>) -> DeviceBuffer {
        let buffer = self.array.buffer(bytes);
        DeviceBuffer::new(address(buffer.ptr), buffer.len)
    }

    /// Returns the memory of an array without gaps.
    pub(crate) fn dense(&self) -> Result<DeviceBuffer, Failure> {
        Ok(self.buffer(Some(self.array.dense_bytes()?)))
    }

    /// Returns the function that makes a list of the array's values, which must be integers.
    pub(crate) fn of_integers(&self) -> Result<fn(u64, usize) -> DeviceList, Failure> {
        let Array { argument, form, .. } = &self.array;
        match form.element.ty {
            ElementType::Int32 => Ok(DeviceList::i32),
            ElementType::Int64 => Ok(DeviceList::i64),
            _ => Err(Failure::DeviceIntegers { argument, got: form.element, wanted: "int32 or int64" }),
        }
    }

    /// Returns the array's integers as a list with one value per sample.
    pub(crate) fn list(&self) -> Result<DeviceList, Failure> {
        let Array { argument, form, .. } = &self.array;
        let list = self.of_integers()?;
        let [count] = *form.shape else {
            return Err(Failure::IndexRank { argument, list: None, rank: form.shape.len() });
        };
        // An empty list may have any address.
        let address = if count == 0 { 0 } else { self.dense()?.address };
        Ok(list(address, count))
    }

    pub(crate) fn check_int32(&self) -> Result<(), Failure> {
        let Array { argument, form, .. } = &self.array;
        if form.element.ty == ElementType::Int32 {
            return Ok(());
        }
        Err(Failure::DeviceIntegers { argument, got: form.element, wanted: "int32" })
    }

    /// Returns the address of the array's only 32-bit integer.
    pub(crate) fn layer(&self) -> PyResult<u64> {
        self.check_int32()?;
        match self.array.form.count().unwrap_or(usize::MAX) {
            1 => Ok(address(self.array.data())),
            got => {
                let refused = kvscatter::Error::ListLength { argument: Argument::LayerId, got, expected: 1 };
                Err(ASCEND.names.raise(self.object.py(), refused))
            }
        }
    }

    pub(crate) fn keep_alive(self) -> KeptAlive {
        KeptAlive { object: self.object.unbind(), dlpack: self.array.into_dlpack() }
    }
}

/// Converts an address. `kvscatter_cuda` asserts that a device's addresses are as wide as the host's.
fn address(ptr: *mut u8) -> u64 {
    u64::try_from(ptr.addr()).unwrap_or(u64::MAX)
}
