//! A cache of a decoder, and how it is written.

use std::fmt;

use kvscatter::{ElementType, Mode};

use super::growth::Growth;
use crate::graph::DEFAULT_DOMAIN;
use crate::{Dimension, Node, ValueInfo};

/// One cache of keys, of values, or of both.
#[derive(Clone, Debug)]
pub struct Cache<'m> {
    /// The input.
    pub past: &'m str,
    /// The output that is the next step's past.
    pub present: &'m str,
    /// How it is written.
    pub style: WriterStyle,
    /// The node that writes it; the last, if there are several.
    pub writer: Option<Node<'m>>,
    /// What the writer's output is called: the present, or what is handed on to it.
    pub written: &'m str,
    /// The new rows, where they are a value of their own.
    pub update: Option<&'m str>,
    /// The element type of past.
    pub element: ElementType,
    /// The shape of past. If only present declares one, that, with the sequence unknown.
    pub past_shape: Vec<Dimension<'m>>,
    /// That shape, with what present declares and what the writer's attributes and weights say in its gaps.
    pub known_shape: Vec<Dimension<'m>>,
    /// Present as declared.
    pub present_info: ValueInfo<'m>,
    /// Which dimension of past is the sequence.
    pub axis: usize,
    /// What it holds.
    pub part: CachePart,
    /// The nodes between past and the writer, and between the writer and present: each makes another tensor of the
    /// cache's size, unless a runtime removes it. `Identity` and a `Cast` to the type that is there already are not
    /// among them.
    pub between: Vec<Node<'m>>,
    /// Writers before the last one, each fed by the one before.
    pub earlier: Vec<Node<'m>>,
    /// More outputs that hand on the same present.
    pub copies: Vec<&'m str>,
}

/// How a cache is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterStyle {
    /// `Concat(past, new)`: the cache grows, and is copied, with every step.
    Concat,
    /// `Attention` with `past_key` and `past_value`, which joins them to the new rows: it grows as well.
    AttentionPast,
    /// `TensorScatter`: rows of a cache of fixed capacity are overwritten.
    TensorScatter(Mode),
    /// ONNX Runtime's `GroupQueryAttention`, which grows the cache, or fills it where past and present share memory.
    GroupQueryAttention,
    /// None of these.
    Unknown(UnknownStyle),
}

/// Why a style is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownStyle {
    /// Another operator writes the cache.
    Operator {
        /// Its domain; `ai.onnx` for the default one.
        domain: String,
        /// Its name.
        op_type: String,
    },
    /// `Concat(new, past)`: the new rows come before the old.
    NewFirst,
    /// A `Concat` of more than a past and its new rows, or of fewer.
    Pieces {
        /// Of how many.
        count: usize,
    },
    /// The rows are joined along axis 0, which is the batch elsewhere.
    AxisZero,
    /// A node between past and the writer, or after it, changes the shape.
    Reshaped {
        /// Its operator.
        op_type: String,
    },
}

/// What a cache holds, as the nodes that read it show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CachePart {
    /// Keys: they meet the queries.
    Key,
    /// Values: they meet the attention's weights.
    Value,
    /// Both, in one tensor.
    Both,
    /// Nothing that is known reads it.
    Unknown,
}

impl<'m> Cache<'m> {
    /// The size of the sequence dimension of past, as declared.
    #[must_use]
    pub fn capacity(&self) -> Dimension<'m> {
        self.past_shape.get(self.axis).copied().unwrap_or(Dimension::Unknown)
    }

    /// How many tokens there is room for, if past and present are declared with one size.
    #[must_use]
    pub fn fixed_capacity(&self) -> Option<usize> {
        let present = self.present_info.shape.as_ref().and_then(|shape| shape.get(self.axis));
        match self.capacity() {
            Dimension::Known(size) if self.is_static() || present == Some(&Dimension::Known(size)) => {
                Some(size)
            }
            _ => None,
        }
    }

    /// Whether past and present have one capacity, and rows are overwritten.
    #[must_use]
    pub fn is_static(&self) -> bool {
        matches!(self.style, WriterStyle::TensorScatter(_))
    }
}

impl WriterStyle {
    /// Whether the present of every step is one write longer than its past.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.growth() == Some(Growth::Joined)
    }

    /// How the cache becomes longer where past and present are two buffers; `None` for one that does not.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        match self {
            Self::Concat | Self::AttentionPast => Some(Growth::Joined),
            Self::GroupQueryAttention => Some(Growth::ByOperator),
            Self::TensorScatter(_) | Self::Unknown(_) => None,
        }
    }
}

impl UnknownStyle {
    pub(super) fn operator(node: &Node<'_>) -> Self {
        Self::Operator { domain: node.domain().to_owned(), op_type: node.op_type().to_owned() }
    }
}

impl fmt::Display for WriterStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Concat => f.write_str("Concat"),
            Self::AttentionPast => f.write_str("Attention-past"),
            Self::TensorScatter(Mode::Circular) => f.write_str("TensorScatter circular"),
            Self::TensorScatter(_) => f.write_str("TensorScatter"),
            Self::GroupQueryAttention => f.write_str("GroupQueryAttention"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

impl fmt::Display for UnknownStyle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator { domain, op_type } if domain == DEFAULT_DOMAIN => {
                write!(f, "{op_type} writes it")
            }
            Self::Operator { domain, op_type } => write!(f, "{domain}'s {op_type} writes it"),
            Self::NewFirst => f.write_str("the new rows come before the old"),
            Self::Pieces { count } => write!(f, "a Concat of {count} tensors"),
            Self::AxisZero => f.write_str("the sequence is axis 0"),
            Self::Reshaped { op_type } => write!(f, "{op_type} changes its shape on the way"),
        }
    }
}
