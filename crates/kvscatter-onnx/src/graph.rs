//! The graph of a model. Its names, the order of its nodes and its operator sets are checked once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvscatter::ElementType;
use kvscatter::spec::Dimension;

use crate::ir::{Source, ValueTable};
use crate::names;
use crate::order::sources_first;
use crate::proto::tensor_shape_proto::{self, dimension::Value as DimValue};
use crate::proto::type_proto::Value as TypeValue;
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};
use crate::{ErrorPlace, ExternalData, GraphError, NodeLabel, OnnxError, Tensor, attribute, tensor_proto};

/// The full name of the default domain. Models usually write it as the empty string.
pub(crate) const DEFAULT_DOMAIN: &str = "ai.onnx";

/// The maximum length of the name of a value, a node or an operator, in bytes.
///
/// The limit bounds the size of reports, because every report about a node or a value repeats its name. One
/// node can cause as many reports as the graph has caches.
const MAX_NAME: usize = 4096;

/// The largest number of integers that [`Graph::ints`] returns.
const MAX_INTS: usize = 8;

/// A graph whose structure has been checked.
///
/// Every value has one producer, every used value exists, and every node comes after the nodes that it reads
/// from. Subgraphs (the bodies of `If`, `Loop`, `Scan`) are not checked.
///
/// A clone shares everything with the original.
#[derive(Clone, Debug)]
pub struct Graph<'m> {
    proto: &'m GraphProto,
    nodes: Arc<[Node<'m>]>,
    values: Arc<ValueTable<'m>>,
    functions: &'m [FunctionProto],
}

/// The functions that a model defines, by domain and name. All graphs and function bodies of a model share
/// one set.
#[derive(Clone, Debug)]
pub(crate) struct FunctionNames<'m>(BTreeSet<(&'m str, Option<&'m str>)>);

impl<'m> FunctionNames<'m> {
    pub(crate) fn new(functions: &'m [FunctionProto]) -> Self {
        let name =
            |function: &'m FunctionProto| (full_domain(function.domain.as_deref()), function.name.as_deref());
        Self(functions.iter().map(name).collect())
    }
}

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug)]
pub struct Node<'m> {
    index: usize,
    proto: &'m NodeProto,
    version: i64,
    is_function: bool,
}

/// A graph input or output as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo<'m> {
    /// The name of the input or output.
    pub name: &'m str,
    /// The declared element type.
    pub element: ElementType,
    /// The dimensions, or `None` if the rank is not declared.
    pub shape: Option<Vec<Dimension<'m>>>,
}

impl<'m> Graph<'m> {
    /// Creates the graph of a message, as [`Model::graph`](crate::Model::graph) does.
    pub(crate) fn new(model: &'m ModelProto) -> Result<Self, OnnxError> {
        let proto = model.graph.as_option().ok_or(GraphError::GraphMissing)?;
        let nodes = nodes(&model.opset_import, &FunctionNames::new(&model.functions), &proto.node)?;
        let values = values(proto)?;
        check_uses(&nodes, &values)?;
        Ok(Self { proto, nodes: nodes.into(), values: Arc::new(values), functions: &model.functions })
    }

    /// Returns the nodes. Each node comes after the nodes that it reads from.
    #[must_use]
    pub fn nodes(&self) -> &[Node<'m>] {
        &self.nodes
    }

