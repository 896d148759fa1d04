//! Ascend ATB `KVCacheOperation`.

use core::ffi::CStr;

use kvscatter::Argument;
use kvscatter::spec::ascend::{self, KvCacheOperationCall};
use kvscatter::spec::fill_unknown;

use super::Operator;
use crate::context::Context;
use crate::node::Node;
use crate::status::Failure;
use crate::tensor_info::TensorInfo;
use crate::write::PreparedWrites;

/// `KVCacheOperation(new_kv, layer_id, past, token_offset, seq_len)`. It has no attributes; the output is `past`.
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

    fn new(_node: &Node<'_>) -> Result<Self, Failure> {
        Ok(Self { writes: PreparedWrites::new() })
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
            |element, past, new_kv| OPERATOR.prepare(element, past, new_kv),
            |write| {
                let (layer_id, token_offset, seq_len) =
                    (&layer_id.list()?, &token_offset.list()?, &seq_len.list()?);
                write.write(&write.plan(KvCacheOperationCall { layer_id, token_offset, seq_len })?)
            },
        )
    }

    fn check(&self, inputs: &[TensorInfo]) -> Result<(), Failure> {
        let [new_kv, _, past, ..] = inputs else { return Ok(()) };
        let Some(element) = past.element else { return Ok(()) };
        let (mut past, mut new_kv) = (past.sizes_or(4), new_kv.sizes_or(2));
        let pairs: &[(usize, usize)] = match (&mut *new_kv, &mut *past) {
            ([_, _, heads, head_size], [_, _, _, hidden]) => {
                // `hidden` is the product of the other two, so it takes all three to compare them.
                if [&heads, &head_size, &hidden].iter().any(|size| size.is_none()) {
                    (*heads, *head_size, *hidden) = (Some(1), Some(1), Some(1));
                }
                &[(1, 0), (2, 1)]
            }
            _ => &[(3, 1)],
        };
        let (past, new_kv) = fill_unknown(past, new_kv, pairs);
        OPERATOR.prepare(element, &past, &new_kv)?;
        Ok(())
    }
}
