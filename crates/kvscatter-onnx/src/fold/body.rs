//! The values of a graph or a function body: for each value its producer, its readers and what is known about
//! it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{FoldError, Value};
use crate::graph::{self, DEFAULT_DOMAIN, FunctionNames};
use crate::proto::{FunctionProto, NodeProto, TensorProto};
use crate::{Graph, Node, NodeLabel, OnnxError};

/// Nodes in order, and the values between them.
#[derive(Debug)]
pub(super) struct Body<'g, 'm> {
    nodes: Cow<'g, [Node<'m>]>,
    /// The values that each node reads and produces.
    value_ids: Vec<NodeValueIds>,
    states: Vec<ValueState<'m>>,
    names: BTreeMap<&'m str, usize>,
    /// The values that were computed, and those that could not be. All are cleared when a value is set.
    computed: Vec<usize>,
}

/// The values that one node reads and produces, as indices into `Body::states`. An absent value is `None`.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeValueIds {
    pub(super) inputs: Vec<Option<usize>>,
    pub(super) outputs: Vec<Option<usize>>,
}

/// A value of the body, and how far it is computed.
#[derive(Debug)]
pub(super) struct ValueState<'m> {
    pub(super) name: &'m str,
    pub(super) source: Source<'m>,
    pub(super) known: Option<KnownValue>,
    /// The level to which the value is computed.
    pub(super) level: Level,
    /// The lowest level that could not be reached.
    pub(super) failed: Option<Level>,
}

/// What is known about a value.
#[derive(Clone, Debug)]
pub(super) enum KnownValue {
    Value(Value),
    /// The value is open: nothing is known about it, because its shape depends on unknown values.
    Open(OpenShape),
}

/// The reason why a value is open.
///
/// It names the first node on the way to the value whose output shape depends on elements of its inputs, and
/// the inputs whose elements are not known.
#[derive(Clone, Debug)]
pub(super) struct OpenShape(Rc<(Vec<NodeLabel>, FoldError)>);

impl OpenShape {
    /// Returns the reason if the error is about an open shape.
    pub(super) fn of(error: &OnnxError) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut error = error;
        while let OnnxError::InNode { node, cause } = error {
            nodes.push(node.as_ref().clone());
            error = cause;
        }
        match error {
            OnnxError::Fold(cause @ FoldError::ValuesUnknown { .. }) => {
                Some(Self(Rc::new((nodes, cause.clone()))))
            }
            _ => None,
        }
    }

    /// Returns the error, wrapped with the nodes that it names.
    pub(super) fn error(&self) -> OnnxError {
        let (nodes, cause) = self.0.as_ref();
        let within = |cause, node: &NodeLabel| OnnxError::InNode {
            node: Box::new(node.clone()),
            cause: Box::new(cause),
        };
        nodes.iter().rev().fold(OnnxError::from(cause.clone()), within)
    }
}

impl KnownValue {
    pub(super) fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Open(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'m> {
    Input,
    Initializer(&'m TensorProto),
    Node(usize),
    /// The value was set by the caller.
    Set,
    /// An optional input of a function that the call leaves out.
    Absent,
}

/// A level to which a value is demanded or computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Nothing,
    Shape,
    /// The elements, or the fact that they cannot be known.
    Values,
}

/// The origin of a value, which determines whether its elements can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// The value depends on something unknown.
    Unknown,
    /// The value depends only on set values and on shapes.
    Given,
    /// The value depends only on constants.
    Constant,
}

/// The functions of a model by domain, name and overload.
#[derive(Debug)]
pub(super) struct Functions<'m> {
    names: FunctionNames<'m>,
    by_name: BTreeMap<FunctionName<'m>, Function<'m>>,
}

/// A function, with facts about its body so that calls need not compute them again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function<'m> {
    pub(super) proto: &'m FunctionProto,
    /// The number of names, attributes and imports that a call processes.
    pub(super) size: usize,
    /// Whether the function computes values from the shapes or types of its inputs. This is assumed if its
    /// body has such a node or calls functions.
    asks_for_shapes: bool,
}

type FunctionName<'m> = (&'m str, &'m str, &'m str);

impl ValueState<'_> {
    pub(super) fn value(&self) -> Option<&Value> {
        self.known.as_ref().and_then(KnownValue::value)
    }
}