    /// Returns the functions that the model defines.
    pub(crate) fn functions(&self) -> &'m [FunctionProto] {
        self.functions
    }

    /// Returns the nodes, shared with the graph.
    pub(crate) fn shared_nodes(&self) -> &Arc<[Node<'m>]> {
        &self.nodes
    }

    /// Returns the values of the graph, shared with it.
    pub(crate) fn values(&self) -> &Arc<ValueTable<'m>> {
        &self.values
    }

    /// Returns the node that produces a value and the index of the output, or `None` for inputs and initializers.
    #[must_use]
    pub fn producer(&self, value: &str) -> Option<(Node<'m>, usize)> {
        match self.values.get(value)?.source {
            Source::Node { node, output } => Some((*self.nodes.get(node)?, output)),
            Source::Input | Source::Initializer(_) => None,
        }
    }

    /// Returns the nodes that read a value in order, and the index of the input. The index is `None` if a subgraph of
    /// the node reads the value.
    pub fn uses(&self, value: &str) -> impl Iterator<Item = (Node<'m>, Option<usize>)> + use<'_, 'm> {
        let uses = self.values.get(value).map(|value| value.uses.as_slice()).unwrap_or_default();
        uses.iter().filter_map(|user| Some((*self.nodes.get(user.node)?, user.input)))
    }

    /// Returns `true` if no node reads a value, and it is no output of the graph.
    pub(crate) fn is_unread(&self, value: &str) -> bool {
        self.uses(value).next().is_none() && !self.is_output(value)
    }

    /// Returns the initializer of this name.
    pub(crate) fn initializer(&self, name: &str) -> Option<&'m TensorProto> {
        match self.values.get(name)?.source {
            Source::Initializer(tensor) => Some(tensor),
            Source::Input | Source::Node { .. } => None,
        }
    }

    /// Returns the initializers with their names.
    pub(crate) fn initializers(&self) -> impl Iterator<Item = (&'m str, &'m TensorProto)> + use<'_, 'm> {
        self.values.values().iter().filter_map(|value| match value.source {
            Source::Initializer(tensor) => Some((value.name, tensor)),
            Source::Input | Source::Node { .. } => None,
        })
    }

    /// Reads the tensors of the initializers, by name.
    pub(crate) fn tensors(
        &self,
        external: Option<&ExternalData>,
    ) -> Result<BTreeMap<&'m str, Tensor>, OnnxError> {
        let read = |(name, message): (_, &TensorProto)| {
            tensor_proto::decode(message.clone(), external).map(|tensor| (name, tensor))
        };
        self.initializers().map(read).collect()
    }

    /// Returns `true` if a value is an input that has to be fed.
    #[must_use]
    pub fn is_input(&self, value: &str) -> bool {
        self.values.get(value).is_some_and(|value| matches!(value.source, Source::Input))
    }

    /// Returns the index of a value among the inputs of the graph.
    pub(crate) fn input_index(&self, value: &str) -> Option<usize> {
        self.values.get(value)?.input
    }

    /// Returns `true` if the graph returns a value.
    pub(crate) fn is_output(&self, value: &str) -> bool {
        self.values.get(value).is_some_and(|value| value.is_output)
    }

    /// Returns a value's name with the lifetime of the graph.
    pub(crate) fn name(&self, value: &str) -> Option<&'m str> {
        self.values.get(value).map(|value| value.name)
    }

    /// Returns `true` if a value is an initializer or the output of a `Constant`.
    pub(crate) fn is_constant(&self, value: &str) -> bool {
        self.initializer(value).is_some() || self.producer(value).is_some_and(|(node, _)| node.is("Constant"))
    }

    /// Returns the tensor of a constant. A `Constant` may have numbers in place of a tensor.
    pub(crate) fn constant(&self, value: &str) -> Option<&'m TensorProto> {
        let of_node = || {
            self.producer(value).filter(|(node, _)| node.is("Constant"))?.0.attribute("value")?.t.as_option()
        };
        self.initializer(value).or_else(of_node)
    }

    /// Returns the elements of a small constant of int64, or `None` if the value is another one or is stored in another
    /// file.
    pub(crate) fn ints(&self, value: &str) -> Option<Vec<i64>> {
        let tensor = self.constant(value)?;
        if tensor.data_type != Some(ElementType::Int64.onnx_code()) {
            return None;
        }
        let raw = tensor.raw_data.iter().flat_map(|raw| raw.as_chunks().0).map(|it| i64::from_le_bytes(*it));
        let ints: Vec<_> =
            raw.chain(tensor.int64_data.iter().copied()).take(MAX_INTS.saturating_add(1)).collect();
        (1..=MAX_INTS).contains(&ints.len()).then_some(ints)
    }

    /// Returns these values and everything that is computed from their elements.
    pub(crate) fn computed_from(&self, values: impl IntoIterator<Item = &'m str>) -> BTreeSet<&'m str> {
        let mut computed: BTreeSet<&str> = values.into_iter().collect();
        // A shape contains no elements.
        for node in self.nodes.iter().filter(|node| !node.reads_shape()) {
            if node.reads().iter().any(|name| computed.contains(name)) {
                computed.extend(node.outputs());
            }
        }
        computed
    }

    /// Returns the nodes on whose elements an output depends, the last one first. A shape depends on no elements.
    pub(crate) fn used_nodes(&self) -> impl Iterator<Item = Node<'m>> + use<'_, 'm> {
        let mut used: BTreeSet<&str> = self.output_names().collect();
        self.nodes.iter().rev().copied().filter(move |node| {
            let is_used = node.outputs().any(|output| used.contains(output)) && !node.reads_shape();
            used.extend(is_used.then(|| node.reads()).into_iter().flatten());
            is_used
        })
    }

    /// Returns the names of the inputs in order.
    pub fn input_names(&self) -> impl ExactSizeIterator<Item = &'m str> + use<'m> {
        self.proto.input.iter().map(|input| input.name.as_deref().unwrap_or_default())
    }

    /// Returns the names of the inputs that have to be fed, in order.
    pub(crate) fn fed_names(&self) -> impl Iterator<Item = &'m str> + use<'_, 'm> {
        self.input_names().filter(|name| self.is_input(name))
    }

    /// Returns the names of the outputs in order.
    pub fn output_names(&self) -> impl ExactSizeIterator<Item = &'m str> + use<'m> {
        self.proto.output.iter().map(|output| output.name.as_deref().unwrap_or_default())
    }

    /// Returns the inputs as declared, including those with an initializer as their default.
    ///
    /// # Errors
    /// * Returns [`GraphError::TypeMissing`] or [`GraphError::NotATensor`] if an input has no tensor type.
    /// * Returns [`TensorProtoError`](crate::TensorProtoError) for an invalid tensor type, wrapped in
    ///   [`OnnxError::InTensor`].
    pub fn inputs(&self) -> Result<Vec<ValueInfo<'m>>, OnnxError> {
        self.proto.input.iter().map(ValueInfo::parse).collect()
    }

    /// Returns the outputs as declared.
    ///
    /// # Errors
    /// Returns the errors of [`inputs`](Self::inputs).
    pub fn outputs(&self) -> Result<Vec<ValueInfo<'m>>, OnnxError> {
        self.proto.output.iter().map(ValueInfo::parse).collect()
    }

    /// Returns the element type of a value, if the model declares it or if the value is a constant.
    #[must_use]
    pub fn element(&self, value: &str) -> Option<ElementType> {
        let of_constant = || ElementType::from_onnx_code(self.constant(value)?.data_type?);
        self.declared(value).map(|declared| declared.element).or_else(of_constant)
    }

    /// Returns the declaration of a value, or `None` if it is not declared as a tensor.
    pub(crate) fn declared(&self, value: &str) -> Option<ValueInfo<'m>> {
        ValueInfo::parse(self.values.get(value)?.declared?).ok()
    }
}

