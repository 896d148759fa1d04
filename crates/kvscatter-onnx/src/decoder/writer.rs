//! The operators that write a cache, with the past that belongs to each output.

use super::cache::{UnknownStyle, WriterStyle};
use super::state;
use super::trace::Path;
use crate::eval::Op;
use crate::graph::DEFAULT_DOMAIN;
use crate::onnx_attention::PAST_KEYS;
use crate::{EvalError, Graph, Node, OnnxError};
use kvscatter::spec::onnx::TensorScatter;

/// How a node writes the cache that is one of its outputs.
#[derive(Clone, Debug)]
pub(super) struct CacheWrite<'m> {
    pub(super) style: WriterStyle,
    /// The past, or `None` if the input is absent.
    pub(super) past: Option<&'m str>,
    pub(super) update: Option<&'m str>,
    pub(super) axis: Axis,
}

/// The sequence axis of the cache that the node writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Axis {
    /// This axis. A negative value counts from the last dimension.
    At(i64),
    /// An axis that the operator does not specify. It is the one in which past and present differ.
    Open,
}

/// The relation of a node's output to caches.
#[derive(Clone, Debug)]
pub(super) enum Writer<'m> {
    /// The output is a cache with rows written into it.
    Known(CacheWrite<'m>),
    /// The operator is not known, so the output is possibly a cache.
    UnknownOperator,
    /// The output is not a cache.
    NoCache,
}

/// Operators of ONNX Runtime with a past, and ONNX operators that do not define which rows they write.
///
/// Each entry is (domain, operator, input of the past, output of the present, sequence axis). The entries are
/// taken from the operators' schemas in ONNX Runtime 1.31.
const OTHERS: &[(&str, &str, usize, usize, Option<i64>)] = &[
    ("com.microsoft", "MultiHeadAttention", 6, 1, Some(2)),
    ("com.microsoft", "MultiHeadAttention", 7, 2, Some(2)),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention", 5, 1, Some(2)),
    ("com.microsoft", "DecoderMaskedMultiHeadAttention", 6, 2, Some(2)),
    ("com.microsoft", "Attention", 4, 1, Some(3)),
    ("com.microsoft", "QAttention", 8, 1, Some(3)),
    ("com.microsoft", "DecoderMaskedSelfAttention", 4, 1, Some(3)),
    ("com.microsoft", "SparseAttention", 3, 1, Some(2)),
    ("com.microsoft", "SparseAttention", 4, 2, Some(2)),
    ("com.microsoft", "DynamicSparseAttention", 3, 1, Some(2)),
    ("com.microsoft", "DynamicSparseAttention", 4, 2, Some(2)),
    ("com.microsoft", "DecoderAttention", 6, 1, Some(2)),
    ("com.microsoft", "DecoderAttention", 7, 2, Some(2)),
    ("com.microsoft", "PagedAttention", 3, 1, None),
    ("com.microsoft", "PagedAttention", 4, 2, None),
    ("com.microsoft", "SparsePagedAttention", 3, 1, None),
    ("com.microsoft", "SparsePagedAttention", 4, 2, None),
    ("com.microsoft", "LinearAttention", 3, 1, None),
    ("com.microsoft", "CausalConvWithState", 3, 1, None),
    (DEFAULT_DOMAIN, "LinearAttention", 3, 1, None),
    (DEFAULT_DOMAIN, "CausalConvWithState", 3, 1, None),
    (DEFAULT_DOMAIN, "ScatterND", 0, 0, None),
    (DEFAULT_DOMAIN, "ScatterElements", 0, 0, None),
    (DEFAULT_DOMAIN, "Scatter", 0, 0, None),
];

