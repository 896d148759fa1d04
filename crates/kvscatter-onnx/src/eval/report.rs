//! Reports of evaluations, node by node.

use std::sync::Arc;

use crate::NodeLabel;

/// A report of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The report of each node, in the order of the graph.
    pub nodes: Vec<NodeReport>,
    /// The outputs that had to be copied because the buffer belongs to the caller or the model, or is another
    /// output.
    pub output_copies: Vec<OutputCopy>,
}

/// The report of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The label of the node.
    pub node: NodeLabel,
    /// The name of its output.
    pub output: String,
    /// How the output was produced.
    pub outcome: Outcome,
    /// The bytes of the update, or 0 for a node that is not a `TensorScatter`.
    ///
    /// A write in place must move exactly this number of bytes. For strings, only their own bytes count.
    pub planned_bytes: usize,
    /// The number of bytes written: those of the blocks that a write in place moved, or those of the whole
    /// output.
    pub moved_bytes: usize,
}

/// How the output of a node was produced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `present_cache` was written into the buffer of `past_cache`.
    InPlace {
        /// The first address of the buffer, when the caller donated it or an earlier node produced it.
        past_address: usize,
        /// The address of the graph output that has this buffer. If no output has it, the address after the
        /// write.
        present_address: usize,
    },
    /// `present_cache` is a new buffer.
    Copied {
        /// The reason why it was not written in place.
        reason: NotInPlace,
    },
    /// The output is its input under another name.
    Alias,
    /// The output is a constant of the model.
    Constant,
    /// The output was computed.
    Computed,
}

/// An output that had to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputCopy {
    /// The name of the output.
    pub output: String,
    /// The size in bytes. For strings, only their own bytes count.
    pub bytes: usize,
}

/// The reason why a cache was not written in place, or cannot be.
///
/// Names are shared, because one long name may be the reason of many nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum NotInPlace {
    /// [`Placement::Functional`](super::Placement::Functional) was requested.
    #[error("the functional form was requested")]
    Asked,
    /// The cache is a graph input that the caller did not donate.
    #[error("input {input:?} was not donated")]
    NotDonated { input: Arc<str> },
    /// The cache is an initializer or a `Constant`, which the model keeps.
    #[error("{name:?} is a constant of the model")]
    Constant { name: Arc<str> },
    /// The node's update is in the same buffer.
    #[error("past_cache and update are the same value")]
    IsUpdate,
    /// A later node or an output of the graph needs the old values.
    #[error("the old {value:?} is {by}")]
    UsedLater { value: Arc<str>, by: Use },
}

/// A node or an output that uses a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Use {
    /// A node.
    #[error("used by {0}")]
    Node(Arc<NodeLabel>),
    /// An output of the graph.
    #[error("an output of the graph")]
    GraphOutput,
}

impl Report {
    /// Returns `true` if every `TensorScatter` wrote in place and no output was copied.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let is_write =
            |node: &&NodeReport| matches!(node.outcome, Outcome::InPlace { .. } | Outcome::Copied { .. });
        self.output_copies.is_empty() && self.nodes.iter().filter(is_write).all(NodeReport::is_in_place)
    }
}

impl NodeReport {
    /// Returns `true` if measurements show that the node wrote in place: the present has the same address as
    /// the past had, and exactly the planned number of bytes moved.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        match self.outcome {
            Outcome::InPlace { past_address, present_address } => {
                past_address == present_address && self.moved_bytes == self.planned_bytes
            }
            _ => false,
        }
    }
}