impl<'m> Node<'m> {
    /// Returns the message of the node.
    #[doc(hidden)]
    #[must_use]
    pub fn proto(&self) -> &'m NodeProto {
        self.proto
    }

    /// Returns every value that the node reads, each once: its inputs, and the outer values that its
    /// subgraphs read.
    #[must_use]
    pub fn reads(&self) -> BTreeSet<&'m str> {
        names::reads(self.proto())
    }

    /// Returns the name of the operator.
    #[must_use]
    pub fn op_type(&self) -> &'m str {
        self.proto.op_type.as_deref().unwrap_or_default()
    }

    /// Returns the domain of the operator. The default domain is `ai.onnx`.
    #[must_use]
    pub fn domain(&self) -> &'m str {
        full_domain(self.proto.domain.as_deref())
    }

    /// Returns the version of the domain's operator set that the model imports.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.version
    }

    /// Returns `true` if the operator is a function that the model defines.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.is_function
    }

    /// Returns the node's index among the graph's nodes, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns `true` if the operator of the node is this operator of the default domain, and not a function
    /// of that name.
    #[must_use]
    pub fn is(&self, op_type: &str) -> bool {
        self.domain() == DEFAULT_DOMAIN && self.op_type() == op_type && !self.is_function
    }

    /// Returns the value at this input, or `None` if the input is absent.
    #[must_use]
    pub fn input(&self, slot: usize) -> Option<&'m str> {
        self.proto.input.get(slot).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the value at this output, or `None` if the output is absent.
    #[must_use]
    pub fn output(&self, slot: usize) -> Option<&'m str> {
        self.proto.output.get(slot).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the values at all inputs, each `None` if the input is absent.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = Option<&'m str>> + use<'m> {
        self.proto.input.iter().map(|name| Some(name.as_str()).filter(|name| !name.is_empty()))
    }

    /// Returns `true` if the node reads only the shape of its input.
    pub(crate) fn reads_shape(&self) -> bool {
        self.is("Shape") || self.is("Size")
    }

    /// Returns the values at all outputs that are not absent.
    pub fn outputs(&self) -> impl Iterator<Item = &'m str> + use<'m> {
        self.proto.output.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns the label that identifies the node in messages.
    #[must_use]
    pub fn label(&self) -> NodeLabel {
        label(self.index, self.proto, Some(self.version))
    }

    /// Returns the first attribute of this name.
    pub(crate) fn attribute(&self, name: &str) -> Option<&'m AttributeProto> {
        self.proto.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
    }

    /// Checks that every attribute has one of these names, and that none is given twice.
    ///
    /// # Errors
    /// Returns [`GraphError::AttributeUnknown`] or [`GraphError::AttributeTwice`].
    pub fn check_attributes(&self, known: &[&str]) -> Result<(), OnnxError> {
        let mut names = BTreeSet::new();
        for attribute in &self.proto.attribute {
            let name = attribute.name.as_deref().unwrap_or_default();
            if !known.contains(&name) {
                return Err(GraphError::AttributeUnknown { name: name.to_owned() }.into());
            }
            if !names.insert(name) {
                return Err(GraphError::AttributeTwice { name: name.to_owned() }.into());
            }
        }
        Ok(())
    }

    /// Returns the value of an integer attribute, or `None` if the node does not have the attribute.
    ///
    /// # Errors
    /// Returns [`GraphError::AttributeType`] if the attribute has another type.
    pub fn int(&self, name: &str) -> Result<Option<i64>, OnnxError> {
        self.attribute(name).map(attribute::int).transpose()
    }

    /// Returns the value of a floating-point attribute, or `None` if the node does not have the attribute.
    ///
    /// # Errors
    /// Returns [`GraphError::AttributeType`] if the attribute has another type.
    pub fn float(&self, name: &str) -> Result<Option<f32>, OnnxError> {
        self.attribute(name).map(attribute::float).transpose()
    }

    /// Returns the bytes of a string attribute, or `None` if the node does not have the attribute.
    ///
    /// # Errors
    /// Returns [`GraphError::AttributeType`] if the attribute has another type.
    pub fn string(&self, name: &str) -> Result<Option<&'m [u8]>, OnnxError> {
        self.attribute(name).map(attribute::string).transpose()
    }

    /// Returns `true` if an integer attribute is given and is not 0.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(0) != 0
    }

    /// Returns `true` if the node is an `Attention` that caps its scores.
    pub(crate) fn caps_scores(&self) -> bool {
        self.is("Attention") && self.attribute("softcap").and_then(|cap| cap.f).unwrap_or(0.0) != 0.0
    }

    pub(crate) fn error(&self, error: impl Into<OnnxError>) -> OnnxError {
        in_node(self.label(), error)
    }

    /// Wraps an error like [`error`](Self::error), unless the error already names a node.
    pub(crate) fn error_within(&self, error: OnnxError) -> OnnxError {
        if matches!(error, OnnxError::InNode { .. }) { error } else { self.error(error) }
    }
}

