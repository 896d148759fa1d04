//! What a graph computes on small inputs that are made up to probe it: shapes always, values where they follow from
//! what is given.
//!
//! Only what is asked for is computed, each value once, without recursion. A value is computed from values where all
//! that it is made of is known and its size is at most [`MAX_VALUES`]; otherwise only its shape is, for which the
//! values of small vectors are needed (the shapes, axes and bounds that operators take as inputs) and no others. So
//! no weight is read because a shape behind it is asked for.
//!
//! Nothing is guessed: an operator without a rule here, or a shape that depends on unknown values, is an error that
//! names the node. Transcendental functions come from 64-bit arithmetic, so they may differ from a runtime's in the
//! last place; everything else is exact, as [`number`] says.

mod call;
mod error;
mod number;
mod ops;
mod shapes;
#[cfg(test)]
mod tests;
mod value;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::graph::{self, DEFAULT_DOMAIN};
use crate::proto::{FunctionProto, NodeProto, TensorProto};
use crate::{Error, ExternalData, Graph, Node, tensor_proto};

pub use error::FoldError;

pub(crate) use value::{Value, Values};

use call::{Attributes, Call};

/// The most elements of which values are computed or read: larger ones have only their shape.
pub(crate) const MAX_VALUES: usize = 1 << 20;

/// The largest vector whose values are computed because a shape may depend on them.
const MAX_PARAMETERS: usize = 1 << 10;

/// How many values, and multiplications of matrix products, one [`Fold`] computes in all.
const MAX_WORK: u64 = 64 << 20;

/// How deep functions may call each other.
const MAX_DEPTH: usize = 16;

/// The evaluation of a graph, or of a function's body, on demand.
#[derive(Debug)]
pub(crate) struct Fold<'g, 'm> {
    nodes: Cow<'g, [Node<'m>]>,
    /// The values that each node reads and makes, as places in `slots`.
    wires: Vec<Wires>,
    slots: Vec<Slot<'m>>,
    names: BTreeMap<&'m str, usize>,
    functions: Rc<Functions<'m>>,
    /// What the attributes of a function's body refer to; empty for a graph.
    attributes: Attributes<'m>,
    external: Option<&'g ExternalData>,
    work: Rc<Work>,
    depth: usize,
    /// Whether a slot's values may be known, given those that are set; `None` after a change.
    knowable: Option<Vec<bool>>,
}

/// The functions of a model by domain, name and overload.
type Functions<'m> = BTreeMap<(&'m str, &'m str, &'m str), (&'m FunctionProto, &'m [FunctionProto])>;

#[derive(Clone, Debug, Default)]
struct Wires {
    inputs: Vec<Option<usize>>,
    outputs: Vec<Option<usize>>,
}

#[derive(Debug)]
struct Slot<'m> {
    name: &'m str,
    source: Source<'m>,
    value: Option<Value>,
    /// How much of what can be known of it `value` holds.
    level: Level,
}

#[derive(Clone, Copy, Debug)]
enum Source<'m> {
    Input,
    Initializer(&'m TensorProto),
    Node(usize),
    /// A value given by [`Fold::set`].
    Set,
    /// An optional input of a function that the call leaves out.
    Absent,
}

/// What is demanded of a value, and what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Nothing,
    Shape,
    /// The values, or the certainty that they cannot be known.
    Values,
}

/// What may still be computed.
#[derive(Debug)]
pub(crate) struct Work(Cell<u64>);

impl Work {
    /// Takes note of values that are computed.
    ///
    /// # Errors
    /// [`FoldError::TooMuch`] beyond [`MAX_WORK`].
    pub(crate) fn charge(&self, values: usize) -> Result<(), Error> {
        let left = u64::try_from(values).ok().and_then(|values| self.0.get().checked_sub(values));
        self.0.set(left.ok_or(FoldError::TooMuch { limit: MAX_WORK })?);
        Ok(())
    }
}

impl<'g, 'm> Fold<'g, 'm> {
    /// Nothing is computed yet. Without `external`, values that lie in other files are errors where they are
    /// needed.
    pub(crate) fn new(graph: &'g Graph<'m>, external: Option<&'g ExternalData>) -> Self {
        let mut functions = Functions::new();
        for function in graph.functions() {
            functions.entry(function_key(function)).or_insert((function, graph.functions()));
        }
        let mut fold = Self {
            nodes: Cow::Borrowed(graph.nodes()),
            wires: Vec::new(),
            slots: Vec::new(),
            names: BTreeMap::new(),
            functions: Rc::new(functions),
            attributes: Attributes::default(),
            external,
            work: Rc::new(Work(Cell::new(MAX_WORK))),
            depth: 0,
            knowable: None,
        };
        // An input with an initializer has it as its default.
        for (&name, &tensor) in graph.initializers() {
            fold.add(name, Source::Initializer(tensor));
        }
        for name in graph.input_names() {
            fold.add(name, Source::Input);
        }
        fold.wire();
        fold
    }

