//! The part of a decoder that updates one cache, as a separate model.
//!
//! A benchmark uses it to time what a runtime does to the cache without the rest of a decode step.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use crate::decoder::{Cache, Decoder, WriterStyle};
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::passing::{Passing, combined};
use crate::proto::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto, encoded_len,
};
use crate::{Dimension, Graph, Model, Node, NodeLabel, OnnxError, external};

/// A model that contains only the nodes between the past and the present of one cache.
///
/// Its inputs are the past, the new rows and, for `TensorScatter`, the positions. Its output is the present.
/// Only ranks are declared, so the model runs at any batch and any capacity. The new rows have the past's
/// shape except for the sequence dimension.
#[derive(Clone, Debug)]
pub struct CachePath {
    /// The model. It imports the same operator sets as the decoder.
    pub model: Model,
    /// The name and the element type of the input for the past.
    pub past: (String, ElementType),
    /// The name of the output for the present.
    pub present: String,
    /// The names and element types of the inputs for new rows, in the order in which the rows are written.
    pub updates: Vec<(String, ElementType)>,
    /// The names of the inputs for `write_indices`, each int64 `[batch]`. The list is empty if the cache
    /// grows.
    pub write_indices: Vec<String>,
    /// The index of the sequence dimension, counted from 0.
    pub axis: usize,
    /// Whether the present is longer than the past by the number of all new rows together.
    pub grows: bool,
}

/// An error that means that the path of a cache cannot be separated from its decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CachePathError {
    /// An operator on the path also computes something else, or is not known.
    #[error("{node} does more than pass on the cache or write rows of it")]
    Node {
        /// The first such node, searching backwards from the present.
        node: Box<NodeLabel>,
    },
    /// Following the nodes backwards from the present does not lead to the past.
    #[error("no path of nodes that pass on one tensor leads from {present:?} back to {past:?}")]
    NoWay {
        /// The name of the graph input that is the past.
        past: String,
        /// The name of the graph output that is the present.
        present: String,
    },
    /// A constant on the path is too large, or is not stored in the model.
    #[error(
        "{name:?} is a constant of {} bytes or more, or is stored outside the model",
        Self::CONSTANT_BYTES
    )]
    Constant {
        /// The name of the constant.
        name: String,
    },
}

impl CachePathError {
    /// The maximum size of a constant on the path, in bytes.
    pub const CONSTANT_BYTES: usize = 64 << 10;
}

impl CachePath {
    /// Returns the path of each cache of a decoder, in the decoder's order.
    ///
    /// # Errors
    /// Returns the errors of [`Graph::new`] and [`Decoder::from_graph`]. If the path of a cache cannot be separated,
    /// the entry at its index is a [`CachePathError`].
    pub fn from_model(model: &Model) -> Result<Vec<Result<Self, CachePathError>>, OnnxError> {
        let graph = model.graph()?;
        let decoder = Decoder::from_graph(&graph)?;
        let mut finder = Finder::new(model, &graph);
        Ok(decoder.caches.iter().map(|cache| finder.path(cache)).collect())
    }
}

/// The maximum number of nodes that are followed in a row. It bounds the time for a hostile graph.
const MAX_NODES: usize = 256;

/// A decoder with what the paths of its caches have in common.
struct Finder<'a, 'm> {
    proto: &'a ModelProto,
    graph: &'a Graph<'m>,
    /// The operator sets that a path imports. Only the default domain is needed, because a path has no other
    /// operators.
    opset_import: Vec<OperatorSetIdProto>,
    /// Whether each constant that a path has used is small enough for the path's model.
    small: BTreeMap<&'m str, bool>,
}

impl<'a, 'm> Finder<'a, 'm> {
    fn new(model: &'a Model, graph: &'a Graph<'m>) -> Self {
        let imports = model.proto().opset_import.iter();
        let default = imports.filter(|import| full_domain(import.domain.as_deref()) == DEFAULT_DOMAIN);
        Self { proto: model.proto(), graph, opset_import: default.cloned().collect(), small: BTreeMap::new() }
    }

    fn path(&mut self, cache: &Cache<'m>) -> Result<CachePath, CachePathError> {
        let nodes = self.nodes(cache)?;
        let mut draft = Draft { rank: cache.past_shape.len(), ..Draft::default() };
        let mut element = cache.element;
        draft.input(cache.past, element, draft.rank);
        for node in &nodes {
            match node.op_type() {
                "TensorScatter" => {
                    draft.update(node.input(1), element);
                    draft.positions(node.input(2));
                }
                "Concat" => draft.update(node.input(1), element),
                "Cast" => {
                    let to = node.attribute("to").and_then(|to| i32::try_from(to.i?).ok());
                    let to = to.and_then(ElementType::from_onnx_code);
                    element = to.ok_or_else(|| inseparable(node))?;
                }
                _ => {}
            }
            for value in (0..node.proto().input.len()).filter_map(|slot| node.input(slot)) {
                self.constant(value, &mut draft)?;
            }
            draft.node(node.proto());
        }
        draft.outputs.push(value_info(cache.present, element, draft.rank));
        let graph = GraphProto {
            name: Some("cache_path".to_owned()),
            node: draft.nodes,
            input: draft.inputs,
            output: draft.outputs,
            initializer: draft.initializers,
            ..GraphProto::default()
        };
        let proto = ModelProto {
            ir_version: self.proto.ir_version,
            opset_import: self.opset_import.clone(),
            graph: graph.into(),
            ..ModelProto::default()
        };
        Ok(CachePath {
            model: Model::from_proto(proto),
            past: (cache.past.to_owned(), cache.element),
            present: cache.present.to_owned(),
            updates: draft.updates,
            write_indices: draft.write_indices,
            axis: cache.axis,
            grows: cache.style == WriterStyle::Concat,
        })
    }