impl<'m> ValueInfo<'m> {
    /// Returns the number of dimensions, or `None` if it is not declared.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// Returns the key under which callers give the size of an open dimension.
    ///
    /// The key is the symbol of the dimension, or `name[axis]` if it has no symbol. Returns `None` if the
    /// size is declared or the axis is beyond the rank.
    #[must_use]
    pub fn dim_key(&self, axis: usize) -> Option<String> {
        match self.shape.as_ref()?.get(axis)? {
            Dimension::Known(_) => None,
            Dimension::Symbolic(symbol) => Some((*symbol).to_owned()),
            Dimension::Unknown => Some(format!("{}[{axis}]", self.name)),
        }
    }

    pub(crate) fn parse(proto: &'m ValueInfoProto) -> Result<Self, OnnxError> {
        let name = proto.name.as_deref().unwrap_or_default();
        let missing = || GraphError::TypeMissing { name: name.to_owned() };
        let tensor = match proto.r#type.value.as_ref().ok_or_else(missing)? {
            TypeValue::TensorType(tensor) => tensor,
            other => {
                return Err(GraphError::NotATensor { name: name.to_owned(), kind: kind(other) }.into());
            }
        };
        let dimension = |(axis, dim): (usize, &'m tensor_shape_proto::Dimension)| match &dim.value {
            Some(DimValue::DimValue(dim)) => tensor_proto::size(axis, *dim).map(Dimension::Known),
            Some(DimValue::DimParam(symbol)) if !symbol.is_empty() => Ok(Dimension::Symbolic(symbol)),
            _ => Ok(Dimension::Unknown),
        };
        let shape = tensor
            .shape
            .as_option()
            .map(|shape| shape.dim.iter().enumerate().map(dimension).collect())
            .transpose();
        Ok(Self {
            name,
            element: tensor_proto::element_type(tensor.elem_type).in_tensor(name)?,
            shape: shape.in_tensor(name)?,
        })
    }
}

