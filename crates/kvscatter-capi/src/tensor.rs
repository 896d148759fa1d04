//! The tensors that C programs pass, and the properties of them that a handle keeps.
//!
//! `lib.rs` defines C1, and the documentation of `kvscatter` defines G1.

use std::ffi::{CStr, c_void};

use kvscatter::{ElementType, Layout, RawBuffer};

use crate::boundary::{Versioned, array};
use crate::call_error::{Aspect, CallError, CallErrorKind, StrideRule, Subject};
use crate::element::kvs_element_type;

/// The largest number of dimensions that a tensor may have.
pub const KVS_MAX_RANK: u32 = 16;

/// A tensor, with its address, element type, dimensions and strides. The library reads this struct only
/// during the call. The struct has the same size in every version, because `kvs_pair` contains two of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_tensor {
    /// `sizeof(kvs_tensor)`. The `KVS_TENSOR_INIT` macro sets it.
    pub struct_size: usize,
    /// The address of element [0, 0, ...], which begins at the start of a byte. One allocation contains this
    /// address and every element that `shape` and `strides` reach, including elements at lower addresses. The
    /// address may be NULL if the tensor has no elements, and the prepare functions ignore it. Elements are
    /// little-endian.
    pub data: *mut c_void,
    /// One of `kvs_element_type_code`.
    pub r#type: kvs_element_type,
    /// The number of dimensions, at most `KVS_MAX_RANK`.
    pub rank: u32,
    /// The `rank` dimensions in elements, outermost first.
    pub shape: *const i64,
    /// The `rank` strides in elements, or NULL for a dense row-major tensor. Strides of an update may be zero
    /// or negative. Strides of a cache must not let its elements overlap. `kvs_attention_prepare` has its own
    /// rules.
    pub strides: *const i64,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_tensor {}

impl kvs_tensor {
    /// Returns the shape.
    ///
    /// # Safety
    /// `self.shape` satisfies C1 for the lifetime `'a`.
    #[inline]
    unsafe fn shape<'a>(&self, argument: &'static CStr) -> Result<&'a [i64], CallError> {
        // SAFETY: This function's contract requires C1 for `self.shape`.
        unsafe { array(self.shape, self.rank as usize, Subject::from(argument).part("shape")) }
    }

    /// Returns the strides, which may be NULL.
    ///
    /// # Safety
    /// `self.strides` satisfies C1 for the lifetime `'a`.
    #[inline]
    unsafe fn strides<'a>(&self, argument: &'static CStr) -> Result<Option<&'a [i64]>, CallError> {
        if self.strides.is_null() {
            return Ok(None);
        }
        let subject = Subject::from(argument).part("strides");
        // SAFETY: This function's contract requires C1 for `self.strides`.
        unsafe { array(self.strides, self.rank as usize, subject) }.map(Some)
    }
}

/// A tensor's type, shape and strides, after the checks for mistakes that only C permits.
#[derive(Debug)]
pub(crate) struct Description {
    /// The tensor's name in the specification.
    pub(crate) argument: &'static CStr,
    pub(crate) element: ElementType,
    pub(crate) shape: Vec<usize>,
    strides: Vec<isize>,
    /// Whether the strides are those of a dense row-major tensor.
    dense: bool,
}

impl Description {
    /// Reads and checks the tensor.
    ///
    /// # Safety
    /// `tensor.shape` and `tensor.strides` satisfy C1.
    pub(crate) unsafe fn read(tensor: &kvs_tensor, argument: &'static CStr) -> Result<Self, CallError> {
        let code = tensor.r#type;
        let element =
            ElementType::from_onnx_code(code).ok_or(CallErrorKind::ElementType { argument, code })?;
        if tensor.rank > KVS_MAX_RANK {
            return Err(
                CallErrorKind::RankLimit { argument, rank: tensor.rank.into(), max: KVS_MAX_RANK }.into()
            );
        }
        // SAFETY: This function's contract requires C1 for `tensor.shape`.
        let shape = unsafe { tensor.shape(argument) }?;
        if let Some((dimension, &value)) = shape.iter().enumerate().find(|(_, size)| **size < 0) {
            return Err(CallErrorKind::NegativeDimension { argument, dimension, value }.into());
        }
        let row_major: Vec<i64> = (0..shape.len()).map(|at| dense_stride(shape, at)).collect();
        // SAFETY: This function's contract requires C1 for `tensor.strides`.
        let strides = unsafe { tensor.strides(argument) }?.unwrap_or(&row_major);
        Ok(Self {
            argument,
            element,
            shape: to_native(shape, argument)?,
            strides: to_native(strides, argument)?,
            dense: first_difference(shape, |at| strides[at], &row_major).is_none(),
        })
    }