impl<'m> Writer<'m> {
    /// Determines how a node's output `slot` is written as a cache.
    pub(super) fn find(graph: &Graph<'m>, node: &Node<'m>, slot: usize) -> Result<Self, OnnxError> {
        // An operator that a runtime may lack has its definition in the model as a function.
        if node.is_function() && !state::is_operator(node) {
            return Ok(Self::UnknownOperator);
        }
        let known = |write: Option<CacheWrite<'m>>| write.map_or(Self::NoCache, Self::Known);
        Ok(match (node.domain(), node.op_type()) {
            (DEFAULT_DOMAIN, "Concat") => known(CacheWrite::concat(graph, node)),
            (DEFAULT_DOMAIN, "TensorScatter") if slot == 0 => Self::Known(CacheWrite::tensor_scatter(node)?),
            // Keys and values may be packed into input 0.
            ("com.microsoft", "GroupQueryAttention") => {
                known(CacheWrite::attention(node, WriterStyle::GroupQueryAttention, slot, 3))
            }
            (DEFAULT_DOMAIN, "Attention") => {
                known(CacheWrite::attention(node, WriterStyle::AttentionPast, slot, PAST_KEYS))
            }
            (domain, op_type) => {
                let mut rows = OTHERS.iter().filter(|row| (row.0, row.1) == (domain, op_type)).peekable();
                if rows.peek().is_none() {
                    return Ok(if may_write(node) { Self::UnknownOperator } else { Self::NoCache });
                }
                known(rows.find(|row| row.3 == slot).map(|&(_, _, past, _, axis)| CacheWrite {
                    style: WriterStyle::Unknown(UnknownStyle::operator(node)),
                    past: node.input(past),
                    update: None,
                    axis: axis.map_or(Axis::Open, Axis::At),
                }))
            }
        })
    }
}

impl<'m> CacheWrite<'m> {
    /// Describes an operator whose outputs 1 and 2 are the caches of keys and values, and whose inputs 1 and
    /// 2 are their new rows. `first` is the input for the keys' past, and the values' past follows it.
    fn attention(node: &Node<'m>, style: WriterStyle, slot: usize, first: usize) -> Option<Self> {
        let past = match slot {
            1 => first,
            2 => first.checked_add(1)?,
            _ => return None,
        };
        Some(Self { style, past: node.input(past), update: node.input(slot), axis: Axis::At(2) })
    }

    fn concat(graph: &Graph<'m>, node: &Node<'m>) -> Option<Self> {
        let inputs = (0..node.proto().input.len()).filter_map(|slot| node.input(slot));
        let from_outside =
            |value: &&'m str| graph.is_input(Path::back(graph, value).source) || is_written(graph, value);
        // Only `MAX_PIECES` inputs are examined, so that the cost of a long list is bounded.
        let listed: Vec<_> = inputs.take(MAX_PIECES).collect();
        let axis = node.attribute("axis").and_then(|axis| axis.i)?;
        let Some(at) = listed.iter().position(from_outside) else {
            return Self::stack(graph, &listed).filter(|_| axis == 0);
        };
        let style = match (at, listed.len()) {
            (0, 2) => WriterStyle::Concat,
            (_, 2) => WriterStyle::Unknown(UnknownStyle::NewFirst),
            _ => WriterStyle::Unknown(UnknownStyle::Pieces { count: node.proto().input.len() }),
        };
        Some(Self {
            style,
            past: listed.get(at).copied(),
            update: listed.get(1).copied().filter(|_| at == 0 && listed.len() == 2),
            axis: Axis::At(axis),
        })
    }

    /// Describes a `Concat` that puts layers together again, each of which was taken from one input. The batch is
    /// axis 1 unless the sizes show another one.
    fn stack(graph: &Graph<'m>, layers: &[&'m str]) -> Option<Self> {
        let mut pasts = layers.iter().map(|layer| stacked_past(graph, layer));
        let past = pasts.next()??;
        let style = WriterStyle::Unknown(UnknownStyle::Stacked { batch: 1 });
        let is_one = pasts.all(|other| other == Some(past));
        is_one.then_some(Self { style, past: Some(past), update: None, axis: Axis::Open })
    }

    fn tensor_scatter(node: &Node<'m>) -> Result<Self, OnnxError> {
        let Op::TensorScatter { mode, past_cache, update, .. } = Op::parse(node)? else {
            return Err(node.error(EvalError::UnsupportedOperator));
        };
        let axis = node.attribute("axis").and_then(|axis| axis.i).unwrap_or(TensorScatter::DEFAULT_AXIS);
        Ok(Self {
            style: WriterStyle::TensorScatter(mode),
            past: Some(past_cache),
            update: Some(update),
            axis: Axis::At(axis),
        })
    }
}

