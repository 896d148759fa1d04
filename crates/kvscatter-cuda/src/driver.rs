//! Loads the CUDA driver on demand, with only the functions that this crate calls.
//!
//! NVIDIA's driver API reference describes the functions. The types are those of `cuda.h`.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr;

use libloading::Library;

use crate::CudaError;
use crate::abi::Address;

/// A handle of the driver for a context, a module, a function or a stream. It is never dereferenced here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: A handle is never dereferenced here, and the driver's functions may be called with it from every
// thread.
unsafe impl Send for Handle {}
// SAFETY: A shared handle can only be copied or compared, and copies may be used on every thread.
unsafe impl Sync for Handle {}

impl Handle {
    pub(crate) const NULL: Self = Self(ptr::null_mut());

    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self(raw)
    }
}

/// A context. Newer drivers give each context an id, which distinguishes it from an earlier context with the
/// same handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    handle: Handle,
    id: u64,
}

/// `CU_DEVICE_ATTRIBUTE_…` of `cuda.h`.
const MULTIPROCESSOR_COUNT: c_int = 16;
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// `CUDA_ERROR_NOT_INITIALIZED`: `cuInit` has not been called in this process.
const NOT_INITIALIZED: c_int = 3;

/// Declares the functions that every driver has and those that only newer drivers have, and looks them up.
macro_rules! functions {
    (every: { $($name:ident($($argument:ty),*);)* } newer: { $($newer:ident($($of_newer:ty),*);)* }) => {
        #[expect(non_snake_case, reason = "the driver's own names")]
        struct Functions {
            $($name: unsafe extern "system" fn($($argument),*) -> c_int,)*
            $($newer: Option<unsafe extern "system" fn($($of_newer),*) -> c_int>,)*
        }

        impl Functions {
            /// Looks up the functions, and returns the name of the first missing one as the error.
            fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $(
                        // SAFETY: The driver's function of this name has this signature.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                            .map_err(|_| stringify!($name))?,
                    )*
                    $(
                        // SAFETY: The driver's function of this name has this signature, in every driver that
                        // has it.
                        $newer: unsafe { library.get(concat!(stringify!($newer), "\0").as_bytes()) }
                            .ok()
                            .map(|function| *function),
                    )*
                })
            }
        }
    };
}

functions! {
    every: {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuCtxSetCurrent(Handle);
        cuCtxGetCurrent(*mut Handle);
        cuCtxGetDevice(*mut c_int);
        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
        cuMemcpyDtoH_v2(*mut c_void, Address, usize);
        cuMemsetD8Async(Address, u8, usize, Handle);
        cuStreamSynchronize(Handle);
        cuGetErrorName(c_int, *mut *const c_char);
        cuGetErrorString(c_int, *mut *const c_char);
    }
    newer: {
        cuCtxGetId(Handle, *mut u64);
        cuFuncLoad(Handle);
    }
}

/// The number of blocks in a launch and of threads in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 2],
    pub(crate) threads: [u32; 2],
}

/// The functions of a loaded driver.
pub(crate) struct Driver {
    functions: Functions,
    /// The library, which is never unloaded. A driver may have threads and contexts as soon as it is
    /// initialised, even if the initialisation fails. They need the library's code.
    _library: ManuallyDrop<Library>,
}

impl Driver {
    /// Loads a driver from this file, or searches the system's library paths if this is only a name.
    ///
    /// # Errors
    /// Returns [`CudaError::NoDriver`] if the library cannot be loaded, or if it lacks a function.
    pub(crate) fn load(library: &Path) -> Result<Self, CudaError> {
        let refused = |why| CudaError::NoDriver { library: library.to_owned(), why };
        // SAFETY: Loading a CUDA driver has no conditions, and it is never unloaded. The file is the system's
        // driver, or a driver by the contract of `Cuda::load_from`.
        let loaded = unsafe { Library::new(library) }.map_err(|error| {
            // The system's message is the error's source.
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            // The message begins with the library's name, which our error contains already.
            let named = format!("{}: ", library.display());
            refused(why.strip_prefix(&named).map_or(why.clone(), ToOwned::to_owned))
        })?;
        let functions = Functions::find(&loaded);
        let functions =
            functions.map_err(|name| refused(format!("it has no {name}: it is too old, or no driver")))?;
        Ok(Self { functions, _library: ManuallyDrop::new(loaded) })
    }

