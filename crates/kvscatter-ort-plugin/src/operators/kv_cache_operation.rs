//! Ascend ATB `KVCacheOperation`.

use core::ffi::CStr;

use kvscatter::Argument;
use kvscatter::spec::ascend::{self, KvCacheOperationCall};

use super::{Operator, partial};
use crate::context::Context;
use crate::node::Node;
use crate::status::CallError;
use crate::tensor_info::TensorInfo;
use crate::write::{CheckedWrite, PreparedWrites};

/// The operator `KVCacheOperation(new_kv, layer_id, past, token_offset, seq_len)`. It has no attributes, and
/// its output is `past`.
pub(crate) struct KvCacheOperation {
    writes: PreparedWrites,
}

const OPERATOR: ascend::KvCacheOperation = ascend::KvCacheOperation::new();

impl Operator for KvCacheOperation {
    const NAME: &'static CStr = c"KVCacheOperation";

    fn input_name(argument: Argument) -> &'static str {
        match argument {
            Argument::NewKv => "new_kv",
            Argument::LayerId => "layer_id",
            Argument::TokenOffset => "token_offset",
            Argument::SeqLen => "seq_len",
            other => other.name(),
        }
    }

    fn new(_node: &Node<'_>) -> Result<Self, CallError> {
        Ok(Self { writes: PreparedWrites::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), CallError> {
        let new_kv = &context.input(0, Argument::NewKv)?;
        let layer_id = context.input(1, Argument::LayerId)?;
        let past = &context.input(2, Argument::Past)?;
        let token_offset = context.input(3, Argument::TokenOffset)?;
        let seq_len = context.input(4, Argument::SeqLen)?;
        let prepare = |element, past: &[usize], new_kv: &[usize]| OPERATOR.prepare(element, past, new_kv);
        let prepared = self.writes.get(context, past, new_kv, prepare)?;
        let (layer_id, token_offset, seq_len) = (&layer_id.list()?, &token_offset.list()?, &seq_len.list()?);
        let plan = prepared.plan(KvCacheOperationCall { layer_id, token_offset, seq_len })?;
        CheckedWrite::new(&prepared, context, past, new_kv.bytes()?, 0).write(&plan)
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), CallError> {
        let input = |index| partial(inputs, index);
        OPERATOR.infer(input(2), input(0), input(1), input(3), input(4))?;
        Ok(())
    }
}
