//! Hashes a message without the fields that do not change what a model computes.

use xxhash_rust::xxh3::Xxh3Default;

use crate::proto::tensor_proto::DataLocation;
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, Message, ModelProto, NodeProto, SparseTensorProto,
    TensorProto, ValueInfoProto, encode,
};
use crate::{OnnxError, external};

/// Returns the hash of a model's graph, functions and operator sets.
///
/// Messages are copied and encoded one by one, and large values are not copied.
pub(super) fn hash(model: &ModelProto) -> Result<u128, OnnxError> {
    let mut hash = Parts(Xxh3Default::new());
    let mut opsets = model.opset_import.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    // Their order has no meaning.
    opsets.sort_unstable();
    hash.list(&opsets, |hash, opset| {
        hash.part(opset);
        Ok(())
    })?;
    let graph = &model.graph;
    hash.stripped(&graph.input, strip_value)?;
    hash.stripped(&graph.output, strip_value)?;
    hash.list(&graph.initializer, |hash, tensor| {
        hash.part(&if external::is_external(tensor) {
            header(tensor)?
        } else {
            encode(&without_raw(tensor))?
        });
        hash.part(tensor.raw_data.as_deref().map_or(&[], Vec::as_slice));
        Ok(())
    })?;
    hash.stripped(&graph.sparse_initializer, strip_sparse)?;
    hash.stripped(&graph.node, strip_node)?;
    hash.stripped(&model.functions, strip_function)?;
    Ok(hash.0.digest128())
}

/// Returns the encoded name, type and shape of a tensor with external data.
pub(super) fn header(tensor: &TensorProto) -> Result<Vec<u8>, OnnxError> {
    encode(&TensorProto {
        name: tensor.name.clone(),
        data_type: tensor.data_type,
        dims: tensor.dims.clone(),
        data_location: Some(DataLocation::EXTERNAL),
        ..TensorProto::default()
    })
}

/// A hash of parts, each with its length, so that a part cannot be divided in another way.
struct Parts(Xxh3Default);

impl Parts {
    fn list<T>(
        &mut self,
        items: &[T],
        mut part: impl FnMut(&mut Self, &T) -> Result<(), OnnxError>,
    ) -> Result<(), OnnxError> {
        self.0.update(&length(items));
        items.iter().try_for_each(|item| part(self, item))
    }

    fn part(&mut self, bytes: &[u8]) {
        self.0.update(&length(bytes));
        self.0.update(bytes);
    }

    /// Hashes copies of messages after `strip` has removed fields.
    fn stripped<M: Message + Clone>(&mut self, messages: &[M], strip: fn(&mut M)) -> Result<(), OnnxError> {
        self.list(messages, |hash, message| {
            let mut message = message.clone();
            strip(&mut message);
            hash.part(&encode(&message)?);
            Ok(())
        })
    }
}

fn length<T>(items: &[T]) -> [u8; 8] {
    u64::try_from(items.len()).unwrap_or(u64::MAX).to_le_bytes()
}

/// Copies a tensor with values in typed fields, without those in `raw_data`.
fn without_raw(tensor: &TensorProto) -> TensorProto {
    let mut copy = TensorProto { raw_data: None, data_location: None, ..tensor.clone() };
    strip_tensor(&mut copy);
    copy.external_data.clear();
    copy.unknown_fields.clear();
    copy
}

fn strip_value(value: &mut ValueInfoProto) {
    value.doc_string = None;
    value.metadata_props.clear();
}

fn strip_tensor(tensor: &mut TensorProto) {
    tensor.doc_string = None;
    tensor.metadata_props.clear();
    if external::is_external(tensor) {
        // The values are hashed, wherever they are.
        tensor.external_data.clear();
    }
}

fn strip_sparse(sparse: &mut SparseTensorProto) {
    [&mut sparse.values, &mut sparse.indices]
        .into_iter()
        .filter_map(|tensor| tensor.as_option_mut())
        .for_each(strip_tensor);
}

fn strip_node(node: &mut NodeProto) {
    node.name = None;
    node.doc_string = None;
    node.metadata_props.clear();
    node.attribute.iter_mut().for_each(strip_attribute);
}

fn strip_attribute(attribute: &mut AttributeProto) {
    attribute.doc_string = None;
    attribute.t.as_option_mut().into_iter().chain(&mut attribute.tensors).for_each(strip_tensor);
    attribute.g.as_option_mut().into_iter().chain(&mut attribute.graphs).for_each(strip_graph);
    let sparse = attribute.sparse_tensor.as_option_mut().into_iter();
    sparse.chain(&mut attribute.sparse_tensors).for_each(strip_sparse);
}

/// Strips a subgraph. The recursion is bounded because [`decode`](crate::proto::decode) limits the depth.
fn strip_graph(graph: &mut GraphProto) {
    graph.name = None;
    graph.doc_string = None;
    graph.value_info.clear();
    graph.quantization_annotation.clear();
    graph.metadata_props.clear();
    graph.input.iter_mut().chain(&mut graph.output).for_each(strip_value);
    graph.initializer.iter_mut().for_each(strip_tensor);
    graph.sparse_initializer.iter_mut().for_each(strip_sparse);
    graph.node.iter_mut().for_each(strip_node);
}

fn strip_function(function: &mut FunctionProto) {
    function.doc_string = None;
    function.value_info.clear();
    function.metadata_props.clear();
    function.attribute_proto.iter_mut().for_each(strip_attribute);
    function.node.iter_mut().for_each(strip_node);
}
