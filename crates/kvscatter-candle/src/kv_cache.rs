//! candle-nn's KV caches, by the same names and with the same methods: to change `use candle_nn::kv_cache::…` to
//! `use kvscatter_candle::kv_cache::…` is enough.
//!
//! The differences, for all of them:
//!
//! * an append writes keys and values or neither, and an error leaves the cache as it was;
//! * updates may be strided; candle-nn's `KvCache` refuses them;
//! * a clone is an independent cache. In candle-nn, clones share their memory, and each overwrites the other's tokens.
//!   Memory is copied when a cache is written while a clone of it lives, not before;
//! * sequences can be shortened: `truncate`.
//!
//! And for each:
//!
//! | | in candle-nn | here |
//! |---|---|---|
//! | [`KvCache::new`] with `max_seq_len` 0 | the first append does not return | it is an error |
//! | [`RotatingKvCache::positions`] for exactly as many tokens as the ring has slots | rotated against what `append` returns, unless the ring is at its start | in the order of what `append` returns |
//! | `attn_mask`, and [`ScatteredCacheBuilder`]'s mask, for more tokens than the context | a token sees `context + 1` tokens, itself among them; where it is decoded alone, `context` | always `context` |
//! | [`ScatteredKvCache::append`] of as many tokens as the context, or more | writes nothing: later steps attend to zeros | the last `context` tokens are written |
//! | the mask for those | is always float32 | has the builder's type |
//! | samples that `batch_mask` leaves out | the update's rows are written over a slot of theirs | are not touched |
//! | a `batch_mask` of the wrong length | is taken, and fails or misses samples later | is an error, before any position moves |
//!
//! One limitation is the same as in candle-nn. A chunk that wraps around a ring overwrites slots that its first tokens would
//! still attend to, and `attn_mask` hides these slots from them. A chunk as long as the ring attends to itself alone. Where
//! that matters, give the ring room for `window + chunk - 1` tokens, or append token by token.

mod growing;
mod rotating;
mod scattered;
mod store;

pub use growing::{Cache, KvCache};
pub use rotating::{RotatingCache, RotatingKvCache};
pub use scattered::{IndicesAndMask, ScatteredCacheBuilder, ScatteredKvCache};
