//! Copies one integer per sample from an array or a sequence. Another thread may change an array at any
//! time, and the values that are checked must be the values that are used.

use std::{ptr, slice};

use dlpark::ffi::DLDataType;
use dlpark::tensor::TensorRef;
use kvscatter::{ElementType, Lengths, Positions, RawBuffer};
use numpy::PyUntypedArray;
use pyo3::exceptions::PyMemoryError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PySequence, PyString};
use smallvec::SmallVec;

use crate::array::Array;
use crate::error::Digits;
use crate::failure::{Failure, Name, class_name};
use crate::integer::{decimal, integer};
use crate::{strided, torch};

/// Integers of the samples. More than this number of samples cost an allocation.
type Values = SmallVec<[i64; 64]>;

/// The source of values that were not in an array.
const NO_BUFFER: RawBuffer = RawBuffer { ptr: ptr::null_mut(), len: 0 };

/// The values of `write_indices`, `lengths` and similar arguments, one per sample, or their absence.
pub(crate) struct Indices {
    pub(crate) argument: &'static str,
    /// Whether the argument was a single integer, whose value has no index in a list.
    is_one: bool,
    values: Option<Values>,
    /// The memory that the values were read from, if the argument was an array.
    source: RawBuffer,
}

impl Indices {
    /// Reads `None`, an integer array of one dimension, or a sequence of integers.
    ///
    /// # Errors
    /// - `ElementTypeError` for anything else, including booleans and floats
    /// - `ShapeError` for another rank
    /// - `PositionError` for integers that do not fit 64 bits
    pub(crate) fn read(object: Option<&Bound<'_, PyAny>>, argument: &'static str) -> PyResult<Self> {
        match object {
            Some(object) => Self::read_list(object, argument.into()),
            None => Ok(Self { argument, is_one: false, values: None, source: NO_BUFFER }),
        }
    }

    /// Reads an integer array of one dimension or a sequence of integers, like [`read`](Self::read).
    pub(crate) fn read_list(object: &Bound<'_, PyAny>, name: Name) -> PyResult<Self> {
        let argument = name.argument;
        let made = |values, source| Ok(Self { argument, is_one: false, values, source });
        let numpy = object.cast::<PyUntypedArray>();
        let quick = match &numpy {
            Ok(array) => strided::i64s(array).map(|(values, source)| (Values::from_slice(values), source)),
            Err(_) => torch::look(object, i64s),
        };
        if let Some((values, source)) = quick {
            return made(Some(values), source);
        }
        if numpy.is_err() && !object.hasattr(intern!(object.py(), "__dlpack__"))? {
            return made(Some(of_sequence(object, name)?), NO_BUFFER);
        }
        let array = Array::read(object, argument)?;
        let values = of_array(&array, name)?;
        let size = array.element().bits().wrapping_div(8);
        let source = array.buffer(Some(array.form.extent().wrapping_mul(size)));
        made(Some(values), source)
    }

    /// Reads a value for each sample, or one integer for all samples.
    pub(crate) fn list_or_one(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Self> {
        let is_list = object.hasattr(intern!(object.py(), "__len__"))?;
        if is_list { Self::read(Some(object), argument) } else { Self::one(object, argument) }
    }

    /// Reads a single integer. Anything else raises the error for a bad element of a sequence.
    pub(crate) fn one(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Self> {
        let value = number(object, argument.into(), None)?;
        Ok(Self { argument, is_one: true, values: Some(Values::from_slice(&[value])), source: NO_BUFFER })
    }

    /// Returns the values, or `None` if the argument was absent.
    pub(crate) fn values(&self) -> Option<&[i64]> {
        self.values.as_deref()
    }

    /// Returns the number of samples, or `None` for a single integer.
    pub(crate) fn batch(&self) -> Option<usize> {
        (!self.is_one).then(|| self.values().unwrap_or_default().len())
    }

    /// Returns the value of a sample.
    pub(crate) fn value(&self, sample: usize) -> i64 {
        self.values().unwrap_or_default()[if self.is_one { 0 } else { sample }]
    }

    /// Returns the value of a sample, which must not be negative. Returns `PositionError` for a negative value.
    pub(crate) fn size(&self, index: usize) -> Result<usize, Failure> {
        let value = self.value(index);
        let index = (!self.is_one).then_some(index);
        usize::try_from(value).map_err(|_| Failure::NegativeSize { argument: self.argument, index, value })
    }

    /// Returns all values, none of which may be negative. Returns `PositionError` for the first negative value.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, Failure> {
        (0..self.values().unwrap_or_default().len()).map(|index| self.size(index)).collect()
    }

    pub(crate) fn starts(&self) -> Positions<'_> {
        self.values().into()
    }

