//! Checks pointers that a C program passes, and dereferences them.
//!
//! `lib.rs` defines C1 and C2.

use std::ffi::CStr;
use std::slice;

use kvscatter::RawBuffer;

use crate::call_error::{CallError, CallErrorKind, Subject};

/// Checks that a pointer is not NULL, that it is aligned, and that an array of `count` values of `T` can have
/// this address.
#[inline]
pub(crate) fn check_pointer<T>(pointer: *const T, count: usize, subject: Subject) -> Result<(), CallError> {
    if pointer.is_null() {
        return Err(CallErrorKind::NullPointer { subject }.into());
    }
    if !pointer.is_aligned() {
        return Err(CallErrorKind::Misaligned { subject, alignment: align_of::<T>() }.into());
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX.unsigned_abs());
    let len = bytes.ok_or(CallErrorKind::TooLarge { subject })?;
    if (RawBuffer { ptr: pointer.cast_mut().cast(), len }).wraps() {
        return Err(CallErrorKind::AddressSpace { subject, address: pointer.addr(), bytes: len }.into());
    }
    Ok(())
}

/// Returns a reference to the value that a pointer points to.
///
/// # Safety
/// `pointer` satisfies C1 for the lifetime `'a`.
#[inline]
pub(crate) unsafe fn reference<'a, T>(
    pointer: *const T,
    argument: &'static CStr,
) -> Result<&'a T, CallError> {
    check_pointer(pointer, 1, argument.into())?;
    // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
    // contract requires C1.
    Ok(unsafe { &*pointer })
}

/// Returns the elements of an array. The pointer may have any value if the array has no elements.
///
/// # Safety
/// `pointer` and `count` satisfy C1 for the lifetime `'a`.
#[inline]
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    count: usize,
    subject: Subject,
) -> Result<&'a [T], CallError> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(pointer, count, subject)?;
    // SAFETY: `check_pointer` rejects NULL, misaligned pointers and sizes that no slice has. For other
    // pointers, this function's contract requires C1.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// A struct of the header that begins with its size in bytes.
///
/// # Safety
/// The type is `repr(C)`, and its first field is `struct_size: usize`.
pub(crate) unsafe trait Versioned: Sized {
    /// The size of the struct in its first version, which programs compiled with that version set. When
    /// fields are added, this is the offset of the first added field. Fields are added after the last field,
    /// and not in its padding.
    const MIN_SIZE: usize = size_of::<Self>();
}

/// Returns the `struct_size` of a struct, or an error if it is smaller than the first version of the struct.
///
/// # Safety
/// `pointer` satisfies C2.
#[inline]
pub(crate) unsafe fn struct_size<T: Versioned>(
    pointer: *const T,
    argument: &'static CStr,
) -> Result<usize, CallError> {
    const {
        assert!(
            T::MIN_SIZE == size_of::<T>(),
            "code that adds a field must read and write shorter structs in part"
        )
    };
    check_pointer(pointer, 1, argument.into())?;
    // SAFETY: `check_pointer` rejects NULL and misaligned pointers. `T` begins with a `usize` (`Versioned`),
    // and C2 permits reading it.
    let got = unsafe { *pointer.cast::<usize>() };
    let expected = T::MIN_SIZE;
    if got < expected { Err(CallErrorKind::StructSize { argument, got, expected }.into()) } else { Ok(got) }
}

/// Returns a reference to a struct, or an error if its `struct_size` is smaller than its first version.
///
/// # Safety
/// `pointer` satisfies C1 and C2 for the lifetime `'a`.
#[inline]
pub(crate) unsafe fn structure<'a, T: Versioned>(
    pointer: *const T,
    argument: &'static CStr,
) -> Result<&'a T, CallError> {
    // SAFETY: This function's contract requires C2 for `pointer`.
    unsafe { struct_size(pointer, argument) }?;
    // SAFETY: `struct_size` rejects NULL, misaligned pointers and sizes below that of `T`. For other
    // pointers, this function's contract requires C1 and C2.
    Ok(unsafe { &*pointer })
}
