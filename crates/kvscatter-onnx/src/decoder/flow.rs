//! The producer and the readers of each value of a graph.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use crate::edit::names::{captures, subgraphs};
use crate::proto::TensorProto;
use crate::{Graph, Node, ValueInfo};

/// The largest number of integers that [`Flow::ints`] returns.
const MAX_INTS: usize = 8;

/// An index of a graph that can be walked in both directions.
#[derive(Clone, Debug)]
pub(super) struct Flow<'m> {
    nodes: Vec<Node<'m>>,
    /// The node that produces each value, and the index of the output.
    makers: BTreeMap<&'m str, (usize, usize)>,
    readers: BTreeMap<&'m str, Vec<Reader>>,
    outputs: BTreeSet<&'m str>,
    /// The inputs without an initializer, and their indices among the graph's inputs.
    inputs: BTreeMap<&'m str, usize>,
    /// The initializers and the outputs of `Constant` nodes. A `Constant` may have numbers in place of a tensor.
    constants: BTreeMap<&'m str, Option<&'m TensorProto>>,
    /// The declarations of the values that `TensorScatter` nodes read, and of the results of
    /// `GroupQueryAttention`.
    declared: BTreeMap<&'m str, ValueInfo<'m>>,
}

/// One use of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reader {
    node: usize,
    /// The index among the node's inputs, or `None` if a subgraph of the node reads the value.
    slot: Option<usize>,
}

impl<'m> Flow<'m> {
    pub(super) fn new(graph: &Graph<'m>) -> Self {
        let nodes = graph.nodes().to_vec();
        let mut makers = BTreeMap::new();
        let mut readers: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (index, node) in nodes.iter().enumerate() {
            let proto = node.proto();
            for (slot, output) in proto.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                makers.insert(output.as_str(), (index, slot));
            }
            for (slot, input) in proto.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                readers.entry(input.as_str()).or_default().push(Reader { node: index, slot: Some(slot) });
            }
            for name in subgraphs(proto).flat_map(captures) {
                readers.entry(name).or_default().push(Reader { node: index, slot: None });
            }
        }
        let initializers = graph.initializers();
        let mut constants: BTreeMap<_, _> =
            initializers.iter().map(|(&name, &tensor)| (name, Some(tensor))).collect();
        for node in nodes.iter().filter(|node| node.is("Constant")) {
            let tensor = node.attribute("value").and_then(|value| value.t.as_option());
            constants.extend(node.output(0).map(|name| (name, tensor)));
        }
        let scatters = nodes.iter().filter(|node| node.is("TensorScatter"));
        let attentions = nodes.iter().filter(|node| node.op_type() == "GroupQueryAttention");
        let results = attentions.filter_map(|node| node.output(0));
        let wanted: BTreeSet<_> = scatters.flat_map(Node::reads).chain(results).collect();
        Self {
            declared: graph.declared(|name| wanted.contains(name)),
            inputs: graph
                .input_names()
                .enumerate()
                .filter(|(_, name)| !initializers.contains_key(name))
                .map(|(place, name)| (name, place))
                .collect(),
            constants,
            outputs: graph.output_names().collect(),
            nodes,
            makers,
            readers,
        }
    }

    pub(super) fn nodes(&self) -> &[Node<'m>] {
        &self.nodes
    }

    /// Returns the declaration of a value that a `TensorScatter` reads, or of the result of a
    /// `GroupQueryAttention`.
    pub(super) fn declared(&self, value: &str) -> Option<&ValueInfo<'m>> {
        self.declared.get(value)
    }

    /// Returns the node that produces a value and the index of the output, or `None` for inputs and
    /// initializers.
    pub(super) fn maker(&self, value: &str) -> Option<(Node<'m>, usize)> {
        let &(node, slot) = self.makers.get(value)?;
        Some((*self.nodes.get(node)?, slot))
    }

    /// Returns the nodes that read a value and the index of the input. The index is `None` if a subgraph of
    /// the node reads the value.
    pub(super) fn readers(&self, value: &str) -> impl Iterator<Item = (Node<'m>, Option<usize>)> {
        let readers = self.readers.get(value).map(Vec::as_slice).unwrap_or_default();
        readers.iter().filter_map(|reader| Some((*self.nodes.get(reader.node)?, reader.slot)))
    }

    /// Returns a value's name with the lifetime of the graph, or `None` if no node produces the value.
    pub(super) fn name(&self, value: &str) -> Option<&'m str> {
        self.makers.get_key_value(value).map(|(&name, _)| name)
    }

    /// Returns these values and everything that is computed from their elements.
    pub(super) fn computed_from(&self, values: impl IntoIterator<Item = &'m str>) -> BTreeSet<&'m str> {
        let mut computed: BTreeSet<&str> = values.into_iter().collect();
        // A shape contains no elements.
        for node in self.nodes.iter().filter(|node| !node.is("Shape")) {
            if node.reads().iter().any(|name| computed.contains(name)) {
                computed.extend(node.outputs());
            }
        }
        computed
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = &'m str> {
        self.outputs.iter().copied()
    }

    pub(super) fn is_output(&self, value: &str) -> bool {
        self.outputs.contains(value)
    }

    /// Returns `true` if the value is a graph input that has to be fed.
    pub(super) fn is_input(&self, value: &str) -> bool {
        self.inputs.contains_key(value)
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = &'m str> {
        self.inputs.keys().copied()
    }

    /// Returns the index of the value among the graph's inputs.
    pub(super) fn input_place(&self, value: &str) -> Option<usize> {
        self.inputs.get(value).copied()
    }

    /// Returns `true` if the value is an initializer or the output of a `Constant`.
    pub(super) fn is_constant(&self, value: &str) -> bool {
        self.constants.contains_key(value)
    }

    /// Returns the dimensions of a constant, which are empty for numbers.
    pub(super) fn constant_dims(&self, value: &str) -> Option<&'m [i64]> {
        self.constants.get(value).map(|tensor| tensor.map(|it| it.dims.as_slice()).unwrap_or_default())
    }

    /// Returns the elements of a small constant of int64, or `None` if the value is another one or is stored in another
    /// file.
    pub(super) fn ints(&self, value: &str) -> Option<Vec<i64>> {
        let tensor = (*self.constants.get(value)?)?;
        if tensor.data_type != Some(ElementType::Int64.onnx_code()) {
            return None;
        }
        let raw = tensor.raw_data.iter().flat_map(|raw| raw.as_chunks().0).map(|it| i64::from_le_bytes(*it));
        let ints: Vec<_> =
            raw.chain(tensor.int64_data.iter().copied()).take(MAX_INTS.saturating_add(1)).collect();
        (1..=MAX_INTS).contains(&ints.len()).then_some(ints)
    }
}
