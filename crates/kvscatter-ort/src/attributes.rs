//! A node's attributes, whether the runtime is asking about shapes or making a kernel.

use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;
use core::ptr::{null, null_mut};

use ort_sys::{OrtKernelInfo, OrtOpAttr, OrtOpAttrType, OrtShapeInferContext, OrtStatusPtr};

use crate::runtime::Runtime;
use crate::status::Failure;

/// Where attributes are read from.
pub(crate) trait Attributes {
    /// An integer, if the node has one of this name.
    ///
    /// # Errors
    /// If it is of another kind.
    fn integer(&self, name: &CStr) -> Result<Option<i64>, Failure>;

    /// A string, if the node has one of this name.
    ///
    /// # Errors
    /// If it is of another kind.
    fn string(&self, name: &CStr) -> Result<Option<String>, Failure>;
}

fn mistyped(name: &CStr, wanted: &str) -> Failure {
    Failure::invalid_argument(format!("attribute {} must be {wanted}", name.to_string_lossy()))
}

/// The attributes of a node whose kernel is being made.
pub(crate) struct KernelInfo<'a> {
    runtime: Runtime,
    raw: *const OrtKernelInfo,
    call: PhantomData<&'a ()>,
}

impl KernelInfo<'_> {
    /// # Safety
    /// `raw` is what the runtime hands to a call that makes a kernel, and is used no longer than that.
    pub(crate) unsafe fn new(runtime: Runtime, raw: *const OrtKernelInfo) -> Self {
        Self { runtime, raw, call: PhantomData }
    }

    /// The runtime says in words alone whether an attribute is absent or of another kind. It is absent if it can
    /// be read as none.
    fn is_there(&self, name: &CStr) -> bool {
        let Self { runtime, raw, .. } = *self;
        let (mut integer, mut float, mut count) = (0, 0.0, 0);
        let name = name.as_ptr();
        // SAFETY: the caller's of `new`; the value goes to a variable of ours.
        let as_integer = unsafe { (runtime.api.KernelInfoGetAttribute_int64)(raw, name, &raw mut integer) };
        // SAFETY: as above.
        let as_float = unsafe { (runtime.api.KernelInfoGetAttribute_float)(raw, name, &raw mut float) };
        // SAFETY: as above; without a buffer only the length is asked for.
        let as_string =
            unsafe { (runtime.api.KernelInfoGetAttribute_string)(raw, name, null_mut(), &raw mut count) };
        // SAFETY: as above.
        let as_integers =
            unsafe { (runtime.api.KernelInfoGetAttributeArray_int64)(raw, name, null_mut(), &raw mut count) };
        // SAFETY: as above.
        let as_floats =
            unsafe { (runtime.api.KernelInfoGetAttributeArray_float)(raw, name, null_mut(), &raw mut count) };
        // Each status must be taken over, so none is left out once one has answered.
        let readable = [as_integer, as_float, as_string, as_integers, as_floats]
            .map(|status: OrtStatusPtr| runtime.check(status).is_ok());
        readable.contains(&true)
    }
}

impl Attributes for KernelInfo<'_> {
    fn integer(&self, name: &CStr) -> Result<Option<i64>, Failure> {
        let mut value = 0;
        // SAFETY: the caller's of `new`; the value goes to a variable of ours.
        let status = unsafe {
            (self.runtime.api.KernelInfoGetAttribute_int64)(self.raw, name.as_ptr(), &raw mut value)
        };
        match self.runtime.check(status) {
            Ok(()) => Ok(Some(value)),
            Err(_) if self.is_there(name) => Err(mistyped(name, "an integer")),
            Err(_) => Ok(None),
        }
    }

    fn string(&self, name: &CStr) -> Result<Option<String>, Failure> {
        let read = |buffer: *mut c_char, length: &mut usize| {
            // SAFETY: the caller's of `new`; the buffer has this length, or there is none and the length is asked
            // for.
            let status = unsafe {
                (self.runtime.api.KernelInfoGetAttribute_string)(self.raw, name.as_ptr(), buffer, length)
            };
            self.runtime.check(status)
        };
        let mut length = 0;
        if read(null_mut(), &mut length).is_err() {
            return if self.is_there(name) { Err(mistyped(name, "a string")) } else { Ok(None) };
        }
        let mut buffer = vec![0_u8; length];
        read(buffer.as_mut_ptr().cast(), &mut length)?;
        Ok(Some(until_nul(&buffer)))
    }
}

/// The attributes of a node whose output shape is being asked for.
pub(crate) struct InferenceAttributes<'a> {
    runtime: Runtime,
    raw: *const OrtShapeInferContext,
    call: PhantomData<&'a ()>,
}

impl InferenceAttributes<'_> {
    /// # Safety
    /// `raw` is what the runtime hands to a call that asks for shapes, and is used no longer than that.
    pub(crate) unsafe fn new(runtime: Runtime, raw: *const OrtShapeInferContext) -> Self {
        Self { runtime, raw, call: PhantomData }
    }

    fn find(&self, name: &CStr) -> Option<*const OrtOpAttr> {
        let mut found = null();
        // SAFETY: the caller's of `new`; the answer goes to a pointer of ours.
        let status = unsafe {
            (self.runtime.api.ShapeInferContext_GetAttribute)(self.raw, name.as_ptr(), &raw mut found)
        };
        // What is absent is an error to the runtime.
        self.runtime.check(status).is_ok().then_some(found)
    }

    /// Reads into a buffer; gives how long one has to be, and whether this one was.
    fn read(
        &self,
        attribute: *const OrtOpAttr,
        kind: OrtOpAttrType,
        buffer: &mut [u8],
    ) -> (usize, Result<(), Failure>) {
        let (mut length, data) = (0, buffer.as_mut_ptr().cast::<c_void>());
        // SAFETY: an attribute of this node; no more than the buffer's length is written to it.
        let status =
            unsafe { (self.runtime.api.ReadOpAttr)(attribute, kind, data, buffer.len(), &raw mut length) };
        (length, self.runtime.check(status))
    }
}

impl Attributes for InferenceAttributes<'_> {
    fn integer(&self, name: &CStr) -> Result<Option<i64>, Failure> {
        let Some(attribute) = self.find(name) else { return Ok(None) };
        let mut value = [0; size_of::<i64>()];
        let (_, read) = self.read(attribute, OrtOpAttrType::ORT_OP_ATTR_INT, &mut value);
        read.map_err(|_| mistyped(name, "an integer"))?;
        Ok(Some(i64::from_ne_bytes(value)))
    }

    fn string(&self, name: &CStr) -> Result<Option<String>, Failure> {
        let Some(attribute) = self.find(name) else { return Ok(None) };
        let kind = OrtOpAttrType::ORT_OP_ATTR_STRING;
        let (length, _too_short) = self.read(attribute, kind, &mut []);
        let mut buffer = vec![0; length];
        let (_, read) = self.read(attribute, kind, &mut buffer);
        read.map_err(|_| mistyped(name, "a string"))?;
        Ok(Some(until_nul(&buffer)))
    }
}

fn until_nul(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).map(CStr::to_bytes).unwrap_or(buffer);
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::until_nul;

    #[test]
    fn strings_end_at_the_nul_or_with_the_buffer() {
        assert_eq!(until_nul(b"linear\0"), "linear");
        assert_eq!(until_nul(b"linear"), "linear");
        assert_eq!(until_nul(b"\0circular\0"), "");
        assert_eq!(until_nul(b""), "");
        assert_eq!(until_nul(b"lin\xFFear\0"), "lin\u{fffd}ear");
    }
}
