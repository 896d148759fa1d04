//! Checks that every call of the driver may fail and that the error names the call.
//!
//! These tests need the simulated driver, which fails on request. Tests that would make a context unusable
//! have a separate context.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

use kvscatter_cuda::{BufferPair, Cuda, CudaError, DeviceBuffer, DeviceCallIndices, Stream as OfCaller};

use crate::device::{DriverCode, Handle, device, functions, path};
use crate::fake::{Changed, all_calls, has, is_fake};
use crate::rig::{Rig, shapes};

const OUT_OF_MEMORY: DriverCode = 2;
const NOT_INITIALIZED: DriverCode = 3;
const INVALID_HANDLE: DriverCode = 400;
const ILLEGAL_ADDRESS: DriverCode = 700;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const OF_THIS_THREAD: c_int = 1;

fn fresh() -> Result<Cuda, CudaError> {
    // SAFETY: The file at `path()` is the simulated driver, whose functions have the signatures of CUDA's.
    unsafe { Cuda::load_from(Path::new(&path())) }
}

/// Checks that the result is the driver's error for this call, at any depth of the error.
fn failed(call: &str, result: Result<(), CudaError>) {
    let Err(CudaError::Driver { call: found, code, name, .. }) = result else {
        panic!("{result:?} instead of a failure of {call}");
    };
    assert_eq!((found, code, &*name), (call, OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"));
}

fn assert_launch_fails(launched: &Result<(), CudaError>, expected: DriverCode) {
    let Err(CudaError::Driver { call: "cuLaunchKernel", code, .. }) = launched else {
        panic!("{launched:?}")
    };
    assert_eq!(*code, expected);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn every_failure_names_the_call() {
    let Some(rig) = Rig::simulated(1) else { return };
    let write = rig.write();
    let with = |call: &'static str, act: &dyn Fn() -> Result<(), CudaError>| {
        let _failing = Changed::failing(call, OUT_OF_MEMORY);
        failed(call, act());
    };
    let before = all_calls();
    let cuda = fresh().unwrap();
    assert_eq!(all_calls(), before, "a process that has a `Cuda` may still fork");
    with("cuDriverGetVersion", &|| cuda.driver_version().map(drop));
    with("cuCtxGetDevice", &|| cuda.device().map(drop));
    assert_eq!(cuda.device().unwrap(), 0);
    for call in ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"] {
        with(call, &|| cuda.set_device(0));
    }
    let every = [
        "cuCtxGetCurrent",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuCtxGetDevice",
        "cuDeviceGetAttribute",
    ];
    let newer = ["cuCtxGetId", "cuFuncLoad"].into_iter().filter(|name| has(name));
    for call in every.into_iter().chain(newer) {
        with(call, &|| cuda.prepare(&shapes(), &rig.pairs()).map(drop));
    }
    with("cuLaunchKernel", &|| rig.launch(&write));
    rig.stream.synchronize();
    rig.assert_written(&[]);
    // SAFETY: The 16 bytes of the status are memory of `rig`, which lives until its stream was waited for.
    with("cuMemsetD8Async", &|| unsafe { cuda.clear(rig.status(), rig.of_caller()) });
    with("cuMemcpyDtoH_v2", &|| rig.check(&write));
    // SAFETY: The 16 bytes of the status are memory of `rig`, which lives until its stream was waited for.
    with("cuMemcpyDtoH_v2", &|| unsafe { cuda.read(rig.status()) }.map(drop));

    let unknown = {
        let _failing = Changed::failing("cuLaunchKernel", 12_345);
        rig.launch(&write).unwrap_err()
    };
    assert_eq!(unknown.to_string(), "cuLaunchKernel: unknown (12345): unknown");
    assert!(matches!(cuda.set_device(1), Err(CudaError::Driver { call: "cuDeviceGet", code: 101, .. })));
    rig.launch(&write).unwrap();
    rig.stream.synchronize();
}

/// Checks that a device gets machine code if there is some for it, otherwise PTX, otherwise an error with
/// both results.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn devices_of_every_generation_get_what_they_can_run() {
    let Some(rig) = Rig::simulated(2) else { return };
    let prepared = |capability, newest_ptx| {
        let _generation = Changed::generation(capability, newest_ptx);
        fresh().unwrap().prepare(&shapes(), &rig.pairs())
    };
    // These get machine code. Drivers that cannot read it get PTX, which is old enough for them.
    for (capability, newest_ptx) in
        [(80, 7.0), (86, 7.1), (90, 7.8), (80, 8.6), (89, 8.4), (103, 8.6), (120, 8.7)]
    {
        assert!(prepared(capability, newest_ptx).is_ok(), "{capability}");
    }
    for capability in [75, 110, 130] {
        let write = prepared(capability, 9.0).unwrap();
        assert_eq!(rig.run(&write, [0, 3]).bad_samples, 0, "{capability}");
    }
    let refused = prepared(90, 6.2);
    let Err(CudaError::Kernels { machine_code, ptx }) = refused else { panic!("{refused:?}") };
    for (answer, expected) in [machine_code, ptx].into_iter().zip([200, 222]) {
        assert!(
            matches!(*answer, CudaError::Driver { call: "cuModuleLoadData", code, .. } if code == expected),
            "{answer:?}"
        );
    }
    for (capability, numbers) in [(70, (7, 0)), (61, (6, 1)), (72, (7, 2))] {
        let refused = prepared(capability, 9.0).unwrap_err();
        assert!(
            matches!(refused, CudaError::ComputeCapability { major, minor } if (major, minor) == numbers),
            "{refused:?}"
        );
    }
    let expected = "compute capability 7.5 or later is needed, this device has 7.0";
    assert_eq!(prepared(70, 9.0).unwrap_err().to_string(), expected);
}

