//! Finds the batch dimension of each cache.

use super::cache::{Cache, CachePart, UnknownStyle, WriterStyle};
use super::roles::Input;
use crate::{Dimension, ValueInfo};

/// The rank of `[layers, batch, length, width]`, the stack of caches with the fewest dimensions.
pub(super) const STACK_RANK: usize = 4;

/// The rank of `[2, batch, heads, length, head size]`, a stack of keys and values.
const PAIR_RANK: usize = 5;

/// Sets the batch dimension of each cache. If it is not the first dimension, the cache is marked as a stack of
/// several caches, but a writer that is unknown for another reason keeps that reason. The batch of a stack is the
/// dimension with the size of the batch of the tokens. If there is none, the writer determines it.
pub(super) fn find(caches: &mut [Cache<'_>], inputs: &[Input<'_>], logits: Option<&ValueInfo<'_>>) {
    let tokens = inputs.iter().find(|input| input.role.is_tokens()).map(|input| &input.value);
    let samples = tokens.or(logits).and_then(|value| value.shape.as_ref()?.first().copied());
    for cache in caches {
        let of_writer = match cache.style {
            WriterStyle::Unknown(UnknownStyle::Stacked { batch }) => batch,
            _ if cache.part == CachePart::Both && cache.known_shape.len() == PAIR_RANK => 1,
            _ => 0,
        };
        let batch = samples.and_then(|samples| stacked(cache, samples)).unwrap_or(of_writer);
        cache.batch_axis = batch;
        let keeps_reason = match &cache.style {
            WriterStyle::Unknown(why) => !matches!(why, UnknownStyle::Stacked { .. }),
            _ => false,
        };
        if batch > 0 && !keeps_reason {
            cache.style = WriterStyle::Unknown(UnknownStyle::Stacked { batch });
        }
    }
}

/// Returns the batch dimension of a stack of caches, or `None` if the cache may be an ordinary one.
///
/// The first dimension of a stack is a fixed number other than the number of samples, which is a later dimension.
fn stacked(cache: &Cache<'_>, samples: Dimension<'_>) -> Option<usize> {
    let shape = &cache.known_shape;
    let is_counted = matches!(shape.first(), Some(first @ Dimension::Known(_)) if *first != samples);
    if !is_counted || samples == Dimension::Unknown || shape.len() < STACK_RANK {
        return None;
    }
    shape.iter().take(cache.axis).position(|dim| *dim == samples)
}
