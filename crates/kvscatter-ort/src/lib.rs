//! A plugin for stock ONNX Runtime: loaded by path, built against nothing.
//!
//! One library, two ways in:
//!
//! * **An execution provider**, [`CreateEpFactories`]: `KvscatterExecutionProvider` takes ONNX `TensorScatter-24`
//!   for every element type that the runtime carries.
//! * **Custom operators**, [`RegisterCustomOps`]: `TensorScatter`, `KVCacheUpdate` and `KVCacheOperation` of the
//!   domain `com.kvscatter`, which run on the runtime's own CPU provider.
//!
//! Either way a write goes in place where the runtime gives the output the memory of the cache, and in one pass over
//! both where it does not. Every index is checked before the output is asked for, so a refused call changes nothing.
//! Positions follow the runtime's rules: a negative index is refused, in a ring as well.
//!
//! # Layers
//!
//! `sys` declares what no binding does; `runtime` negotiates the version; `status` is the edge that every call comes
//! in by; `ep`, `registry` and `kernel` are the execution provider; `registration`, `custom_ops` and `inference` the
//! custom operators; `operators` say what one call means, by way of `node`, `known` and `context`, and end in `write`, which
//! rests on `recent` and `threads`.
//! What a write is, and which are refused, is the core's to say.
//!
//! # Needs
//!
//! ONNX Runtime 1.24 or newer. An older one is told so.
#![deny(unsafe_op_in_unsafe_fn)]

mod context;
mod custom_ops;
mod ep;
mod inference;
mod kernel;
mod known;
mod node;
mod operators;
mod owned;
mod recent;
mod registration;
mod registry;
mod runtime;
mod status;
mod sys;
mod threads;
mod write;

use core::ffi::c_char;
use core::ptr::null_mut;

use ort_sys::{OrtApiBase, OrtLogger, OrtSessionOptions, OrtStatusPtr};

use crate::ep::Factory;
use crate::runtime::Runtime;
use crate::status::{Failure, enter};

/// Makes the factory of the execution provider: what `RegisterExecutionProviderLibrary` calls.
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
    enter(runtime, || {
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

/// Takes a factory back: what `UnregisterExecutionProviderLibrary` calls.
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

/// Adds the domain `com.kvscatter` to a session: what `RegisterCustomOpsLibrary` calls.
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
    enter(runtime, || unsafe { registration::register(runtime, options) })
}

// What the runtime calls them by.
const _: sys::CreateEpFactoriesFn = CreateEpFactories;
const _: sys::ReleaseEpFactoryFn = ReleaseEpFactory;
