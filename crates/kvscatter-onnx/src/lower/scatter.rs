//! The `TensorScatter` nodes of a graph, with the declarations of their inputs.

use kvscatter::Mode;

use crate::eval::{MAX_RANK, Op};
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::narrow_types::is_narrow;
use crate::proto::NodeProto;
use crate::{Dimension, EvalError, Graph, LowerError, Node, OnnxError};

/// A `TensorScatter` of the graph, with the declarations of its inputs.
#[derive(Debug)]
pub(super) struct Scatter<'m> {
    pub(super) node: Node<'m>,
    pub(super) axis: usize,
    pub(super) mode: Mode,
    pub(super) past_cache: &'m str,
    pub(super) update: &'m str,
    pub(super) write_indices: Option<&'m str>,
    /// The dimensions of the cache. Their number is its rank.
    pub(super) cache: Vec<Dimension<'m>>,
    /// The size of the update along the axis.
    pub(super) length: Dimension<'m>,
}

/// Returns every `TensorScatter` of the graph.
///
/// # Errors
/// Returns the errors of [`lower`](super::lower()) that are wrapped in
/// [`OnnxError::InNode`].
pub(super) fn scatters<'m>(graph: &Graph<'m>) -> Result<Vec<Scatter<'m>>, OnnxError> {
    let found = graph.nodes().iter().filter(|node| is_scatter(node.proto()) && !node.is_function());
    found.map(|node| scatter(node, Op::parse(node)?, graph).map_err(|error| node.error(error))).collect()
}

fn scatter<'m>(node: &Node<'m>, op: Op<'m>, graph: &Graph<'m>) -> Result<Scatter<'m>, OnnxError> {
    let Op::TensorScatter { op, mode, past_cache, update, write_indices, present_cache } = op else {
        return Err(EvalError::UnsupportedOperator.into());
    };
    let caches: Vec<_> = [past_cache, present_cache].iter().filter_map(|name| graph.declared(name)).collect();
    let rows = graph.declared(update);
    let element = caches.iter().chain(&rows).map(|info| info.element).next();
    // No version of `ScatterElements` and `ScatterND` supports these types.
    if let Some(element) = element.filter(|&element| is_narrow(element)) {
        return Err(LowerError::LowerType { element }.into());
    }
    let update_shape = rows.as_ref().and_then(|info| info.shape.as_deref());
    let cache = caches.iter().find_map(|info| info.shape.as_deref());
    let rank = cache.or(update_shape).map(<[_]>::len).ok_or(LowerError::RankUnknown)?;
    if rank > MAX_RANK {
        return Err(EvalError::RankTooLarge { name: past_cache.to_owned(), rank, limit: MAX_RANK }.into());
    }
    let axis = op.resolve_axis(rank)?;
    let length = update_shape.and_then(|shape| shape.get(axis).copied()).unwrap_or(Dimension::Unknown);
    let cache = cache.map_or_else(|| vec![Dimension::Unknown; rank], <[_]>::to_vec);
    Ok(Scatter { node: *node, axis, mode, past_cache, update, write_indices, cache, length })
}

/// Returns `true` if a node is a `TensorScatter` or a function of that name.
pub(super) fn is_scatter(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("TensorScatter") && full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN
}
