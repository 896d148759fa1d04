//! Ascend ATB `KVCacheOperation`.

use core::ffi::CStr;

use kvscatter::Argument;
use kvscatter::spec::ascend::{self, Prepared};

use super::Operator;
use crate::context::Context;
use crate::known::Known;
use crate::node::Node;
use crate::status::Failure;
use crate::write::Writes;

/// `KVCacheOperation(new_kv, layer_id, past, token_offset, seq_len)`. It has no attributes; the output is `past`.
pub(crate) struct KvCacheOperation {
    writes: Writes<Prepared>,
}

const OPERATOR: ascend::KvCacheOperation = ascend::KvCacheOperation::new();

impl Operator for KvCacheOperation {
    const NAME: &'static CStr = c"KVCacheOperation";

    fn new(_node: &Node<'_>) -> Result<Self, Failure> {
        Ok(Self { writes: Writes::new() })
    }

    fn compute(&self, context: &Context<'_>) -> Result<(), Failure> {
        let new_kv = &context.input(0, Argument::NewKv)?;
        let layer_id = context.input(1, Argument::LayerId)?;
        let past = &context.input(2, Argument::Past)?;
        let token_offset = context.input(3, Argument::TokenOffset)?;
        let seq_len = context.input(4, Argument::SeqLen)?;
        self.writes.with(
            context,
            past,
            new_kv,
            |element, past, new_kv| OPERATOR.prepare(element, new_kv, past),
            |write| {
                let (layer_id, token_offset, seq_len) =
                    (layer_id.list()?, token_offset.list()?, seq_len.list()?);
                write.write(&write.plan(&layer_id, &token_offset, &seq_len)?)
            },
        )
    }

    fn check(&self, inputs: &[Known]) -> Result<(), Failure> {
        let [new_kv, _, past, ..] = inputs else { return Ok(()) };
        let (Some(element), Some(new_kv), Some(past)) = (past.element, new_kv.whole(), past.whole()) else {
            return Ok(());
        };
        OPERATOR.prepare(element, &new_kv, &past)?;
        Ok(())
    }
}
