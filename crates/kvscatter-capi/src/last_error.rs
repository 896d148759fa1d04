//! The last error of each thread. The interface has no other state.
//!
//! `lib.rs` defines C2 and C3.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt::{self, Write};
use std::ptr;

use crate::boundary::{Versioned, struct_size};
use crate::call_error::CallError;
use crate::status::{kvs_status, kvs_status_code};

/// Flags for the fields of a `kvs_error` that are set.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_error_field {
    /// `index` is set.
    KVS_ERROR_HAS_INDEX = 1,
    /// `value` is set.
    KVS_ERROR_HAS_VALUE = 2,
    /// `limit` is set.
    KVS_ERROR_HAS_LIMIT = 4,
}

/// An error as fields for programs and as a message for people.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_error {
    /// The caller sets this to `sizeof(kvs_error)`.
    pub struct_size: usize,
    /// The status that the function returned. It is `KVS_OK` if no function has failed on this thread.
    pub code: kvs_status,
    /// The sum of the flags of the fields that are set (`kvs_error_field`). A field that is not set is 0.
    pub fields: u32,
    /// The name of the argument that is wrong, as a static string. It is NULL if the error is not about an
    /// argument. A tensor has the name that the specification of the prepared operator uses: `past_cache`,
    /// `update`, `present_cache` (ONNX); `cache`, `update`, `output` (TensorRT); `past`, `newKv`, `present`
    /// (Ascend); `Q`, `K`, `V`, `attn_mask`, `head_sink`, `Y` (attention). An index argument has the
    /// specification's name too, such as `writeIndices`, if its values or their number are wrong. Errors about a
    /// pointer, struct or option use the names of this header.
    pub argument: *const c_char,
    /// The sample, dimension, pair or position in a list that is wrong. `kvs_status_code` documents which of
    /// them it is for each error.
    pub index: i64,
    /// The value that is wrong, as `kvs_status_code` documents for each error.
    pub value: i64,
    /// The nearest value that would have been accepted, unless `kvs_status_code` documents another meaning.
    pub limit: i64,
    /// One line in English, in lower case and without a full stop. A text that does not fit is cut off.
    pub message: [c_char; 256],
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_error {}

thread_local! {
    static LAST: Cell<Option<kvs_error>> = const { Cell::new(None) };
}

/// Records the last error of this thread and returns its number.
#[cold]
pub(crate) fn record(call_error: CallError) -> kvs_status {
    let error = kvs_error::from_error(&call_error);
    LAST.set(Some(error));
    error.code
}

/// Returns the error of the last function that failed on this thread. As with errno, success does not change
/// the error, so call this after a status that is not `KVS_OK`. This function does not change the error
/// either.
///
/// Returns `KVS_OK`, or one of these errors if `out` cannot take the error: `KVS_ERROR_NULL_POINTER`,
/// `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`. In these cases `out` does
/// not change.
///
/// # Safety
/// `out` is either NULL or points to a `kvs_error` whose `struct_size` is set and that nothing else uses
/// before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_last_error(out: *mut kvs_error) -> kvs_status {
    // SAFETY: This function's contract requires C2 and C3 for `out`.
    let size = match unsafe { struct_size(out, c"out") } {
        Ok(size) => size,
        Err(call_error) => return call_error.fields().code as kvs_status,
    };
    let error = LAST.get().unwrap_or(kvs_error::none(size));
    // SAFETY: `struct_size` rejects NULL and misaligned pointers. For other pointers, this function's
    // contract requires C3.
    unsafe { out.write(kvs_error { struct_size: size, ..error }) };
    kvs_status_code::KVS_OK as kvs_status
}

impl kvs_error {
    pub(crate) fn none(struct_size: usize) -> Self {
        let (code, argument) = (kvs_status_code::KVS_OK as kvs_status, ptr::null());
        Self { struct_size, code, fields: 0, argument, index: 0, value: 0, limit: 0, message: [0; 256] }
    }

    fn from_error(call_error: &CallError) -> Self {
        use kvs_error_field::{KVS_ERROR_HAS_INDEX, KVS_ERROR_HAS_LIMIT, KVS_ERROR_HAS_VALUE};
        let parts = call_error.fields();
        let flag = |part: Option<i64>, flag| part.map_or(0, |_| flag as u32);
        let mut message = Message::new();
        // Neither `Message` nor the `Display` of a `CallError` returns an error.
        let _ = write!(message, "{call_error}");
        Self {
            struct_size: size_of::<Self>(),
            code: parts.code as kvs_status,
            fields: flag(parts.index, KVS_ERROR_HAS_INDEX)
                | flag(parts.value, KVS_ERROR_HAS_VALUE)
                | flag(parts.limit, KVS_ERROR_HAS_LIMIT),
            argument: parts.argument.map_or(ptr::null(), |name| name.as_ptr()),
            index: parts.index.unwrap_or(0),
            value: parts.value.unwrap_or(0),
            limit: parts.limit.unwrap_or(0),
            message: message.line,
        }
    }
}

/// A C string of a fixed size. A longer text is cut off between two characters.
struct Message {
    line: [c_char; 256],
    len: usize,
}

impl Message {
    fn new() -> Self {
        Self { line: [0; 256], len: 0 }
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).as_bytes();
            // The last byte stays 0.
            match self.line[..255].get_mut(self.len..self.len + bytes.len()) {
                Some(room) => room.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte as c_char),
                None => self.len = 255, // and nothing follows
            }
            self.len = (self.len + bytes.len()).min(255);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fmt::Write;

    use super::Message;

    fn written(parts: &[&str]) -> String {
        let mut message = Message::new();
        parts.iter().for_each(|part| message.write_str(part).unwrap());
        let bytes: Vec<u8> = message.line.iter().map(|&byte| byte as u8).collect();
        CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn a_line_is_cut_off_between_two_characters() {
        assert_eq!(written(&["axis = ", "7"]), "axis = 7");
        let long = "x".repeat(255);
        assert_eq!(written(&[&long]), long);
        assert_eq!(written(&[&long, "y", "z"]), long);
        assert_eq!(written(&[&long[..254], "κ", "y"]), long[..254]);
    }
}