/// Returns the nodes of a graph or a function body, with the versions of the imported operator sets. Only
/// operators are checked.
pub(crate) fn nodes<'m>(
    imports: &'m [OperatorSetIdProto],
    functions: &FunctionNames<'m>,
    nodes: &'m [NodeProto],
) -> Result<Vec<Node<'m>>, OnnxError> {
    let mut opsets = BTreeMap::new();
    for import in imports {
        let domain = full_domain(import.domain.as_deref());
        if opsets.insert(domain, import.version.unwrap_or_default()).is_some() {
            return Err(GraphError::OpsetTwice { domain: domain.to_owned() }.into());
        }
    }
    let node = |(index, proto): (usize, &'m NodeProto)| {
        let domain = full_domain(proto.domain.as_deref());
        let Some(&version) = opsets.get(domain) else {
            let domain = domain.to_owned();
            return Err(in_node(label(index, proto, None), GraphError::OpsetMissing { domain }));
        };
        Ok(Node {
            index,
            proto,
            version,
            is_function: functions.0.contains(&(domain, proto.op_type.as_deref())),
        })
    };
    nodes.iter().enumerate().map(node).collect()
}

/// Returns the values of a graph. An input may also have an initializer, its default.
fn values(graph: &GraphProto) -> Result<ValueTable<'_>, OnnxError> {
    if let Some(sparse) = graph.sparse_initializer.first() {
        return Err(GraphError::Sparse { name: sparse.values.name.clone().unwrap_or_default() }.into());
    }
    let twice = |name: &str| GraphError::DuplicateName { name: name.to_owned() };
    let declared = graph.initializer.len().saturating_add(graph.input.len());
    let mut values = ValueTable::with_room(declared, &graph.node);
    for (index, tensor) in graph.initializer.iter().enumerate() {
        let name = named("initializer", index, tensor.name.as_deref())?;
        values.add(name, Source::Initializer(tensor)).ok_or_else(|| twice(name))?;
    }
    for (index, input) in graph.input.iter().enumerate() {
        let name = named("input", index, input.name.as_deref())?;
        values.add(name, Source::Input);
        let value = values.get_mut(name).filter(|value| value.input.is_none());
        value.ok_or_else(|| twice(name))?.input = Some(index);
    }
    for (index, node) in graph.node.iter().enumerate() {
        for name in [&node.name, &node.op_type, &node.domain].into_iter().flatten().chain(&node.output) {
            check_length("node", index, name)?;
        }
    }
    values.add_nodes(&graph.node).map_err(twice)?;
    for (index, output) in graph.output.iter().enumerate() {
        let name = named("output", index, output.name.as_deref())?;
        let missing = || GraphError::ValueMissing { name: name.to_owned() };
        if std::mem::replace(&mut values.get_mut(name).ok_or_else(missing)?.is_output, true) {
            return Err(twice(name).into());
        }
    }
    for declared in graph.value_info.iter().chain(&graph.output).chain(&graph.input) {
        let value = values.get_mut(declared.name.as_deref().unwrap_or_default());
        value.into_iter().for_each(|value| value.declared = Some(declared));
    }
    Ok(values)
}

