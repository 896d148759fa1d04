//! Reads a call: its buffers, and its attributes.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::slice;

use kvscatter::ElementType;

use crate::status::{CallError, is_ok};
use crate::sys::{
    Attributes, BUFFER, Buffer, ByteSpan, CallFrame, EXECUTE, SCALAR, STRING, Scalar, StreamGetArgs, Values,
};

/// A call of the handler, in the stage in which it does its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'f> {
    pub(crate) frame: &'f CallFrame,
}

/// The arguments or the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensors<'f> {
    types: &'f [c_int],
    values: &'f [*mut c_void],
}

/// An argument or a result: dense memory with a shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor<'f> {
    pub(crate) element: c_int,
    pub(crate) dims: &'f [i64],
    pub(crate) data: *mut u8,
}

impl<'f> Call<'f> {
    /// # Errors
    /// Returns an error if the stage is not [`EXECUTE`].
    ///
    /// # Safety
    /// The frame satisfies F1 to F4.
    pub(crate) unsafe fn new(frame: &'f CallFrame) -> Result<Self, CallError> {
        if frame.stage != EXECUTE {
            return Err(CallError::program(format!(
                "stage {}: kvscatter has only stage {EXECUTE}",
                frame.stage
            )));
        }
        Ok(Self { frame })
    }

    pub(crate) fn arguments(&self) -> Tensors<'f> {
        // SAFETY: The frame satisfies F1 and F2 (the contract of `Call::new`).
        unsafe { Tensors::new(&self.frame.args) }
    }

    pub(crate) fn results(&self) -> Tensors<'f> {
        // SAFETY: The frame satisfies F1 and F2 (the contract of `Call::new`).
        unsafe { Tensors::new(&self.frame.rets) }
    }

    /// Returns the stream of a call on a GPU.
    pub(crate) fn stream(&self) -> Result<*mut c_void, CallError> {
        let context = self.frame.context;
        let mut args = StreamGetArgs {
            struct_size: size_of::<StreamGetArgs>(),
            extension: null_mut(),
            context,
            stream: null_mut(),
        };
        // SAFETY: The table is valid (F4).
        let api = unsafe { &*self.frame.api };
        // SAFETY: The context belongs to the call, and `args` are valid (F4).
        let error = unsafe { (api.stream_get)(&raw mut args) };
        if is_ok(api, error) {
            Ok(args.stream)
        } else {
            Err(CallError::program("XLA gives the call no stream"))
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'f str, CallError> {
        let value = self.attribute(name, STRING)?.cast::<ByteSpan>();
        // SAFETY: An attribute of this type is a text (F1).
        let span = unsafe { *value };
        // SAFETY: The text has this number of bytes (F2) and lives as long as the frame (F1).
        let bytes = unsafe { list(span.ptr, span.len) };
        core::str::from_utf8(bytes).map_err(|_| CallError::program(format!("attribute {name} is not UTF-8")))
    }

    /// Returns an integer of 64 bits.
    pub(crate) fn integer(&self, name: &str) -> Result<i64, CallError> {
        // SAFETY: The element is int64.
        self.scalar(name, S64).map(|value| unsafe { value.cast::<i64>().read_unaligned() })
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, CallError> {
        // SAFETY: The element is a bool, which is one byte (F1). It is read as an integer, which allows every value.
        self.scalar(name, PRED).map(|value| unsafe { value.cast::<u8>().read() } != 0)
    }

    /// Returns a number in float32, or `None` if the call does not have the attribute.
    pub(crate) fn optional_float(&self, name: &str) -> Result<Option<f32>, CallError> {
        if self.find(name).is_none() {
            return Ok(None);
        }
        // SAFETY: The element is float32.
        self.scalar(name, F32).map(|value| Some(unsafe { value.cast::<f32>().read_unaligned() }))
    }

    fn scalar(&self, name: &str, element: c_int) -> Result<*const c_void, CallError> {
        let scalar = self.attribute(name, SCALAR)?.cast::<Scalar>();
        // SAFETY: An attribute of this type is a scalar (F1).
        let scalar = unsafe { &*scalar };
        if scalar.element == element {
            return Ok(scalar.value);
        }
        Err(CallError::program(format!(
            "attribute {name} has XLA type {}, must have {element}",
            scalar.element
        )))
    }

    fn attribute(&self, name: &str, kind: c_int) -> Result<*const c_void, CallError> {
        match self.find(name) {
            Some((found, value)) if found == kind => Ok(value),
            _ => Err(CallError::program(format!("attribute {name} is missing or has another type"))),
        }
    }

    /// Returns the type and the address of an attribute.
    fn find(&self, name: &str) -> Option<(c_int, *const c_void)> {
        let Attributes { size, types, names, values, .. } = self.frame.attrs;
        let size = usize::try_from(size).unwrap_or_default();
        // SAFETY: The list has this length (F2), and lives as long as the frame (F1).
        let types = unsafe { list(types, size) };
        // SAFETY: As above.
        let names = unsafe { list(names, size) };
        // SAFETY: As above.
        let values = unsafe { list(values, size) };
        let is_named = |&span: &*const ByteSpan| {
            // SAFETY: A name is valid (F1).
            let span = unsafe { *span };
            // SAFETY: The name has this number of bytes (F2).
            unsafe { list(span.ptr, span.len) == name.as_bytes() }
        };
        let mut attributes = names.iter().zip(types.iter().zip(values));
        attributes.find(|(span, _)| is_named(span)).map(|(_, (&found, &value))| (found, value))
    }
}

impl<'f> Tensors<'f> {
    /// # Safety
    /// The list satisfies F1 and F2.
    unsafe fn new(values: &'f Values) -> Self {
        let size = usize::try_from(values.size).unwrap_or_default();
        // SAFETY: The list has this length (F2, this function's contract).
        let types = unsafe { list(values.types, size) };
        // SAFETY: As above.
        let values = unsafe { list(values.values, size) };
        Self { types, values }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the tensor at `index`, or `None` if there are fewer.
    pub(crate) fn get(&self, index: usize) -> Result<Option<Tensor<'f>>, CallError> {
        let (Some(&kind), Some(&value)) = (self.types.get(index), self.values.get(index)) else {
            return Ok(None);
        };
        if kind != BUFFER {
            return Err(CallError::program("an argument or a result is not a buffer"));
        }
        // SAFETY: A value of this type is a buffer (F1).
        let buffer: &'f Buffer = unsafe { &*value.cast::<Buffer>() };
        let rank = usize::try_from(buffer.rank).unwrap_or_default();
        // SAFETY: The buffer has this number of dimensions (F2).
        let dims = unsafe { list(buffer.dims, rank) };
        Ok(Some(Tensor { element: buffer.element, dims, data: buffer.data.cast() }))
    }
}

fn negative_size() -> CallError {
    CallError::program("a size is negative")
}

impl Tensor<'_> {
    /// Returns the length of a list of indices or lengths.
    pub(crate) fn count(&self, name: &str) -> Result<usize, CallError> {
        match *self.dims {
            [count] => usize::try_from(count).map_err(|_| negative_size()),
            _ => Err(CallError::program(format!("{name} has shape {:?}, must be [batch]", self.dims))),
        }
    }

    /// Returns the error for elements that a list cannot have.
    pub(crate) fn type_error(&self, name: &str, expected: &str) -> CallError {
        CallError::program(format!("{name} has XLA type {}, must have {expected}", self.element))
    }

    pub(crate) fn shape(&self) -> Result<Vec<usize>, CallError> {
        let sizes = self.dims.iter().map(|&size| usize::try_from(size));
        sizes.collect::<Result<_, _>>().map_err(|_| negative_size())
    }
}

