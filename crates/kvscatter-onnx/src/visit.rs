//! Visits the tensors of a model: dense and sparse initializers and attributes, in graphs, subgraphs, functions and
//! training information.

use crate::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use crate::{ErrorPlace, OnnxError, external};

/// Calls `visit` for every tensor of a model.
pub(crate) fn visit_tensors<E>(
    model: &ModelProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    visit_graph(&model.graph, visit)?;
    for training in &model.training_info {
        visit_graph(&training.initialization, visit)?;
        visit_graph(&training.algorithm, visit)?;
    }
    for function in &model.functions {
        visit_attributes(&function.attribute_proto, visit)?;
        visit_nodes(&function.node, visit)?;
    }
    Ok(())
}

/// Calls `visit` for every tensor with external data. An error names the tensor.
pub(crate) fn visit_external(
    model: &ModelProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), OnnxError>,
) -> Result<(), OnnxError> {
    visit_tensors(model, &mut |tensor| {
        if !external::is_external(tensor) {
            return Ok(());
        }
        visit(tensor).in_tensor(tensor.name.as_deref().unwrap_or_default())
    })
}

/// Calls `visit` for every tensor of a graph and its subgraphs. The recursion is bounded because
/// [`decode`](crate::proto::decode) limits the depth.
fn visit_graph<E>(
    graph: &GraphProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    graph.initializer.iter().try_for_each(&mut *visit)?;
    graph.sparse_initializer.iter().try_for_each(|sparse| visit_sparse(sparse, visit))?;
    visit_nodes(&graph.node, visit)
}

fn visit_nodes<E>(
    nodes: &[NodeProto],
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    nodes.iter().try_for_each(|node| visit_attributes(&node.attribute, visit))
}

fn visit_attributes<E>(
    attributes: &[AttributeProto],
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    for attribute in attributes {
        attribute.t.as_option().into_iter().chain(&attribute.tensors).try_for_each(&mut *visit)?;
        let sparse = attribute.sparse_tensor.as_option().into_iter().chain(&attribute.sparse_tensors);
        sparse.into_iter().try_for_each(|sparse| visit_sparse(sparse, visit))?;
        let graphs = attribute.g.as_option().into_iter().chain(&attribute.graphs);
        graphs.into_iter().try_for_each(|graph| visit_graph(graph, visit))?;
    }
    Ok(())
}

fn visit_sparse<E>(
    sparse: &SparseTensorProto,
    visit: &mut impl FnMut(&TensorProto) -> Result<(), E>,
) -> Result<(), E> {
    visit(&sparse.values)?;
    visit(&sparse.indices)
}