/// Checks that a forbidden call during a capture is an error with advice. The call invalidates the capture.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_first_write_while_a_stream_is_captured_is_refused() {
    let Some(rig) = Rig::simulated(1) else { return };
    let (cuda, own) = (fresh().unwrap(), OwnContext::new());
    let (mut stream, mut graph) = (null_mut(), null_mut());
    let functions = functions();
    functions.cuStreamCreate(&raw mut stream, 1).unwrap();
    functions.cuStreamBeginCapture_v2(stream, OF_THIS_THREAD).unwrap();
    let refused = cuda.prepare(&shapes(), &rig.pairs()).unwrap_err();
    assert!(matches!(refused, CudaError::Driver { call: "cuModuleLoadData", code: 900, .. }), "{refused:?}");
    assert!(refused.to_string().contains("prepare one write in this context before"), "{refused}");
    assert!(functions.cuStreamEndCapture(stream, &raw mut graph).is_err());

    // Nothing of the failed load is kept. After the kernels are loaded, another write may be prepared while a
    // stream is captured.
    cuda.prepare(&shapes(), &rig.pairs()).unwrap();
    functions.cuStreamBeginCapture_v2(stream, OF_THIS_THREAD).unwrap();
    cuda.prepare(&shapes(), &rig.pairs()).unwrap();
    functions.cuStreamEndCapture(stream, &raw mut graph).unwrap();
    drop(own);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn without_a_driver_there_is_an_error() {
    // SAFETY: There is no such file.
    let missing = unsafe { Cuda::load_from(Path::new("/nowhere/libcuda.so.1")) };
    assert!(
        matches!(&missing, Err(CudaError::NoDriver { library, .. }) if library.starts_with("/nowhere")),
        "{missing:?}"
    );
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn without_a_context_nothing_is_prepared() {
    let rig = Rig::new(1);
    let device = device();
    device.functions.cuCtxSetCurrent(null_mut()).unwrap();
    let refused = fresh().unwrap().prepare(&shapes(), &rig.pairs());
    device.make_current();
    assert!(matches!(refused, Err(CudaError::NoContext)), "{refused:?}");
}

/// Checks that there is no context before the driver is initialised.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_driver_that_is_not_initialised_has_no_context() {
    let Some(rig) = Rig::simulated(1) else { return };
    let cuda = fresh().unwrap();
    let _failing = Changed::failing("cuCtxGetCurrent", NOT_INITIALIZED);
    let refused = cuda.prepare(&shapes(), &rig.pairs());
    assert!(matches!(refused, Err(CudaError::NoContext)), "{refused:?}");
    assert!(matches!(cuda.device(), Err(CudaError::NoContext)));
}