impl<'m> Functions<'m> {
    pub(super) fn new(all: &'m [FunctionProto]) -> Self {
        let mut by_name = BTreeMap::new();
        for proto in all {
            let name = proto.name.as_deref().unwrap_or_default();
            let domain = graph::full_domain(proto.domain.as_deref());
            let overload = proto.overload.as_deref().unwrap_or_default();
            by_name.entry((domain, name, overload)).or_insert(proto);
        }
        let function = |proto: &'m FunctionProto| Function {
            proto,
            size: size(proto),
            asks_for_shapes: proto
                .node
                .iter()
                .any(|node| asks_for_shapes(node) || by_name.contains_key(&called_name(node))),
        };
        Self {
            names: FunctionNames::of(all),
            by_name: by_name.iter().map(|(&name, proto)| (name, function(proto))).collect(),
        }
    }

    /// Returns the function that a node calls.
    pub(super) fn called(&self, node: &NodeProto) -> Option<Function<'m>> {
        self.by_name.get(&called_name(node)).copied()
    }

    /// Returns `true` if a node computes values from the shapes or types of its inputs.
    fn asks_for_shapes(&self, node: &Node<'m>) -> bool {
        if !node.is_function() {
            return asks_for_shapes(node.proto());
        }
        self.called(node.proto()).is_some_and(|function| function.asks_for_shapes)
    }
}

fn called_name(node: &NodeProto) -> FunctionName<'_> {
    let op_type = node.op_type.as_deref().unwrap_or_default();
    (graph::full_domain(node.domain.as_deref()), op_type, node.overload.as_deref().unwrap_or_default())
}

fn asks_for_shapes(node: &NodeProto) -> bool {
    graph::full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN
        && matches!(node.op_type.as_deref(), Some("Shape" | "Size" | "EyeLike" | "CastLike"))
}

fn size(function: &FunctionProto) -> usize {
    let of_node = |node: &NodeProto| [1, node.input.len(), node.output.len(), node.attribute.len()];
    let FunctionProto { input, output, attribute, attribute_proto, opset_import, .. } = function;
    let of_all = [input.len(), output.len(), attribute.len(), attribute_proto.len(), opset_import.len()];
    of_all.into_iter().chain(function.node.iter().flat_map(of_node)).fold(0, usize::saturating_add)
}

impl<'g, 'm> Body<'g, 'm> {
    /// Creates the body of a graph whose structure has been checked. If an initializer has the name of an
    /// input, it is the input's default.
    pub(super) fn of_graph(graph: &'g Graph<'m>) -> Self {
        let mut body = Self::empty(Cow::Borrowed(graph.nodes()));
        for (&name, &tensor) in graph.initializers() {
            body.add(name, Source::Initializer(tensor));
        }
        for name in graph.input_names() {
            body.add(name, Source::Input);
        }
        for (index, node) in graph.nodes().iter().enumerate() {
            body.connect(index, node.proto());
        }
        body
    }

    /// Creates the body of a function with the inputs of a call, and checks its structure.
    ///
    /// # Errors
    /// * Returns the errors of [`graph::nodes`].
    /// * Returns [`OnnxError::ValueMissing`] for a value that no earlier node produces.
    /// * Returns [`OnnxError::DuplicateName`] for a value that is produced twice.
    pub(super) fn of_function(
        function: &'m FunctionProto,
        functions: &Functions<'m>,
        inputs: &[Option<&Value>],
    ) -> Result<Self, OnnxError> {
        let nodes = graph::nodes(&function.opset_import, &functions.names, &function.node)?;
        let mut body = Self::empty(Cow::Owned(nodes));
        for (index, name) in function.input.iter().enumerate() {
            let value = inputs.get(index).copied().flatten();
            let id = body.add(name, if value.is_some() { Source::Set } else { Source::Absent });
            if let (Some(state), Some(value)) = (body.states.get_mut(id), value) {
                (state.known, state.level) = (Some(KnownValue::Value(value.clone())), Level::Values);
            }
        }
        for (index, proto) in function.node.iter().enumerate() {
            let is_known = |name: &String| body.names.contains_key(name.as_str());
            if let Some(name) = proto.input.iter().find(|name| !name.is_empty() && !is_known(name)) {
                return Err(OnnxError::ValueMissing { name: name.clone() });
            }
            if let Some(name) = proto.output.iter().find(|name| is_known(name)) {
                return Err(OnnxError::DuplicateName { name: name.clone() });
            }
            body.connect(index, proto);
        }
        Ok(body)
    }

    /// Returns the index of a value.
    ///
    /// # Errors
    /// Returns [`OnnxError::ValueMissing`] if the value does not exist.
    pub(super) fn id(&self, name: &str) -> Result<usize, OnnxError> {
        self.names.get(name).copied().ok_or_else(|| OnnxError::ValueMissing { name: name.to_owned() })
    }

