//! Finds attention over the caches of a decoder.
//!
//! Attention is one `Attention` node, or separate nodes: a product of queries and keys, masks, a softmax, and a product
//! with values. A [`walk`] follows every cache through the nodes that read it. What a node may do to a cache, to
//! scores or to weights is a row of the table of [`idioms`], which lists what a new form needs.
//!
//! The walk knows the shapes of one evaluation. It refuses a node that it does not know, because separate nodes may
//! stay. Masks, operands and fusions of what it finds are decided by evaluations on all probes.

mod idioms;
mod nodes;
mod site;
mod walk;
mod whole;

pub(super) use idioms::IDIOMS;
pub(super) use nodes::{AttentionNode, Attentions, OperandSource};
pub(super) use site::{
    CacheRead, Factor, Form, Mask, MaskKind, ScoresLayout, Site, WeightedSum, ZeroAddition,
};
pub(super) use walk::{AttentionSites, shape_probe};
pub(super) use whole::WholeCaches;
