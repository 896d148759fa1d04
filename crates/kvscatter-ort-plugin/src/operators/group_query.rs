//! `GroupQueryAttention` of the domain `com.microsoft`, over caches that a program binds as past and present.
//!
//! A call splits and rotates the new rows, writes keys and values to the caches, and attends to them. If it returns an
//! error, nothing has changed. So everything that can fail comes first: `inputs` checks types, shapes and positions,
//! `step` requests all outputs and compares their memory with that of all inputs. Only then is anything written.

mod inputs;
mod new_rows;
mod present;
mod scales;
mod step;

use core::ffi::CStr;
use std::ffi::CString;
use std::sync::Arc;

use half::{bf16, f16};
use kvscatter::ElementType::{BFloat16, Float16, Float32, Int8};
use kvscatter_attention::{AttributeValue, Declared, Float, GroupQuery};

use self::inputs::Tensors;
use self::scales::CacheRows;
use self::step::{PreparedStep, StepMemory};
use super::Operator;
use crate::context::Context;
use crate::graph_node::GraphNode;
use crate::node::{Attributes, Node};
use crate::recent::RecentlyPrepared;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;
use crate::workspace::Workspace;

/// The operator.
pub(crate) struct GroupQueryAttention {
    node: GroupQuery,
    has_present: bool,
    recent: RecentlyPrepared<PreparedStep>,
    workspace: Arc<Workspace>,
}

impl GroupQueryAttention {
    /// The domain of the operator.
    pub(crate) const DOMAIN: &'static CStr = c"com.microsoft";

    /// Returns whether the provider takes a node of this operator. The runtime has already compared the type of its
    /// queries with those of the kernel.
    pub(crate) fn takes(node: &GraphNode<'_>) -> Result<bool, CallError> {
        let attributes = node.attributes()?;
        let attributes = attributes.iter().map(|(name, value)| (name.as_str(), *value));
        Ok(GroupQuery::read(attributes, &declared(&node.inputs()?), &node.outputs()?).is_ok())
    }

    fn compute_as<T: Float, C: CacheRows>(
        &self,
        context: &Context<'_>,
        tensors: &Tensors<'_>,
    ) -> Result<(), CallError> {
        let call = tensors.call::<T, C>(&self.node)?;
        let prepare = || PreparedStep::new::<T, C>(&self.node, context, tensors, &call);
        let mut step = self.recent.get(call.signatures(tensors).into_iter(), prepare)?;
        let memory = StepMemory { workspace: &self.workspace, has_present: self.has_present };
        step.run::<T, C>(memory, context, tensors, &call)
    }
}

impl Operator for GroupQueryAttention {
    const NAME: &'static CStr = c"GroupQueryAttention";

    fn new(node: &Node<'_>) -> Result<Self, CallError> {
        // A kernel gets attributes only by their names.
        let mut attributes = Vec::new();
        for name in GroupQuery::INTEGERS {
            let value = node.integer(&CString::new(name).unwrap_or_default())?;
            attributes.extend(value.map(|value| (name, AttributeValue::Int(value))));
        }
        for name in GroupQuery::FLOATS {
            let value = node.float(&CString::new(name).unwrap_or_default())?;
            attributes.extend(value.map(|value| (name, AttributeValue::Float(value))));
        }
        for name in GroupQuery::STRINGS {
            let value = node.string(&CString::new(name).unwrap_or_default())?;
            let known = GroupQuery::QUANT_TYPES.into_iter().find(|known| value.as_deref() == Some(known));
            attributes.extend(known.map(|known| (name, AttributeValue::String(known))));
        }
        let outputs = node.outputs()?;
        let read = GroupQuery::read(attributes, &declared(&node.inputs()?), &outputs);
        Ok(Self {
            node: read.map_err(|refused| CallError::invalid_argument(refused.to_string()))?,
            has_present: outputs.get(1) == Some(&true),
            recent: RecentlyPrepared::new(),
            workspace: Arc::clone(node.workspace),
        })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let tensors = Tensors::read(context)?;
        match tensors.types()? {
            (Float16, Float16) => self.compute_as::<f16, f16>(context, &tensors),
            (BFloat16, BFloat16) => self.compute_as::<bf16, bf16>(context, &tensors),
            (Float32, Float16) => self.compute_as::<f32, f16>(context, &tensors),
            (Float32, BFloat16) => self.compute_as::<f32, bf16>(context, &tensors),
            (Float32, Int8) => self.compute_as::<f32, i8>(context, &tensors),
            // `call` refuses other types.
            _ => self.compute_as::<f32, f32>(context, &tensors),
        }
    }

    /// Checks nothing, because [`takes`](Self::takes) has decided that the provider takes the node.
    fn check(&self, _inputs: &[TensorInfo]) -> Result<(), CallError> {
        Ok(())
    }
}

/// Returns what a model declares about inputs.
fn declared(inputs: &[TensorInfo]) -> Vec<Declared> {
    let declared = |input: &TensorInfo| match input.element() {
        Some(element) => Declared::Of(element),
        None if input.is_present() => Declared::Unknown,
        None => Declared::Absent,
    };
    inputs.iter().map(declared).collect()
}
