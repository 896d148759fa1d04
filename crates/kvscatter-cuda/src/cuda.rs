//! The driver, the kernels in each context, streams and statuses.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Address, StatusWords};
use crate::driver::{Context, Driver, Handle};
use crate::launch_argument::LaunchArgument;
use crate::units::WIDTHS;
use crate::{CudaError, images};

/// The CUDA driver, with the kernels in every context that has used them.
///
/// Clones share the driver and the kernels.
///
/// A context must live as long as the writes that were prepared in it. Primary contexts do. CUDA's runtime
/// uses them, and so do PyTorch, JAX and CuPy. Drivers before CUDA 12 cannot distinguish a context from a
/// later context at the same address. With these drivers, a context in which a write was prepared must live
/// as long as the `Cuda`.
#[derive(Clone)]
pub struct Cuda {
    shared: Arc<Shared>,
}

struct Shared {
    driver: Driver,
    modules: Mutex<Vec<(Context, Arc<Module>)>>,
}

/// The kernels of one context.
pub(crate) struct Module {
    pub(crate) kernels: Kernels,
    pub(crate) multiprocessors: u32,
}

/// The kernels by the width of one move, widest first: [`WIDTHS`].
pub(crate) struct Kernels {
    /// Kernels for positions without other lists, with at most two jobs, such as keys and values.
    pub(crate) few: [Handle; WIDTHS.len()],
    /// Kernels for positions without other lists.
    pub(crate) many: [Handle; WIDTHS.len()],
    /// Kernels for any lists.
    pub(crate) lists: [Handle; WIDTHS.len()],
    /// Kernels for the functional form, with any lists.
    pub(crate) present: [Handle; WIDTHS.len()],
    /// The kernel for 4-bit elements that straddle bytes, in place, with any lists.
    pub(crate) nibbles: Handle,
    /// The kernel for 4-bit elements that straddle bytes, in functional form, with any lists.
    pub(crate) present_nibbles: Handle,
}

/// A stream of the current context. `CUstream` and `cudaStream_t` are the same type, and both can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(Handle);

/// The 16 bytes on the device in which launches count samples with bad indices, as [`StatusWords`].
///
/// The caller allocates the bytes and clears them before the first launch. Reading keeps their value, so the
/// caller clears them again before later launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStatus(Address);