    /// Returns the layout of a tensor whose address is that of its element `[0, 0, …]`. The buffer begins on
    /// a byte, so if the lowest 4-bit element shares its byte with the element before it, the buffer includes
    /// that element.
    pub(crate) fn layout(&self) -> Result<Layout<'_>, CallError> {
        if self.dense {
            return Ok(Layout::dense(&self.shape));
        }
        let layout = Layout::strided(&self.shape, &self.strides);
        let per_byte = if self.element.bits() == Some(4) { 2 } else { 1 };
        let offset = layout.min_offset().checked_next_multiple_of(per_byte);
        Ok(layout.with_offset(offset.ok_or(CallErrorKind::TooLarge { subject: self.argument.into() })?))
    }
}

impl Description {
    /// Returns a dense tensor, whose sizes are those of other tensors.
    pub(crate) fn dense(argument: &'static CStr, element: ElementType, shape: &[usize]) -> Self {
        let sizes = to_signed(shape);
        let strides = (0..shape.len()).map(|at| dense_stride(&sizes, at) as isize).collect();
        Self { argument, element, shape: shape.to_vec(), strides, dense: true }
    }

    /// Returns an error if the tensor is not dense.
    pub(crate) fn check_dense(&self) -> Result<(), CallError> {
        let sizes = to_signed(&self.shape);
        let expected: Vec<_> = (0..sizes.len()).map(|at| dense_stride(&sizes, at)).collect();
        match first_difference(&sizes, |at| self.strides[at] as i64, &expected) {
            None => Ok(()),
            Some(at) => Err(self.stride_error(at, StrideRule::Exactly(expected[at]))),
        }
    }

    /// Returns the strides of the samples, heads and rows of a tensor of rank 4, or `None` if it is dense. A stride
    /// that does not matter becomes that of a dense tensor.
    ///
    /// Returns an error if a stride is negative or the elements of a row are not neighbours.
    pub(crate) fn row_strides(&self) -> Result<Option<[usize; 3]>, CallError> {
        if self.dense {
            return Ok(None);
        }
        let sizes = to_signed(&self.shape);
        let used = |at: usize| sizes[at] > 1 && !sizes.contains(&0);
        if used(3) && self.strides[3] != 1 {
            return Err(self.stride_error(3, StrideRule::Exactly(1)));
        }
        let stride = |at| {
            if used(at) {
                let stride = usize::try_from(self.strides[at]);
                stride.map_err(|_| self.stride_error(at, StrideRule::NotNegative))
            } else {
                Ok(usize::try_from(dense_stride(&sizes, at)).unwrap_or(0))
            }
        };
        Ok(Some([stride(0)?, stride(1)?, stride(2)?]))
    }

    fn stride_error(&self, dimension: usize, rule: StrideRule) -> CallError {
        let (argument, value) = (self.argument, self.strides[dimension] as i64);
        CallErrorKind::Stride { argument, dimension, value, rule }.into()
    }
}

/// A prepared tensor, with which the tensors of a run are compared, and the bounds of its buffer.
#[derive(Debug)]
pub(crate) struct Operand {
    /// The tensor's name in the specification. Errors use it too.
    pub(crate) argument: &'static CStr,
    code: kvs_element_type,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    dense: bool,
    /// The alignment of the data, in bytes.
    alignment: usize,
    /// The number of bytes of the buffer before element `[0, 0, …]`.
    before: usize,
    /// The size of the buffer in bytes. It is 0 for strings, which no run accepts.
    bytes: usize,
}

impl Operand {
    /// Creates an operand. The core computes `offset`, the number of elements of the buffer before `[0, 0, …]`,
    /// and `bytes`, the size of the buffer.
    pub(crate) fn new(description: &Description, offset: usize, bytes: Option<usize>) -> Self {
        let Description { argument, element, shape, strides, dense } = description;
        Self {
            argument,
            code: element.onnx_code(),
            shape: to_signed(shape).into(),
            // These numbers were i64 before, so they fit.
            strides: strides.iter().map(|&stride| stride as i64).collect(),
            dense: *dense,
            alignment: alignment(*element),
            // The product fits (G1), and `offset` is even for 4-bit elements.
            before: offset.saturating_mul(element.bits().unwrap_or(8)) / 8,
            bytes: bytes.unwrap_or(0),
        }
    }

    /// Returns a dense tensor of the same type and shape.
    pub(crate) fn dense(&self, argument: &'static CStr, bytes: Option<usize>) -> Self {
        Self {
            argument,
            code: self.code,
            shape: self.shape.clone(),
            strides: (0..self.shape.len()).map(|at| dense_stride(&self.shape, at)).collect(),
            dense: true,
            alignment: self.alignment,
            before: 0,
            bytes: bytes.unwrap_or(0),
        }
    }

