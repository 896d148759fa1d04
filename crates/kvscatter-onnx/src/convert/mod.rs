//! Converts decoders whose caches grow into decoders whose caches have a fixed size and are written in place.
//!
//! Each past that a node copies on every step (`Concat`, or `Attention` with past inputs) becomes a static
//! cache `[batch, heads, max_seq, head size]`, which `TensorScatter` writes at `write_indices`. The exported
//! masks are evaluated in a few situations and compared with this rule:
//!
//! > slot `j` is visible to new token `i` of sample `b` iff `j <= write_indices[b] + i` and
//! > `attention_mask[b, j]`
//!
//! A decoder is converted only if its masks follow the rule. One mask, computed once per step, replaces them.
//! Then both graphs are evaluated in the same situations, and all other values that the arithmetic uses must
//! be the same.
//!
//! The graph's structure decides, never a name. Weights are not changed, and weights in other files are not
//! even read.

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