impl Cuda {
    /// Loads the driver of this machine.
    ///
    /// This neither initialises the driver nor touches a device, so the process may still fork.
    ///
    /// # Errors
    /// Returns [`CudaError::NoDriver`] if there is no usable driver.
    pub fn new() -> Result<Self, CudaError> {
        Self::load(Path::new(if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" }))
    }

    /// Loads the driver from this file.
    ///
    /// # Errors
    /// Returns [`CudaError::NoDriver`] if the file is not a usable driver.
    ///
    /// # Safety
    /// The file is a CUDA driver, whose functions do what NVIDIA's reference specifies. Loading it runs its
    /// code.
    pub unsafe fn load_from(library: &Path) -> Result<Self, CudaError> {
        Self::load(library)
    }

    fn load(library: &Path) -> Result<Self, CudaError> {
        let shared = Shared { driver: Driver::load(library)?, modules: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the CUDA version that the driver supports, as 1000 · major + 10 · minor. This needs no device.
    ///
    /// # Errors
    /// Returns [`CudaError::Driver`] if the driver returns an error.
    pub fn driver_version(&self) -> Result<i32, CudaError> {
        self.driver().version()
    }

    /// Makes a device's primary context current on this thread, for programs in which no other library does
    /// so.
    ///
    /// The context is kept as long as the process runs, as CUDA's runtime keeps it. This initialises the
    /// driver if necessary.
    ///
    /// # Errors
    /// Returns [`CudaError::Driver`] if there is no such device.
    pub fn set_device(&self, ordinal: i32) -> Result<(), CudaError> {
        self.driver().use_primary_context(ordinal)
    }

    /// Returns the device whose context is current on this thread.
    ///
    /// # Errors
    /// Returns [`CudaError::NoContext`] if no context is current, or [`CudaError::Driver`] if the driver
    /// returns an error.
    pub fn device(&self) -> Result<i32, CudaError> {
        self.driver().context()?;
        self.driver().device()
    }

    /// Clears a status, in the stream's order.
    ///
    /// # Errors
    /// Returns [`CudaError::Driver`] if the driver returns an error.
    ///
    /// # Safety
    /// The 16 bytes of the status are memory of the current context until this has run, and the stream
    /// belongs to that context.
    pub unsafe fn clear(&self, status: DeviceStatus, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: The 16 bytes of the status, `size_of::<StatusWords>()`, are memory of the current context
        // until this has run, and the stream belongs to that context (this function's contract).
        unsafe { self.driver().clear(status.0, size_of::<StatusWords>(), stream.0) }
    }

    /// Reads a status.
    ///
    /// This waits only for the legacy default stream, so launches with this status must have run before.
    ///
    /// # Errors
    /// Returns [`CudaError::Driver`] if the driver returns an error. The error may come from an earlier
    /// launch.
    ///
    /// # Safety
    /// The 16 bytes of the status are memory of the current context, and nothing writes to them. Launches
    /// with this status must have run.
    pub unsafe fn read(&self, status: DeviceStatus) -> Result<StatusWords, CudaError> {
        // SAFETY: The 16 bytes of the status, `size_of::<StatusWords>()`, are memory of the current context,
        // and nothing writes to them (this function's contract). Every pattern of bits is a `StatusWords`,
        // which has only integers.
        unsafe { self.driver().read(status.0) }
    }

    /// Waits until all work on a stream has run.
    ///
    /// [`read`](Self::read) and [`check`](crate::DeviceWrite::check) wait only for the legacy default stream.
    ///
    /// # Errors
    /// Returns [`CudaError::Driver`] if the driver returns an error. The error may come from an earlier launch.
    ///
    /// # Safety
    /// The stream belongs to the current context.
    pub unsafe fn wait(&self, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: The stream belongs to the current context (this function's contract).
        unsafe { self.driver().wait(stream.0) }
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    /// Returns the kernels in the current context, and loads them at the first call.
    pub(crate) fn module(&self) -> Result<Arc<Module>, CudaError> {
        let context = self.driver().context()?;
        let mut modules = self.shared.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = modules.iter().find(|(known, _)| *known == context) {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(Module::load(self.driver())?);
        modules.push((context, Arc::clone(&module)));
        Ok(module)
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").finish_non_exhaustive()
    }
}

impl Module {
    fn load(driver: &Driver) -> Result<Self, CudaError> {
        let (major, minor) = driver.compute_capability()?;
        if (major, minor) < images::MIN_CAPABILITY {
            return Err(CudaError::ComputeCapability { major, minor });
        }
        // SAFETY: The image is a fat binary that nvcc wrote (`kernels/images`), whose header states its
        // length.
        let machine_code = unsafe { driver.load_module(images::machine_code()) };
        let ptx = || {
            // SAFETY: The image is PTX, and `images::ptx` ends it with a zero.
            unsafe { driver.load_module(&images::ptx()) }
        };
        let module = machine_code_or_ptx(machine_code, ptx)?;
        Ok(Self { kernels: Kernels::find(driver, module)?, multiprocessors: driver.multiprocessors()? })
    }
}

/// Loads the PTX if the driver rejects the machine code itself. Any other error is returned, because loading
/// the PTX would only hide it.
fn machine_code_or_ptx<T>(
    machine_code: Result<T, CudaError>,
    ptx: impl FnOnce() -> Result<T, CudaError>,
) -> Result<T, CudaError> {
    let machine_code = match machine_code {
        Err(refused) if refused.is_about_an_image() => refused,
        loaded => return loaded,
    };
    ptx().map_err(|ptx| {
        if !ptx.is_about_an_image() {
            return ptx;
        }
        CudaError::Kernels { machine_code: Box::new(machine_code), ptx: Box::new(ptx) }
    })
}

impl Kernels {
    fn find(driver: &Driver, module: Handle) -> Result<Self, CudaError> {
        let each = |names: [&CStr; WIDTHS.len()]| -> Result<[Handle; WIDTHS.len()], CudaError> {
            let mut handles = [Handle::NULL; WIDTHS.len()];
            for (handle, name) in handles.iter_mut().zip(names) {
                *handle = driver.function(module, name)?;
            }
            Ok(handles)
        };
        Ok(Self {
            few: each([
                c"kvscatter_write_16",
                c"kvscatter_write_8",
                c"kvscatter_write_4",
                c"kvscatter_write_2",
                c"kvscatter_write_1",
            ])?,
            many: each([
                c"kvscatter_write_many_16",
                c"kvscatter_write_many_8",
                c"kvscatter_write_many_4",
                c"kvscatter_write_many_2",
                c"kvscatter_write_many_1",
            ])?,
            lists: each([
                c"kvscatter_write_lists_16",
                c"kvscatter_write_lists_8",
                c"kvscatter_write_lists_4",
                c"kvscatter_write_lists_2",
                c"kvscatter_write_lists_1",
            ])?,
            present: each([
                c"kvscatter_present_16",
                c"kvscatter_present_8",
                c"kvscatter_present_4",
                c"kvscatter_present_2",
                c"kvscatter_present_1",
            ])?,
            nibbles: driver.function(module, c"kvscatter_write_nibbles")?,
            present_nibbles: driver.function(module, c"kvscatter_present_nibbles")?,
        })
    }
}

impl Stream {
    /// Creates a stream from its handle in the driver.
    ///
    /// As everywhere in CUDA, null and 1 are the legacy default stream, and 2 is the default stream of each
    /// thread.
    #[must_use]
    pub fn new(raw: *mut c_void) -> Self {
        Self(Handle::new(raw))
    }

    pub(crate) fn handle(self) -> Handle {
        self.0
    }
}

impl DeviceStatus {
    /// Creates a status from the address of its 16 bytes on a device.
    ///
    /// # Errors
    /// Returns [`CudaError::Address`] if the address is null or not a multiple of 8.
    pub fn at(address: u64) -> Result<Self, CudaError> {
        let alignment = 8;
        if address == 0 || !address.is_multiple_of(alignment) {
            return Err(CudaError::Address { list: LaunchArgument::Status, address, alignment });
        }
        Ok(Self(address))
    }

    pub(crate) fn address(self) -> Address {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::{CudaError, machine_code_or_ptx};

    #[test]
    fn ptx_is_for_images_that_do_not_fit() {
        let refused =
            |code| CudaError::Driver { call: "call", code, name: String::new(), text: String::new() };
        let with = |machine_code, ptx: i32| {
            let answer = |code| if code == 0 { Ok(()) } else { Err(refused(code)) };
            match machine_code_or_ptx(answer(machine_code), || answer(ptx)) {
                Ok(()) => "loaded".to_owned(),
                Err(CudaError::Driver { code, .. }) => code.to_string(),
                Err(CudaError::Kernels { .. }) => "neither".to_owned(),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(with(0, 200), "loaded");
        for of_image in [1, 200, 209, 218, 221, 222, 223, 300] {
            assert_eq!(with(of_image, 0), "loaded");
            assert_eq!(with(of_image, 222), "neither");
            assert_eq!(with(of_image, 2), "2", "the second error is not about an image");
        }
        for other in [2, 3, 201, 214, 220, 224, 700, 900, 901, 906, 999] {
            assert_eq!(with(other, 0), other.to_string());
        }
    }
}
