//! The driver and its kernels, streams and statuses.

use std::ffi::{CStr, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Address, StatusWords};
use crate::driver::{Context, Driver, Handle};
use crate::launch_argument::LaunchArgument;
use crate::units::WIDTHS;
use crate::{CudaError, images};

/// The CUDA driver, and the kernels in every context that has used them.
///
/// Clones share both. A context must live as long as the writes that were prepared in it. Primary contexts do, which CUDA's
/// runtime uses, and with it PyTorch, JAX and CuPy. Drivers before CUDA 12 cannot distinguish a context from a later one at
/// the same address. With them, a context in which a write was prepared must live as long as this.
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
    /// No list but positions, at most two jobs: keys and values.
    pub(crate) few: [Handle; WIDTHS.len()],
    /// No list but positions.
    pub(crate) many: [Handle; WIDTHS.len()],
    /// Any lists.
    pub(crate) lists: [Handle; WIDTHS.len()],
    /// The functional form, any lists.
    pub(crate) present: [Handle; WIDTHS.len()],
    /// 4-bit elements that straddle bytes, any lists: in place.
    pub(crate) nibbles: Handle,
    /// In functional form.
    pub(crate) present_nibbles: Handle,
}

/// A stream of the context that is current: `CUstream`, or `cudaStream_t`, which is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(Handle);

/// Sixteen bytes on the device, in which launches count samples with bad indices: [`StatusWords`].
///
/// The caller allocates them, and clears them before the first launch and after each reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStatus(Address);

impl Cuda {
    /// Loads the driver of this machine. This neither initialises it nor touches a device, so the process may still fork.
    ///
    /// # Errors
    /// [`CudaError::NoDriver`] if there is none.
    pub fn new() -> Result<Self, CudaError> {
        Self::load(Path::new(if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" }))
    }

    /// Loads the driver from this file.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Safety
    /// The file is a CUDA driver: its functions do what NVIDIA's reference says. Loading it runs its code.
    pub unsafe fn load_from(library: &Path) -> Result<Self, CudaError> {
        Self::load(library)
    }

    fn load(library: &Path) -> Result<Self, CudaError> {
        let shared = Shared { driver: Driver::load(library)?, modules: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The CUDA version that the driver supports: 1000 · major + 10 · minor. There need not be a device.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn driver_version(&self) -> Result<i32, CudaError> {
        self.driver().version()
    }

    /// Makes a device's primary context current on this thread, for programs in which no other library does. The context is
    /// kept as long as the process runs, as CUDA's runtime keeps it. This initialises the driver if necessary.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if there is no such device, or none at all.
    pub fn set_device(&self, ordinal: i32) -> Result<(), CudaError> {
        self.driver().use_primary_context(ordinal)
    }

    /// The device whose context is current on this thread.
    ///
    /// # Errors
    /// [`CudaError::NoContext`]; [`CudaError::Driver`].
    pub fn device(&self) -> Result<i32, CudaError> {
        self.driver().context()?;
        self.driver().device()
    }

    /// Clears a status, in the stream's order.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The 16 bytes of the status are memory of the current context until this has run, and the stream belongs to that
    /// context.
    pub unsafe fn clear(&self, status: DeviceStatus, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: the 16 bytes of the status, `size_of::<StatusWords>()`, are memory of the current context until this has
        // run, and the stream belongs to that context (this function's contract).
        unsafe { self.driver().clear(status.0, size_of::<StatusWords>(), stream.0) }
    }

    /// Reads a status. This waits for the legacy default stream and for no other, so launches with this status must have run.
    ///
    /// # Errors
    /// [`CudaError::Driver`], which may be one of an earlier launch.
    ///
    /// # Safety
    /// The 16 bytes of the status are memory of the current context, and nothing writes to them: launches with this status
    /// have run.
    pub unsafe fn read(&self, status: DeviceStatus) -> Result<StatusWords, CudaError> {
        // SAFETY: the 16 bytes of the status, `size_of::<StatusWords>()`, are memory of the current context, and nothing
        // writes to them (this function's contract). Every pattern of bits is a `StatusWords`, which has only integers.
        unsafe { self.driver().read(status.0) }
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    /// The kernels in the current context.
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
        // SAFETY: the image is a fat binary that nvcc wrote (`kernels/images`), whose header states its length.
        let machine_code = unsafe { driver.load_module(images::machine_code()) };
        let ptx = || {
            // SAFETY: the image is PTX, and `images::ptx` ends it with a zero.
            unsafe { driver.load_module(&images::ptx()) }
        };
        let module = machine_code_or_ptx(machine_code, ptx)?;
        Ok(Self { kernels: Kernels::find(driver, module)?, multiprocessors: driver.multiprocessors()? })
    }
}

/// Loads the PTX if the driver refuses the machine code itself. Any other error is returned, since PTX would only hide it.
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
    /// The stream with this handle of the driver. As everywhere in CUDA, null and 1 are the legacy default stream, and 2 is
    /// the default stream of each thread.
    #[must_use]
    pub fn new(raw: *mut c_void) -> Self {
        Self(Handle::new(raw))
    }

    pub(crate) fn handle(self) -> Handle {
        self.0
    }
}

impl DeviceStatus {
    /// The status at this address of a device: 16 bytes.
    ///
    /// # Errors
    /// [`CudaError::Address`] if it is null or no multiple of 8.
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
