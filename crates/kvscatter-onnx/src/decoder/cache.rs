//! A cache of a decoder and how it is written.

use std::fmt;

use kvscatter::{ElementType, Mode};

use crate::graph::DEFAULT_DOMAIN;
use crate::{Dimension, Node, ValueInfo};

/// One cache of keys, of values, or of both.
#[derive(Clone, Debug)]
pub struct Cache<'m> {
    /// The name of the graph input with the cache before a step.
    pub past: &'m str,
    /// The name of the graph output with the cache after a step. It is the next step's past.
    pub present: &'m str,
    /// How the cache is written.
    pub style: WriterStyle,
    /// The node that writes the cache. If several nodes write it, this is the last.
    pub writer: Option<Node<'m>>,
    /// The name of the writer's output. It is the present, or a value that other nodes pass on to the
    /// present.
    pub written: &'m str,
    /// The name of the value with the new rows, or `None` if the graph does not have them as a separate
    /// value.
    pub update: Option<&'m str>,
    /// The element type of the past.
    pub element: ElementType,
    /// The declared shape of the past. If only the present declares a shape, this is that shape with the
    /// sequence dimension unknown.
    pub past_shape: Vec<Dimension<'m>>,
    /// The shape of the past, with gaps filled from the declaration of the present and from the writer's
    /// attributes and weights.
    pub known_shape: Vec<Dimension<'m>>,
    /// The declaration of the present.
    pub present_info: ValueInfo<'m>,
    /// The index of the past's sequence dimension, counted from 0.
    pub axis: usize,
    /// The index of the past's batch dimension, counted from 0. It is not 0 if one tensor has several caches.
    pub batch_axis: usize,
    /// Whether the cache contains keys or values.
    pub part: CachePart,
    /// The nodes between the past and the writer, and between the writer and the present.
    ///
    /// Each of them makes another tensor of the cache's size, unless a runtime removes it. `Identity`, and a
    /// `Cast` to the type that the cache already has, are left out.
    pub between: Vec<Node<'m>>,
    /// The writers before the last one, in order. Each later writer writes to the output of the one before
    /// it.
    pub earlier: Vec<Node<'m>>,
    /// The names of other outputs that return the same present.
    pub copies: Vec<&'m str>,
    /// The part that this tensor has in a quantized cache, or `None` if it is a cache alone.
    pub quantized: Option<QuantizedPart<'m>>,
    /// The value that attention reads: what is written, or the product of codes and scales.
    pub(crate) read: &'m str,
}

/// The part of a quantized cache that one tensor has. A row of numbers is its codes, multiplied by their scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantizedPart<'m> {
    /// The codes.
    Codes {
        /// The past of the scales.
        scales: &'m str,
    },
    /// One scale for each token and head.
    Scales {
        /// The past of the codes.
        codes: &'m str,
    },
}

/// How a cache is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterStyle {
    /// `Concat(past, new)`. The cache grows and is copied in every step.
    Concat,
    /// `Attention` with `past_key` and `past_value`, which appends the new rows to them. The cache grows and
    /// is copied in every step.
    AttentionPast,
    /// `TensorScatter`, which overwrites rows of a cache of fixed capacity.
    TensorScatter(Mode),
    /// ONNX Runtime's `GroupQueryAttention`. It grows the cache, or fills it if past and present share
    /// memory.
    GroupQueryAttention,
    /// A writer that this crate does not know.
    Unknown(UnknownStyle),
}

/// The reason why the writer of a cache is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum UnknownStyle {
    /// Another operator writes the cache. The default domain is `ai.onnx`.
    #[error("{}{op_type} writes it", if domain == DEFAULT_DOMAIN { String::new() } else { format!("{domain}'s ") })]
    Operator { domain: String, op_type: String },
    /// `Concat(new, past)`, which puts the new rows before the old ones.
    #[error("the new rows come before the old ones")]
    NewFirst,
    /// A `Concat` that does not have exactly two inputs.
    #[error("a Concat of {count} tensors")]
    Pieces { count: usize },
    /// The rows are concatenated along axis 0, which is normally the batch.
    #[error("the sequence is axis 0")]
    AxisZero,
    /// A node before or after the writer changes the shape.
    #[error("{op_type} changes its shape")]
    Reshaped { op_type: String },
    /// A `Slice` before or after the writer drops rows, as in a cache that keeps only a window. `rows` is the number of
    /// rows that it keeps, or `None` if the graph does not show it. They are the last rows.
    #[error("a Slice {}", kept(*rows))]
    Cut { rows: Option<usize> },
    /// One tensor has the caches of several layers, or keys and values.
    #[error("one tensor has several caches, with the batch at axis {batch}")]
    Stacked { batch: usize },
}

