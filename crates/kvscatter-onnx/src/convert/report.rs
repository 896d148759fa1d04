//! What a conversion did.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::cache_type::CacheType;
use super::kept::KeptAttention;
use super::ring::RingSize;
use super::rule::CacheWindow;
use super::windows::LinearWindow;
use crate::{ExportForm, RuntimeVersion};

/// What a conversion did, and what a caller of the converted decoder has to know.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The passes that changed the decoder, in order.
    pub passes: Vec<PassReport>,
    /// The form of the exported decoder, if it is not a plain one.
    pub form: Option<ExportForm>,
    /// The caches.
    pub caches: CacheReport,
    /// The attention operations that read the caches.
    pub attention: AttentionReport,
    /// The inputs of the converted decoder.
    pub inputs: InputReport,
    /// The states that the model has beside its caches. They are not changed.
    pub states: Vec<KeptState>,
    /// The oldest ONNX Runtime that computes the model correctly without kvscatter's plugin.
    pub least_onnxruntime: RuntimeVersion,
}

/// A pass that changed a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PassReport {
    /// The name of the pass.
    pub name: &'static str,
    /// What the pass keeps.
    pub claim: Claim,
    /// What was changed, such as `3 GroupQueryAttention`.
    pub change: String,
    /// What was compared to prove the claim.
    pub proof: String,
}

/// What a pass keeps of what a decoder computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum Claim {
    /// All values.
    #[strum(to_string = "values")]
    Values,
    /// All values, but new rows are rounded to the type of the cache before they are read.
    #[strum(to_string = "values, but new rows are rounded as they are cached")]
    Rounded,
    /// All values, if the positions of a step are consecutive.
    #[strum(to_string = "values, if the positions of a step are consecutive")]
    Consecutive,
    /// All values but those of hidden slots and of padding.
    #[strum(to_string = "values, but not those of hidden slots and padding")]
    Visible,
    /// All values, up to the rounding of cached rows that the proof names.
    #[strum(to_string = "values, up to the rounding of cached rows")]
    Narrowed,
}

/// The caches of a converted decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheReport {
    /// The number of caches that became static.
    pub count: usize,
    /// The number of bytes that one slot of one sample takes in all caches, or `None` if the model leaves a
    /// size open.
    pub bytes_per_slot: Option<u64>,
    /// The number of bytes that all caches of one sample take, or `None` if the model leaves a size open.
    pub bytes_per_sample: Option<u64>,
    /// The number of bytes that they would take if all of them were linear.
    pub linear_bytes_per_sample: Option<u64>,
    /// The sizes of the rings, each with the number of its caches.
    pub rings: BTreeMap<RingSize, usize>,
    /// The number of tokens that a sample can have if all caches are rings, and `None` otherwise. It is
    /// [`UNLIMITED`](super::UNLIMITED) for a decoder without a table of positions and without a mask of all tokens.
    pub most_tokens: Option<usize>,
    /// The attention with windows that reads linear caches, although the options ask for rings.
    pub linear_windows: Vec<LinearWindow>,
    /// The window of each attention operation, as far as the checked texts are longer than the window. Equal ones are
    /// listed once for each cache.
    pub windows: Vec<CacheWindow>,
    /// The narrower type of the caches, or `None` if they have that of the export.
    pub narrow: Option<NarrowCaches>,
}

/// The caches of a converted decoder that got a narrower type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NarrowCaches {
    /// The type.
    pub cache_type: CacheType,
    /// The number of caches. Codes and their scales are one cache.
    pub count: usize,
    /// The past of each cache of codes, with the past of its scales.
    pub scales: BTreeMap<String, String>,
    /// The number of caches of rotated keys. Queries are rotated like the keys.
    pub rotated: usize,
    /// The head sizes of keys that are not rotated although the options ask for it, because no block of a rotation
    /// fits them.
    pub unrotated: BTreeSet<usize>,
}

/// Describes the caches as the metadata of a converted model contains them.
impl fmt::Display for NarrowCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache_type, rotated, unrotated, .. } = self;
        write!(f, "{cache_type}")?;
        if *cache_type != CacheType::Int8 {
            return Ok(());
        }
        f.write_str(" symmetric, one float32 scale for each token and head")?;
        if *rotated == 0 {
            return Ok(());
        }
        f.write_str(", keys and queries rotated")?;
        unrotated.iter().try_for_each(|size| write!(f, ", not in heads of {size}"))
    }
}

/// The attention operations of a converted decoder.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct AttentionReport {
    /// The number of attention operations that read the caches.
    pub count: usize,
    /// The number of those that are one `Attention` node each. The others consist of separate nodes.
    pub nodes: usize,
    /// The number of `Attention` nodes that took the place of separate nodes.
    pub fused: usize,
    /// What the nodes of the exported attention do, each with the number of nodes.
    pub idioms: BTreeMap<&'static str, usize>,
    /// The attention operations that keep their nodes: those of separate nodes that could not become one node, and
    /// `Attention` nodes that still read a copy of a cache. If the [options](super::ConvertOptions) keep all separate
    /// nodes, the list does not contain these.
    pub kept: Vec<KeptAttention>,
}

/// The inputs that a caller of a converted decoder has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputReport {
    /// The name of the input with the first slot written for each sample, int64 `[batch]`.
    pub write_indices: String,
    /// The name of the input with the number of slots in use after the write, int64 `[batch]`. It is `None`
    /// if the decoder has no `Attention` nodes.
    pub nonpad_kv_seqlen: Option<String>,
    /// The name of the input that marks the slots of real tokens, now `[batch, max_seq]`. It is `None` if the
    /// decoder has no such input, or if all caches are rings and nothing reads it.
    pub attention_mask: Option<String>,
    /// The inputs whose meaning the graph does not show. They are not changed, and only a caller who knows their values
    /// can run the model.
    pub unknown: Vec<String>,
}

/// A recurrent or convolution state of a converted model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptState {
    /// The name of the input with the state before a step.
    pub past: String,
    /// The name of the output with the state after a step, which is the next step's past.
    pub present: String,
    /// The name of the output with the columns of a convolution, from which follows the state after each token.
    pub columns: Option<String>,
}
