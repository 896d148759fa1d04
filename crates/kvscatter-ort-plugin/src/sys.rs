//! The structs of ONNX Runtime's plugin interface that no published binding declares.
//!
//! These are the structs of `onnxruntime_ep_c_api.h` up to API version 24, which introduced kernel-based
//! execution providers. The runtime appends to its structs and never reorders them. It reads no fields that
//! were added after the version that a struct of this library states. These declarations therefore work with
//! every later runtime too, and must not grow unless [`API_VERSION`] grows with them. A field without a note
//! was in the first version of its struct.
//!
//! Enumerations that the runtime passes are integers here, because a later runtime may have values that a
//! Rust enumeration does not have.
#![expect(non_snake_case, reason = "fields are named as in the header")]

use core::ffi::{CStr, c_char, c_int, c_void};

use ort_sys::{
    OrtApiBase, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtKernelContext, OrtKernelInfo, OrtKeyValuePairs,
    OrtLogger, OrtNode, OrtSessionOptions, OrtStatusPtr,
};

/// The version of the runtime's interface that this library is written against. It is also the oldest version
/// that the library can use.
pub(crate) const API_VERSION: u32 = 24;

/// The release of ONNX Runtime that introduced this version.
pub(crate) const OLDEST_RUNTIME: &str = "1.24";

/// The domain of ONNX's own operators.
pub(crate) const ONNX_DOMAIN: &CStr = c"";

/// Declares types whose contents only the runtime can access.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

opaque! {
    /// The kernels of an execution provider.
    OrtKernelRegistry
    /// A kernel's description that is being built.
    OrtKernelDefBuilder
    /// A kernel's description.
    OrtKernelDef
    /// A type of values, such as a tensor of floats.
    OrtDataType
    /// What the runtime knows of a node that takes the place of several.
    OrtNodeComputeContext
    /// The list of the nodes that an execution provider takes.
    OrtEpGraphSupportInfo
    /// Functions that copy between devices.
    OrtDataTransferImpl
}

/// A function of the runtime that is not called, or an optional function of this library.
pub(crate) type Unused = Option<unsafe extern "system" fn()>;

