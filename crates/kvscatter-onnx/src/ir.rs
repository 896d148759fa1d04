//! The values of a graph or of a function body by number: where each comes from, and which nodes use it.
//!
//! Code that follows a graph asks [`Graph`](crate::Graph), which has one index for all. Only an
//! [`Editor`](crate::edit::Editor) has another, by name, because it changes while the graph does.

use std::collections::BTreeMap;

use crate::names::{captures, subgraphs};
use crate::proto::{NodeProto, TensorProto, ValueInfoProto};

/// The number of a value. Only a [`ValueTable`] makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ValueId(usize);

impl ValueId {
    /// Returns the number, to index a list with one entry for each value of the table.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'m> {
    /// A caller feeds it.
    Input,
    /// An initializer, which may also be the default of an input.
    Initializer(&'m TensorProto),
    /// An output of a node.
    Node { node: usize, output: usize },
}

/// One use of a value by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) node: usize,
    /// The index of the input, or `None` if a subgraph of the node reads the value.
    pub(crate) input: Option<usize>,
}

/// A value with its producer and its uses.
#[derive(Clone, Debug)]
pub(crate) struct Value<'m> {
    pub(crate) name: &'m str,
    pub(crate) source: Source<'m>,
    /// The uses in the order of the nodes.
    pub(crate) uses: Vec<Use>,
    /// The declaration of its type. That of an input comes before that of an output, and that of an output before that
    /// of an intermediate value.
    pub(crate) declared: Option<&'m ValueInfoProto>,
    /// The index among the inputs of the graph.
    pub(crate) input: Option<usize>,
    /// Whether the graph returns it.
    pub(crate) is_output: bool,
}

/// The values that one node reads and produces. A value that is left out is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeValues {
    pub(crate) inputs: Vec<Option<ValueId>>,
    pub(crate) outputs: Vec<Option<ValueId>>,
}

/// All values of a graph or of a function body.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueTable<'m> {
    ids: BTreeMap<&'m str, ValueId>,
    values: Vec<Value<'m>>,
    nodes: Vec<NodeValues>,
}

impl<'m> ValueTable<'m> {
    /// Creates a table for this many values beside the outputs of these nodes.
    pub(crate) fn with_room(values: usize, nodes: &[NodeProto]) -> Self {
        let outputs = nodes.iter().map(|node| node.output.len());
        let room = outputs.fold(values, usize::saturating_add);
        Self { values: Vec::with_capacity(room), nodes: Vec::with_capacity(nodes.len()), ..Self::default() }
    }

    /// Adds a value. Returns its number, or `None` if the table already has the name.
    pub(crate) fn add(&mut self, name: &'m str, source: Source<'m>) -> Option<ValueId> {
        if self.ids.contains_key(name) {
            return None;
        }
        let id = ValueId(self.values.len());
        let value = Value { name, source, uses: Vec::new(), declared: None, input: None, is_output: false };
        self.values.push(value);
        self.ids.insert(name, id);
        Some(id)
    }

    /// Adds the outputs of the nodes, and then the uses of all values.
    ///
    /// # Errors
    /// Returns the first output whose name the table already has.
    pub(crate) fn add_nodes(&mut self, nodes: &'m [NodeProto]) -> Result<(), &'m str> {
        for (node, proto) in nodes.iter().enumerate() {
            let mut values = NodeValues::default();
            for (output, name) in proto.output.iter().enumerate() {
                values.outputs.push(if name.is_empty() {
                    None
                } else {
                    Some(self.add(name, Source::Node { node, output }).ok_or(name.as_str())?)
                });
            }
            self.nodes.push(values);
        }
        for (node, proto) in nodes.iter().enumerate() {
            let inputs: Vec<_> = proto.input.iter().map(|name| self.id(name)).collect();
            for (input, id) in inputs.iter().enumerate() {
                self.add_use(*id, Use { node, input: Some(input) });
            }
            for name in subgraphs(proto).flat_map(captures) {
                self.add_use(self.id(name), Use { node, input: None });
            }
            self.nodes.get_mut(node).into_iter().for_each(|values| values.inputs.clone_from(&inputs));
        }
        Ok(())
    }

    pub(crate) fn id(&self, name: &str) -> Option<ValueId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value<'m>> {
        self.value(self.id(name)?)
    }

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Value<'m>> {
        let ValueId(index) = self.id(name)?;
        self.values.get_mut(index)
    }

    pub(crate) fn value(&self, id: ValueId) -> Option<&Value<'m>> {
        self.values.get(id.0)
    }

    /// Returns the values in the order in which they were added.
    pub(crate) fn values(&self) -> &[Value<'m>] {
        &self.values
    }

    /// Returns the values of each node.
    pub(crate) fn nodes(&self) -> &[NodeValues] {
        &self.nodes
    }

    /// Returns the values of a node.
    pub(crate) fn of_node(&self, node: usize) -> Option<&NodeValues> {
        self.nodes.get(node)
    }

    fn add_use(&mut self, id: Option<ValueId>, user: Use) {
        if let Some(value) = id.and_then(|id| self.values.get_mut(id.0)) {
            value.uses.push(user);
        }
    }
}