/// A separate context for this thread, which is destroyed when this is dropped.
struct OwnContext(Handle);

impl OwnContext {
    fn new() -> Self {
        let mut context = null_mut();
        functions().cuCtxCreate_v2(&raw mut context, 0, 0).unwrap();
        Self(context)
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        functions().cuCtxDestroy_v2(self.0).unwrap();
        device();
    }
}

/// Checks that functions belong to the context in which they were loaded.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_write_of_another_context_is_the_drivers_error() {
    let Some(rig) = Rig::simulated(1) else { return };
    let write = rig.write();
    let own = OwnContext::new();
    let launched = rig.launch(&write);
    drop(own);
    assert_launch_fails(&launched, INVALID_HANDLE);
}

/// Tests a context at the address of an earlier context, whose functions no longer exist.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_context_where_another_one_lay_loads_the_kernels_again() {
    let Some(rig) = Rig::simulated(1).filter(|_| has("cuCtxGetId")) else { return };
    let cuda = fresh().unwrap();
    for slot in 0..3 {
        let own = OwnContext::new();
        let (write, mut stream) = (cuda.prepare(&shapes(), &rig.pairs()).unwrap(), null_mut());
        functions().cuStreamCreate(&raw mut stream, 1).unwrap();
        // SAFETY: The simulated driver shares memory between contexts. `rig` keeps the buffers until the
        // stream was waited for.
        unsafe { write.launch(OfCaller::new(stream), &DeviceCallIndices::zero(), None) }.unwrap();
        functions().cuStreamSynchronize(stream).unwrap();
        drop(own);
        rig.assert_written(&vec![[Some(0), Some(0)]; slot + 1]);
    }
}

/// Checks that the driver rejects a handle that is not a stream.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_stream_that_is_none_is_the_drivers_error() {
    let Some(rig) = Rig::simulated(1) else { return };
    let write = rig.write();
    let none = OfCaller::new(0x1234 as *mut c_void);
    // SAFETY: `none` is not a stream. The simulated driver rejects it, so nothing runs.
    let launched = unsafe { write.launch(none, &rig.indices(), None) };
    assert_launch_fails(&launched, INVALID_HANDLE);
}

/// Checks that an address outside all allocations stops the kernel, not the process. Later calls in the
/// context return the error.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn memory_that_is_nobodys_is_an_error_of_what_comes_later() {
    let Some(own) = is_fake().then(OwnContext::new) else { return };
    let pair = BufferPair { cache: DeviceBuffer::new(0x1000, 64), update: DeviceBuffer::new(0x2000, 16) };
    let write = fresh().unwrap().prepare(&shapes(), &[pair]).unwrap();
    let mut stream = null_mut();
    let functions = functions();
    functions.cuStreamCreate(&raw mut stream, 1).unwrap();
    let launch = || {
        // SAFETY: The simulated driver does not dereference an address that it has not allocated.
        unsafe { write.launch(OfCaller::new(stream), &DeviceCallIndices::zero(), None) }
    };
    launch().unwrap();
    assert_eq!(functions.cuStreamSynchronize(stream), Err(ILLEGAL_ADDRESS));
    assert_launch_fails(&launch(), ILLEGAL_ADDRESS);
    drop(own);
}
