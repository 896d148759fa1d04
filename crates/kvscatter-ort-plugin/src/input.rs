//! The inputs of a call.

use core::ops::Range;
use core::ptr;
use std::borrow::Cow;

use bytemuck::Pod;
use kvscatter::{Argument, ElementType, Error, RawBuffer};
use kvscatter_attention::{Float, Operand};
use ort_sys::OrtValue;

use crate::recent::Signature;
use crate::runtime::{RuntimeApi, element_code, element_type};
use crate::status::CallError;

/// The role of an input. Errors about the input name it.
pub(crate) trait Role: Copy {
    /// Creates the failure of an input of this role. The message begins with the name of the input.
    fn failure(self, problem: String) -> CallError;

    /// Creates the failure of an input whose elements have another type than the accepted ones.
    fn type_failure(self, element: ElementType, accepted: &'static [ElementType]) -> CallError {
        let accepted: Vec<String> = accepted.iter().map(ElementType::to_string).collect();
        self.failure(format!("has elements of type {element}, must be {}", accepted.join(" or ")))
    }

    /// Creates the failure of an input that is not a list.
    fn list_failure(self, rank: usize) -> CallError {
        self.failure(format!("has rank {rank}, must be 1"))
    }
}

/// An input of a write. The core has errors for its type and its rank, and the operator has a name for it in messages.
impl Role for Argument {
    fn failure(self, problem: String) -> CallError {
        CallError::argument(self, problem)
    }

    fn type_failure(self, element: ElementType, accepted: &'static [ElementType]) -> CallError {
        Error::ElementType { argument: self, element, accepted }.into()
    }

    fn list_failure(self, rank: usize) -> CallError {
        Error::Rank { argument: self, rank, expected: &[1] }.into()
    }
}

/// An input of attention, which is displayed with its name in a model.
impl Role for Operand {
    fn failure(self, problem: String) -> CallError {
        CallError::fail(format!("{self} {problem}"))
    }
}

/// An input that is neither an argument of a write nor an operand of attention.
#[derive(Clone, Copy)]
pub(crate) struct Named(pub(crate) &'static str);

impl Role for Named {
    fn failure(self, problem: String) -> CallError {
        CallError::fail(format!("{} {problem}", self.0))
    }
}

/// An input of a call.
pub(crate) struct InputTensor<'a, R = Argument> {
    pub(crate) role: R,
    value: *const OrtValue,
    /// The element type, as the runtime's number for it.
    code: i32,
    /// The size of each dimension, which may be negative in a malformed tensor.
    shape: &'a [i64],
    /// The address at which the elements begin.
    data: *mut u8,
}

impl<'a, R: Role> InputTensor<'a, R> {
    /// Creates an input from a tensor of the runtime, with its type, shape and address.
    ///
    /// # Safety
    /// `value` is a tensor of the runtime that is valid for `'a`.
    pub(crate) unsafe fn new(
        runtime: RuntimeApi,
        role: R,
        value: *const OrtValue,
    ) -> Result<Self, CallError> {
        let (mut code, mut dims, mut rank) = (0_i32, ptr::null(), 0);
        let code_out = (&raw mut code).cast();
        // SAFETY: `value` is valid by this function's contract. `code`, `dims` and `rank` take the results
        // (R1), and `code` has the size of the header's enumeration.
        let status = unsafe {
            (runtime.api.GetTensorElementTypeAndShapeDataReference)(
                value,
                code_out,
                &raw mut dims,
                &raw mut rank,
            )
        };
        runtime.check(status)?;
        let shape = if rank == 0 {
            [].as_slice()
        } else {
            // SAFETY: The runtime returned a list of `rank` dimensions, which lives as long as the tensor
            // (R5). The tensor lives for `'a`.
            unsafe { core::slice::from_raw_parts(dims, rank) }
        };
        // SAFETY: `value` is valid by this function's contract, and `out` takes the result (R1).
        let data = runtime.result(ptr::null(), |out| unsafe { (runtime.api.GetTensorData)(value, out) })?;
        Ok(Self { role, value, code, shape, data: data.cast_mut().cast() })
    }

    /// Returns the tensor of the runtime.
    pub(crate) fn as_ptr(&self) -> *const OrtValue {
        self.value
    }

