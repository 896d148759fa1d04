//! Ascend ATB `KVCacheOperation`.

use kvscatter::spec::ascend::{self, Prepared};
use kvscatter::{Argument, Error};

use super::Operator;
use crate::context::Context;
use crate::known::Known;
use crate::node::Node;
use crate::recent::Recent;
use crate::status::Failure;

/// `KVCacheOperation(new_kv, layer_id, past, token_offset, seq_len)`. It has no attributes; the output is `past`.
pub(crate) struct KvCacheOperation {
    recent: Recent<Prepared>,
}

const OPERATOR: ascend::KvCacheOperation = ascend::KvCacheOperation::new();

impl Operator for KvCacheOperation {
    fn new(_node: &Node<'_>) -> Result<Self, Failure> {
        Ok(Self { recent: Recent::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), Failure> {
        let new_kv = &context.input(0, Argument::NewKv)?;
        let layer_id = context.input(1, Argument::LayerId)?;
        let past = &context.input(2, Argument::Past)?;
        let token_offset = context.input(3, Argument::TokenOffset)?;
        let seq_len = context.input(4, Argument::SeqLen)?;
        let prepare = || {
            let element = past.element_with(new_kv, refuse)?;
            let write = OPERATOR.prepare(element, &new_kv.sizes()?, &past.sizes()?).map_err(refuse)?;
            context.check_memory(write.geometry(), past, new_kv, refuse)?;
            Ok(write)
        };
        self.recent.with(past, new_kv, prepare, |write| {
            let layer_id = layer_id.list().map_err(refuse)?;
            let token_offset = token_offset.list().map_err(refuse)?;
            let seq_len = seq_len.list().map_err(refuse)?;
            let plan = write.plan(&layer_id, &token_offset, &seq_len).map_err(refuse)?;
            // SAFETY: prepared for tensors like these, and their memory checked then.
            unsafe { context.write(&plan, past, new_kv, refuse) }
        })
    }

    fn check(&self, inputs: &[Known]) -> Result<(), Failure> {
        let [new_kv, _, past, ..] = inputs else { return Ok(()) };
        let (Some(element), Some(new_kv), Some(past)) = (past.element, new_kv.whole(), past.whole()) else {
            return Ok(());
        };
        OPERATOR.prepare(element, &new_kv, &past).map(drop).map_err(refuse)
    }
}

fn refuse(error: Error) -> Failure {
    Failure::fail(format!("KVCacheOperation: {error}"))
}