    /// Gives a value: an input's, or any other, which cuts the graph there. What was computed before is forgotten.
    ///
    /// # Errors
    /// [`Error::ValueMissing`] if the graph has no value of this name; those of [`Value::new`].
    pub(crate) fn set(&mut self, name: &str, value: Value) -> Result<(), Error> {
        let value =
            Value::new(value.element, value.shape, value.data).map_err(|error| error.in_tensor(name))?;
        let id = self.id(name)?;
        for slot in &mut self.slots {
            if !matches!(slot.source, Source::Set) {
                (slot.value, slot.level) = (None, Level::Nothing);
            }
        }
        if let Some(slot) = self.slots.get_mut(id) {
            (slot.source, slot.value, slot.level) = (Source::Set, Some(value), Level::Values);
        }
        self.knowable = None;
        Ok(())
    }

    /// What is known of a value: its values, too, if they follow from what is set.
    ///
    /// # Errors
    /// [`Error::ValueMissing`] if the graph has no value of this name; [`Error::InputMissing`] if it depends on an
    /// input that is not set; within [`Error::InNode`], which names the node, [`FoldError`] and the errors about
    /// attributes, inputs and tensors.
    pub(crate) fn value(&mut self, name: &str) -> Result<&Value, Error> {
        self.demand(name, Level::Values)
    }

