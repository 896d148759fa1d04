//! ONNX `Attention` of operator sets 23 to 25, over caches as they are in memory.

pub(crate) mod call;
pub(crate) mod declaration;
pub(crate) mod memory;

use core::ffi::CStr;

use self::call::{PreparedCall, Tensors};
use self::declaration::Declaration;
pub(crate) use self::declaration::FLOATS;
use super::Operator;
use crate::context::Context;
use crate::node::{Attributes, Node};
use crate::recent::RecentlyPrepared;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;

/// The operator `Attention(Q, K, V, attn_mask?, past_key?, past_value?, nonpad_kv_seqlen?)`, which computes `Y`
/// and, if the node has them, `present_key`, `present_value` and `qk_matmul_output`.
pub(crate) struct Attention {
    declaration: Declaration,
    recent: RecentlyPrepared<PreparedCall>,
}

impl Attention {
    /// Checks that the kernel supports a node, whose types the runtime has already compared with those of the kernel.
    /// Returns an error that names what is not supported.
    pub(crate) fn check_node(
        attributes: &impl Attributes,
        inputs: &[TensorInfo],
        outputs: &[bool],
    ) -> Result<(), CallError> {
        Declaration::read(attributes, outputs)?.check_inputs(inputs)
    }
}

impl Operator for Attention {
    const NAME: &'static CStr = c"Attention";

    fn new(node: &Node<'_>) -> Result<Self, CallError> {
        let declaration = Declaration::read(node, &node.outputs()?)?;
        Ok(Self { declaration, recent: RecentlyPrepared::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let tensors = Tensors::read(context)?;
        let prepare = || PreparedCall::new(&self.declaration, context, &tensors);
        let mut prepared = self.recent.get(tensors.signatures(), prepare)?;
        prepared.run(&self.declaration, context, &tensors)
    }

    /// Checks nothing, because [`check_node`](Self::check_node) has decided that the provider takes the node.
    fn check(&self, _inputs: &[TensorInfo]) -> Result<(), CallError> {
        Ok(())
    }
}