/// `OrtEpApi`, the functions that the runtime offers to execution providers.
#[repr(C)]
pub(crate) struct EpApi {
    /// 1.22
    pub(crate) CreateEpDevice: unsafe extern "system" fn(
        factory: *mut EpFactory,
        hardware: *const OrtHardwareDevice,
        metadata: *const OrtKeyValuePairs,
        options: *const OrtKeyValuePairs,
        device: *mut *mut OrtEpDevice,
    ) -> OrtStatusPtr,
    /// `ReleaseEpDevice` (1.22)
    _device: Unused,
    /// 1.23. `options` may be NULL.
    pub(crate) EpGraphSupportInfo_AddNodesToFuse: unsafe extern "system" fn(
        info: *mut OrtEpGraphSupportInfo,
        nodes: *const *const OrtNode,
        count: usize,
        options: *const c_void,
    ) -> OrtStatusPtr,
    /// 1.23
    pub(crate) EpGraphSupportInfo_AddSingleNode:
        unsafe extern "system" fn(info: *mut OrtEpGraphSupportInfo, node: *const OrtNode) -> OrtStatusPtr,
    /// Contexts of compiled nodes, memory devices and streams (1.23), hardware devices (1.24)
    _devices_and_streams: [Unused; 14],
    /// 1.24, as are all functions below
    pub(crate) CreateKernelRegistry:
        unsafe extern "system" fn(registry: *mut *mut OrtKernelRegistry) -> OrtStatusPtr,
    pub(crate) ReleaseKernelRegistry: unsafe extern "system" fn(registry: *mut OrtKernelRegistry),
    pub(crate) KernelRegistry_AddKernel: unsafe extern "system" fn(
        registry: *mut OrtKernelRegistry,
        definition: *const OrtKernelDef,
        create: KernelCreateFn,
        state: *mut c_void,
    ) -> OrtStatusPtr,
    pub(crate) CreateKernelDefBuilder:
        unsafe extern "system" fn(builder: *mut *mut OrtKernelDefBuilder) -> OrtStatusPtr,
    pub(crate) ReleaseKernelDefBuilder: unsafe extern "system" fn(builder: *mut OrtKernelDefBuilder),
    pub(crate) KernelDefBuilder_SetOperatorType:
        unsafe extern "system" fn(builder: *mut OrtKernelDefBuilder, name: *const c_char) -> OrtStatusPtr,
    pub(crate) KernelDefBuilder_SetDomain:
        unsafe extern "system" fn(builder: *mut OrtKernelDefBuilder, domain: *const c_char) -> OrtStatusPtr,
    pub(crate) KernelDefBuilder_SetSinceVersion: unsafe extern "system" fn(
        builder: *mut OrtKernelDefBuilder,
        first: c_int,
        last: c_int,
    ) -> OrtStatusPtr,
    pub(crate) KernelDefBuilder_SetExecutionProvider:
        unsafe extern "system" fn(builder: *mut OrtKernelDefBuilder, name: *const c_char) -> OrtStatusPtr,
    /// `KernelDefBuilder_SetInputMemType`, `KernelDefBuilder_SetOutputMemType`
    _memory_types: [Unused; 2],
    pub(crate) KernelDefBuilder_AddTypeConstraint: unsafe extern "system" fn(
        builder: *mut OrtKernelDefBuilder,
        name: *const c_char,
        types: *const *const OrtDataType,
        count: usize,
    ) -> OrtStatusPtr,
    /// `KernelDefBuilder_AddInputOutputAliases`, for outputs that are unchanged inputs
    _aliases: Unused,
    /// Declares an output that may have the memory of an input, which the runtime's own kernels call
    /// `MayInplace`.
    pub(crate) KernelDefBuilder_AddInputOutputMutableAliases: unsafe extern "system" fn(
        builder: *mut OrtKernelDefBuilder,
        inputs: *const c_int,
        outputs: *const c_int,
        count: usize,
    ) -> OrtStatusPtr,
    pub(crate) KernelDefBuilder_Build: unsafe extern "system" fn(
        builder: *mut OrtKernelDefBuilder,
        definition: *mut *mut OrtKernelDef,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseKernelDef: unsafe extern "system" fn(definition: *mut OrtKernelDef),
    /// `KernelDef_Get…`: operator type, domain, versions, execution provider, memory types
    _definition: [Unused; 6],
    /// The element is an `ONNXTensorElementDataType`. The result belongs to the runtime.
    pub(crate) GetTensorDataType:
        unsafe extern "system" fn(element: c_int, data_type: *mut *const OrtDataType) -> OrtStatusPtr,
    /// Returns NULL if no kernel of the calling execution provider takes the node.
    pub(crate) EpGraphSupportInfo_LookUpKernel: unsafe extern "system" fn(
        info: *mut OrtEpGraphSupportInfo,
        node: *const OrtNode,
        definition: *mut *const OrtKernelDef,
    ) -> OrtStatusPtr,
}

/// `OrtKernelCreateFunc` (1.24).
pub(crate) type KernelCreateFn = unsafe extern "system" fn(
    state: *mut c_void,
    info: *const OrtKernelInfo,
    kernel: *mut *mut KernelImpl,
) -> OrtStatusPtr;

/// `OrtKernelImpl` (1.24), the kernel of one node.
#[repr(C)]
pub(crate) struct KernelImpl {
    pub(crate) ort_version_supported: u32,
    /// Flags that belong to the runtime and begin as 0.
    pub(crate) flags: u32,
    pub(crate) Compute:
        unsafe extern "system" fn(this: *mut KernelImpl, context: *mut OrtKernelContext) -> OrtStatusPtr,
    pub(crate) Release: unsafe extern "system" fn(this: *mut KernelImpl),
    pub(crate) PrePackWeight: Unused,
    pub(crate) SetSharedPrePackedWeight: Unused,
}

/// `OrtNodeComputeInfo` (1.23), the functions of a node that takes the place of several.
#[repr(C)]
pub(crate) struct NodeComputeInfo {
    pub(crate) ort_version_supported: u32,
    pub(crate) CreateState: unsafe extern "system" fn(
        this: *mut NodeComputeInfo,
        context: *mut OrtNodeComputeContext,
        state: *mut *mut c_void,
    ) -> OrtStatusPtr,
    pub(crate) Compute: unsafe extern "system" fn(
        this: *mut NodeComputeInfo,
        state: *mut c_void,
        context: *mut OrtKernelContext,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseState: unsafe extern "system" fn(this: *mut NodeComputeInfo, state: *mut c_void),
}

/// `OrtEp` (1.22), the execution provider of one session.
#[repr(C)]
pub(crate) struct Ep {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "system" fn(this: *const Ep) -> *const c_char,
    /// 1.23, as are all functions up to `GetCompiledModelCompatibilityInfo`
    pub(crate) GetCapability: unsafe extern "system" fn(
        this: *mut Ep,
        graph: *const OrtGraph,
        info: *mut OrtEpGraphSupportInfo,
    ) -> OrtStatusPtr,
    /// `graphs` are the nodes of each group that is fused, and `fused` are the nodes that take their places.
    pub(crate) Compile: unsafe extern "system" fn(
        this: *mut Ep,
        graphs: *const *const OrtGraph,
        fused: *const *const OrtNode,
        count: usize,
        infos: *mut *mut NodeComputeInfo,
        contexts: *mut *mut OrtNode,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseNodeComputeInfos:
        unsafe extern "system" fn(this: *mut Ep, infos: *mut *mut NodeComputeInfo, count: usize),
    pub(crate) GetPreferredDataLayout: Unused,
    pub(crate) ShouldConvertDataLayoutForOp: Unused,
    pub(crate) SetDynamicOptions: Unused,
    pub(crate) OnRunStart: Unused,
    pub(crate) OnRunEnd: Unused,
    pub(crate) CreateAllocator: Unused,
    pub(crate) CreateSyncStreamForDevice: Unused,
    pub(crate) GetCompiledModelCompatibilityInfo: Unused,
    /// 1.24
    pub(crate) GetKernelRegistry:
        unsafe extern "system" fn(this: *mut Ep, registry: *mut *const OrtKernelRegistry) -> OrtStatusPtr,
    /// 1.24. If it is NULL, the runs of one session may be concurrent.
    pub(crate) IsConcurrentRunSupported: Unused,
}

/// `OrtEpFactory` (1.22), which makes the execution providers of sessions.
#[repr(C)]
pub(crate) struct EpFactory {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) GetVendor: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) GetSupportedDevices: unsafe extern "system" fn(
        this: *mut EpFactory,
        hardware: *const *const OrtHardwareDevice,
        hardware_count: usize,
        devices: *mut *mut OrtEpDevice,
        most_devices: usize,
        device_count: *mut usize,
    ) -> OrtStatusPtr,
    pub(crate) CreateEp: unsafe extern "system" fn(
        this: *mut EpFactory,
        hardware: *const *const OrtHardwareDevice,
        metadata: *const *const OrtKeyValuePairs,
        count: usize,
        options: *const OrtSessionOptions,
        logger: *const OrtLogger,
        ep: *mut *mut Ep,
    ) -> OrtStatusPtr,
    pub(crate) ReleaseEp: unsafe extern "system" fn(this: *mut EpFactory, ep: *mut Ep),
    /// 1.23, as are all functions up to `CreateSyncStreamForDevice`
    pub(crate) GetVendorId: unsafe extern "system" fn(this: *const EpFactory) -> u32,
    pub(crate) GetVersion: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) ValidateCompiledModelCompatibilityInfo: Unused,
    pub(crate) CreateAllocator: Unused,
    pub(crate) ReleaseAllocator: Unused,
    /// Must not be NULL, because the runtime calls it without a check.
    pub(crate) CreateDataTransfer: unsafe extern "system" fn(
        this: *mut EpFactory,
        transfer: *mut *mut OrtDataTransferImpl,
    ) -> OrtStatusPtr,
    pub(crate) IsStreamAware: unsafe extern "system" fn(this: *const EpFactory) -> bool,
    pub(crate) CreateSyncStreamForDevice: Unused,
    /// 1.24, as are all functions below
    pub(crate) GetHardwareDeviceIncompatibilityDetails: Unused,
    pub(crate) CreateExternalResourceImporterForDevice: Unused,
    pub(crate) GetNumCustomOpDomains: Unused,
    pub(crate) GetCustomOpDomains: Unused,
}