    /// Returns the CUDA version that the driver supports, as 1000 · major + 10 · minor.
    pub(crate) fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        // SAFETY: `version` is a live `i32`, which the driver writes.
        let code = unsafe { (self.functions.cuDriverGetVersion)(&raw mut version) };
        self.checked("cuDriverGetVersion", code)?;
        Ok(version)
    }

    /// Retains a device's primary context and makes it current on this thread.
    ///
    /// This initialises the driver. The other methods need a context, so they run only after an
    /// initialisation.
    pub(crate) fn use_primary_context(&self, ordinal: i32) -> Result<(), CudaError> {
        // SAFETY: `cuInit` takes no pointer. It may be called at any time, and a second call does nothing.
        let code = unsafe { (self.functions.cuInit)(0) };
        self.checked("cuInit", code)?;
        let mut device = 0;
        // SAFETY: `device` is a live `i32`, which the driver writes.
        let code = unsafe { (self.functions.cuDeviceGet)(&raw mut device, ordinal) };
        self.checked("cuDeviceGet", code)?;
        let mut context = Handle::NULL;
        // SAFETY: `context` is a live handle, which the driver writes, and `device` comes from `cuDeviceGet`.
        let code = unsafe { (self.functions.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        self.checked("cuDevicePrimaryCtxRetain", code)?;
        // SAFETY: `context` was retained above and is never released.
        let code = unsafe { (self.functions.cuCtxSetCurrent)(context) };
        self.checked("cuCtxSetCurrent", code)
    }

    /// Returns the context that is current on this thread.
    pub(crate) fn context(&self) -> Result<Context, CudaError> {
        let mut handle = Handle::NULL;
        // SAFETY: `handle` is a live handle, which the driver writes.
        let code = unsafe { (self.functions.cuCtxGetCurrent)(&raw mut handle) };
        if code != NOT_INITIALIZED {
            self.checked("cuCtxGetCurrent", code)?;
        }
        if handle == Handle::NULL {
            return Err(CudaError::NoContext);
        }
        let mut id = 0;
        if let Some(get_id) = self.functions.cuCtxGetId {
            // SAFETY: `id` is a live `u64`, which the driver writes, and `handle` is the current context.
            let code = unsafe { get_id(handle, &raw mut id) };
            self.checked("cuCtxGetId", code)?;
        }
        Ok(Context { handle, id })
    }

    /// Returns the current context's device.
    pub(crate) fn device(&self) -> Result<i32, CudaError> {
        let mut device = 0;
        // SAFETY: `device` is a live `i32`, which the driver writes.
        let code = unsafe { (self.functions.cuCtxGetDevice)(&raw mut device) };
        self.checked("cuCtxGetDevice", code)?;
        Ok(device)
    }

    /// Returns the number of multiprocessors of the current context's device.
    pub(crate) fn multiprocessors(&self) -> Result<u32, CudaError> {
        Ok(u32::try_from(self.attribute(MULTIPROCESSOR_COUNT)?).unwrap_or(1).max(1))
    }

    /// Returns the device's compute capability, as the major and the minor number.
    pub(crate) fn compute_capability(&self) -> Result<(i32, i32), CudaError> {
        let [major, minor] = COMPUTE_CAPABILITY;
        Ok((self.attribute(major)?, self.attribute(minor)?))
    }

    fn attribute(&self, attribute: c_int) -> Result<i32, CudaError> {
        let (device, mut value) = (self.device()?, 0);
        // SAFETY: `value` is a live `i32`, which the driver writes, and `device` comes from `cuCtxGetDevice`.
        let code = unsafe { (self.functions.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        self.checked("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// Loads kernels into the current context.
    ///
    /// # Safety
    /// The image is an ELF or fat binary whose header states no more than its length, or PTX that ends with a
    /// zero.
    pub(crate) unsafe fn load_module(&self, image: &[u8]) -> Result<Handle, CudaError> {
        let mut module = Handle::NULL;
        // SAFETY: `module` is a live handle, which the driver writes. The driver reads `image` to the end
        // that the header states, or to the zero that ends PTX. Both are inside the slice (this function's
        // contract).
        let code = unsafe { (self.functions.cuModuleLoadData)(&raw mut module, image.as_ptr().cast()) };
        self.checked("cuModuleLoadData", code)?;
        Ok(module)
    }

    /// Returns a kernel of a module that this driver has loaded, and loads the kernel's code onto the device.
    ///
    /// Otherwise newer drivers would load the code in the first launch, which would then allocate, wait, and
    /// fail during a capture.
    pub(crate) fn function(&self, module: Handle, name: &CStr) -> Result<Handle, CudaError> {
        let mut function = Handle::NULL;
        // SAFETY: `function` is a live handle, which the driver writes. `name` ends with a zero, and `module`
        // was loaded by this driver and is never unloaded.
        let code = unsafe { (self.functions.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) };
        self.checked("cuModuleGetFunction", code)?;
        if let Some(load) = self.functions.cuFuncLoad {
            // SAFETY: `function` comes from `cuModuleGetFunction`.
            let code = unsafe { load(function) };
            self.checked("cuFuncLoad", code)?;
        }
        Ok(function)
    }

    /// Launches a kernel. The driver copies the arguments before this returns.
    ///
    /// # Safety
    /// * The function and the stream belong to the current context.
    /// * Each argument points to a value of the type of the kernel's parameter.
    /// * Every address that the kernel computes from these values and its lists lies inside a buffer, a list
    ///   or the status of the write, each of which is memory of the current context until the kernel has run.
    pub(crate) unsafe fn launch(
        &self,
        function: Handle,
        grid: Grid,
        stream: Handle,
        arguments: [*const c_void; 3],
    ) -> Result<(), CudaError> {
        let Grid { blocks: [x, y], threads: [along, across] } = grid;
        let mut arguments = arguments.map(<*const c_void>::cast_mut);
        let (arguments, no_options) = (arguments.as_mut_ptr(), ptr::null_mut());
        // SAFETY: `function` and `stream` belong to the current context, each argument points to a value of
        // its parameter's type, and all addresses that the kernel computes lie inside live buffers of that
        // context (this function's contract). The driver copies the arguments before it returns, and writes
        // to none.
        let code = unsafe {
            (self.functions.cuLaunchKernel)(
                function, x, y, 1, along, across, 1, 0, stream, arguments, no_options,
            )
        };
        self.checked("cuLaunchKernel", code)
    }

    /// Reads a value from the device after all work on the legacy default stream has run.
    ///
    /// # Safety
    /// Every pattern of bits is a `T`. The `size_of::<T>()` bytes from the address on are memory of the
    /// current context.
    pub(crate) unsafe fn read<T: Copy + Default>(&self, address: Address) -> Result<T, CudaError> {
        let mut value = T::default();
        let to = (&raw mut value).cast();
        // SAFETY: The `size_of::<T>()` bytes from `address` on are memory of the current context, and every
        // pattern of bits is a `T` (this function's contract). The driver writes that many bytes to `value`,
        // which is a live `T`.
        let code = unsafe { (self.functions.cuMemcpyDtoH_v2)(to, address, size_of::<T>()) };
        self.checked("cuMemcpyDtoH_v2", code)?;
        Ok(value)
    }

    /// Sets bytes to zero, in the stream's order.
    ///
    /// # Safety
    /// The `bytes` bytes from the address on are memory of the current context until this has run, and the
    /// stream belongs to that context.
    pub(crate) unsafe fn clear(
        &self,
        address: Address,
        bytes: usize,
        stream: Handle,
    ) -> Result<(), CudaError> {
        // SAFETY: The `bytes` bytes from `address` on are memory of the current context until this has run,
        // and `stream` belongs to that context (this function's contract).
        let code = unsafe { (self.functions.cuMemsetD8Async)(address, 0, bytes, stream) };
        self.checked("cuMemsetD8Async", code)
    }

    /// Waits until all work on the stream has run.
    ///
    /// # Safety
    /// The stream belongs to the current context.
    pub(crate) unsafe fn wait(&self, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: `stream` belongs to the current context (this function's contract).
        let code = unsafe { (self.functions.cuStreamSynchronize)(stream) };
        self.checked("cuStreamSynchronize", code)
    }

    #[inline]
    fn checked(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &'static str, code: c_int) -> CudaError {
        let text = |function: unsafe extern "system" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = ptr::null();
            // SAFETY: `text` is a live pointer, to which the driver writes null or the address of a text that
            // it owns.
            unsafe { function(code, &raw mut text) };
            if text.is_null() {
                return "unknown".to_owned();
            }
            // SAFETY: `text` is not null, so it is a text of the driver that ends with a zero and is never
            // freed.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let (name, text) = (text(self.functions.cuGetErrorName), text(self.functions.cuGetErrorString));
        CudaError::Driver { call, code, name, text }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Driver;
    use crate::CudaError;

    #[test]
    fn no_driver_is_an_error() {
        let refused = Driver::load(Path::new("libno-such-driver.so.1")).err().unwrap();
        assert!(matches!(refused, CudaError::NoDriver { .. }), "{refused}");
        let message = refused.to_string();
        assert_eq!(message.matches("libno-such-driver.so.1").count(), 1, "{message}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_that_is_no_driver_is_an_error() {
        let refused = Driver::load(Path::new("libc.so.6")).err().unwrap();
        assert!(matches!(&refused, CudaError::NoDriver { why, .. } if why.contains("cuInit")), "{refused}");
    }
}