/// Returns a list, which may be null if it is empty.
///
/// # Safety
/// Unless `len` is 0, `len` values that live as long as `'a` lie at `first`.
pub(crate) unsafe fn list<'a, T>(first: *const T, len: usize) -> &'a [T] {
    // SAFETY: `len` values lie there (this function's contract).
    if len == 0 { &[] } else { unsafe { slice::from_raw_parts(first, len) } }
}

/// The numbers of XLA's element types.
pub(crate) const PRED: c_int = 1;
pub(crate) const S32: c_int = 4;
pub(crate) const S64: c_int = 5;
pub(crate) const U32: c_int = 8;
pub(crate) const U64: c_int = 9;
pub(crate) const F32: c_int = 11;

/// Returns the element type with a number of XLA.
///
/// # Errors
/// Returns an error for a type that `TensorScatter` does not have.
pub(crate) fn element_type(number: c_int) -> Result<ElementType, CallError> {
    Ok(match number {
        PRED => ElementType::Bool,
        2 => ElementType::Int8,
        3 => ElementType::Int16,
        S32 => ElementType::Int32,
        S64 => ElementType::Int64,
        6 => ElementType::UInt8,
        7 => ElementType::UInt16,
        U32 => ElementType::UInt32,
        U64 => ElementType::UInt64,
        10 => ElementType::Float16,
        F32 => ElementType::Float32,
        12 => ElementType::Float64,
        15 => ElementType::Complex64,
        16 => ElementType::BFloat16,
        18 => ElementType::Complex128,
        19 => ElementType::Float8E5M2,
        20 => ElementType::Float8E4M3Fn,
        21 => ElementType::Int4,
        22 => ElementType::UInt4,
        24 => ElementType::Float8E5M2FnUz,
        25 => ElementType::Float8E4M3FnUz,
        32 => ElementType::Float4E2M1,
        33 => ElementType::Float8E8M0,
        _ => return Err(CallError::program(format!("TensorScatter has no elements of XLA type {number}"))),
    })
}
