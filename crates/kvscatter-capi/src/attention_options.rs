//! The options of attention.
//!
//! `lib.rs` defines C1 and C2.

use std::ffi::CStr;

use kvscatter_attention::Attention;

use crate::boundary::Versioned;
use crate::call_error::{CallError, CallErrorKind};
use crate::options::choice;

/// Which positions the queries of a sample have, if its call gives lengths.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_query_positions {
    /// The queries are the last tokens: query i of n has the position length - n + i.
    KVS_QUERIES_LAST = 0,
    /// The queries are the first tokens: query i has the position i. So the queries after the length are padding.
    KVS_QUERIES_FIRST = 1,
}

/// The attributes of ONNX Attention. `mode`, `has_sinks` and `blocks_per_sample` are kvscatter extensions; they
/// are not part of the specification.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_attention_options {
    /// `sizeof(kvs_attention_options)`. The `KVS_ATTENTION_OPTIONS_INIT` macro sets it and the defaults.
    pub struct_size: usize,
    /// 1 if a query sees no position after its own, and 0 otherwise.
    pub is_causal: i32,
    /// One of `kvs_mode`. In a ring, position p is in slot p modulo the capacity, and lengths count all tokens so
    /// far.
    pub mode: i32,
    /// 1 if a call gives the score of a sink for each query head, and 0 otherwise. A sink takes a part of the
    /// weights of its head, which goes to no value.
    pub has_sinks: i32,
    /// The factor of the scores, finite and at least 0. 0 means the default, 1 / sqrt(head size).
    pub scale: f32,
    /// A score s becomes softcap * tanh(s / softcap). 0 means no cap. It is finite and at least 0.
    pub softcap: f32,
    /// The number of positions before its own that a query sees, or -1 for all, which is the default.
    pub window_left: i64,
    /// The number of positions after its own that a query sees, or -1 for all, which is the default.
    pub window_right: i64,
    /// 0 for keys and values [batch, heads, slots, size]. Otherwise samples share blocks [blocks, heads, slots of a
    /// block, size], and this is the number of entries that each sample has in the `block_table` of a call.
    pub blocks_per_sample: usize,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_attention_options {}

impl kvs_attention_options {
    pub(crate) fn operator(&self) -> Result<Attention, CallError> {
        let flag = |option, value| choice(option, value, &[false, true]);
        let left = bound(c"window_left", self.window_left)?;
        let right = bound(c"window_right", self.window_right)?;
        let op = Attention::new().causal(flag(c"is_causal", self.is_causal)?);
        let op = op.softcap(self.softcap).window(left, right);
        let op = if flag(c"mode", self.mode)? { op.ring() } else { op };
        let op = if flag(c"has_sinks", self.has_sinks)? { op.sinks() } else { op };
        let op = if self.scale == 0.0 { op } else { op.scale(self.scale) };
        Ok(if self.blocks_per_sample == 0 { op } else { op.blocks(self.blocks_per_sample) })
    }
}

/// Returns the size of one side of a window. A size that does not fit a machine's addresses sets no bound either.
fn bound(option: &'static CStr, value: i64) -> Result<Option<usize>, CallError> {
    match value {
        ..-1 => Err(CallErrorKind::OptionTooSmall { option, value, min: -1 }.into()),
        _ => Ok(usize::try_from(value).ok()),
    }
}
