//! Describes a Python object in the core's types: its memory, element type, shape and strides.

use std::fmt;

use dlpark::python::ImportedDlpack;
use kvscatter::{Layout, RawBuffer};
use numpy::PyUntypedArray;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::element::Element;
use crate::failure::Failure;

/// The number of elements along each dimension.
pub(crate) type Shape = SmallVec<[usize; 6]>;
/// The number of elements between neighbouring positions along each dimension.
pub(crate) type Strides = SmallVec<[isize; 6]>;

/// The use of an array in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// An array of any library, borrowed for one call.
pub(crate) struct Array<'py> {
    pub(crate) argument: &'static str,
    pub(crate) form: Form,
    /// The address of element `[0, 0, …]`.
    data: *mut u8,
    pub(crate) owner: Owner<'py>,
}

/// The owner that keeps the memory alive. Python code that runs during the call can still move the memory,
/// so [`check_unmoved`](Array::check_unmoved) checks for this.
pub(crate) enum Owner<'py> {
    Numpy(Bound<'py, PyUntypedArray>),
    Dlpack {
        object: Bound<'py, PyAny>,
        /// The handle that releases the memory when it is dropped.
        tensor: ImportedDlpack,
    },
    /// A tensor of PyTorch, looked at when no more Python code runs before its use.
    Torch(Bound<'py, PyAny>),
    /// The function that allocated the array.
    Caller,
}

/// The description that a write is prepared for: everything about an array except its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) element: Element,
    pub(crate) shape: Shape,
    strides: Strides,
    dense: bool,
}

impl<'py> Array<'py> {
    pub(crate) fn new(argument: &'static str, form: Form, data: *mut u8, owner: Owner<'py>) -> Self {
        Self { argument, form, data, owner }
    }

    pub(crate) fn element(&self) -> Element {
        self.form.element
    }

    /// Returns the NumPy array if it is one.
    pub(crate) fn numpy(&self) -> Option<&Bound<'py, PyUntypedArray>> {
        match &self.owner {
            Owner::Numpy(array) => Some(array),
            Owner::Dlpack { .. } | Owner::Torch(_) | Owner::Caller => None,
        }
    }

    /// Returns the address of element `[0, 0, …]`.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Returns `true` if both arrays are the same tensor in the same memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.data == other.data && self.form == other.form
    }

    /// Returns the handle that keeps the memory alive after this call, if the array was imported through
    /// DLPack.
    pub(crate) fn into_dlpack(self) -> Option<ImportedDlpack> {
        match self.owner {
            Owner::Dlpack { tensor, .. } => Some(tensor),
            Owner::Numpy(_) | Owner::Torch(_) | Owner::Caller => None,
        }
    }

    /// Returns the memory as a buffer of the size that the core requires.
    pub(crate) fn buffer(&self, bytes: Option<usize>) -> RawBuffer {
        self.form.buffer(self.data, bytes)
    }

    /// Returns the number of bytes if the array has no gaps.
    pub(crate) fn dense_bytes(&self) -> Result<usize, Failure> {
        let count = self.form.count().filter(|&count| count == self.form.extent());
        let bits = count.and_then(|count| count.checked_mul(self.form.element.bits()));
        Ok(bits.ok_or(Failure::NotContiguous { argument: self.argument })?.div_ceil(8))
    }

    /// Copies the elements in row-major order. The array has elements of this type.
    pub(crate) fn gather<T: Copy>(&self) -> PyResult<Vec<T>> {
        self.check_unmoved()?;
        let first = self.buffer(None).ptr;
        // With strides of 0, few elements can claim any shape, so the allocation may fail.
        let mut elements = Vec::new();
        let count = self.form.count().unwrap_or(usize::MAX);
        elements.try_reserve_exact(count).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        elements.extend(self.form.offsets().map(|offset| {
            // SAFETY: The array has an element at this offset, of this type. No Python code runs during the copy.
            unsafe { first.cast::<T>().wrapping_add(offset).read_unaligned() }
        }));
        Ok(elements)
    }

    /// Checks that both arrays have the same element type. This is the first rule of all three
    /// specifications.
    pub(crate) fn check_same_element(&self, cache: &Self) -> Result<(), Failure> {
        self.form.check_same_element(self.argument, &cache.form)
    }
}

impl Form {
    /// Creates a form. The stride of a dimension with at most one element has no effect, so it becomes that of
    /// a dense array.
    pub(crate) fn new(element: Element, shape: Shape, mut strides: Strides) -> Self {
        let mut step = Some(1_isize);
        let mut dense = true;
        let empty = shape.contains(&0);
        for (stride, &size) in strides.iter_mut().zip(&shape).rev() {
            if empty || size == 1 {
                *stride = step.unwrap_or(0);
            }
            dense &= Some(*stride) == step || empty;
            step = isize::try_from(size).ok().and_then(|size| step?.checked_mul(size.max(1)));
        }
        Self { element, shape, strides, dense }
    }