    /// Returns the buffer of a tensor, or an error if anything but its address differs from the prepared
    /// tensor.
    ///
    /// # Safety
    /// `tensor.shape` and `tensor.strides` satisfy C1.
    #[inline]
    pub(crate) unsafe fn checked(&self, tensor: &kvs_tensor) -> Result<RawBuffer, CallError> {
        let argument = self.argument;
        let mismatch = |aspect, got, expected| {
            Err(CallErrorKind::TensorMismatch { argument, aspect, got, expected }.into())
        };
        if tensor.r#type != self.code {
            return mismatch(Aspect::Type, tensor.r#type.into(), self.code.into());
        }
        if tensor.rank as usize != self.shape.len() {
            return mismatch(Aspect::Rank, tensor.rank.into(), self.shape.len() as i64);
        }
        // SAFETY: This function's contract requires C1 for `tensor.shape`.
        let shape = unsafe { tensor.shape(argument) }?;
        for (dimension, (&got, &expected)) in shape.iter().zip(&self.shape).enumerate() {
            if got != expected {
                return mismatch(Aspect::Dimension(dimension), got, expected);
            }
        }
        // SAFETY: This function's contract requires C1 for `tensor.strides`.
        let strides = unsafe { tensor.strides(argument) }?;
        if strides.is_some() || !self.dense {
            let stride = |at| strides.map_or_else(|| dense_stride(shape, at), |strides| strides[at]);
            if let Some(at) = first_difference(shape, stride, &self.strides) {
                return mismatch(Aspect::Stride(at), stride(at), self.strides[at]);
            }
        }
        if self.bytes > 0 && !tensor.data.addr().is_multiple_of(self.alignment) {
            let subject = Subject::from(argument).part("data");
            return Err(CallErrorKind::Misaligned { subject, alignment: self.alignment }.into());
        }
        Ok(self.buffer(tensor))
    }

    /// Returns the buffer of a tensor, or an error if anything but its address differs from the prepared
    /// tensor, or if no memory of its size can have this address.
    ///
    /// # Safety
    /// `tensor.shape` and `tensor.strides` satisfy C1.
    pub(crate) unsafe fn memory(&self, tensor: &kvs_tensor) -> Result<RawBuffer, CallError> {
        // SAFETY: This function's contract requires C1 for the shape and strides.
        let buffer = unsafe { self.checked(tensor) }?;
        let (argument, bytes) = (self.argument, buffer.len);
        if bytes > 0 && buffer.ptr.is_null() {
            return Err(CallErrorKind::NullBuffer { argument, bytes }.into());
        }
        if buffer.wraps() {
            let (subject, address) = (Subject::from(argument).part("data"), buffer.ptr.addr());
            return Err(CallErrorKind::AddressSpace { subject, address, bytes }.into());
        }
        Ok(buffer)
    }

    /// Returns the buffer of a tensor that `checked` accepted.
    #[inline]
    pub(crate) fn buffer(&self, tensor: &kvs_tensor) -> RawBuffer {
        let element = tensor.data.cast::<u8>();
        let ptr = if element.is_null() { element } else { element.wrapping_sub(self.before) };
        RawBuffer { ptr, len: self.bytes }
    }
}

/// Returns the alignment that C gives the type, in bytes. A complex number is an array of two floats in C.
fn alignment(element: ElementType) -> usize {
    let bits = match element {
        ElementType::Complex64 => 32,
        ElementType::Complex128 => 64,
        _ => element.bits().unwrap_or(8),
    };
    bits.div_ceil(8)
}

/// Returns a stride of a dense tensor. The product may wrap, because the core rejects such a shape.
fn dense_stride(shape: &[i64], at: usize) -> i64 {
    shape[at..].iter().skip(1).fold(1, |stride: i64, &size| stride.wrapping_mul(size))
}

/// Returns the first dimension whose stride differs and matters. A stride matters if its dimension has more
/// than one element and the tensor is not empty.
#[inline]
fn first_difference(shape: &[i64], stride: impl Fn(usize) -> i64, expected: &[i64]) -> Option<usize> {
    let first = (0..shape.len()).find(|&at| shape[at] > 1 && stride(at) != expected[at]);
    first.filter(|_| !shape.contains(&0))
}

/// Converts sizes that were i64 before, so they fit.
fn to_signed(sizes: &[usize]) -> Vec<i64> {
    sizes.iter().map(|&size| size as i64).collect()
}

/// Converts numbers to the width of the machine's addresses, which may be below 64 bits.
fn to_native<T: TryFrom<i64>>(numbers: &[i64], argument: &'static CStr) -> Result<Vec<T>, CallError> {
    let native = |&number| {
        T::try_from(number).map_err(|_| CallErrorKind::TooLarge { subject: argument.into() }.into())
    };
    numbers.iter().map(native).collect()
}