fn check_uses(nodes: &[Node<'_>], values: &ValueTable<'_>) -> Result<(), OnnxError> {
    for node in nodes {
        for name in node.proto.input.iter().filter(|name| !name.is_empty()) {
            let value = values.get(name);
            let value = value.ok_or_else(|| node.error(GraphError::ValueMissing { name: name.clone() }))?;
            let Source::Node { node: producer, .. } = value.source else { continue };
            let Some(producer) = nodes.get(producer).filter(|producer| producer.index >= node.index) else {
                continue;
            };
            if let Some(node) = node_on_a_cycle(nodes, values) {
                return Err(node.error(GraphError::Cycle));
            }
            let (name, producer) = (name.clone(), Box::new(producer.label()));
            return Err(node.error(GraphError::NodeOrder { name, producer }));
        }
    }
    Ok(())
}

fn node_on_a_cycle<'a, 'm>(nodes: &'a [Node<'m>], values: &ValueTable<'m>) -> Option<&'a Node<'m>> {
    let producer = |id| match values.value(id)?.source {
        Source::Node { node, .. } => Some(node),
        Source::Input | Source::Initializer(_) => None,
    };
    let inputs = |node| values.of_node(node).into_iter().flat_map(|values| values.inputs.iter().flatten());
    let cyclic = sources_first(0..nodes.len(), |node| inputs(node).filter_map(|&id| producer(id))).err()?;
    nodes.get(cyclic)
}

fn named<'m>(what: &'static str, index: usize, name: Option<&'m str>) -> Result<&'m str, GraphError> {
    let name = name.filter(|name| !name.is_empty()).ok_or(GraphError::NameMissing { what, index })?;
    check_length(what, index, name)?;
    Ok(name)
}

fn check_length(what: &'static str, index: usize, name: &str) -> Result<(), GraphError> {
    match name.len() {
        bytes if bytes > MAX_NAME => Err(GraphError::NameTooLong { what, index, bytes, limit: MAX_NAME }),
        _ => Ok(()),
    }
}

pub(crate) fn full_domain(domain: Option<&str>) -> &str {
    match domain {
        None | Some("") => DEFAULT_DOMAIN,
        Some(domain) => domain,
    }
}

pub(crate) fn label(index: usize, proto: &NodeProto, version: Option<i64>) -> NodeLabel {
    NodeLabel {
        index,
        name: proto.name.clone().unwrap_or_default(),
        op_type: proto.op_type.clone().unwrap_or_default(),
        domain: full_domain(proto.domain.as_deref()).to_owned(),
        version,
    }
}

pub(crate) fn in_node(node: NodeLabel, cause: impl Into<OnnxError>) -> OnnxError {
    OnnxError::InNode { node: Box::new(node), cause: Box::new(cause.into()) }
}

fn kind(value: &TypeValue) -> &'static str {
    match value {
        TypeValue::TensorType(_) => "tensor",
        TypeValue::SequenceType(_) => "sequence",
        TypeValue::MapType(_) => "map",
        TypeValue::OptionalType(_) => "optional",
        TypeValue::SparseTensorType(_) => "sparse tensor",
        TypeValue::OpaqueType(_) => "opaque value",
    }
}