    /// Returns the same input in another role.
    pub(crate) fn with_role<S>(&self, role: S) -> InputTensor<'a, S> {
        let Self { value, code, shape, data, .. } = *self;
        InputTensor { role, value, code, shape, data }
    }

    /// Returns the size of each dimension, which may be negative in a malformed tensor.
    pub(crate) fn shape(&self) -> &'a [i64] {
        self.shape
    }

    /// Returns the address and the size of the memory. The size follows from the type and the shape. Returns an error
    /// if no tensor can have the type or the shape, or if the program has bound no memory.
    pub(crate) fn memory(&self) -> Result<RawBuffer, CallError> {
        let count = self.shape.iter().try_fold(1_usize, |product, &dim| match usize::try_from(dim) {
            Ok(dim) => product.checked_mul(dim),
            Err(_) => None,
        });
        let element = self.element()?;
        let Some(len) = count.and_then(|count| element.storage_len(&[count])) else {
            return Err(self.role.failure(format!("has shape {:?}, which no tensor can have", self.shape)));
        };
        let memory = RawBuffer { ptr: self.data, len };
        if is_possible(memory) { Ok(memory) } else { Err(self.role.failure("has no memory".to_owned())) }
    }

    /// Returns the memory. The tensor has no strings. Returns the errors of [`memory`](Self::memory).
    pub(crate) fn bytes(&self) -> Result<&'a [u8], CallError> {
        let RawBuffer { ptr, len } = self.memory()?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: `ptr` points to the elements, which take `len` bytes and are valid for `'a` by the contract of `new`.
        Ok(unsafe { core::slice::from_raw_parts(ptr, len) })
    }

    /// Returns a tensor without memory.
    #[cfg(test)]
    pub(crate) fn without_data(role: R, code: i32, shape: &'a [i64]) -> Self {
        Self { role, value: ptr::null(), code, shape, data: ptr::null_mut() }
    }

    /// Returns the type of the elements. Returns an error if no operator supports the type.
    pub(crate) fn element(&self) -> Result<ElementType, CallError> {
        element_type(self.code).ok_or_else(|| {
            self.role.failure(format!("has element type {}, which no operator supports", self.code))
        })
    }

    /// Returns the dimensions as sizes. Returns an error if a dimension is negative.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, CallError> {
        let size = |&dim: &i64| usize::try_from(dim);
        self.shape.iter().map(size).collect::<Result<_, _>>().map_err(|_| {
            self.role.failure(format!("has shape {:?}: no dimension may be negative", self.shape))
        })
    }

    /// Returns the addresses of the elements. Returns an error for the same reasons as [`memory`](Self::memory).
    pub(crate) fn addresses(&self) -> Result<Range<usize>, CallError> {
        self.memory().map(range)
    }

    /// Checks that the tensor has these sizes. Returns an error that names both shapes if it has others.
    pub(crate) fn check_shape<const N: usize>(&self, expected: [usize; N]) -> Result<(), CallError> {
        if *self.shape == expected.map(|size| size as i64) {
            return Ok(());
        }
        Err(self.role.failure(format!("has shape {:?}, must be {expected:?}", self.shape)))
    }

    /// Returns the element type and the shape.
    pub(crate) fn signature(&self) -> Signature<'a> {
        (self.code, self.shape)
    }

    /// Returns `true` if the elements are of this type.
    pub(crate) fn has_element(&self, element: ElementType) -> bool {
        self.code == element_code(element)
    }

    /// Returns the values of a tensor that is a list of such integers. Returns an error if the tensor has another type
    /// or rank.
    pub(crate) fn list<T: Integer>(&self) -> Result<Cow<'a, [T]>, CallError> {
        let integers = self.integers()?;
        if self.shape.len() != 1 {
            return Err(self.role.list_failure(self.shape.len()));
        }
        Ok(integers)
    }

    /// Returns the values of a tensor of such integers. Returns an error if the tensor has another type.
    pub(crate) fn integers<T: Integer>(&self) -> Result<Cow<'a, [T]>, CallError> {
        self.check_element(const { &[T::ELEMENT] })?;
        self.elements()
    }

    /// Returns the values of a tensor of such numbers. Returns an error if the tensor has another type.
    pub(crate) fn floats<T: Float>(&self) -> Result<Cow<'a, [T]>, CallError> {
        self.check_element(const { &[T::ELEMENT] })?;
        self.elements()
    }

    /// Returns an error if the elements are not of one of these types.
    pub(crate) fn check_element(&self, accepted: &'static [ElementType]) -> Result<(), CallError> {
        if accepted.iter().any(|&element| self.has_element(element)) {
            return Ok(());
        }
        Err(self.role.type_failure(self.element()?, accepted))
    }

    /// Returns the elements, which have the width of `T`. The caller has checked their type. Returns an error if a
    /// dimension is negative, or if the width is not that of `T`.
    pub(crate) fn elements<T: Pod>(&self) -> Result<Cow<'a, [T]>, CallError> {
        if element_type(self.code).and_then(ElementType::bits) != Some(8 * size_of::<T>()) {
            return Err(self
                .role
                .failure(format!("has elements that are not {} bytes wide", size_of::<T>())));
        }
        let memory = self.memory()?;
        // SAFETY: The memory is that of the elements, which are as wide as `T` and valid for `'a` by the contract of
        // `new`.
        Ok(unsafe { elements_at(memory) })
    }
}

