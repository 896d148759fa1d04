//! The execution provider, and the factory that makes one for each session.

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};

use ort_sys::{
    OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtHardwareDeviceType, OrtKeyValuePairs, OrtLogger,
    OrtSessionOptions, OrtStatusPtr,
};

use crate::owned::Owned;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::status::{Failure, catch_panic, guarded};
use crate::sys::{self, API_VERSION, OrtDataTransferImpl, OrtEpGraphSupportInfo, OrtKernelRegistry};

/// The name that sessions give the execution provider.
pub(crate) const NAME: &CStr = c"KvscatterExecutionProvider";
const VENDOR: &CStr = c"kvscatter";
/// PCI's number of the vendor: none.
const VENDOR_ID: u32 = 0;
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// Makes the execution providers of sessions, and owns the kernels that all of them share.
#[repr(C)]
pub(crate) struct Factory {
    base: sys::EpFactory,
    runtime: Runtime,
    registry: Registry,
}

impl Factory {
    /// # Errors
    /// The status of a function of the runtime.
    pub(crate) fn new(runtime: Runtime) -> Result<Box<Self>, Failure> {
        let base = sys::EpFactory {
            ort_version_supported: API_VERSION,
            GetName: Self::name,
            GetVendor: Self::vendor,
            GetSupportedDevices: Self::devices,
            CreateEp: Self::create_ep,
            ReleaseEp: Self::release_ep,
            GetVendorId: Self::vendor_id,
            GetVersion: Self::version,
            ValidateCompiledModelCompatibilityInfo: None,
            CreateAllocator: None,
            ReleaseAllocator: None,
            CreateDataTransfer: Self::data_transfer,
            IsStreamAware: Self::is_stream_aware,
            CreateSyncStreamForDevice: None,
            GetHardwareDeviceIncompatibilityDetails: None,
            CreateExternalResourceImporterForDevice: None,
            GetNumCustomOpDomains: None,
            GetCustomOpDomains: None,
        };
        Ok(Box::new(Self { base, runtime, registry: Registry::new(runtime, NAME)? }))
    }

    /// Gives the factory to the runtime, which gives it back to [`release`](Self::release).
    pub(crate) fn into_raw(self: Box<Self>) -> *mut sys::EpFactory {
        Box::into_raw(self).cast()
    }

    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw) and is not used again.
    pub(crate) unsafe fn release(raw: *mut sys::EpFactory) {
        // SAFETY: the caller's.
        let factory = unsafe { Box::from_raw(raw.cast::<Self>()) };
        catch_panic(|| drop(factory));
    }

    unsafe extern "system" fn name(_this: *const sys::EpFactory) -> *const c_char {
        NAME.as_ptr()
    }

    unsafe extern "system" fn vendor(_this: *const sys::EpFactory) -> *const c_char {
        VENDOR.as_ptr()
    }

    unsafe extern "system" fn vendor_id(_this: *const sys::EpFactory) -> u32 {
        VENDOR_ID
    }

    unsafe extern "system" fn version(_this: *const sys::EpFactory) -> *const c_char {
        VERSION.as_ptr()
    }

    /// Lists every CPU, up to `most_devices`.
    unsafe extern "system" fn devices(
        this: *mut sys::EpFactory,
        hardware: *const *const OrtHardwareDevice,
        hardware_count: usize,
        devices: *mut *mut OrtEpDevice,
        most_devices: usize,
        device_count: *mut usize,
    ) -> OrtStatusPtr {
        // SAFETY: a factory of ours.
        let runtime = unsafe { &*this.cast::<Self>() }.runtime;
        guarded(runtime, || {
            let mut count = 0;
            for index in 0..hardware_count {
                // SAFETY: the runtime's list has this many.
                let entry = unsafe { hardware.add(index) };
                // SAFETY: as above.
                let hardware = unsafe { entry.read() };
                // SAFETY: one of the runtime's devices.
                let kind = unsafe { (runtime.api.HardwareDevice_Type)(hardware) };
                if kind != OrtHardwareDeviceType::OrtHardwareDeviceType_CPU || count == most_devices {
                    continue;
                }
                let mut device = null_mut();
                // SAFETY: the factory and the device are the runtime's to use; the answer goes to a pointer of ours.
                let status =
                    unsafe { (runtime.ep.CreateEpDevice)(this, hardware, null(), null(), &raw mut device) };
                runtime.check(status)?;
                // SAFETY: the runtime's list has room for `most_devices`, which it owns from here on.
                let entry = unsafe { devices.add(count) };
                // SAFETY: as above.
                unsafe { entry.write(device) };
                count += 1;
            }
            // SAFETY: the runtime's variable for the answer.
            unsafe { device_count.write(count) };
            Ok(())
        })
    }

    unsafe extern "system" fn create_ep(
        this: *mut sys::EpFactory,
        _hardware: *const *const OrtHardwareDevice,
        _metadata: *const *const OrtKeyValuePairs,
        _count: usize,
        options: *const OrtSessionOptions,
        _logger: *const OrtLogger,
        out: *mut *mut sys::Ep,
    ) -> OrtStatusPtr {
        // SAFETY: a factory of ours, which the runtime keeps longer than what it makes.
        let factory = unsafe { &*this.cast::<Self>() };
        guarded(factory.runtime, || {
            // SAFETY: those of the session.
            unsafe { refuse_options(factory.runtime, options) }?;
            let ep = Box::into_raw(Box::new(Ep::new(factory.runtime, factory.registry.as_ptr())));
            // SAFETY: the runtime's variable for the answer, which it gives back to `release_ep`.
            unsafe { out.write(ep.cast()) };
            Ok(())
        })
    }

    unsafe extern "system" fn release_ep(_this: *mut sys::EpFactory, ep: *mut sys::Ep) {
        // SAFETY: made by `create_ep`, and given back once.
        let ep = unsafe { Box::from_raw(ep.cast::<Ep>()) };
        catch_panic(|| drop(ep));
    }

    /// Returns no functions for transfers, because all tensors are in the memory of the CPU.
    unsafe extern "system" fn data_transfer(
        _this: *mut sys::EpFactory,
        out: *mut *mut OrtDataTransferImpl,
    ) -> OrtStatusPtr {
        // SAFETY: the runtime's variable for the answer.
        unsafe { out.write(null_mut()) };
        OrtStatusPtr(null_mut())
    }

    unsafe extern "system" fn is_stream_aware(_this: *const sys::EpFactory) -> bool {
        false
    }
}

