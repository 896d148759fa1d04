//! A plugin for stock ONNX Runtime, which loads it by path.
//!
//! The plugin has two entry points:
//!
//! * **An execution provider**, [`CreateEpFactories`]: `KvscatterExecutionProvider` takes ONNX
//!   `TensorScatter-24` for every element type that the runtime supports, and ONNX `Attention` of operator
//!   sets 23 to 25 and `GroupQueryAttention` of the domain `com.microsoft` for the types and inputs that
//!   `kvscatter_attention` supports. If a session chooses it, the provider takes the nodes of a layer as one.
//! * **Custom operators**, [`RegisterCustomOps`]: `TensorScatter`, `KVCacheUpdate` and `KVCacheOperation` of
//!   the domain `com.kvscatter`, which run on the runtime's own CPU provider.
//!
//! Both write caches in place if the runtime gives the output the memory of the cache. Otherwise they copy the
//! cache and write the update in one pass. They check every index before they request the output, so a call
//! that returns an error changes nothing. A negative index is an error, even in a ring, as in the runtime's
//! own operator.
//!
//! # The Python package
//!
//! The compiled module of the Python package links this crate as a Rust library and exports its functions. So
//! that module is a plugin too. It calls [`stay_loaded`], because an interpreter never unloads it.
//!
//! # Layers
//!
//! - `sys` declares the structs that no binding declares. `status` converts the results of all functions that
//!   the runtime calls to statuses. `runtime` uses both to negotiate the version.
//! - `ep`, `options`, `registry`, `graph_node` and `kernel` are the execution provider.
//! - `layer` finds the nodes of a layer in a graph for `ep`, and executes a call of the node that replaces them, with
//!   the parts that `operators` and `write` use.
//! - `registration` and `custom_ops` are the custom operators.
//! - `operators` reads a node through `node` and `tensor_info`, and a call through `context` and `input`. It
//!   executes a write through `write`. Every operator uses `recent` and `threads`, and some use `rotary` and
//!   `workspace`.
//!
//! A function of this crate that calls the runtime returns the status of a call that fails, unless its result is an
//! `Option` or a `bool`. The core defines every write and every error about a write. `kvscatter_attention` does so for
//! attention.
//!
//! # Requirements
//!
//! ONNX Runtime 1.24 or newer. An older runtime gets a status that names both versions.
//!
//! # What the runtime promises
//!
//! `onnxruntime_c_api.h` and `onnxruntime_ep_c_api.h` promise these conditions. `# Safety` sections and
//! `SAFETY` comments cite them. The runtime calls each `extern` function of this crate, and the conditions
//! are the contract of these functions.
//!
//! - **R1** A function of the runtime may be called with objects that are valid (R2), or that were made and
//!   not yet released. The function writes results only to the addresses that it is given for them. It copies
//!   the strings and lists that it is given.
//! - **R2** An object that the runtime passes to a function of this crate is valid until that function
//!   returns. Such objects are a context, a graph, a node, options, or a list. Their parts, such as inputs,
//!   are valid as long.
//! - **R3** An address that the runtime passes for a result points to a variable of that type. If a number
//!   beside it gives a count, it points to that many variables. Only this call writes them.
//! - **R4** The runtime passes an object of this crate (factory, provider, operator, kernel, layer) by the address
//!   that it was given. Threads may share the object until the runtime calls its release function. The
//!   runtime calls the release function once, after the last use of the object.
//! - **R5** A list that the runtime passes or returns has the number of elements that is given beside it. A
//!   string ends in a zero byte. Both live as long as the object that they are a part of.
//! - **R6** The argument that a runtime passes to a library that it loads is the runtime's table. The tables
//!   and the functions in them are valid as long as this library is loaded.
#![deny(unsafe_op_in_unsafe_fn)]

mod context;
mod custom_ops;
mod ep;
mod graph_node;
mod input;
mod kernel;
mod layer;
mod node;
mod operators;
mod options;
mod owned;
mod recent;
mod registration;
mod registry;
mod rotary;
mod runtime;
mod status;
mod sys;
mod tensor_info;
mod threads;
mod workspace;
mod write;

use core::ffi::c_char;
use core::ptr::null_mut;

use ort_sys::{OrtApiBase, OrtLogger, OrtSessionOptions, OrtStatusPtr};

use crate::ep::Factory;
use crate::runtime::RuntimeApi;
use crate::status::{CallError, guarded};

pub use registration::stay_loaded;

/// Creates the factory of the execution provider. `RegisterExecutionProviderLibrary` calls this function.
///
/// # Safety
/// The requirements of `CreateEpApiFactoriesFn` in `onnxruntime_ep_c_api.h`: `base` is what a runtime passes
/// to a library that it loads (R6), `factories` has room for `most` elements, and `count` has room for one
/// (R3).
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
    // SAFETY: `base` is what a runtime passes to a library that it loads, by this function's contract.
    let runtime = match unsafe { RuntimeApi::negotiate(base) } {
        Ok(runtime) => runtime,
        Err(too_old) => return too_old,
    };
    guarded(runtime.api, || {
        if most == 0 {
            return Err(CallError::invalid_argument("CreateEpFactories: there is no room for a factory"));
        }
        let factory = Factory::new(runtime)?.into_raw();
        // SAFETY: `factories` has room for `most` elements, which is above 0 (R3).
        unsafe { factories.write(factory) };
        // SAFETY: `count` points to a variable for the result (R3).
        unsafe { count.write(1) };
        Ok(())
    })
}

/// Releases a factory. `UnregisterExecutionProviderLibrary` calls this function.
///
/// # Safety
/// The requirements of `ReleaseEpApiFactoryFn` in `onnxruntime_ep_c_api.h`: `factory` is NULL, or comes from
/// [`CreateEpFactories`] and is not used again (R4).
#[unsafe(no_mangle)]
#[expect(private_interfaces, reason = "a struct between the runtime and this library")]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut sys::EpFactory) -> OrtStatusPtr {
    if !factory.is_null() {
        // SAFETY: `factory` comes from `CreateEpFactories` and is not used again, by this function's
        // contract.
        unsafe { Factory::release(factory) };
    }
    OrtStatusPtr(null_mut())
}

/// Adds the domain `com.kvscatter` to a session. `RegisterCustomOpsLibrary` calls this function.
///
/// # Safety
/// The requirements of `RegisterCustomOpsFn` in `onnxruntime_c_api.h`: `base` is what a runtime passes to a
/// library that it loads (R6), and `options` is valid until this returns (R2).
#[unsafe(no_mangle)]
pub unsafe extern "system" fn RegisterCustomOps(
    options: *mut OrtSessionOptions,
    base: *const OrtApiBase,
) -> OrtStatusPtr {
    // SAFETY: `base` is what a runtime passes to a library that it loads, by this function's contract.
    let runtime = match unsafe { RuntimeApi::negotiate(base) } {
        Ok(runtime) => runtime,
        Err(too_old) => return too_old,
    };
    // SAFETY: `options` is valid until this returns, by this function's contract.
    guarded(runtime.api, || unsafe { registration::register(runtime, options) })
}

// The functions must have the types that the runtime's header declares.
const _: sys::CreateEpFactoriesFn = CreateEpFactories;
const _: sys::ReleaseEpFactoryFn = ReleaseEpFactory;