/// Returns the addresses of memory.
pub(crate) fn range(memory: RawBuffer) -> Range<usize> {
    let first = memory.ptr.addr();
    first..first.saturating_add(memory.len)
}

/// Returns whether memory can be at this address. A program may have bound any number.
pub(crate) fn is_possible(memory: RawBuffer) -> bool {
    (memory.len == 0 || !memory.ptr.is_null()) && !memory.wraps()
}

/// Returns the elements of memory that contains only whole ones. They are copied if the memory is not aligned, because
/// memory that a program binds may have any alignment.
///
/// # Safety
/// The memory is initialised, valid for reads for `'a`, and nothing writes to it until then.
pub(crate) unsafe fn elements_at<'a, T: Pod>(memory: RawBuffer) -> Cow<'a, [T]> {
    let (data, count) = (memory.ptr.cast::<T>(), memory.len / size_of::<T>());
    if count == 0 {
        return Cow::Borrowed(&[]);
    }
    if data.is_aligned() {
        // SAFETY: `data` is aligned and points to `count` elements, which are valid for `'a` by this function's
        // contract. Any bits are a value of `T`, which is `Pod`.
        return Cow::Borrowed(unsafe { core::slice::from_raw_parts(data, count) });
    }
    let mut values = vec![T::zeroed(); count];
    // SAFETY: `memory` has `count` elements, by this function's contract, and `values` is new memory for as many.
    unsafe { ptr::copy_nonoverlapping(memory.ptr, values.as_mut_ptr().cast(), size_of_val(&*values)) };
    Cow::Owned(values)
}

/// An integer type of positions and lengths.
pub(crate) trait Integer: Pod {
    /// The element type of the integer.
    const ELEMENT: ElementType;
}

impl Integer for i32 {
    const ELEMENT: ElementType = ElementType::Int32;
}

impl Integer for i64 {
    const ELEMENT: ElementType = ElementType::Int64;
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use kvscatter::{Argument, ElementType, Error};

    use super::InputTensor;
    use crate::runtime::element_code;
    use crate::status::CallError;

    const ARGUMENT: Argument = Argument::WriteIndices;

    fn tensor<'a>(element: ElementType, shape: &'a [i64], data: &'a [u8]) -> InputTensor<'a> {
        InputTensor {
            data: data.as_ptr().cast_mut(),
            ..InputTensor::without_data(ARGUMENT, element_code(element), shape)
        }
    }

    #[test]
    fn lists_are_read_wherever_they_begin() {
        let bytes: Vec<u8> = [7_i32, -1, i32::MAX, 0].iter().flat_map(|value| value.to_ne_bytes()).collect();
        let mut memory = vec![0_u8; bytes.len() + 8];
        let mut kinds = [0, 0];
        for offset in 0..8 {
            memory[offset..offset + bytes.len()].copy_from_slice(&bytes);
            let list = tensor(ElementType::Int32, &[4], &memory[offset..]).list::<i32>().unwrap();
            assert_eq!(*list, [7, -1, i32::MAX, 0], "{offset}");
            kinds[usize::from(matches!(list, Cow::Owned(_)))] += 1;
        }
        assert_eq!(kinds, [2, 6], "borrowed where aligned, copied elsewhere");
    }

    #[test]
    fn an_empty_list_needs_no_memory() {
        let empty = InputTensor { data: std::ptr::null_mut(), ..tensor(ElementType::Int64, &[0], &[]) };
        assert_eq!(*empty.list::<i64>().unwrap(), []);
    }

    #[test]
    fn other_tensors_are_no_lists() {
        let data = [0; 16];
        let list = |element, shape| match tensor(element, shape, &data).list::<i64>() {
            Err(CallError::Core(error)) => Some(error),
            _ => None,
        };
        let (argument, element) = (ARGUMENT, ElementType::Int32);
        let refused = Error::ElementType { argument, element, accepted: &[ElementType::Int64] };
        assert_eq!(list(ElementType::Int32, &[2]), Some(refused));
        let rank = |rank| Some(Error::Rank { argument: ARGUMENT, rank, expected: &[1] });
        assert_eq!(list(ElementType::Int64, &[]), rank(0));
        assert_eq!(list(ElementType::Int64, &[1, 2]), rank(2));
    }

    #[test]
    fn a_type_that_nothing_is_defined_for_is_called_by_its_number() {
        let refused = InputTensor::without_data(ARGUMENT, 25, &[2]).list::<i64>().unwrap_err().to_string();
        assert_eq!(refused, "write_indices has element type 25, which no operator supports");
    }
}
