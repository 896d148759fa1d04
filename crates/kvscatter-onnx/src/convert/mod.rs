//! Decoders whose cache grows, made into decoders whose cache has a fixed size and is written in place.
//!
//! Each past that a node copies on every step (`Concat`, or `Attention` with past inputs) becomes a static cache
//! `[batch, heads, max_seq, head size]` that `TensorScatter` writes at `write_indices`. What the exported masks hide is
//! computed for a handful of situations and compared with the rule
//!
//! > slot `j` is visible to new token `i` of sample `b` iff `j <= write_indices[b] + i` and `attention_mask[b, j]`
//!
//! and only a decoder that keeps it is converted: its masks are exchanged for this one, computed once a step. Then both
//! graphs are evaluated on the same situations, and all other values that lead into the arithmetic must be the same.
//! Structure decides, never a name. Weights are not touched, and those in other files not even read.

mod attention;
mod caches;
mod conversion;
mod equivalence;
mod exported;
mod length;
mod metadata;
mod outcome;
mod probe;
mod refusal;
mod rewrite;
mod rewriter;
mod sites;
mod visibility;

pub use conversion::{Converted, convert};
pub use outcome::ConvertOutcome;
pub use refusal::ConvertRefusal;
