//! What an evaluation did, node by node.

use std::fmt;
use std::sync::Arc;

use crate::NodeLabel;

/// What an evaluation did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Every node, in the graph's order.
    pub nodes: Vec<NodeReport>,
    /// Outputs that had to be copied: the buffer belongs to the caller or the model, or another output has it.
    pub output_copies: Vec<OutputCopy>,
}

/// What one node did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: NodeLabel,
    /// The name of its output.
    pub output: String,
    /// How the output came to be.
    pub outcome: Outcome,
    /// Bytes of the update: what a write in place must move, and no more; 0 for a node that is no
    /// `TensorScatter`. Strings count their own bytes.
    pub planned_bytes: usize,
    /// Bytes written: those of the blocks that a write in place went through, or the whole output.
    pub moved_bytes: usize,
}

/// How a node's output came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `present_cache` was written into the buffer of `past_cache`.
    InPlace {
        /// Where the buffer lay when it came to be: as the caller donated it, or as an earlier node made it.
        past_address: usize,
        /// Where `present_cache` lies: in the output of the graph that has its buffer, or, if none has, after the
        /// write.
        present_address: usize,
    },
    /// `present_cache` is a new buffer.
    Copied {
        /// Why.
        reason: NotInPlace,
    },
    /// The output is its input under another name.
    Alias,
    /// The output is part of the model.
    Constant,
    /// The output was computed.
    Computed,
}

/// An output that had to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputCopy {
    /// Its name.
    pub output: String,
    /// Its size; strings count their own bytes.
    pub bytes: usize,
}

/// Why a cache was not, or cannot be, written in place.
///
/// Names are shared: one long name may be the reason of many nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotInPlace {
    /// [`Placement::Functional`](super::Placement::Functional) was asked for.
    Asked,
    /// The cache is a graph input that the caller did not donate.
    NotDonated {
        /// The input.
        input: Arc<str>,
    },
    /// The cache is an initializer or a `Constant`: the model keeps it.
    Constant {
        /// Its name.
        name: Arc<str>,
    },
    /// The node's update lies in the same buffer.
    IsUpdate,
    /// The old values are needed later.
    UsedLater {
        /// The name they are needed under.
        value: Arc<str>,
        /// What needs them.
        by: Use,
    },
}

/// What uses a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// A node.
    Node(Arc<NodeLabel>),
    /// It is an output of the graph.
    GraphOutput,
}

impl Report {
    /// Whether every `TensorScatter` wrote in place and no output was copied.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let is_write =
            |node: &&NodeReport| matches!(node.outcome, Outcome::InPlace { .. } | Outcome::Copied { .. });
        self.output_copies.is_empty() && self.nodes.iter().filter(is_write).all(NodeReport::is_in_place)
    }
}

impl NodeReport {
    /// Whether the node wrote in place, as measured: present lies where past came to be, and exactly the planned
    /// bytes moved.
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

impl fmt::Display for NotInPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("the functional form was asked for"),
            Self::NotDonated { input } => write!(f, "input {input:?} was not donated"),
            Self::Constant { name } => write!(f, "{name:?} is a constant of the model"),
            Self::IsUpdate => f.write_str("past_cache and update are the same value"),
            Self::UsedLater { value, by: Use::Node(node) } => {
                write!(f, "the old {value:?} is used by {node}")
            }
            Self::UsedLater { value, by: Use::GraphOutput } => {
                write!(f, "the old {value:?} is an output of the graph")
            }
        }
    }
}
