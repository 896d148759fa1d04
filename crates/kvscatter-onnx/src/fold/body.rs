//! The values of a graph or a function body: for each value its producer, its readers and what is known about
//! it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::{FoldError, Value};
use crate::graph::{self, DEFAULT_DOMAIN, FunctionNames};
use crate::ir::{self, NodeValues, ValueId, ValueTable};
use crate::proto::{FunctionProto, NodeProto, TensorProto};
use crate::{Graph, GraphError, Node, NodeLabel, OnnxError};

/// Nodes in order, and the values between them.
#[derive(Debug)]
pub(super) struct Body<'m> {
    nodes: Arc<[Node<'m>]>,
    values: Arc<ValueTable<'m>>,
    /// One state for each value of the table.
    states: Vec<ValueState<'m>>,
    /// The number of values that were computed, and of those that could not be.
    computed: usize,
    /// The values whose elements were computed since elements were last forgotten.
    elements: Vec<ValueId>,
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
    pub(super) fn from_error(error: &OnnxError) -> Option<Self> {
        let mut nodes = Vec::new();
        let mut error = error;
        while let OnnxError::InNode { node, cause } = error {
            nodes.push(node.as_ref().clone());
            error = cause;
        }
        match error.cause() {
            Some(cause @ FoldError::ValuesUnknown { .. }) => Some(Self(Rc::new((nodes, cause.clone())))),
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
    /// Returns `true` if nothing was computed.
    fn is_clear(&self) -> bool {
        self.known.is_none() && self.failed.is_none()
    }

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
            names: FunctionNames::new(all),
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

impl<'m> From<ir::Source<'m>> for Source<'m> {
    fn from(source: ir::Source<'m>) -> Self {
        match source {
            ir::Source::Input => Self::Input,
            ir::Source::Initializer(tensor) => Self::Initializer(tensor),
            ir::Source::Node { node, .. } => Self::Node(node),
        }
    }
}

impl<'m> Body<'m> {
    /// Creates the body of a graph whose structure has been checked.
    pub(super) fn of_graph(graph: &Graph<'m>) -> Self {
        Self::new(Arc::clone(graph.shared_nodes()), Arc::clone(graph.values()))
    }

    /// Creates the body of a function with the inputs of a call, and checks its structure.
    ///
    /// # Errors
    /// * Returns the errors of [`graph::nodes`].
    /// * Returns [`GraphError::ValueMissing`] for a value that no earlier node produces.
    /// * Returns [`GraphError::DuplicateName`] for a value that is produced twice.
    pub(super) fn of_function(
        function: &'m FunctionProto,
        functions: &Functions<'m>,
        inputs: &[Option<&Value>],
    ) -> Result<Self, OnnxError> {
        let nodes = graph::nodes(&function.opset_import, &functions.names, &function.node)?;
        let mut values = ValueTable::with_room(function.input.len(), &function.node);
        for name in &function.input {
            values.add(name, ir::Source::Input);
        }
        let twice = |name: &str| GraphError::DuplicateName { name: name.to_owned() };
        values.add_nodes(&function.node).map_err(twice)?;
        let is_known = |index: usize, name: &str| match values.get(name).map(|value| value.source) {
            Some(ir::Source::Node { node, .. }) => node < index,
            source => source.is_some(),
        };
        for (index, proto) in function.node.iter().enumerate() {
            let mut read = proto.input.iter().filter(|name| !name.is_empty());
            if let Some(name) = read.find(|name| !is_known(index, name)) {
                return Err(GraphError::ValueMissing { name: name.clone() }.into());
            }
        }
        let mut body = Self::new(nodes.into(), Arc::new(values));
        for (index, name) in function.input.iter().enumerate() {
            let value = inputs.get(index).copied().flatten();
            let Some(state) = body.values.id(name).and_then(|id| body.states.get_mut(id.index())) else {
                continue;
            };
            state.source = if value.is_some() { Source::Set } else { Source::Absent };
            if let Some(value) = value {
                (state.known, state.level) = (Some(KnownValue::Value(value.clone())), Level::Values);
            }
        }
        Ok(body)
    }

    fn new(nodes: Arc<[Node<'m>]>, values: Arc<ValueTable<'m>>) -> Self {
        let state = |value: &ir::Value<'m>| ValueState {
            name: value.name,
            source: value.source.into(),
            known: None,
            level: Level::Nothing,
            failed: None,
        };
        let states = values.values().iter().map(state).collect();
        Self { nodes, values, states, computed: 0, elements: Vec::new() }
    }

    /// Returns the index of a value.
    ///
    /// # Errors
    /// Returns [`GraphError::ValueMissing`] if the value does not exist.
    pub(super) fn id(&self, name: &str) -> Result<ValueId, GraphError> {
        self.values.id(name).ok_or_else(|| GraphError::ValueMissing { name: name.to_owned() })
    }

    pub(super) fn state(&self, id: ValueId) -> Option<&ValueState<'m>> {
        self.states.get(id.index())
    }

    pub(super) fn known(&self, id: ValueId) -> Option<&KnownValue> {
        self.states.get(id.index())?.known.as_ref()
    }

    pub(super) fn level(&self, id: ValueId) -> Level {
        self.states.get(id.index()).map_or(Level::Nothing, |state| state.level)
    }

    pub(super) fn node(&self, node: usize) -> Option<(Node<'m>, &NodeValues)> {
        Some((*self.nodes.get(node)?, self.values.of_node(node)?))
    }

    /// Returns the values that a node reads.
    pub(super) fn read_by(&self, node: usize) -> impl Iterator<Item = (ValueId, &ValueState<'m>)> {
        let ids = self.values.of_node(node).into_iter().flat_map(|values| values.inputs.iter().flatten());
        ids.filter_map(|&id| Some((id, self.states.get(id.index())?)))
    }

    pub(super) fn store(&mut self, id: ValueId, known: KnownValue, level: Level) {
        if let Some(state) = self.states.get_mut(id.index()) {
            self.computed = self.computed.saturating_add(usize::from(state.is_clear()));
            (state.known, state.level) = (Some(known), level);
            self.elements.extend((level == Level::Values).then_some(id));
        }
    }

    /// Forgets the elements of computed values with more than this many.
    pub(super) fn forget_elements(&mut self, most: usize) {
        for id in self.elements.drain(..) {
            if let Some(state) = self.states.get_mut(id.index())
                && !matches!(state.source, Source::Set)
                && let Some(KnownValue::Value(value)) = &mut state.known
                && value.len() > most
            {
                (value.data, state.level) = (None, Level::Shape);
            }
        }
    }

    /// Records that a level cannot be reached, so that all values that depend on this one fail at once.
    pub(super) fn fail(&mut self, id: ValueId, level: Level) {
        if let Some(state) = self.states.get_mut(id.index()) {
            self.computed = self.computed.saturating_add(usize::from(state.is_clear()));
            state.failed = Some(state.failed.map_or(level, |failed| failed.min(level)));
        }
    }

    /// Sets a value and clears everything that was computed from it.
    pub(super) fn set(&mut self, id: ValueId, value: Value) {
        self.clear_after(id);
        if let Some(state) = self.states.get_mut(id.index()) {
            let known = Some(KnownValue::Value(value));
            *state = ValueState { source: Source::Set, known, level: Level::Values, failed: None, ..*state };
        }
    }

    /// Clears what was computed from a value. A value that was not needed yet was not used either.
    fn clear_after(&mut self, id: ValueId) {
        let mut open = vec![id];
        // The inputs of a graph are set one after another before anything is computed.
        while let Some(id) = open.pop().filter(|_| self.computed > 0) {
            let users = self.values.value(id).into_iter().flat_map(|value| &value.uses);
            let outputs =
                users.filter_map(|user| self.values.of_node(user.node)).flat_map(|node| &node.outputs);
            for &output in outputs.flatten() {
                if let Some(state) = self.states.get_mut(output.index())
                    && !matches!(state.source, Source::Set)
                    && !state.is_clear()
                {
                    self.computed = self.computed.saturating_sub(1);
                    (state.known, state.level, state.failed) = (None, Level::Nothing, None);
                    open.push(output);
                }
            }
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
        for (node, values) in self.nodes.iter().zip(self.values.nodes()) {
            let inputs = values.inputs.iter().flatten();
            let least = inputs.map(|&id| origins.get(id.index()).copied().unwrap_or(Origin::Unknown)).min();
            let origin = match least.unwrap_or(Origin::Constant) {
                Origin::Unknown if functions.asks_for_shapes(node) => Origin::Given,
                origin => origin,
            };
            for &id in values.outputs.iter().flatten() {
                let is_made =
                    matches!(self.states.get(id.index()).map(|state| state.source), Some(Source::Node(_)));
                if let Some(at) = origins.get_mut(id.index()).filter(|_| is_made) {
                    *at = origin;
                }
            }
        }
        origins
    }
}
