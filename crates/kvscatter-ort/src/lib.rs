//! A plugin for stock ONNX Runtime, which loads it by path.
//!
//! It has two entry points:
//!
//! * **An execution provider**, [`CreateEpFactories`]: `KvscatterExecutionProvider` takes ONNX `TensorScatter-24`
//!   for every element type that the runtime carries.
//! * **Custom operators**, [`RegisterCustomOps`]: `TensorScatter`, `KVCacheUpdate` and `KVCacheOperation` of the
//!   domain `com.kvscatter`, which run on the runtime's own CPU provider.
//!
//! Both write in place if the runtime gives the output the memory of the cache, and in one pass over both if it does
//! not. They check every index before they request the output, so a refused call changes nothing. As in the runtime's
//! own operator, a negative index is refused, in a ring too.
//!
//! # Layers
//!
//! - `sys` declares the structs that no binding does, `runtime` negotiates the version, and `status` turns the results
//!   of all functions that the runtime calls into statuses.
//! - `ep`, `registry` and `kernel` are the execution provider.
//! - `registration`, `custom_ops` and `inference` are the custom operators.
//! - `operators` has what one call of either means. It reads a call through `node`, `tensor_info` and `context`, and ends
//!   in `write`, which uses `recent` and `threads`.
//!
//! The core defines every write and every error about one.
//!
//! # Needs
//!
//! ONNX Runtime 1.24 or newer. An older one gets a status that names both versions.
#![deny(unsafe_op_in_unsafe_fn)]

mod context;
mod custom_ops;
mod ep;
mod inference;
mod kernel;
mod node;
mod operators;
mod owned;
mod recent;
mod registration;
mod registry;
mod runtime;
mod status;
mod sys;
mod tensor_info;
mod threads;
mod write;

use core::ffi::c_char;
use core::ptr::null_mut;

use ort_sys::{OrtApiBase, OrtLogger, OrtSessionOptions, OrtStatusPtr};

use crate::ep::Factory;
use crate::runtime::Runtime;
use crate::status::{Failure, guarded};

/// Makes the factory of the execution provider. `RegisterExecutionProviderLibrary` calls it.
///
/// # Safety
/// As `onnxruntime_ep_c_api.h` has it for `CreateEpApiFactoriesFn`.
#[unsafe(no_mangle)]
#[expect(private_interfaces, reason = "a struct between the runtime and this library")]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const OrtApiBase,
    _logger: *const OrtLogger,
    factories: *mut *mut sys::EpFactory,
    most: usize,
    count: *mut usize,
) -> OrtStatusPtr {
    // SAFETY: the caller's.
    let runtime = match unsafe { Runtime::negotiate(base) } {
        Ok(runtime) => runtime,
        Err(too_old) => return too_old,
    };
    guarded(runtime, || {
        if most == 0 {
            return Err(Failure::invalid_argument("CreateEpFactories: there is no room for a factory"));
        }
        let factory = Factory::new(runtime)?.into_raw();
        // SAFETY: the runtime's list has room for `most`.
        unsafe { factories.write(factory) };
        // SAFETY: the runtime's variable for the answer.
        unsafe { count.write(1) };
        Ok(())
    })
}

/// Releases a factory. `UnregisterExecutionProviderLibrary` calls it.
///
/// # Safety
/// As `onnxruntime_ep_c_api.h` has it for `ReleaseEpApiFactoryFn`.
#[unsafe(no_mangle)]
#[expect(private_interfaces, reason = "a struct between the runtime and this library")]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut sys::EpFactory) -> OrtStatusPtr {
    if !factory.is_null() {
        // SAFETY: the caller's.
        unsafe { Factory::release(factory) };
    }
    OrtStatusPtr(null_mut())
}

/// Adds the domain `com.kvscatter` to a session. `RegisterCustomOpsLibrary` calls it.
///
/// # Safety
/// As `onnxruntime_c_api.h` has it for `RegisterCustomOpsFn`.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: the caller's.
    let runtime = match unsafe { Runtime::negotiate(base) } {
        Ok(runtime) => runtime,
        Err(too_old) => return too_old,
    };
    // SAFETY: the caller's.
    guarded(runtime, || unsafe { registration::register(runtime, options) })
}

// The types that the runtime's header declares them with.
const _: sys::CreateEpFactoriesFn = CreateEpFactories;
const _: sys::ReleaseEpFactoryFn = ReleaseEpFactory;