/// Returns `true` if an attention takes a value as its past and appends rows to it.
pub(super) fn appends_to<'m>(graph: &Graph<'m>, attention: &Node<'m>, value: &str) -> bool {
    let is_past = |slot| matches!(Writer::find(graph, attention, slot), Ok(Writer::Known(write)) if write.past == Some(value));
    attention.op_type().ends_with("Attention") && (1..=2).any(is_past) && !appends_nothing(graph, attention)
}

/// Returns `true` if the graph shows that the new keys of a `GroupQueryAttention` have no rows. Its past is then the
/// cache of another layer, which it only reads.
pub(super) fn appends_nothing<'m>(graph: &Graph<'m>, attention: &Node<'m>) -> bool {
    let is_operator = (attention.domain(), attention.op_type()) == ("com.microsoft", "GroupQueryAttention");
    attention.input(1).is_some_and(|keys| is_operator && is_empty(graph, keys))
}

/// Returns `true` if a value is a constant without elements, or made by `ConstantOfShape` with a size of 0.
fn is_empty<'m>(graph: &Graph<'m>, value: &'m str) -> bool {
    let source = Path::back(graph, value).source;
    let has_zero = |sizes: &[i64]| sizes.iter().take(MAX_PIECES).any(|&size| size == 0);
    if let Some(constant) = graph.constant(source) {
        return has_zero(&constant.dims);
    }
    let maker = graph.producer(source).filter(|(node, _)| node.is("ConstantOfShape"));
    let Some(shape) = maker.and_then(|(node, _)| node.input(0)) else { return false };
    let parts = match graph.producer(shape) {
        Some((node, _)) if node.is("Concat") => (0..MAX_PIECES).filter_map(|slot| node.input(slot)).collect(),
        _ => vec![shape],
    };
    parts.into_iter().any(|part| {
        let listed = graph.producer(part).and_then(|(node, _)| node.attribute("value_ints"));
        listed.is_some_and(|listed| has_zero(&listed.ints))
            || graph.ints(part).is_some_and(|ints| has_zero(&ints))
    })
}

/// The largest number of inputs of a `Concat` that are examined.
const MAX_PIECES: usize = 8;

/// Returns the writer that produces a value, and the cache before that write. Returns `None` unless it is
/// certain which input of the writer is the past.
pub(super) fn earlier<'m>(graph: &Graph<'m>, value: &'m str) -> Option<(Node<'m>, &'m str)> {
    let (node, slot) = graph.producer(value)?;
    let is_writer = slot == 0 && (node.is("TensorScatter") || node.is("Concat"));
    Some((node, node.input(0).filter(|_| is_writer)?))
}

/// Returns the graph input from which a `Gather` takes the layer that a node writes rows to.
fn stacked_past<'m>(graph: &Graph<'m>, written: &'m str) -> Option<&'m str> {
    let (writer, _) = graph.producer(Path::back(graph, written).source)?;
    let is_writer = writer.is("Concat")
        || writer.is("TensorScatter")
        || OTHERS.iter().any(|row| (row.0, row.1) == (writer.domain(), writer.op_type()));
    let slots = 0..if is_writer { writer.proto().input.len().min(MAX_PIECES) } else { 0 };
    slots.into_iter().find_map(|slot| {
        let (gather, _) = graph.producer(Path::back(graph, writer.input(slot)?).source)?;
        let is_layer =
            gather.is("Gather") && gather.attribute("axis").and_then(|axis| axis.i).unwrap_or(0) == 0;
        let past = Path::back(graph, gather.input(0).filter(|_| is_layer)?).source;
        graph.is_input(past).then_some(past)
    })
}

/// Returns `true` if a value is a cache that another node has already written.
fn is_written<'m>(graph: &Graph<'m>, value: &'m str) -> bool {
    earlier(graph, Path::back(graph, value).source).is_some_and(|(node, _)| node.is("TensorScatter"))
}

/// Returns `true` if a node may write a cache. ONNX's own operators outside this list do not.
fn may_write(node: &Node<'_>) -> bool {
    node.domain() != DEFAULT_DOMAIN || matches!(node.op_type(), "Where" | "If" | "Loop" | "Scan")
}