    /// A value's shape, without the work of computing its values.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub(crate) fn shape(&mut self, name: &str) -> Result<&[usize], Error> {
        self.demand(name, Level::Shape).map(|value| value.shape.as_slice())
    }

    fn demand(&mut self, name: &str, level: Level) -> Result<&Value, Error> {
        let id = self.id(name)?;
        self.evaluate(id, level)?;
        self.known(id).ok_or_else(|| Error::ValueMissing { name: name.to_owned() })
    }

    fn id(&self, name: &str) -> Result<usize, Error> {
        self.names.get(name).copied().ok_or_else(|| Error::ValueMissing { name: name.to_owned() })
    }

    fn known(&self, id: usize) -> Option<&Value> {
        self.slots.get(id)?.value.as_ref()
    }

    fn level(&self, id: usize) -> Level {
        self.slots.get(id).map_or(Level::Nothing, |slot| slot.level)
    }

    /// Brings a value to a level, and whatever it needs before. The stack holds each value that waits for another;
    /// inputs come from earlier nodes, so nothing waits for itself.
    fn evaluate(&mut self, id: usize, level: Level) -> Result<(), Error> {
        let mut stack = vec![(id, level)];
        while let Some(&(id, level)) = stack.last() {
            if self.level(id) >= level {
                stack.pop();
                continue;
            }
            match self.slots.get(id).map(|slot| (slot.source, slot.name)) {
                Some((Source::Node(node), _)) => {
                    let values = level == Level::Values && self.is_knowable(node);
                    let waiting = stack.len();
                    self.push_missing(node, values, &mut stack);
                    if stack.len() == waiting {
                        self.run(node, values, level)?;
                        stack.pop();
                    }
                }
                Some((Source::Initializer(tensor), name)) => {
                    let value = self.read(name, tensor, level)?;
                    self.store(id, value, level)?;
                }
                Some((Source::Input | Source::Absent | Source::Set, name)) => {
                    return Err(Error::InputMissing { name: name.to_owned() });
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Pushes what a node needs and is not there: the values of all inputs, or their shapes and the values of those
    /// that may be parameters. Initializers come last, since their values are of no use where another input has
    /// none.
    fn push_missing(&self, node: usize, values: bool, stack: &mut Vec<(usize, Level)>) {
        let ids =
            || self.wires.get(node).into_iter().flat_map(|wires| wires.inputs.iter().flatten().copied());
        let is_hopeless = ids().filter_map(|id| self.slots.get(id)).any(|slot| {
            slot.level == Level::Values && slot.value.as_ref().is_some_and(|value| value.data.is_none())
        });
        let missing = |id: &usize| {
            let slot = self.slots.get(*id)?;
            let is_parameter =
                slot.value.as_ref().is_some_and(|value| value.rank() <= 1 && value.len() <= MAX_PARAMETERS);
            let need = if (values && !is_hopeless) || is_parameter { Level::Values } else { Level::Shape };
            let is_absent = matches!(slot.source, Source::Absent);
            (slot.level < need && !is_absent).then_some((*id, need))
        };
        let is_initializer =
            |id: &usize| matches!(self.slots.get(*id).map(|slot| slot.source), Some(Source::Initializer(_)));
        let waiting = stack.len();
        stack.extend(ids().filter(|id| !is_initializer(id)).filter_map(|id| missing(&id)));
        if stack.len() == waiting {
            stack.extend(ids().filter_map(|id| missing(&id)));
        }
    }

    /// Evaluates a node whose inputs are there.
    fn run(&mut self, node: usize, values: bool, level: Level) -> Result<(), Error> {
        let (Some(&node), Some(wires)) = (self.nodes.get(node), self.wires.get(node).cloned()) else {
            return Ok(());
        };
        let outputs = self.outputs(&node, &wires, values).map_err(|error| node.error(error))?;
        let mut outputs = outputs.into_iter();
        for (output, id) in wires.outputs.iter().enumerate() {
            let value = outputs.next().flatten();
            let Some(id) = *id else { continue };
            if self.level(id) < level {
                let value = value.ok_or_else(|| node.error(FoldError::NoOutput { output }))?;
                self.store(id, value, level)?;
            }
        }
        Ok(())
    }

    fn outputs(&self, node: &Node<'m>, wires: &Wires, values: bool) -> Result<Vec<Option<Value>>, Error> {
        self.work.charge(1)?;
        let attributes = Attributes::resolve(node.proto(), &self.attributes)?;
        let inputs: Vec<_> = wires.inputs.iter().map(|id| id.and_then(|id| self.known(id))).collect();
        if node.is_function() {
            return self.call_function(node, &inputs, attributes, values);
        }
        let rule = ops::rule(node.domain(), node.op_type()).ok_or(FoldError::NoRule)?;
        let outputs = rule(&Call {
            op_type: node.op_type(),
            version: node.version(),
            inputs,
            outputs: wires.outputs.len(),
            attributes,
            values,
            external: self.external,
            work: &self.work,
        })?;
        Ok(outputs.into_iter().map(Some).collect())
    }

    /// Evaluates a function's body on the inputs of a call.
    fn call_function(
        &self,
        node: &Node<'m>,
        inputs: &[Option<&Value>],
        mut attributes: Attributes<'m>,
        values: bool,
    ) -> Result<Vec<Option<Value>>, Error> {
        let limit = MAX_DEPTH;
        let depth = self.depth.saturating_add(1);
        if depth > limit {
            return Err(FoldError::TooDeep { limit }.into());
        }
        let &(function, functions) = self.functions.get(&node_key(node)).ok_or(FoldError::NoRule)?;
        attributes.add_defaults(&function.attribute_proto);
        let mut body = Self {
            nodes: Cow::Owned(graph::nodes(&function.opset_import, functions, &function.node)?),
            wires: Vec::new(),
            slots: Vec::new(),
            names: BTreeMap::new(),
            functions: Rc::clone(&self.functions),
            attributes,
            external: self.external,
            work: Rc::clone(&self.work),
            depth,
            knowable: None,
        };
        self.work.charge(function.node.len())?;
        for (index, name) in function.input.iter().enumerate() {
            let value = inputs.get(index).copied().flatten();
            let id = body.add(name, if value.is_some() { Source::Set } else { Source::Absent });
            if let Some(value) = value {
                self.work.charge(value.data.as_ref().map_or(0, Values::len))?;
                body.store(id, value.clone(), Level::Values)?;
            }
        }
        body.wire_function()?;
        let level = if values { Level::Values } else { Level::Shape };
        let outputs = node.proto().output.iter().zip(&function.output);
        outputs
            .map(
                |(used, name)| {
                    if used.is_empty() { Ok(None) } else { body.demand(name, level).cloned().map(Some) }
                },
            )
            .collect()
    }

    fn read(&self, name: &str, tensor: &TensorProto, level: Level) -> Result<Value, Error> {
        let header = header(tensor).map_err(|error| error.in_tensor(name))?;
        if level < Level::Values || header.len() > MAX_VALUES {
            return Ok(header);
        }
        Value::of(&tensor_proto::decode(tensor.clone(), self.external)?)
    }

    fn store(&mut self, id: usize, value: Value, level: Level) -> Result<(), Error> {
        self.work.charge(value.data.as_ref().map_or(0, Values::len))?;
        if let Some(slot) = self.slots.get_mut(id) {
            (slot.value, slot.level) = (Some(value), level);
        }
        Ok(())
    }

    fn is_knowable(&mut self, node: usize) -> bool {
        let knowable = match self.knowable.take() {
            Some(knowable) => knowable,
            None => self.all_knowable(),
        };
        let wires = self.wires.get(node);
        let mut outputs = wires.into_iter().flat_map(|wires| &wires.outputs).flatten();
        let is_knowable = outputs.any(|&id| knowable.get(id).copied().unwrap_or_default());
        self.knowable = Some(knowable);
        is_knowable
    }

    /// Whether each slot's values may be known: by its inputs, which is all that can be said before its operator is
    /// evaluated. A shape has values whatever it is the shape of.
    fn all_knowable(&self) -> Vec<bool> {
        let source = |slot: &Slot<'m>| match slot.source {
            Source::Set => slot.value.as_ref().is_some_and(|value| value.data.is_some()),
            Source::Initializer(_) | Source::Absent => true,
            Source::Input | Source::Node(_) => false,
        };
        let mut knowable: Vec<bool> = self.slots.iter().map(source).collect();
        for (node, wires) in self.nodes.iter().zip(&self.wires) {
            let mut inputs = wires.inputs.iter().flatten();
            let is_knowable =
                inputs.all(|&id| knowable.get(id).copied().unwrap_or_default()) || self.asks_for_shapes(node);
            for &id in wires.outputs.iter().flatten() {
                let is_node = matches!(self.slots.get(id).map(|slot| slot.source), Some(Source::Node(_)));
                if let Some(at) = knowable.get_mut(id).filter(|_| is_node) {
                    *at = is_knowable;
                }
            }
        }
        knowable
    }

    /// Whether a node makes values of the shapes or types of inputs. A function does if its body has such a node, or
    /// calls functions.
    fn asks_for_shapes(&self, node: &Node<'m>) -> bool {
        let asks = |domain, op_type| {
            domain == DEFAULT_DOMAIN && matches!(op_type, "Shape" | "Size" | "EyeLike" | "CastLike")
        };
        if !node.is_function() {
            return asks(node.domain(), node.op_type());
        }
        let Some((function, _)) = self.functions.get(&node_key(node)) else { return false };
        function.node.iter().any(|proto| {
            let key = node_proto_key(proto);
            asks(key.0, key.1) || self.functions.contains_key(&key)
        })
    }

    /// A slot for a value. A second one of the same name is the first one.
    fn add(&mut self, name: &'m str, source: Source<'m>) -> usize {
        *self.names.entry(name).or_insert_with(|| {
            self.slots.push(Slot { name, source, value: None, level: Level::Nothing });
            self.slots.len().saturating_sub(1)
        })
    }

    /// Connects the nodes of a [`Graph`], whose structure is checked.
    fn wire(&mut self) {
        for (index, proto) in self.protos().into_iter().enumerate() {
            let inputs = proto.input.iter().map(|name| self.names.get(name.as_str()).copied()).collect();
            let outputs = self.add_outputs(index, proto);
            self.wires.push(Wires { inputs, outputs });
        }
    }

    /// Connects the nodes of a function's body, whose structure nobody has checked.
    fn wire_function(&mut self) -> Result<(), Error> {
        for (index, proto) in self.protos().into_iter().enumerate() {
            let missing = |name: &&String| !name.is_empty() && !self.names.contains_key(name.as_str());
            if let Some(name) = proto.input.iter().find(missing) {
                return Err(Error::ValueMissing { name: name.clone() });
            }
            let is_twice = |name: &&String| self.names.contains_key(name.as_str());
            if let Some(name) = proto.output.iter().find(is_twice) {
                return Err(Error::DuplicateName { name: name.clone() });
            }
            let inputs = proto.input.iter().map(|name| self.names.get(name.as_str()).copied()).collect();
            let outputs = self.add_outputs(index, proto);
            self.wires.push(Wires { inputs, outputs });
        }
        Ok(())
    }

    fn protos(&self) -> Vec<&'m NodeProto> {
        self.nodes.iter().map(Node::proto).collect()
    }

    fn add_outputs(&mut self, node: usize, proto: &'m NodeProto) -> Vec<Option<usize>> {
        let slot = |name: &'m String| (!name.is_empty()).then(|| self.add(name, Source::Node(node)));
        proto.output.iter().map(slot).collect()
    }
}

/// A tensor's type and shape, its values left where they are.
fn header(tensor: &TensorProto) -> Result<Value, Error> {
    let dims = tensor.dims.iter().enumerate();
    let shape = dims.map(|(axis, &dim)| tensor_proto::size(axis, dim)).collect::<Result<_, _>>()?;
    Value::shaped(tensor_proto::element_type(tensor.data_type)?, shape)
}

fn function_key(function: &FunctionProto) -> (&str, &str, &str) {
    (
        graph::full_domain(function.domain.as_deref()),
        function.name.as_deref().unwrap_or_default(),
        function.overload.as_deref().unwrap_or_default(),
    )
}

fn node_key<'m>(node: &Node<'m>) -> (&'m str, &'m str, &'m str) {
    node_proto_key(node.proto())
}

fn node_proto_key(node: &NodeProto) -> (&str, &str, &str) {
    (
        graph::full_domain(node.domain.as_deref()),
        node.op_type.as_deref().unwrap_or_default(),
        node.overload.as_deref().unwrap_or_default(),
    )
}
