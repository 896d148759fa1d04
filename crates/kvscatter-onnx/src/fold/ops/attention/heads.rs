//! The heads of a query, key or value.

use crate::OnnxError;
use crate::fold::FoldError;
use crate::fold::call::Call;

/// The dimensions of a query, key or value.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) length: usize,
    pub(super) size: usize,
}

impl Heads {
    /// Reads a shape `[batch, heads, length, size]`, or `[batch, length, heads * size]` with the number of
    /// heads in an attribute.
    pub(super) fn new(call: &Call<'_>, index: usize, count: &'static str) -> Result<Self, OnnxError> {
        match *call.input(index)?.shape.as_slice() {
            [batch, heads, length, size] => Ok(Self { batch, heads, length, size }),
            [batch, length, hidden] => {
                let heads = head_count(call, count)?;
                let size = share(call, index, hidden, heads)?;
                Ok(Self { batch, heads, length, size })
            }
            _ => Err(call.bad_shape(index, "rank 3 or 4")),
        }
    }
}

/// Returns a number of heads, which must be an attribute greater than 0.
pub(super) fn head_count(call: &Call<'_>, name: &'static str) -> Result<usize, OnnxError> {
    let count = call.int(name, 0)?;
    let positive = usize::try_from(count).ok().filter(|&count| count > 0);
    positive.ok_or_else(|| FoldError::AttributeValue { name, value: count.to_string() }.into())
}

/// Returns the part of the last axis that belongs to each head.
pub(super) fn share(call: &Call<'_>, index: usize, hidden: usize, heads: usize) -> Result<usize, OnnxError> {
    let is_even = hidden.checked_rem(heads) == Some(0);
    let share = hidden.checked_div(heads).filter(|_| is_even);
    share.ok_or_else(|| call.bad_shape(index, "a last axis that its heads share"))
}
