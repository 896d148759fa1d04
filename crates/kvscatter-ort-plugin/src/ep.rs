//! The execution provider, and the factory that makes one for each session.

use core::ffi::{CStr, c_char};
use core::ptr::{null, null_mut};
use core::slice;
use std::sync::Arc;

use ort_sys::{
    OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtHardwareDeviceType, OrtKeyValuePairs, OrtLogger, OrtNode,
    OrtSessionOptions, OrtStatusPtr,
};

use crate::layer::{self, CompiledLayer, NamedGraph, NamedNode};
use crate::options::{EpOptions, NAME};
use crate::registry::Registry;
use crate::runtime::RuntimeApi;
use crate::status::{CallError, catch_panic, guarded};
use crate::sys::{
    self, API_VERSION, NodeComputeInfo, OrtDataTransferImpl, OrtEpGraphSupportInfo, OrtKernelRegistry,
};
use crate::workspace::Workspace;

const VENDOR: &CStr = c"kvscatter";
/// The PCI number of the vendor. 0 means that the vendor has none.
const VENDOR_ID: u32 = 0;
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

/// A factory that makes the execution providers of sessions. It owns the kernels that all of them share.
#[repr(C)]
pub(crate) struct Factory {
    base: sys::EpFactory,
    runtime: RuntimeApi,
    registry: Registry,
}

