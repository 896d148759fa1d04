//! Reads the attributes of a node whose kernel is being made, the types and shapes of its inputs, and which
//! outputs it has.

use core::ffi::{CStr, c_char};
use core::ptr::null_mut;
use std::sync::Arc;

use ort_sys::{OrtKernelInfo, OrtStatusPtr};

use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;
use crate::workspace::Workspace;

/// The attributes of a node that an execution provider may take, or of one that it has taken.
pub(crate) trait Attributes {
    /// Returns the integer attribute of this name, if the node has it. Returns an error if the attribute is not an
    /// integer.
    fn integer(&self, name: &CStr) -> Result<Option<i64>, CallError>;

    /// Returns the floating-point attribute of this name, if the node has it. Returns an error if the attribute is not
    /// a number.
    fn float(&self, name: &CStr) -> Result<Option<f32>, CallError>;
}

/// A node whose kernel is being made.
pub(crate) struct Node<'a> {
    runtime: RuntimeApi,
    raw: *const OrtKernelInfo,
    /// The memory in which the kernel may work.
    pub(crate) workspace: &'a Arc<Workspace>,
}

impl<'a> Node<'a> {
    /// Creates a node from the description that the runtime passes for a new kernel.
    ///
    /// # Safety
    /// `raw` is valid for `'a` (R2). The runtime passed it to a function that makes a kernel.
    pub(crate) unsafe fn new(
        runtime: RuntimeApi,
        raw: *const OrtKernelInfo,
        workspace: &'a Arc<Workspace>,
    ) -> Self {
        Self { runtime, raw, workspace }
    }

    /// Returns the string attribute of this name, if the node has it. Returns an error if the attribute is not a
    /// string.
    pub(crate) fn string(&self, name: &CStr) -> Result<Option<String>, CallError> {
        let read = |buffer: *mut c_char, length: &mut usize| {
            // SAFETY: `self.raw` is valid by the contract of `new`. `buffer` has `length` bytes, or it is
            // NULL, which requests the length. `length` takes the length (R1).
            let status = unsafe {
                (self.runtime.api.KernelInfoGetAttribute_string)(self.raw, name.as_ptr(), buffer, length)
            };
            self.runtime.check(status)
        };
        let mut length = 0;
        let has_length = read(null_mut(), &mut length);
        if self.given(has_length, name, "a string")?.is_none() {
            return Ok(None);
        }
        let mut buffer = vec![0_u8; length];
        read(buffer.as_mut_ptr().cast(), &mut length)?;
        Ok(Some(decode(&buffer)))
    }

    /// Returns the types and shapes of the inputs. They are unknown for an absent input.
    pub(crate) fn inputs(&self) -> Result<Vec<TensorInfo>, CallError> {
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let count = runtime.result(0, |out| unsafe { (runtime.api.KernelInfo_GetInputCount)(raw, out) })?;
        let input = |index| {
            // SAFETY: `raw` is valid by the contract of `new`, the node has the input `index`, and `out`
            // takes the result (R1).
            let info = Owned::new(runtime, runtime.api.ReleaseTypeInfo, |out| unsafe {
                (runtime.api.KernelInfo_GetInputTypeInfo)(raw, index, out)
            });
            // An absent input has no type.
            let Ok(info) = info else { return Ok(TensorInfo::default()) };
            // SAFETY: `info` is not released yet.
            unsafe { TensorInfo::from_type(runtime, info.as_ptr()) }
        };
        (0..count).map(input).collect()
    }

    /// Returns whether the node has each output.
    pub(crate) fn outputs(&self) -> Result<Vec<bool>, CallError> {
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let count = runtime.result(0, |out| unsafe { (runtime.api.KernelInfo_GetOutputCount)(raw, out) })?;
        let is_present = |index| {
            // An absent output has no name. The answer includes the NUL after it.
            // SAFETY: `raw` is valid by the contract of `new`, the node has the output `index`, and `out` takes the
            // length because there is no buffer (R1).
            let call = |out| unsafe { (runtime.api.KernelInfo_GetOutputName)(raw, index, null_mut(), out) };
            Ok(runtime.result(0, call)? > 1)
        };
        (0..count).map(is_present).collect()
    }

