//! The shapes of linear attention, which keeps a recurrent state instead of a cache.

use super::heads::{head_count, share};
use crate::fold::FoldError;
use crate::fold::call::{Call, Outputs};

/// The index of the state before a step.
const PAST: usize = 3;

/// Returns the shapes of `LinearAttention` of operator set 27 and of ONNX Runtime: `[batch, length, heads * size]` with
/// the larger number of heads, and the state `[batch, heads, key size, value size]`.
pub(in crate::fold::ops) fn linear_attention(call: &Call<'_>) -> Outputs {
    let [query, value] = [call.input(0)?, call.input(2)?];
    let (&[batch, length, hidden], &[_, _, of_values]) = (query.shape.as_slice(), value.shape.as_slice())
    else {
        return Err(call.bad_shape(0, "rank 3, and values of rank 3"));
    };
    if call.int("state_window", 0)? != 0 {
        return Err(FoldError::NoForm { what: "a window of states" }.into());
    }
    let (heads, kv_heads) = (head_count(call, "q_num_heads")?, head_count(call, "kv_num_heads")?);
    let (key_size, size) = (share(call, 0, hidden, heads)?, share(call, 2, of_values, kv_heads)?);
    let past = call.optional(PAST);
    let state = vec![batch, kv_heads, key_size, size];
    if past.is_some_and(|past| past.shape != state) {
        return Err(call.bad_shape(PAST, "[batch, key heads, key size, value size]"));
    }
    let output = vec![batch, length, heads.max(kv_heads).saturating_mul(size)];
    call.shaped([(query.element, output), (past.map_or(query.element, |past| past.element), state)])
}