    pub(crate) fn lengths(&self) -> Lengths<'_> {
        self.values().into()
    }

    /// Returns the values as the 32-bit integers that TensorRT and Ascend require, or no values if the argument was
    /// absent. Returns `PositionError` for the first value that does not fit.
    pub(crate) fn i32s(&self) -> Result<SmallVec<[i32; 64]>, Failure> {
        let narrow = |(index, &value): (usize, &i64)| {
            let unfit = || Failure::IntegerRange {
                argument: self.argument,
                list: None,
                index: (!self.is_one).then_some(index),
                value: Digits(value.to_string()),
                bits: 32,
            };
            i32::try_from(value).map_err(|_| unfit())
        };
        self.values.iter().flatten().enumerate().map(narrow).collect()
    }

    /// Checks that the source of the values and the written memory share no byte.
    pub(crate) fn check_disjoint(&self, written: RawBuffer, name: &'static str) -> Result<(), Failure> {
        if self.source.overlaps(written) {
            return Err(Failure::Overlap { argument: name, with_: self.argument });
        }
        Ok(())
    }
}

/// Returns the values of a dense tensor of int64 and their memory without an import, or `None` for any other
/// tensor.
fn i64s(tensor: &TensorRef<'_>) -> Option<(Values, RawBuffer)> {
    let [count] = *tensor.shape() else { return None };
    let [stride] = *tensor.strides()? else { return None };
    let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
    if tensor.dtype() != DLDataType::of::<i64>() || stride != 1 && count > 1 {
        return None;
    }
    // SAFETY: PyTorch filled in the description, whose offset leads to the first element.
    let first = unsafe { tensor.offset_data_ptr::<i64>() }.ok()?;
    // SAFETY: The type is int64 and the stride is 1 (both checked above), so `count` values lie there
    // without gaps. `offset_data_ptr` has checked the alignment. The values are copied before any Python
    // code runs that could change them.
    let values = unsafe { slice::from_raw_parts(first, count) };
    Some((Values::from_slice(values), RawBuffer { ptr: first.cast_mut().cast(), len: size_of_val(values) }))
}

fn of_array(array: &Array<'_>, name: Name) -> PyResult<Values> {
    let Name { argument, list } = name;
    let [count] = *array.form.shape else {
        return Err(Failure::IndexRank { argument, list, rank: array.form.shape.len() }.into());
    };
    // The strides of an empty array have no meaning, and `np.array([])` is float64.
    if count == 0 {
        return Ok(Values::new());
    }
    let ty = array.element().ty;
    let read = match ty {
        ElementType::Int64 => read_number::<i64>,
        ElementType::Int32 => read_number::<i32>,
        ElementType::Int16 => read_number::<i16>,
        ElementType::Int8 => read_number::<i8>,
        ElementType::UInt64 => read_number::<u64>,
        ElementType::UInt32 => read_number::<u32>,
        ElementType::UInt16 => read_number::<u16>,
        ElementType::UInt8 => read_number::<u8>,
        _ => return Err(Failure::NotIntegers { argument, list, got: array.element().to_string() }.into()),
    };
    let [stride] = *array.form.strides() else { return Ok(Values::new()) };
    let size = array.element().bits().wrapping_div(8).cast_signed();
    let first = array.data();
    // With a stride of 0, one element can claim any count, so the allocation may fail.
    let mut values = Values::new();
    values.try_reserve_exact(count).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    for index in 0..count {
        let at = first.wrapping_offset(index.cast_signed().wrapping_mul(stride).wrapping_mul(size));
        // SAFETY: `index` is less than `count`. By the shape and strides that its library states, an element
        // of the type that `read` takes lies there. The array is borrowed for this call.
        let value = unsafe { read(at) };
        let too_large = |_| too_large(name, Some(index), value.to_string());
        values.push(i64::try_from(value).map_err(too_large)?);
    }
    Ok(values)
}

/// # Safety
/// `at` points to a `T`, aligned or not.
unsafe fn read_number<T: Into<i128>>(at: *const u8) -> i128 {
    // SAFETY: `at` points to a `T`, aligned or not (this function's contract).
    unsafe { at.cast::<T>().read_unaligned() }.into()
}

fn of_sequence(object: &Bound<'_, PyAny>, name: Name) -> PyResult<Values> {
    let Name { argument, list } = name;
    let refused = || Failure::NotASequence { argument, list, class: class_name(&object.get_type()) };
    let is_text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    if is_text {
        return Err(refused().into());
    }
    // A sequence is required, because sets have no order and the keys of a dict are not meant to be in the
    // order of the samples.
    let items = object.cast::<PySequence>().map_err(|_| refused())?.try_iter()?;
    items.enumerate().map(|(index, item)| number(&item?, name, Some(index))).collect()
}

/// Reads a single integer. `index` is its index if it is in a list.
fn number(item: &Bound<'_, PyAny>, name: Name, index: Option<usize>) -> PyResult<i64> {
    let Name { argument, list } = name;
    let not_an_integer = || Failure::NotIntegers { argument, list, got: class_name(&item.get_type()) };
    let integer = integer(item)?.ok_or_else(not_an_integer)?;
    integer.extract().map_err(|_| too_large(name, index, decimal(item)).into())
}

fn too_large(Name { argument, list }: Name, index: Option<usize>, value: String) -> Failure {
    Failure::IntegerRange { argument, list, index, value: Digits(value), bits: 64 }
}