impl Factory {
    /// Creates the factory.
    pub(crate) fn new(runtime: RuntimeApi) -> Result<Box<Self>, CallError> {
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

    /// Passes the factory to the runtime, which passes it back to [`release`](Self::release).
    pub(crate) fn into_raw(self: Box<Self>) -> *mut sys::EpFactory {
        Box::into_raw(self).cast()
    }

    /// Drops a factory.
    ///
    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw) and is not used again.
    pub(crate) unsafe fn release(raw: *mut sys::EpFactory) {
        // SAFETY: This function's contract requires that `raw` comes from `into_raw`, which uses a `Box`, and
        // that it is not used again.
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
        // SAFETY: The runtime passes the address of a factory of ours, which it has not released yet (R4).
        let runtime = unsafe { &*this.cast::<Self>() }.runtime;
        guarded(runtime.api, || {
            let mut count = 0;
            for index in 0..hardware_count {
                // SAFETY: `hardware` has `hardware_count` elements (R5), and `index` is below that.
                let entry = unsafe { hardware.add(index) };
                // SAFETY: `entry` points to an element of `hardware`, which is valid until this returns (R2).
                let hardware = unsafe { entry.read() };
                // SAFETY: `hardware` is a device of the runtime, valid until this returns (R2).
                let kind = unsafe { (runtime.api.HardwareDevice_Type)(hardware) };
                if kind != OrtHardwareDeviceType::OrtHardwareDeviceType_CPU || count == most_devices {
                    continue;
                }
                // SAFETY: `this` is a factory of ours (R4), `hardware` is a device of the runtime (R2), and `out`
                // takes the result (R1).
                let call = |out| unsafe { (runtime.ep.CreateEpDevice)(this, hardware, null(), null(), out) };
                let device = runtime.result(null_mut(), call)?;
                // SAFETY: `devices` has room for `most_devices` elements (R3), and `count` is below that.
                let entry = unsafe { devices.add(count) };
                // SAFETY: `entry` points to an element of `devices`, a list for results (R3).
                unsafe { entry.write(device) };
                count += 1;
            }
            // SAFETY: `device_count` points to a variable for the result (R3).
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
        // SAFETY: The runtime passes the address of a factory of ours, which it has not released yet (R4).
        let factory = unsafe { &*this.cast::<Self>() };
        guarded(factory.runtime.api, || {
            // SAFETY: `options` is valid until this returns (R2).
            let options = unsafe { EpOptions::read(factory.runtime, options) }?;
            let ep = Box::into_raw(Box::new(Ep::new(factory, options)));
            // SAFETY: `out` points to a variable for the result (R3).
            unsafe { out.write(ep.cast()) };
            Ok(())
        })
    }

    unsafe extern "system" fn release_ep(_this: *mut sys::EpFactory, ep: *mut sys::Ep) {
        // SAFETY: `create_ep` made `ep` from a `Box`, and the runtime releases it once, after its last use
        // (R4).
        let ep = unsafe { Box::from_raw(ep.cast::<Ep>()) };
        catch_panic(|| drop(ep));
    }

    /// Returns no functions for transfers, because all tensors are in the memory of the CPU.
    unsafe extern "system" fn data_transfer(
        _this: *mut sys::EpFactory,
        out: *mut *mut OrtDataTransferImpl,
    ) -> OrtStatusPtr {
        // SAFETY: `out` points to a variable for the result (R3).
        unsafe { out.write(null_mut()) };
        OrtStatusPtr(null_mut())
    }

    unsafe extern "system" fn is_stream_aware(_this: *const sys::EpFactory) -> bool {
        false
    }
}

/// The execution provider of one session.
#[repr(C)]
struct Ep {
    base: sys::Ep,
    runtime: RuntimeApi,
    options: EpOptions,
    registry: *const OrtKernelRegistry,
    /// The memory in which layers work.
    workspace: Arc<Workspace>,
}

impl Ep {
    fn new(factory: &Factory, options: EpOptions) -> Self {
        let base = sys::Ep {
            ort_version_supported: API_VERSION,
            GetName: Self::name,
            GetCapability: Self::capability,
            Compile: Self::compile,
            ReleaseNodeComputeInfos: Self::release_nodes,
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
        let Factory { runtime, registry, .. } = factory;
        Self {
            base,
            runtime: *runtime,
            options,
            registry: registry.as_ptr(),
            workspace: registry.workspace(),
        }
    }

    unsafe extern "system" fn name(_this: *const sys::Ep) -> *const c_char {
        NAME.as_ptr()
    }

    /// Takes every node that has a kernel and that the kernel supports. The nodes of a layer are taken as one group.
    unsafe extern "system" fn capability(
        this: *mut sys::Ep,
        graph: *const OrtGraph,
        info: *mut OrtEpGraphSupportInfo,
    ) -> OrtStatusPtr {
        // SAFETY: The runtime passes the address of a provider of ours, which it has not released yet (R4).
        let Self { runtime, options, .. } = *unsafe { &*this.cast::<Self>() };
        guarded(runtime.api, || {
            // SAFETY: `graph` is valid until this returns (R2).
            let graph = unsafe { NamedGraph::read(runtime, graph) }?;
            let mut taken = vec![false; graph.nodes.len()];
            for (taken, node) in taken.iter_mut().zip(&graph.nodes) {
                // SAFETY: `info` and the node are valid until this returns (R2), and `out` takes the result (R1).
                let kernel = runtime.result(null(), |out| unsafe {
                    (runtime.ep.EpGraphSupportInfo_LookUpKernel)(info, node.node.as_ptr(), out)
                })?;
                *taken = !kernel.is_null() && options.takes(&node.node)?;
            }
            // The nodes that a layer may have. The runtime takes no group with a node that another provider or another
            // group has, such as a transposition between two layers.
            let is_free =
                |node: &NamedNode<'_>| Ok(options.fuses && !node.node.is_of_another_provider(NAME)?);
            let mut free = graph.nodes.iter().map(is_free).collect::<Result<Vec<_>, CallError>>()?;
            for attention in 0..graph.nodes.len() {
                let layer =
                    if taken[attention] { layer::find(&graph, attention, |node| free[node])? } else { None };
                let Some(layer) = layer.filter(|layer| layer.kernels.iter().all(|node| taken[*node])) else {
                    continue;
                };
                let nodes: Vec<_> = layer.nodes.iter().map(|node| graph.nodes[*node].node.as_ptr()).collect();
                // SAFETY: `info` and the nodes are valid until this returns (R2). There are `nodes.len()` of them.
                let status = unsafe {
                    (runtime.ep.EpGraphSupportInfo_AddNodesToFuse)(info, nodes.as_ptr(), nodes.len(), null())
                };
                runtime.check(status)?;
                for node in layer.nodes {
                    (free[node], taken[node]) = (false, false);
                }
            }
            for (_, node) in taken.iter().zip(&graph.nodes).filter(|(taken, _)| **taken) {
                let node = node.node.as_ptr();
                // SAFETY: `info` and `node` are valid until this returns (R2).
                runtime.check(unsafe { (runtime.ep.EpGraphSupportInfo_AddSingleNode)(info, node) })?;
            }
            Ok(())
        })
    }

    /// Makes the nodes that take the places of groups.
    unsafe extern "system" fn compile(
        this: *mut sys::Ep,
        graphs: *const *const OrtGraph,
        fused: *const *const OrtNode,
        count: usize,
        infos: *mut *mut NodeComputeInfo,
        _contexts: *mut *mut OrtNode,
    ) -> OrtStatusPtr {
        // SAFETY: The runtime passes the address of a provider of ours, which it has not released yet (R4).
        let Self { runtime, workspace, .. } = unsafe { &*this.cast::<Self>() };
        guarded(runtime.api, || {
            // SAFETY: `graphs` has `count` elements (R5), which live until this returns (R2).
            let graphs = unsafe { list(graphs, count) };
            // SAFETY: `fused` has `count` elements (R5), which live until this returns (R2).
            let fused = unsafe { list(fused, count) };
            let layers: Result<Vec<_>, _> = graphs
                .iter()
                .zip(fused)
                // SAFETY: The graph and the node are valid until this returns (R2).
                .map(|(graph, fused)| unsafe {
                    CompiledLayer::new(*runtime, *graph, *fused, Arc::clone(workspace))
                })
                .collect();
            for (index, layer) in layers?.into_iter().enumerate() {
                let info = infos.wrapping_add(index);
                // SAFETY: `infos` has room for `count` results (R3), and `index` is below that.
                unsafe { info.write(layer.into_raw()) };
            }
            Ok(())
        })
    }

    unsafe extern "system" fn release_nodes(
        _this: *mut sys::Ep,
        infos: *mut *mut NodeComputeInfo,
        count: usize,
    ) {
        catch_panic(|| {
            // SAFETY: `infos` has `count` elements (R5), which live until this returns (R2).
            for info in unsafe { list(infos, count) } {
                // SAFETY: `compile` made `info`, and the runtime releases it once, after its last use (R4).
                unsafe { CompiledLayer::release(*info) };
            }
        });
    }

    unsafe extern "system" fn kernel_registry(
        this: *mut sys::Ep,
        out: *mut *const OrtKernelRegistry,
    ) -> OrtStatusPtr {
        // SAFETY: The runtime passes the address of a provider of ours, which it has not released yet (R4).
        let registry = unsafe { &*this.cast::<Self>() }.registry;
        // SAFETY: `out` points to a variable for the result (R3).
        unsafe { out.write(registry) };
        OrtStatusPtr(null_mut())
    }
}

/// Returns a list of the runtime. The address of an empty one may be NULL.
///
/// # Safety
/// `first` points to `count` elements that are valid for `'a`.
unsafe fn list<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: The elements are valid by this function's contract.
    unsafe { slice::from_raw_parts(first, count) }
}
