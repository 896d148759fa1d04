//! The node that takes the place of a layer's nodes.

use core::ffi::c_void;
use std::sync::Arc;

use ort_sys::{OrtGraph, OrtKernelContext, OrtNode, OrtStatusPtr};

use super::compute::{LayerKernel, Names};
use super::{NamedGraph, find};
use crate::context::Context;
use crate::graph_node::{GraphNode, NamedValue};
use crate::operators::attention::declaration::Declaration;
use crate::runtime::RuntimeApi;
use crate::status::{CallError, guarded};
use crate::sys::{API_VERSION, NodeComputeInfo, OrtNodeComputeContext};
use crate::workspace::Workspace;

/// The node of a layer. It begins with the struct that the runtime reads.
#[repr(C)]
pub(crate) struct CompiledLayer {
    base: NodeComputeInfo,
    runtime: RuntimeApi,
    kernel: LayerKernel,
    inputs: usize,
}

/// Threads share a node (R4).
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<LayerKernel>();
};

impl CompiledLayer {
    /// Creates the node `fused`, which takes the place of the nodes of `graph`. Returns an error if the nodes are not
    /// those of one layer.
    ///
    /// # Safety
    /// `graph` and `fused` are objects of the runtime that are valid until this returns.
    pub(crate) unsafe fn new(
        runtime: RuntimeApi,
        graph: *const OrtGraph,
        fused: *const OrtNode,
        workspace: Arc<Workspace>,
    ) -> Result<Box<Self>, CallError> {
        // SAFETY: `graph` is valid by this function's contract, and is not used longer.
        let graph = unsafe { NamedGraph::read(runtime, graph) }?;
        // SAFETY: `fused` is valid by this function's contract, and is not used longer.
        let fused = unsafe { GraphNode::new(runtime, fused) };
        let names = |values: Vec<NamedValue>| values.into_iter().map(|value| value.name).collect();
        let names = Names { inputs: names(fused.named_inputs()?), outputs: names(fused.named_outputs()?) };
        let inputs = names.inputs.len();
        let index = |names: &[String], value: usize| {
            names.iter().position(|name| graph.values.get(name) == Some(&value))
        };
        let mut found = None;
        for (number, node) in graph.nodes.iter().enumerate() {
            if let Some(layer) = find(&graph, number, |_| true)?
                && layer.nodes.len() == graph.nodes.len()
            {
                let declaration = Declaration::read(&node.node, &node.node.outputs()?)?;
                let layer =
                    layer.renumber(|value| index(&names.inputs, value), |value| index(&names.outputs, value));
                found = layer.map(|layer| (layer, declaration));
            }
        }
        let (layer, declaration) = found
            .ok_or_else(|| CallError::fail("kvscatter: the nodes of a group are not those of a layer"))?;
        let kernel = LayerKernel::new(layer, declaration, names, workspace);
        let base = NodeComputeInfo {
            ort_version_supported: API_VERSION,
            CreateState: Self::create_state,
            Compute: Self::compute,
            ReleaseState: Self::release_state,
        };
        Ok(Box::new(Self { base, runtime, kernel, inputs }))
    }

    /// Passes the node to the runtime, which passes it back to [`release`](Self::release).
    pub(crate) fn into_raw(self: Box<Self>) -> *mut NodeComputeInfo {
        Box::into_raw(self).cast()
    }

    /// Drops a node.
    ///
    /// # Safety
    /// `raw` comes from [`into_raw`](Self::into_raw) and is not used again.
    pub(crate) unsafe fn release(raw: *mut NodeComputeInfo) {
        // SAFETY: This function's contract requires that `raw` comes from `into_raw`, which uses a `Box`, and
        // that it is not used again.
        drop(unsafe { Box::from_raw(raw.cast::<Self>()) });
    }

    /// Makes no state, because a node has what its calls share.
    unsafe extern "system" fn create_state(
        this: *mut NodeComputeInfo,
        _context: *mut OrtNodeComputeContext,
        state: *mut *mut c_void,
    ) -> OrtStatusPtr {
        // SAFETY: `state` points to a variable for the result (R3).
        unsafe { state.write(this.cast()) };
        OrtStatusPtr(core::ptr::null_mut())
    }

    unsafe extern "system" fn compute(
        this: *mut NodeComputeInfo,
        _state: *mut c_void,
        context: *mut OrtKernelContext,
    ) -> OrtStatusPtr {
        // SAFETY: The runtime passes the address of a node of ours, which it has not released yet (R4).
        let this = unsafe { &*this.cast::<Self>() };
        guarded(this.runtime.api, || {
            // SAFETY: `context` is valid until this returns (R2), and the node has `this.inputs` inputs.
            let context = unsafe { Context::new(this.runtime, context, this.inputs) };
            this.kernel.compute(&context)
        })
    }

    unsafe extern "system" fn release_state(_this: *mut NodeComputeInfo, _state: *mut c_void) {}
}
