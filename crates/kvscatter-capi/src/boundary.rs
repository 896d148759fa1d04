//! What every function does at the boundary: no panic leaves, and no pointer is followed unchecked.

use std::any::Any;
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{mem, slice};

use kvscatter::RawBuffer;

use crate::failure::{Failure, Kind, Subject};
use crate::last_error;
use crate::status::{kvs_status, kvs_status_code};

/// Runs the body of a C function: a failure becomes the thread's last error and its number, and so does a panic.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> kvs_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => kvs_status_code::KVS_OK as kvs_status,
        Ok(Err(failure)) => last_error::record(failure),
        Err(payload) => {
            discard(payload);
            last_error::record(Kind::Panic.into())
        }
    }
}

/// Drops what a panic has left. That may panic again, and what is left then stays.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
}

/// Refuses NULL and addresses that no array of this many `T` can have.
#[inline]
pub(crate) fn check_pointer<T>(pointer: *const T, count: usize, subject: Subject) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Kind::NullPointer { subject }.into());
    }
    if !pointer.is_aligned() {
        return Err(Kind::Misaligned { subject, alignment: align_of::<T>() }.into());
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX.unsigned_abs());
    let len = bytes.ok_or(Kind::TooLarge { subject })?;
    if (RawBuffer { ptr: pointer.cast_mut().cast(), len }).wraps() {
        return Err(Kind::AddressSpace { subject, address: pointer.addr(), bytes: len }.into());
    }
    Ok(())
}

/// What a pointer points to.
///
/// # Safety
/// `pointer` is either NULL, misaligned, or points to a `T` that nobody writes while `'a` lasts.
#[inline]
pub(crate) unsafe fn reference<'a, T>(pointer: *const T, argument: &'static CStr) -> Result<&'a T, Failure> {
    check_pointer(pointer, 1, argument.into())?;
    // SAFETY: neither NULL nor misaligned; the rest is the caller's.
    Ok(unsafe { &*pointer })
}

/// The elements of an array; those of an array without elements lie nowhere.
///
/// # Safety
/// `pointer` is either NULL, misaligned, or points to `count` elements that nobody writes while `'a` lasts.
#[inline]
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    subject: Subject,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(pointer, count, subject)?;
    // SAFETY: not NULL, aligned, and of a size that a slice may have; the rest is the caller's.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// A struct of the header that begins with its size in bytes.
///
/// # Safety
/// The type is `repr(C)`, and its first field is `struct_size: usize`.
pub(crate) unsafe trait Versioned: Sized {
    /// Its size in the first version, which programs compiled then go on saying: once fields are added (behind it, not
    /// in its padding), the offset of the first of them.
    const LEAST: usize = size_of::<Self>();
}

/// The size that a struct says it has, which is at least that of the first version.
///
/// # Safety
/// `pointer` is either NULL, misaligned, or points to as many bytes as the `usize` there says.
#[inline]
pub(crate) unsafe fn struct_size<T: Versioned>(
    pointer: *const T,
    argument: &'static CStr,
) -> Result<usize, Failure> {
    const { assert!(T::LEAST == size_of::<T>(), "whoever adds a field reads and writes shorter structs in part") };
    check_pointer(pointer, 1, argument.into())?;
    // SAFETY: neither NULL nor misaligned, and `T` begins with this field.
    let got = unsafe { *pointer.cast::<usize>() };
    let want = T::LEAST;
    if got < want { Err(Kind::StructSize { argument, got, want }.into()) } else { Ok(got) }
}

/// A struct that begins with its size, which it has at least.
///
/// # Safety
/// As for [`struct_size`], and nobody writes it while `'a` lasts.
#[inline]
pub(crate) unsafe fn structure<'a, T: Versioned>(
    pointer: *const T,
    argument: &'static CStr,
) -> Result<&'a T, Failure> {
    // SAFETY: the caller's.
    unsafe { struct_size(pointer, argument) }?;
    // SAFETY: neither NULL nor misaligned, and there are as many bytes as `T` has; the rest is the caller's.
    Ok(unsafe { &*pointer })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::panic::panic_any;

    use super::guarded;
    use crate::{kvs_error, kvs_last_error, kvs_status_code};

    #[test]
    fn a_panic_is_a_status() {
        struct PanicsAgain;
        impl Drop for PanicsAgain {
            fn drop(&mut self) {
                panic_any(()); // nothing that could leak
            }
        }
        let panicked = kvs_status_code::KVS_ERROR_PANIC as i32;
        assert_eq!(guarded(|| panic_any(PanicsAgain)), panicked);
        assert_eq!(guarded(|| panic!("in a function of the header")), panicked);
        let mut error = kvs_error::none(size_of::<kvs_error>());
        // SAFETY: it lives.
        assert_eq!(unsafe { kvs_last_error(&mut error) }, 0);
        // SAFETY: the library ends its messages.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().unwrap();
        assert_eq!(
            (error.code, message),
            (panicked, "the library has a fault, please report it: it panicked")
        );
    }
}
