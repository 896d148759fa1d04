//! The driver's functions that tests call themselves, for memory, streams, graphs and launches.

use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use libloading::Library;

/// A handle of any object of the driver.
pub(crate) type Handle = *mut c_void;

/// The driver's error code.
pub(crate) type DriverCode = c_int;

/// Declares the functions that every driver has, with a method for each.
macro_rules! functions {
    ($struct:ident, $($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[expect(non_snake_case, reason = "the driver's names")]
        pub(crate) struct $struct {
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
        }

        #[expect(non_snake_case, clippy::too_many_arguments, reason = "the driver's")]
        impl $struct {
            fn load(library: &'static Library) -> Self {
                Self {
                    $($name: {
                        // SAFETY: `$name` has this type in the driver's header.
                        let found = unsafe { library.get(stringify!($name)) };
                        *found.expect(stringify!($name))
                    },)*
                }
            }

            $(pub(crate) fn $name(&self, $($argument: $type),*) -> Result<(), DriverCode> {
                // SAFETY: The tests of this folder pass pointers that live during the call, and addresses and
                // handles that the driver returned or that it must reject.
                let result = unsafe { (self.$name)($($argument),*) };
                if result == 0 { Ok(()) } else { Err(result) }
            })*
        }
    };
}

functions! {
    Functions,
    cuInit(flags: c_uint);
    cuDeviceGet(device: *mut c_int, ordinal: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuCtxSetCurrent(context: Handle);
    cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxDestroy_v2(context: Handle);
    cuGetErrorName(error: c_int, name: *mut *const c_char);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuModuleUnload(module: Handle);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(executable: Handle, stream: Handle);
    cuGraphDestroy(graph: Handle);
    cuGraphExecDestroy(executable: Handle);
    cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, shared: c_uint, stream: Handle, arguments: *mut Handle, extra: *mut Handle
    );
}

/// A driver, and the context that all tests share.
pub(crate) struct Device {
    pub(crate) functions: Functions,
    context: Handle,
}

// SAFETY: The driver's functions may be called from any thread, and a context may be current on several
// threads.
unsafe impl Sync for Device {}
// SAFETY: Neither the functions nor the handle of the context belong to a thread.
unsafe impl Send for Device {}

/// Returns the path of the driver that the tests use.
pub(crate) fn path() -> String {
    env::var("KVSCATTER_CUDA_DRIVER").expect("KVSCATTER_CUDA_DRIVER names a driver: cargo xtask cuda")
}

/// Returns the driver's library, which is never unloaded.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: The file at `path()` is a CUDA driver or the simulated one. Loading either runs no code
        // with conditions.
        unsafe { Library::new(path()) }.unwrap()
    })
}

/// Returns the device, and makes its context current in this thread.
pub(crate) fn device() -> &'static Device {
    let device = shared();
    device.make_current();
    device
}

/// Returns the driver's functions, without changing the current context.
pub(crate) fn functions() -> &'static Functions {
    &shared().functions
}

fn shared() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let functions = Functions::load(library());
        let (mut device, mut context) = (0, null_mut());
        functions.cuInit(0).unwrap();
        functions.cuDeviceGet(&raw mut device, 0).unwrap();
        functions.cuDevicePrimaryCtxRetain(&raw mut context, device).unwrap();
        Device { functions, context }
    })
}

impl Device {
    pub(crate) fn make_current(&self) {
        self.functions.cuCtxSetCurrent(self.context).unwrap();
    }

    /// Returns the driver's name for an error.
    pub(crate) fn name(&self, failure: DriverCode) -> String {
        let mut name = null();
        self.functions.cuGetErrorName(failure, &raw mut name).unwrap();
        // SAFETY: `name` is a text of the driver that ends with a zero and is never freed.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    pub(crate) fn function(&self, module: Handle, name: &str) -> Result<Handle, DriverCode> {
        let (mut function, name) = (null_mut(), CString::new(name).unwrap());
        self.functions.cuModuleGetFunction(&raw mut function, module, name.as_ptr())?;
        Ok(function)
    }

    /// Loads an image, which ends with a zero if it is text.
    pub(crate) fn module(&self, image: &[u8]) -> Result<Handle, DriverCode> {
        let mut module = null_mut();
        self.functions.cuModuleLoadData(&raw mut module, image.as_ptr().cast())?;
        Ok(module)
    }
}

/// Device memory that is freed when this is dropped.
pub(crate) struct Memory {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl Memory {
    /// Allocates memory with these bytes. It allocates at least one byte, because an allocation of none has
    /// the address 0.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let mut memory = Self { address: 0, bytes: bytes.len() };
        device().functions.cuMemAlloc_v2(&raw mut memory.address, bytes.len().max(1)).unwrap();
        memory.fill(bytes);
        memory
    }

    pub(crate) fn of_i64(values: &[i64]) -> Self {
        Self::from_bytes(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn of_i32(values: &[i32]) -> Self {
        Self::from_bytes(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes);
        let functions = &device().functions;
        functions.cuMemcpyHtoD_v2(self.address, bytes.as_ptr().cast(), bytes.len()).unwrap();
        // The copy may still be in progress, and other streams do not wait for it.
        functions.cuStreamSynchronize(null_mut()).unwrap();
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        device().functions.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address, self.bytes).unwrap();
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let freed = device().functions.cuMemFree_v2(self.address);
        assert!(freed.is_ok() || std::thread::panicking(), "{freed:?}");
    }
}

/// A stream that does not wait for other streams.
pub(crate) struct Stream(pub(crate) Handle);

impl Stream {
    pub(crate) fn new() -> Self {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = null_mut();
        device().functions.cuStreamCreate(&raw mut stream, NON_BLOCKING).unwrap();
        Self(stream)
    }

    pub(crate) fn synchronize(&self) {
        let result = device().functions.cuStreamSynchronize(self.0);
        assert!(result.is_ok(), "{}", device().name(result.unwrap_err()));
    }

    /// Captures the launches of `launch` on this stream, and returns their graph.
    pub(crate) fn captured(&self, launch: impl FnOnce()) -> Result<Graph, DriverCode> {
        const OF_THIS_THREAD: c_int = 1;
        let functions = &device().functions;
        functions.cuStreamBeginCapture_v2(self.0, OF_THIS_THREAD)?;
        launch();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        functions.cuStreamEndCapture(self.0, &raw mut graph)?;
        functions.cuGraphInstantiateWithFlags(&raw mut executable, graph, 0)?;
        functions.cuGraphDestroy(graph)?;
        Ok(Graph(executable))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let destroyed = device().functions.cuStreamDestroy_v2(self.0);
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}

/// A graph of launches that can be replayed.
pub(crate) struct Graph(Handle);

impl Graph {
    pub(crate) fn launch(&self, stream: &Stream) {
        device().functions.cuGraphLaunch(self.0, stream.0).unwrap();
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let destroyed = device().functions.cuGraphExecDestroy(self.0);
        assert!(destroyed.is_ok() || std::thread::panicking(), "{destroyed:?}");
    }
}