fn kept(rows: Option<usize>) -> String {
    rows.map_or("drops some of its rows".to_owned(), |rows| format!("keeps only its last {rows} rows"))
}

/// How a cache grows, which determines what a user can do about it. `Display` writes that advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display)]
pub enum Growth {
    /// The graph concatenates the past and the new rows.
    #[strum(to_string = "kvscatter inspect shows whether it can be made static")]
    Joined,
    /// `GroupQueryAttention` copies the past and the new rows to the present.
    #[strum(
        to_string = "GroupQueryAttention writes the cache itself, and kvscatter inspect shows whether it can be made \
                     static. As it is, ONNX Runtime writes only the new rows if past and present are bound to one \
                     buffer, as kvscatter generate --engine ort does"
    )]
    ByOperator,
}

/// The contents of a cache, as far as the nodes that read it show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CachePart {
    /// Keys, which are multiplied by the queries.
    Key,
    /// Values, which are multiplied by the attention weights.
    Value,
    /// Keys and values in one tensor.
    Both,
    /// Latents, from which constant weights compute keys, values or both.
    Latent,
    /// No known operator reads the cache.
    Unknown,
}

impl<'m> Cache<'m> {
    /// Returns how the cache grows if past and present are separate buffers, or `None` if it does not grow. This also
    /// covers ONNX Runtime's `MultiHeadAttention`, which appends rows unless it has the input `past_sequence_length`.
    /// The [style](WriterStyle::growth) does not.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        const PAST_LENGTH: usize = 8;
        let appends = |writer: &Node<'_>| {
            let name = (writer.domain(), writer.op_type());
            name == ("com.microsoft", "MultiHeadAttention") && writer.input(PAST_LENGTH).is_none()
        };
        let joined = self.writer.as_ref().filter(|writer| appends(writer)).map(|_| Growth::Joined);
        self.style.growth().or(joined)
    }

    /// Returns the declared size of the sequence dimension of the past.
    #[must_use]
    pub fn capacity(&self) -> Dimension<'m> {
        self.past_shape.get(self.axis).copied().unwrap_or(Dimension::Unknown)
    }

    /// Returns the capacity in tokens if past and present are declared with the same size.
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

    /// Returns `true` if the writer refuses samples that are padded on the right.
    ///
    /// ONNX Runtime's `GroupQueryAttention` does this if its attribute `sliding_window_cache` is 1.
    #[must_use]
    pub fn refuses_padding(&self) -> bool {
        let attribute = self.writer.and_then(|writer| writer.attribute("sliding_window_cache")?.i);
        self.style == WriterStyle::GroupQueryAttention && attribute == Some(1)
    }

    /// Returns `true` if one `Concat` appends to the cache, and one output returns it.
    pub(crate) fn is_appended(&self) -> bool {
        self.style == WriterStyle::Concat && self.earlier.is_empty() && self.copies.is_empty()
    }

    /// Returns `true` if the cache is a ring, whose slots are reused in turn.
    #[must_use]
    pub fn is_ring(&self) -> bool {
        self.style == WriterStyle::TensorScatter(Mode::Circular)
    }

    /// Returns `true` if `ScatterND` or `ScatterElements` writes the cache. A conversion may make `TensorScatter` of
    /// it.
    #[must_use]
    pub fn is_scattered(&self) -> bool {
        let is_unknown = matches!(self.style, WriterStyle::Unknown(UnknownStyle::Operator { .. }));
        let is_scatter = |node: Node<'_>| node.is("ScatterND") || node.is("ScatterElements");
        is_unknown && self.writer.is_some_and(is_scatter)
    }

    /// Returns `true` if one `TensorScatter` is all that lies between the past and the present.
    pub(crate) fn is_written_alone(&self) -> bool {
        let is_alone = self.between.is_empty() && self.earlier.is_empty() && self.copies.is_empty();
        is_alone && self.written == self.present && self.is_static()
    }

    /// Returns `true` if the tensor contains the scales of another cache.
    #[must_use]
    pub fn is_scales(&self) -> bool {
        matches!(self.quantized, Some(QuantizedPart::Scales { .. }))
    }

    /// Returns `true` if past and present have one fixed capacity and new rows overwrite old ones.
    #[must_use]
    pub fn is_static(&self) -> bool {
        matches!(self.style, WriterStyle::TensorScatter(_))
    }
}

impl WriterStyle {
    /// Returns `true` if the present of each step is longer than its past by the new rows.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.growth() == Some(Growth::Joined)
    }

    /// Returns how the cache grows if past and present are separate buffers, or `None` if it does not grow.
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
