//! Checks pointers that C gives, and follows them.

use std::ffi::CStr;
use std::slice;

use kvscatter::RawBuffer;

use crate::failure::{Failure, Kind, Subject};

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
