//! The structs of XLA's C interface for custom calls, `xla/ffi/api/c_api.h`.
//!
//! The names are those of the header without `XLA_FFI_`. Some fields are here only for the layout.

use core::ffi::{c_char, c_int, c_void};
use core::mem::offset_of;

/// The oldest version of the interface that has all of these declarations. XLA accepts older minor versions.
pub(crate) const MAJOR: c_int = 0;
pub(crate) const MINOR: c_int = 1;

/// An error of XLA, which XLA makes and destroys.
#[repr(C)]
#[derive(Debug)]
pub struct XlaError {
    opaque: [u8; 0],
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ExtensionBase {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *mut Self,
}

/// The kind of extension with which XLA asks for the version of a handler.
pub(crate) const METADATA: c_int = 1;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct MetadataExtension {
    pub(crate) base: ExtensionBase,
    pub(crate) metadata: *mut Metadata,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) struct_size: usize,
    pub(crate) version: Version,
    pub(crate) traits: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

/// The stage in which a handler does its work.
pub(crate) const EXECUTE: c_int = 3;

/// One call of a handler.
#[repr(C)]
#[derive(Debug)]
pub struct CallFrame {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) api: *const Api,
    pub(crate) context: *mut c_void,
    pub(crate) stage: c_int,
    pub(crate) args: Values,
    pub(crate) rets: Values,
    pub(crate) attrs: Attributes,
}

/// Arguments or results. All are buffers.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) size: i64,
    pub(crate) types: *const c_int,
    pub(crate) values: *const *mut c_void,
}

/// The type of arguments and of results that are buffers.
pub(crate) const BUFFER: c_int = 1;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Attributes {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) size: i64,
    pub(crate) types: *const c_int,
    pub(crate) names: *const *const ByteSpan,
    pub(crate) values: *const *const c_void,
}

/// The types of attributes.
pub(crate) const SCALAR: c_int = 3;
pub(crate) const STRING: c_int = 4;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByteSpan {
    pub(crate) ptr: *const u8,
    pub(crate) len: usize,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Scalar {
    pub(crate) element: c_int,
    pub(crate) value: *const c_void,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) element: c_int,
    pub(crate) data: *mut c_void,
    pub(crate) rank: i64,
    pub(crate) dims: *const i64,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ErrorCreateArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) message: *const c_char,
    pub(crate) code: c_int,
}

/// The codes of errors.
pub(crate) const INVALID_ARGUMENT: c_int = 3;
pub(crate) const OUT_OF_RANGE: c_int = 11;
pub(crate) const INTERNAL: c_int = 13;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ErrorDestroyArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) error: *mut XlaError,
}

pub(crate) type Task = unsafe extern "C" fn(data: *mut c_void);

#[repr(C)]
#[derive(Debug)]
pub(crate) struct ScheduleArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) context: *mut c_void,
    pub(crate) task: Task,
    pub(crate) data: *mut c_void,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct NumThreadsArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) context: *mut c_void,
    pub(crate) threads: *mut i64,
}

#[repr(C)]
#[derive(Debug)]
pub(crate) struct StreamGetArgs {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) context: *mut c_void,
    /// The stream, which XLA returns.
    pub(crate) stream: *mut c_void,
}

/// A field of the table that this crate does not use.
type Unused = *const c_void;

/// The table of functions, up to the last one that every version has. [`Threads`] continues it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) struct_size: usize,
    pub(crate) extension: *mut ExtensionBase,
    pub(crate) version: Version,
    internal: Unused,
    pub(crate) error_create: unsafe extern "C" fn(*mut ErrorCreateArgs) -> *mut XlaError,
    error_get_message: Unused,
    pub(crate) error_destroy: unsafe extern "C" fn(*mut ErrorDestroyArgs),
    handler_register: Unused,
    pub(crate) stream_get: unsafe extern "C" fn(*mut StreamGetArgs) -> *mut XlaError,
    type_register: Unused,
    execution_context_get: Unused,
    state_set: Unused,
    state_get: Unused,
    device_memory_allocate: Unused,
    device_memory_free: Unused,
}

/// The table, up to the functions about threads. A newer XLA has a longer one.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) api: Api,
    pub(crate) schedule: unsafe extern "C" fn(*mut ScheduleArgs) -> *mut XlaError,
    pub(crate) num_threads: unsafe extern "C" fn(*mut NumThreadsArgs) -> *mut XlaError,
}

// The offsets that the header has on machines of 64 bits.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(CallFrame, stage) == 32 && offset_of!(CallFrame, args) == 40);
    assert!(offset_of!(CallFrame, rets) == 80 && offset_of!(CallFrame, attrs) == 120);
    assert!(size_of::<CallFrame>() == 168);
    assert!(offset_of!(Buffer, data) == 24 && offset_of!(Buffer, dims) == 40 && size_of::<Buffer>() == 48);
    assert!(offset_of!(Metadata, version) == 8 && offset_of!(Metadata, traits) == 32);
    assert!(offset_of!(Api, error_create) == 48 && offset_of!(Api, stream_get) == 80);
    assert!(offset_of!(Threads, schedule) == 136);
    assert!(size_of::<Scalar>() == 16 && size_of::<ErrorCreateArgs>() == 32);
};

/// A host for tests.
#[cfg(test)]
pub(crate) mod tests {
    use core::ffi::c_void;
    use core::ptr::{null, null_mut};

    use super::{
        Api, Attributes, CallFrame, EXECUTE, ErrorCreateArgs, ErrorDestroyArgs, NumThreadsArgs, ScheduleArgs,
        StreamGetArgs, Threads, Values, Version, XlaError,
    };

    pub(crate) fn table(
        schedule: unsafe extern "C" fn(*mut ScheduleArgs) -> *mut XlaError,
        num_threads: unsafe extern "C" fn(*mut NumThreadsArgs) -> *mut XlaError,
    ) -> Threads {
        unsafe extern "C" fn create(_: *mut ErrorCreateArgs) -> *mut XlaError {
            core::ptr::dangling_mut::<c_void>().cast()
        }
        unsafe extern "C" fn no_stream(_: *mut StreamGetArgs) -> *mut XlaError {
            null_mut()
        }
        unsafe extern "C" fn destroy(_: *mut ErrorDestroyArgs) {}
        let api = Api {
            struct_size: size_of::<Threads>(),
            extension: null_mut(),
            version: Version { struct_size: size_of::<Version>(), extension: null_mut(), major: 0, minor: 3 },
            internal: null(),
            error_create: create,
            error_get_message: null(),
            error_destroy: destroy,
            handler_register: null(),
            stream_get: no_stream,
            type_register: null(),
            execution_context_get: null(),
            state_set: null(),
            state_get: null(),
            device_memory_allocate: null(),
            device_memory_free: null(),
        };
        Threads { api, schedule, num_threads }
    }

    /// Returns a call without arguments.
    pub(crate) fn frame(table: &Threads) -> CallFrame {
        let values = || Values {
            struct_size: size_of::<Values>(),
            extension: null_mut(),
            size: 0,
            types: null(),
            values: null(),
        };
        CallFrame {
            struct_size: size_of::<CallFrame>(),
            extension: null_mut(),
            api: (&raw const *table).cast(),
            context: null_mut(),
            stage: EXECUTE,
            args: values(),
            rets: values(),
            attrs: Attributes {
                struct_size: size_of::<Attributes>(),
                extension: null_mut(),
                size: 0,
                types: null(),
                names: null(),
                values: null(),
            },
        }
    }
}