    /// Creates the form of a row-major array without gaps.
    pub(crate) fn dense(element: Element, shape: Shape) -> Self {
        let mut strides: Strides = shape.iter().map(|_| 0).collect();
        let mut step = 1_isize;
        for (stride, &size) in strides.iter_mut().zip(&shape).rev() {
            *stride = step;
            step = step.wrapping_mul(size.max(1).cast_signed());
        }
        Self { element, shape, strides, dense: true }
    }

    /// Returns `true` if the array is dense and has more than one element.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.dense && self.shape.iter().any(|&size| size > 1)
    }

    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides
    }

    pub(crate) fn layout(&self) -> Layout<'_> {
        if self.dense {
            return Layout::dense(&self.shape);
        }
        Layout::strided(&self.shape, &self.strides).with_offset(self.offset())
    }

    /// Returns the number of elements before element `[0, 0, …]` in the buffer. It is a whole number of
    /// bytes.
    fn offset(&self) -> usize {
        if self.dense {
            return 0;
        }
        let least = Layout::strided(&self.shape, &self.strides).min_offset();
        if self.element.bits() < 8 { least.next_multiple_of(2) } else { least }
    }

    /// Returns the number of elements, or `None` if it overflows, because a description of an array may
    /// contain any sizes.
    pub(crate) fn count(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        self.shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size))
    }

    /// Returns the number of elements from the beginning of the buffer to the end of the last element.
    pub(crate) fn extent(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let reach =
            |(&size, &stride): (&usize, &isize)| size.wrapping_sub(1).wrapping_mul(stride.unsigned_abs());
        let ahead = self.shape.iter().zip(&self.strides).filter(|(_, stride)| **stride > 0).map(reach);
        // This cannot overflow for an array that exists, because such an array ends inside the address
        // space.
        ahead.fold(self.offset().wrapping_add(1), usize::wrapping_add)
    }

    /// Returns the offsets of all elements in the buffer, in row-major order.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = usize> {
        let count = if self.shape.contains(&0) { 0 } else { self.shape.iter().product() };
        let dims: Vec<_> = self.shape.iter().zip(&self.strides).rev().collect();
        let origin = self.offset();
        (0..count).map(move |index| {
            let mut rest: usize = index;
            dims.iter().fold(origin, |offset, &(&size, &stride)| {
                let along = rest.wrapping_rem(size).cast_signed();
                rest = rest.wrapping_div(size);
                offset.wrapping_add_signed(along.wrapping_mul(stride))
            })
        })
    }

    pub(crate) fn buffer(&self, data: *mut u8, bytes: Option<usize>) -> RawBuffer {
        let back = self.offset().wrapping_mul(self.element.bits()).wrapping_div(8);
        RawBuffer { ptr: data.wrapping_sub(back), len: bytes.unwrap_or(0) }
    }

    pub(crate) fn check_same_element(&self, argument: &'static str, cache: &Self) -> Result<(), Failure> {
        if self.element == cache.element {
            return Ok(());
        }
        Err(Failure::DtypeMismatch { argument, element: self.element, cache: cache.element })
    }

    /// Checks that an array can receive the result of a functional write into this one.
    pub(crate) fn check_out(&self, out: &Array<'_>) -> Result<(), Failure> {
        let argument = out.argument;
        out.form.check_same_element(argument, self)?;
        if out.form.shape != self.shape {
            let (got, expected) = (tuple(&out.form.shape), tuple(&self.shape));
            return Err(Failure::OutShape { argument, got, expected });
        }
        if out.form.dense { Ok(()) } else { Err(Failure::NotContiguous { argument }) }
    }

    /// Checks that an array for a result has this shape.
    pub(crate) fn check_result(&self, shape: &[usize]) -> Result<(), Failure> {
        if self.shape.as_slice() == shape {
            return Ok(());
        }
        Err(Failure::ResultShape { argument: "out", got: tuple(&self.shape), expected: tuple(shape) })
    }

    /// Checks that an array has the form that a write was prepared for.
    pub(crate) fn check_prepared(&self, array: &Array<'_>, pair: usize) -> Result<(), Failure> {
        self.check_prepared_type(array, pair)?;
        let Array { argument, form: got, .. } = array;
        let refused = |what, got: String, expected: String| {
            Err(Failure::Prepared { argument, pair, what, got, expected })
        };
        if got.shape != self.shape {
            return refused("shape", tuple(&got.shape), tuple(&self.shape));
        }
        if got.strides != self.strides {
            return refused("strides (in elements)", tuple(&got.strides), tuple(&self.strides));
        }
        Ok(())
    }

    /// Checks that an array has the element type that a write was prepared for.
    pub(crate) fn check_prepared_type(&self, array: &Array<'_>, pair: usize) -> Result<(), Failure> {
        let Array { argument, form: got, .. } = array;
        if got.element == self.element {
            return Ok(());
        }
        let (got, expected) = (got.element.to_string(), self.element.to_string());
        Err(Failure::PreparedType { argument, pair, what: "dtype", got, expected })
    }
}

fn tuple(values: &[impl ToString]) -> String {
    let values: Vec<_> = values.iter().map(ToString::to_string).collect();
    format!("({}{})", values.join(", "), if values.len() == 1 { "," } else { "" })
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.element, tuple(&self.shape))
    }
}
