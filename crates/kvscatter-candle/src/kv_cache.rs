//! candle-nn's KV caches, with the same names and the same methods. To use them, change `use
//! candle_nn::kv_cache::…` to `use kvscatter_candle::kv_cache::…`.
//!
//! All caches differ from candle-nn's in these points:
//!
//! * An append writes keys and values or neither. An error leaves the cache unchanged.
//! * Updates may be strided. candle-nn's `KvCache` returns an error for them.
//! * A clone is an independent cache. In candle-nn, clones share their memory, and each overwrites the
//!   other's tokens. Here the memory is copied when a cache is written while a clone of it exists, and not
//!   before.
//! * Sequences can be shortened with `truncate`.
//!
//! Single caches differ in these points:
//!
//! | case | candle-nn | here |
//! |---|---|---|
//! | [`KvCache::new`] with `max_seq_len` 0 | the first append does not return | it is an error |
//! | [`RotatingKvCache::positions`] for a number of tokens equal to the number of slots | are rotated against what `append` returns, unless the ring is at its start | are in the order of what `append` returns |
//! | `attn_mask`, and [`ScatteredCacheBuilder`]'s mask, for more tokens than the context | a token attends to `context + 1` tokens, itself included; decoded alone, it attends to `context` | always `context` |
//! | [`ScatteredKvCache::append`] of at least `context` tokens | writes nothing, so later steps attend to zeros | writes the last `context` tokens |
//! | the mask for at least `context` tokens | is always float32 | has the builder's type |
//! | samples that `batch_mask` excludes | the update's rows overwrite one of their slots | are not changed |
//! | a `batch_mask` of the wrong length | is accepted, and fails or omits samples later | is an error, before any position moves |
//!
//! One limitation is the same as in candle-nn. A chunk that wraps around a ring overwrites slots that its
//! first tokens would still attend to, and `attn_mask` hides these slots from them. A chunk as long as the
//! ring attends to itself alone. [`RotatingKvCache::with_size`] makes a ring without this limitation: its
//! [`RingSize`] adds slots for chunks and rewinds. [`ScatteredKvCache`] has no such constructor, so append
//! token by token there.

mod growing;
mod ring_size;
mod rotating;
mod scattered;
mod store;

pub use growing::{Cache, KvCache};
pub use ring_size::RingSize;
pub use rotating::{RotatingCache, RotatingKvCache};
pub use scattered::{IndicesAndMask, ScatteredCacheBuilder, ScatteredKvCache};
