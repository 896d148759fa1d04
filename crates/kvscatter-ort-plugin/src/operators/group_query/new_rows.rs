//! The new rows of a call: queries, keys and values of each token.
//!
//! They are split from a packed tensor, rotated, and converted to the type of the cache. Rows that need none of this
//! stay where they are.

use core::any::TypeId;

use kvscatter::Executor;
use kvscatter_attention::Float;

use super::inputs::{Sizes, Slots, StepInputs};
use crate::rotary::{convert, rotate};
use crate::status::CallError;
use crate::threads::for_each;
use crate::workspace::{elements_mut, words};

/// The number of tokens that one thread takes at a time.
const TOKENS: usize = 16;

/// The smallest number of elements for which a call uses the threads of the session.
const MIN_SHARED_ELEMENTS: usize = 1 << 15;

/// Queries, keys or values in the tensor that has them.
struct Part<'a, T> {
    elements: &'a [T],
    /// The number of elements from one token to the next.
    stride: usize,
    /// The number of elements before those of the first head.
    first: usize,
    heads: usize,
    tokens: usize,
    /// The number of elements of a head.
    size: usize,
    is_rotated: bool,
}

impl<'a, T: Float> Part<'a, T> {
    /// Returns the queries, keys and values of a call.
    fn all(call: &'a StepInputs<'_, T>) -> [Self; 3] {
        let Sizes { batch, rows, new, heads, kv_heads, size, .. } = call.sizes;
        let (separate, rotates) = (call.separate.as_ref(), call.rotates());
        let all = (heads + 2 * kv_heads) * size;
        let part = |elements: &'a [T], [heads, before, tokens]: [usize; 3], is_rotated| Part {
            elements,
            stride: if separate.is_some() { heads * size } else { all },
            first: before * size,
            heads,
            tokens: batch * tokens,
            size,
            is_rotated,
        };
        let [key, value] = match separate {
            Some([key, value]) => {
                [part(key, [kv_heads, 0, new], rotates), part(value, [kv_heads, 0, new], false)]
            }
            None => [
                part(&call.query, [kv_heads, heads, rows], rotates),
                part(&call.query, [kv_heads, heads + kv_heads, rows], false),
            ],
        };
        [part(&call.query, [heads, 0, rows], rotates), key, value]
    }

    fn len(&self) -> usize {
        self.tokens * self.heads * self.size
    }

    /// Returns the number of elements of the part that must be copied to be `[tokens, heads, size]` of type `O`.
    fn copied<O: Float>(&self) -> usize {
        let is_dense = self.tokens == 1 || self.stride == self.heads * self.size;
        if is_dense && !self.is_rotated && TypeId::of::<T>() == TypeId::of::<O>() { 0 } else { self.len() }
    }

    /// Returns the part where it is, if it need not be copied.
    fn kept<O: Float>(&self) -> Result<&'a [O], CallError> {
        let elements = self.elements.get(self.first..self.first + self.len());
        let kept = elements.and_then(|elements| bytemuck::try_cast_slice(elements).ok());
        kept.ok_or_else(|| CallError::fail("an input has fewer elements than its shape requires"))
    }

    /// Copies consecutive tokens, of which `at` is the first.
    fn copy<O: Float>(&self, call: &StepInputs<'_, T>, slots: &Slots, at: usize, to: &mut [O]) {
        for (token, to) in (at..).zip(to.chunks_exact_mut(self.heads * self.size)) {
            let [rows, sample] = [call.sizes.rows, token / call.sizes.rows];
            let angles = self.is_rotated.then(|| call.angles_of(slots, [sample, token % rows])).flatten();
            let first = token * self.stride + self.first;
            let heads = self.elements.get(first..).unwrap_or_default().chunks_exact(self.size);
            for (from, to) in heads.zip(to.chunks_exact_mut(self.size)) {
                match angles {
                    Some((order, angles)) => rotate(order, angles, from, to),
                    None => convert(from, to),
                }
            }
        }
    }
}

/// Returns the sizes of the memory for the new queries, keys and values.
pub(super) fn memory<T: Float, C: Float>(call: &StepInputs<'_, T>) -> [usize; 3] {
    let [query, key, value] = Part::all(call);
    [query.copied::<T>(), key.copied::<C>(), value.copied::<C>()].map(words)
}

/// Returns the new queries, keys and values, token after token.
pub(super) fn arrange<'m, T: Float, C: Float>(
    call: &'m StepInputs<'_, T>,
    slots: &Slots,
    [query_memory, key_memory, value_memory]: [&'m mut [u64]; 3],
    threads: &dyn Executor,
) -> Result<(&'m [T], [&'m [C]; 2]), CallError> {
    let [query, key, value] = Part::all(call);
    let counts = [query.copied::<T>(), key.copied::<C>(), value.copied::<C>()];
    let queries = elements_mut::<T>(query_memory, counts[0]);
    let keys = elements_mut::<C>(key_memory, counts[1]);
    let values = elements_mut::<C>(value_memory, counts[2]);
    // A part that is not copied has no blocks.
    let mut blocks = (
        queries.chunks_mut(TOKENS * query.heads * query.size),
        keys.chunks_mut(TOKENS * key.heads * key.size),
        values.chunks_mut(TOKENS * value.heads * value.size),
    );
    let tokens = (0..query.tokens).step_by(TOKENS).map(|at| {
        let (query, key, value) = &mut blocks;
        (
            at,
            query.next().unwrap_or_default(),
            key.next().unwrap_or_default(),
            value.next().unwrap_or_default(),
        )
    });
    let executor = Some(threads).filter(|_| counts.iter().sum::<usize>() >= MIN_SHARED_ELEMENTS);
    for_each(tokens, executor, |(at, to_query, to_key, to_value)| {
        query.copy(call, slots, at, to_query);
        key.copy(call, slots, at, to_key);
        value.copy(call, slots, at, to_value);
    });
    let of_cache = |part: &Part<'m, T>, copy: &'m [C]| if copy.is_empty() { part.kept() } else { Ok(copy) };
    Ok((
        if queries.is_empty() { query.kept()? } else { queries },
        [of_cache(&key, keys)?, of_cache(&value, values)?],
    ))
}