/// Refuses every option, because the provider has none.
///
/// # Safety
/// `options` are the runtime's.
unsafe fn refuse_options(runtime: Runtime, options: *const OrtSessionOptions) -> Result<(), Failure> {
    // SAFETY: the caller's; the answer goes to a pointer of `Owned`'s.
    let entries = Owned::new(runtime, runtime.api.ReleaseKeyValuePairs, |out| unsafe {
        (runtime.api.GetSessionOptionsConfigEntries)(options, out)
    })?;
    let (mut keys, mut values, mut count) = (null(), null(), 0);
    // SAFETY: owned here, as are the lists, which go to variables of ours.
    unsafe {
        (runtime.api.GetKeyValuePairs)(entries.as_ptr(), &raw mut keys, &raw mut values, &raw mut count);
    }
    // The runtime keeps a provider's options among those of the session, with this prefix.
    let prefix = format!("ep.{}.", NAME.to_string_lossy().to_lowercase());
    for index in 0..count {
        // SAFETY: the list has this many.
        let key = unsafe { keys.add(index) };
        // SAFETY: as above.
        let key = unsafe { key.read() };
        // SAFETY: a string of the list's.
        let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
        if let Some(option) = key.strip_prefix(&prefix) {
            let provider = NAME.to_string_lossy();
            return Err(Failure::invalid_argument(format!("{provider} has no option {option}: it has none")));
        }
    }
    Ok(())
}

/// The execution provider of one session.
#[repr(C)]
struct Ep {
    base: sys::Ep,
    runtime: Runtime,
    registry: *const OrtKernelRegistry,
}

impl Ep {
    fn new(runtime: Runtime, registry: *const OrtKernelRegistry) -> Self {
        let base = sys::Ep {
            ort_version_supported: API_VERSION,
            GetName: Self::name,
            GetCapability: Self::capability,
            Compile: None,
            ReleaseNodeComputeInfos: None,
            GetPreferredDataLayout: None,
            ShouldConvertDataLayoutForOp: None,
            SetDynamicOptions: None,
            OnRunStart: None,
            OnRunEnd: None,
            CreateAllocator: None,
            CreateSyncStreamForDevice: None,
            GetCompiledModelCompatibilityInfo: None,
            GetKernelRegistry: Self::kernel_registry,
            IsConcurrentRunSupported: None,
        };
        Self { base, runtime, registry }
    }

    unsafe extern "system" fn name(_this: *const sys::Ep) -> *const c_char {
        NAME.as_ptr()
    }

    /// Takes every node that there is a kernel for.
    unsafe extern "system" fn capability(
        this: *mut sys::Ep,
        graph: *const OrtGraph,
        info: *mut OrtEpGraphSupportInfo,
    ) -> OrtStatusPtr {
        // SAFETY: one of ours.
        let runtime = unsafe { &*this.cast::<Self>() }.runtime;
        guarded(runtime, || {
            let mut count = 0;
            // SAFETY: the runtime's graph; the number goes to a variable of ours.
            runtime.check(unsafe { (runtime.api.Graph_GetNumNodes)(graph, &raw mut count) })?;
            let mut nodes = vec![null(); count];
            // SAFETY: as above; there is room for as many.
            runtime.check(unsafe { (runtime.api.Graph_GetNodes)(graph, nodes.as_mut_ptr(), count) })?;
            for node in nodes {
                let mut kernel = null();
                // SAFETY: the runtime's node and its list; the answer goes to a pointer of ours.
                let status =
                    unsafe { (runtime.ep.EpGraphSupportInfo_LookUpKernel)(info, node, &raw mut kernel) };
                runtime.check(status)?;
                if !kernel.is_null() {
                    // SAFETY: as above.
                    runtime.check(unsafe { (runtime.ep.EpGraphSupportInfo_AddSingleNode)(info, node) })?;
                }
            }
            Ok(())
        })
    }

    unsafe extern "system" fn kernel_registry(
        this: *mut sys::Ep,
        out: *mut *const OrtKernelRegistry,
    ) -> OrtStatusPtr {
        // SAFETY: one of ours.
        let registry = unsafe { &*this.cast::<Self>() }.registry;
        // SAFETY: the runtime's variable for the answer.
        unsafe { out.write(registry) };
        OrtStatusPtr(null_mut())
    }
}