    /// Returns the value of an attribute that was read, or `None` if the node does not have it.
    fn given<T>(&self, read: Result<T, CallError>, name: &CStr, kind: &str) -> Result<Option<T>, CallError> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(_) if self.has_attribute(name) => Err(mistyped(name, kind)),
            Err(_) => Ok(None),
        }
    }

    /// Returns `true` if the node has an attribute of this name. The status of the runtime for an absent
    /// attribute differs from that for an attribute of another kind only in its message, so this tries all
    /// kinds.
    fn has_attribute(&self, name: &CStr) -> bool {
        let Self { runtime, raw, .. } = *self;
        let (mut integer, mut float, mut count) = (0, 0.0, 0);
        let name = name.as_ptr();
        // SAFETY: `raw` is valid by the contract of `new`, and `integer` takes the result (R1).
        let as_integer = unsafe { (runtime.api.KernelInfoGetAttribute_int64)(raw, name, &raw mut integer) };
        // SAFETY: `raw` is valid by the contract of `new`, and `float` takes the result (R1).
        let as_float = unsafe { (runtime.api.KernelInfoGetAttribute_float)(raw, name, &raw mut float) };
        // SAFETY: `raw` is valid by the contract of `new`, and `count` takes the length because there is no
        // buffer (R1).
        let as_string =
            unsafe { (runtime.api.KernelInfoGetAttribute_string)(raw, name, null_mut(), &raw mut count) };
        // SAFETY: `raw` is valid by the contract of `new`, and `count` takes the length because there is no
        // buffer (R1).
        let as_integers =
            unsafe { (runtime.api.KernelInfoGetAttributeArray_int64)(raw, name, null_mut(), &raw mut count) };
        // SAFETY: `raw` is valid by the contract of `new`, and `count` takes the length because there is no
        // buffer (R1).
        let as_floats =
            unsafe { (runtime.api.KernelInfoGetAttributeArray_float)(raw, name, null_mut(), &raw mut count) };
        // Every status must be released, so this does not stop at the first kind that can be read.
        let readable = [as_integer, as_float, as_string, as_integers, as_floats]
            .map(|status: OrtStatusPtr| runtime.check(status).is_ok());
        readable.contains(&true)
    }
}

impl Attributes for Node<'_> {
    fn integer(&self, name: &CStr) -> Result<Option<i64>, CallError> {
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let call = |out| unsafe { (runtime.api.KernelInfoGetAttribute_int64)(raw, name.as_ptr(), out) };
        self.given(runtime.result(0, call), name, "an integer")
    }

    fn float(&self, name: &CStr) -> Result<Option<f32>, CallError> {
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, and `out` takes the result (R1).
        let call = |out| unsafe { (runtime.api.KernelInfoGetAttribute_float)(raw, name.as_ptr(), out) };
        self.given(runtime.result(0.0, call), name, "a number")
    }
}

pub(crate) fn mistyped(name: &CStr, wanted: &str) -> CallError {
    CallError::invalid_argument(format!("attribute {} must be {wanted}", name.to_string_lossy()))
}

/// Decodes a string that the runtime wrote with a NUL after it. The string itself may contain other NULs.
pub(crate) fn decode(buffer: &[u8]) -> String {
    String::from_utf8_lossy(buffer.strip_suffix(b"\0").unwrap_or(buffer)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn strings_end_at_the_last_nul() {
        assert_eq!(decode(b"linear\0"), "linear");
        assert_eq!(decode(b"circular\0\0"), "circular\0");
        assert_eq!(decode(b"\0"), "");
        assert_eq!(decode(b""), "");
        assert_eq!(decode(b"lin\xFFear\0"), "lin\u{fffd}ear");
    }
}