/// The type of `CreateEpFactories`, which a runtime calls in a library (1.22).
pub(crate) type CreateEpFactoriesFn = unsafe extern "C" fn(
    name: *const c_char,
    base: *const OrtApiBase,
    logger: *const OrtLogger,
    factories: *mut *mut EpFactory,
    most: usize,
    count: *mut usize,
) -> OrtStatusPtr;

/// The type of `ReleaseEpFactory`, which a runtime calls in a library (1.22).
pub(crate) type ReleaseEpFactoryFn = unsafe extern "C" fn(factory: *mut EpFactory) -> OrtStatusPtr;

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::{Ep, EpApi, EpFactory, KernelImpl, NodeComputeInfo};

    const WORD: usize = size_of::<usize>();

    /// The expected offsets are positions in the header of 1.24, counted by hand.
    #[test]
    fn entries_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(EpApi, CreateEpDevice), 0);
        assert_eq!(offset_of!(EpApi, EpGraphSupportInfo_AddNodesToFuse), 2 * WORD);
        assert_eq!(offset_of!(EpApi, EpGraphSupportInfo_AddSingleNode), 3 * WORD);
        assert_eq!(offset_of!(EpApi, CreateKernelRegistry), 18 * WORD);
        assert_eq!(offset_of!(EpApi, KernelRegistry_AddKernel), 20 * WORD);
        assert_eq!(offset_of!(EpApi, KernelDefBuilder_SetOperatorType), 23 * WORD);
        assert_eq!(offset_of!(EpApi, KernelDefBuilder_SetExecutionProvider), 26 * WORD);
        assert_eq!(offset_of!(EpApi, KernelDefBuilder_AddTypeConstraint), 29 * WORD);
        assert_eq!(offset_of!(EpApi, KernelDefBuilder_AddInputOutputMutableAliases), 31 * WORD);
        assert_eq!(offset_of!(EpApi, ReleaseKernelDef), 33 * WORD);
        assert_eq!(offset_of!(EpApi, GetTensorDataType), 40 * WORD);
        assert_eq!(offset_of!(EpApi, EpGraphSupportInfo_LookUpKernel), 41 * WORD);
    }

    /// The version and its padding, or the version and the flags, take one word on the 64-bit machines that
    /// wheels are made for.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_are_those_of_1_24() {
        assert_eq!((offset_of!(KernelImpl, Compute), size_of::<KernelImpl>()), (WORD, 5 * WORD));
        assert_eq!((offset_of!(Ep, GetCapability), offset_of!(Ep, GetKernelRegistry)), (2 * WORD, 13 * WORD));
        assert_eq!((offset_of!(Ep, Compile), size_of::<Ep>()), (3 * WORD, 15 * WORD));
        assert_eq!(
            (offset_of!(NodeComputeInfo, Compute), size_of::<NodeComputeInfo>()),
            (2 * WORD, 4 * WORD)
        );
        assert_eq!(offset_of!(EpFactory, GetSupportedDevices), 3 * WORD);
        assert_eq!(offset_of!(EpFactory, CreateDataTransfer), 11 * WORD);
        assert_eq!(offset_of!(EpFactory, GetHardwareDeviceIncompatibilityDetails), 14 * WORD);
        assert_eq!(size_of::<EpFactory>(), 18 * WORD);
    }
}
