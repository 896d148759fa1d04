//! The Rust types of queries and of a cache.

use half::{bf16, f16};
use kvscatter::ElementType;

use crate::error::AttentionError;
use crate::float::Float;
use crate::kernel::CacheElement;

/// Something that is done with the Rust types of queries and of a cache, see [`for_elements`].
pub trait ForElements {
    /// What it returns.
    type Output;

    /// Does it with queries of `T` and a cache of `C`.
    fn with<T: Float, C: CacheElement>(self) -> Self::Output;
}

/// Does something with the Rust types of queries and of a cache.
///
/// # Errors
/// Returns an error if attention does not support one of the types.
pub fn for_elements<W: ForElements>(
    query: ElementType,
    cache: ElementType,
    work: W,
) -> Result<W::Output, AttentionError> {
    match query {
        ElementType::Float32 => over_cache::<f32, W>(cache, work),
        ElementType::Float16 => over_cache::<f16, W>(cache, work),
        ElementType::BFloat16 => over_cache::<bf16, W>(cache, work),
        element => Err(AttentionError::ElementType { element }),
    }
}

fn over_cache<T: Float, W: ForElements>(cache: ElementType, work: W) -> Result<W::Output, AttentionError> {
    match cache {
        ElementType::Float32 => Ok(work.with::<T, f32>()),
        ElementType::Float16 => Ok(work.with::<T, f16>()),
        ElementType::BFloat16 => Ok(work.with::<T, bf16>()),
        ElementType::Int8 => Ok(work.with::<T, i8>()),
        element => Err(AttentionError::ElementType { element }),
    }
}

/// Does nothing, so that only the types are checked.
pub(crate) struct Nothing;

impl ForElements for Nothing {
    type Output = ();

    fn with<T: Float, C: CacheElement>(self) {}
}