    /// Returns the nodes in order from past to present.
    fn nodes(&self, cache: &Cache<'m>) -> Result<Vec<Node<'m>>, CachePathError> {
        let no_way =
            || CachePathError::NoWay { past: cache.past.to_owned(), present: cache.present.to_owned() };
        let mut nodes = Vec::new();
        let mut value = cache.present;
        while value != cache.past {
            let (node, _) =
                self.graph.producer(value).filter(|_| nodes.len() < MAX_NODES).ok_or_else(no_way)?;
            value = self.passed_tensor(&node).ok_or_else(|| inseparable(&node))?;
            nodes.push(node);
        }
        nodes.reverse();
        Ok(nodes)
    }

    /// Returns the input from which a node's output gets its shape.
    ///
    /// The output also has the elements of that input, except for the new rows. The output of a `Concat` is
    /// longer in the sequence dimension by the new rows.
    fn passed_tensor(&self, node: &Node<'m>) -> Option<&'m str> {
        match Passing::of_node(node)? {
            Passing::Joins if node.is("TensorScatter") || node.proto().input.len() == 2 => node.input(0),
            Passing::Keeps if node.is("Identity") || node.is("Cast") => node.input(0),
            Passing::Computes if !node.op_type().ends_with("Linear") => node.input(0),
            Passing::Combines if !node.is("Min") => combined(self.graph, node),
            _ => None,
        }
    }

    /// Returns `true` if a value is a constant that is stored in the model and takes few bytes.
    ///
    /// Each constant is measured only once, because many caches may share a large one. No constant is copied
    /// to measure it.
    fn is_small(&mut self, value: &'m str) -> bool {
        if let Some(&is_small) = self.small.get(value) {
            return is_small;
        }
        let initializer = self.graph.initializer(value);
        let constant = self.graph.producer(value).filter(|(node, _)| node.is("Constant"));
        let is_small = match (initializer, constant) {
            // The path's model is written to another folder, which has no files of external data.
            (Some(tensor), _) => !external::is_external(tensor) && has_few_bytes(tensor),
            (None, Some((node, _))) => {
                let is_external = |attribute: &AttributeProto| external::is_external(&attribute.t);
                !node.proto().attribute.iter().any(is_external) && has_few_bytes(node.proto())
            }
            (None, None) => false,
        };
        self.small.insert(value, is_small);
        is_small
    }

    /// Copies a constant into the path. Does nothing if the path already has the value.
    fn constant(&mut self, value: &'m str, draft: &mut Draft<'m>) -> Result<(), CachePathError> {
        let too_large = || CachePathError::Constant { name: value.to_owned() };
        if draft.known.contains(value) {
            return Ok(());
        }
        if !self.is_small(value) {
            return Err(too_large());
        }
        if let Some(tensor) = self.graph.initializer(value) {
            draft.initializers.push(TensorProto { name: Some(value.to_owned()), ..tensor.clone() });
        } else if let Some((node, _)) = self.graph.producer(value) {
            draft.nodes.push(node.proto().clone());
        }
        draft.known.insert(value);
        Ok(())
    }
}

/// The graph of a path while it is being built.
#[derive(Default)]
struct Draft<'m> {
    /// The rank of the cache and of the new rows.
    rank: usize,
    /// The values that the path already has.
    known: BTreeSet<&'m str>,
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
    initializers: Vec<crate::proto::TensorProto>,
    updates: Vec<(String, ElementType)>,
    write_indices: Vec<String>,
}

impl<'m> Draft<'m> {
    /// Declares an input. Returns `false` if the path already has the value.
    fn input(&mut self, name: &'m str, element: ElementType, rank: usize) -> bool {
        let is_new = self.known.insert(name);
        if is_new {
            self.inputs.push(value_info(name, element, rank));
        }
        is_new
    }

    fn update(&mut self, name: Option<&'m str>, element: ElementType) {
        if let Some(name) = name.filter(|name| self.input(name, element, self.rank)) {
            self.updates.push((name.to_owned(), element));
        }
    }

    fn positions(&mut self, name: Option<&'m str>) {
        if let Some(name) = name.filter(|name| self.input(name, ElementType::Int64, 1)) {
            self.write_indices.push(name.to_owned());
        }
    }

    fn node(&mut self, node: &'m NodeProto) {
        self.known.extend(node.output.iter().map(String::as_str));
        self.nodes.push(node.clone());
    }
}

fn has_few_bytes(message: &impl Message) -> bool {
    encoded_len(message) <= CachePathError::CONSTANT_BYTES
}

fn inseparable(node: &Node<'_>) -> CachePathError {
    CachePathError::Node { node: Box::new(node.label()) }
}

/// Returns the declaration of a tensor of this rank whose dimensions have no declared sizes.
fn value_info(name: &str, element: ElementType, rank: usize) -> ValueInfoProto {
    ValueInfoProto::tensor(name, element.onnx_code(), &vec![Dimension::Unknown; rank])
}