    pub(super) fn state(&self, id: usize) -> Option<&ValueState<'m>> {
        self.states.get(id)
    }

    pub(super) fn known(&self, id: usize) -> Option<&KnownValue> {
        self.states.get(id)?.known.as_ref()
    }

    pub(super) fn level(&self, id: usize) -> Level {
        self.states.get(id).map_or(Level::Nothing, |state| state.level)
    }

    pub(super) fn node(&self, node: usize) -> Option<(Node<'m>, &NodeValueIds)> {
        Some((*self.nodes.get(node)?, self.value_ids.get(node)?))
    }

    /// Returns the values that a node reads.
    pub(super) fn read_by(&self, node: usize) -> impl Iterator<Item = (usize, &ValueState<'m>)> {
        let ids =
            self.value_ids.get(node).into_iter().flat_map(|value_ids| value_ids.inputs.iter().flatten());
        ids.filter_map(|&id| Some((id, self.states.get(id)?)))
    }

    pub(super) fn store(&mut self, id: usize, known: KnownValue, level: Level) {
        if let Some(state) = self.states.get_mut(id) {
            (state.known, state.level) = (Some(known), level);
            self.computed.push(id);
        }
    }

    /// Records that a level cannot be reached, so that all values that depend on this one fail at once.
    pub(super) fn fail(&mut self, id: usize, level: Level) {
        if let Some(state) = self.states.get_mut(id) {
            state.failed = Some(state.failed.map_or(level, |failed| failed.min(level)));
            self.computed.push(id);
        }
    }

    /// Sets a value and clears all computed ones.
    ///
    /// Each computed value is cleared only once, so the time to set many values in a row is proportional to
    /// their number.
    pub(super) fn set(&mut self, id: usize, value: Value) {
        for at in std::mem::take(&mut self.computed) {
            if let Some(state) = self.states.get_mut(at).filter(|state| !matches!(state.source, Source::Set))
            {
                (state.known, state.level, state.failed) = (None, Level::Nothing, None);
            }
        }
        if let Some(state) = self.states.get_mut(id) {
            let known = Some(KnownValue::Value(value));
            *state = ValueState { source: Source::Set, known, level: Level::Values, failed: None, ..*state };
        }
    }

    /// Returns the origin of each value, as far as the inputs of its node determine it. The shape of a value
    /// of unknown origin may still be known.
    pub(super) fn origins(&self, functions: &Functions<'m>) -> Vec<Origin> {
        let source = |state: &ValueState<'m>| match state.source {
            Source::Set if state.value().is_some_and(|value| value.data.is_some()) => Origin::Given,
            Source::Initializer(_) | Source::Absent => Origin::Constant,
            Source::Set | Source::Input | Source::Node(_) => Origin::Unknown,
        };
        let mut origins: Vec<Origin> = self.states.iter().map(source).collect();
        for (node, value_ids) in self.nodes.iter().zip(&self.value_ids) {
            let inputs = value_ids.inputs.iter().flatten();
            let least = inputs.map(|&id| origins.get(id).copied().unwrap_or(Origin::Unknown)).min();
            let origin = match least.unwrap_or(Origin::Constant) {
                Origin::Unknown if functions.asks_for_shapes(node) => Origin::Given,
                origin => origin,
            };
            for &id in value_ids.outputs.iter().flatten() {
                let is_made = matches!(self.states.get(id).map(|state| state.source), Some(Source::Node(_)));
                if let Some(at) = origins.get_mut(id).filter(|_| is_made) {
                    *at = origin;
                }
            }
        }
        origins
    }

    fn empty(nodes: Cow<'g, [Node<'m>]>) -> Self {
        Self {
            nodes,
            value_ids: Vec::new(),
            states: Vec::new(),
            names: BTreeMap::new(),
            computed: Vec::new(),
        }
    }

    fn connect(&mut self, node: usize, proto: &'m NodeProto) {
        let inputs = proto.input.iter().map(|name| self.names.get(name.as_str()).copied()).collect();
        let output = |name: &'m String| (!name.is_empty()).then(|| self.add(name, Source::Node(node)));
        let outputs = proto.output.iter().map(output).collect();
        self.value_ids.push(NodeValueIds { inputs, outputs });
    }

    /// Adds a value and returns its index. An existing name keeps its index.
    fn add(&mut self, name: &'m str, source: Source<'m>) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            self.states.push(ValueState { name, source, known: None, level: Level::Nothing, failed: None });
            self.states.len().saturating_sub(1)
        })
    }
}
