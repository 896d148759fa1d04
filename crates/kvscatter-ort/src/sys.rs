//! The structs of ONNX Runtime's plugin interface that no published binding declares.
//!
//! They are those of `onnxruntime_ep_c_api.h` up to API version 24, which is where kernel-based execution providers
//! begin. The runtime appends to its structs and never reorders them, and it reads nothing after the fields of the
//! version that a struct of ours states. So these declarations serve every later runtime too, and must not grow
//! without [`API_VERSION`] growing with them. Where a row has no note, the field came with the struct.
//!
//! Enumerations that the runtime hands over are integers here: a later runtime may have values that a Rust
//! enumeration does not.
#![expect(non_snake_case, reason = "fields are named as in the header")]

use core::ffi::{CStr, c_char, c_int, c_void};

use ort_sys::{
    OrtApiBase, OrtEpDevice, OrtGraph, OrtHardwareDevice, OrtKernelContext, OrtKernelInfo, OrtKeyValuePairs,
    OrtLogger, OrtNode, OrtSessionOptions, OrtStatusPtr,
};

/// The version of the runtime's interface that this library is written against, and the oldest it can use.
pub(crate) const API_VERSION: u32 = 24;

/// The release that this version came with.
pub(crate) const OLDEST_RUNTIME: &str = "1.24";

/// The domain of ONNX's own operators.
pub(crate) const ONNX_DOMAIN: &CStr = c"";

/// What only the runtime can look into.
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
    /// A kernel's description, in the making.
    OrtKernelDefBuilder
    /// A kernel's description.
    OrtKernelDef
    /// A type of values, such as a tensor of floats.
    OrtDataType
    /// The list of the nodes that an execution provider takes.
    OrtEpGraphSupportInfo
    /// Copies between devices.
    OrtDataTransferImpl
}

/// A function of the runtime's that is not called, or one of ours that need not be there.
pub(crate) type Unused = Option<unsafe extern "system" fn()>;

/// `OrtEpApi`: the functions that the runtime offers to execution providers.
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
    /// `ReleaseEpDevice` (1.22), `EpGraphSupportInfo_AddNodesToFuse` (1.23)
    _device_and_fusion: [Unused; 2],
    /// 1.23
    pub(crate) EpGraphSupportInfo_AddSingleNode:
        unsafe extern "system" fn(info: *mut OrtEpGraphSupportInfo, node: *const OrtNode) -> OrtStatusPtr,
    /// Contexts of compiled nodes, memory devices and streams (1.23), hardware devices (1.24)
    _devices_and_streams: [Unused; 14],
    /// 1.24, as is all that follows
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
    /// `KernelDefBuilder_AddInputOutputAliases`: for outputs that are their inputs, unchanged
    _aliases: Unused,
    /// What the runtime's own kernels call `MayInplace`.
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
    /// The type is an `ONNXTensorElementDataType`; what comes back is the runtime's.
    pub(crate) GetTensorDataType:
        unsafe extern "system" fn(element: c_int, data_type: *mut *const OrtDataType) -> OrtStatusPtr,
    /// NULL where no kernel of the calling execution provider takes the node.
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

/// `OrtKernelImpl` (1.24): one node's kernel.
#[repr(C)]
pub(crate) struct KernelImpl {
    pub(crate) ort_version_supported: u32,
    /// The runtime's own; begins as 0.
    pub(crate) flags: u32,
    pub(crate) Compute:
        unsafe extern "system" fn(this: *mut KernelImpl, context: *mut OrtKernelContext) -> OrtStatusPtr,
    pub(crate) Release: unsafe extern "system" fn(this: *mut KernelImpl),
    pub(crate) PrePackWeight: Unused,
    pub(crate) SetSharedPrePackedWeight: Unused,
}

/// `OrtEp` (1.22): the execution provider of one session.
#[repr(C)]
pub(crate) struct Ep {
    pub(crate) ort_version_supported: u32,
    pub(crate) GetName: unsafe extern "system" fn(this: *const Ep) -> *const c_char,
    /// 1.23, as is all that follows up to `GetCompiledModelCompatibilityInfo`
    pub(crate) GetCapability: unsafe extern "system" fn(
        this: *mut Ep,
        graph: *const OrtGraph,
        info: *mut OrtEpGraphSupportInfo,
    ) -> OrtStatusPtr,
    pub(crate) Compile: Unused,
    pub(crate) ReleaseNodeComputeInfos: Unused,
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
    /// 1.24; where it is NULL, runs of one session may be concurrent
    pub(crate) IsConcurrentRunSupported: Unused,
}

/// `OrtEpFactory` (1.22): makes the execution providers of sessions.
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
    /// 1.23, as is all that follows up to `CreateSyncStreamForDevice`
    pub(crate) GetVendorId: unsafe extern "system" fn(this: *const EpFactory) -> u32,
    pub(crate) GetVersion: unsafe extern "system" fn(this: *const EpFactory) -> *const c_char,
    pub(crate) ValidateCompiledModelCompatibilityInfo: Unused,
    pub(crate) CreateAllocator: Unused,
    pub(crate) ReleaseAllocator: Unused,
    /// Called without a look whether it is there.
    pub(crate) CreateDataTransfer: unsafe extern "system" fn(
        this: *mut EpFactory,
        transfer: *mut *mut OrtDataTransferImpl,
    ) -> OrtStatusPtr,
    pub(crate) IsStreamAware: unsafe extern "system" fn(this: *const EpFactory) -> bool,
    pub(crate) CreateSyncStreamForDevice: Unused,
    /// 1.24, as is all that follows
    pub(crate) GetHardwareDeviceIncompatibilityDetails: Unused,
    pub(crate) CreateExternalResourceImporterForDevice: Unused,
    pub(crate) GetNumCustomOpDomains: Unused,
    pub(crate) GetCustomOpDomains: Unused,
}

/// What a runtime calls a library's `CreateEpFactories` by (1.22).
pub(crate) type CreateEpFactoriesFn = unsafe extern "C" fn(
    name: *const c_char,
    base: *const OrtApiBase,
    logger: *const OrtLogger,
    factories: *mut *mut EpFactory,
    most: usize,
    count: *mut usize,
) -> OrtStatusPtr;

/// What a runtime calls a library's `ReleaseEpFactory` by (1.22).
pub(crate) type ReleaseEpFactoryFn = unsafe extern "C" fn(factory: *mut EpFactory) -> OrtStatusPtr;

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};

    use super::{Ep, EpApi, EpFactory, KernelImpl};

    const WORD: usize = size_of::<usize>();

    /// Places in the header's order of declaration, counted by hand from the header of 1.24.
    #[test]
    fn entries_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(EpApi, CreateEpDevice), 0);
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

    /// The version and its padding, or the version and the flags, take a word on the 64-bit machines that wheels
    /// are made for.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn structs_are_those_of_1_24() {
        assert_eq!((offset_of!(KernelImpl, Compute), size_of::<KernelImpl>()), (WORD, 5 * WORD));
        assert_eq!((offset_of!(Ep, GetCapability), offset_of!(Ep, GetKernelRegistry)), (2 * WORD, 13 * WORD));
        assert_eq!(size_of::<Ep>(), 15 * WORD);
        assert_eq!(offset_of!(EpFactory, GetSupportedDevices), 3 * WORD);
        assert_eq!(offset_of!(EpFactory, CreateDataTransfer), 11 * WORD);
        assert_eq!(offset_of!(EpFactory, GetHardwareDeviceIncompatibilityDetails), 14 * WORD);
        assert_eq!(size_of::<EpFactory>(), 18 * WORD);
    }
}
