//! Changes the graph of a model. Nodes can be added and removed, and values renamed and rerouted, in any
//! order.
//!
//! An [`Editor`] requires a graph that [`Graph::new`] accepts, and the result is such a graph as well. The
//! cost of editing is proportional to the size of the changes, not to the size of the graph times the number
//! of changes.

mod finish;
mod heads;
mod node;
mod origins;

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter::spec::Dimension;

use crate::proto::type_proto::{self, Value as TypeValue};
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, ValueInfoProto};
use crate::{Data, Graph, GraphError, OnnxError, Tensor, tensor_proto};

use crate::names::{Names, captures, replace_captures, subgraphs};
pub(crate) use node::NewNode;
pub(crate) use origins::Origins;

/// A model's graph while it is being changed.
///
/// Call [`finish`](Self::finish) to put the graph in order. Before that call, new nodes are at the end and
/// removed nodes are still in the model.
#[derive(Debug)]
pub(crate) struct Editor<'p> {
    model: &'p mut ModelProto,
    names: Names,
    producers: BTreeMap<String, usize>,
    /// The nodes that read each value, now or before an edit.
    readers: BTreeMap<String, BTreeSet<Reader>>,
    /// The inputs and outputs of the graph by name.
    declared: BTreeMap<String, Vec<Declared>>,
    removed: BTreeSet<usize>,
    /// The node of the graph before the changes that each node comes from.
    origins: Vec<Option<usize>>,
    /// The origin of the nodes that are added next, which [`at`](Self::at) sets.
    origin: Option<usize>,
    /// The values whose type or shape may have changed.
    changed: BTreeSet<String>,
    /// The inputs of the graph that are dropped if no node reads them.
    unread: BTreeSet<String>,
    constants: BTreeMap<(i32, Vec<i64>, Vec<u8>), String>,
    /// The outputs of the shared nodes.
    shared: BTreeMap<(String, Vec<u8>), String>,
}

/// One read of a value by a node, with the index of the input because a node may have many inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reader {
    node: usize,
    /// The index of the input, or `None` if the node's subgraphs read the value.
    slot: Option<usize>,
}

/// The location of a declaration.
#[derive(Clone, Copy, Debug)]
enum Declared {
    Input(usize),
    Output(usize),
}

impl<'p> Editor<'p> {
    /// Creates an editor of a model's graph.
    ///
    /// # Errors
    /// Returns the errors of [`Graph::new`].
    pub(crate) fn new(model: &'p mut ModelProto) -> Result<Self, OnnxError> {
        Graph::new(model)?;
        let mut editor = Self {
            names: Names::of_graph(&model.graph),
            model,
            producers: BTreeMap::new(),
            readers: BTreeMap::new(),
            declared: BTreeMap::new(),
            removed: BTreeSet::new(),
            origins: Vec::new(),
            origin: None,
            changed: BTreeSet::new(),
            unread: BTreeSet::new(),
            constants: BTreeMap::new(),
            shared: BTreeMap::new(),
        };
        for index in 0..editor.nodes().len() {
            editor.index(index);
            editor.origins.push(Some(index));
        }
        let graph = &editor.model.graph;
        let inputs = graph.input.iter().enumerate().map(|(at, value)| (value, Declared::Input(at)));
        let outputs = graph.output.iter().enumerate().map(|(at, value)| (value, Declared::Output(at)));
        for (value, place) in inputs.chain(outputs) {
            let name = value.name.clone().unwrap_or_default();
            editor.declared.entry(name).or_default().push(place);
        }
        Ok(editor)
    }

    /// Returns every node, including removed ones.
    ///
    /// A node's index does not change before [`finish`](Self::finish). The original nodes have the indices
    /// that [`Graph`] gave them.
    pub(crate) fn nodes(&self) -> &[NodeProto] {
        &self.model.graph.node
    }

    /// Returns the node that produces a value, or `None` for inputs and initializers.
    pub(crate) fn producer(&self, value: &str) -> Option<usize> {
        self.producers.get(value).copied()
    }

    /// Removes a node, and makes the nodes that are added from now on come from it.
    pub(crate) fn replacing(&mut self, node: usize) {
        self.remove_node(node);
        self.at(node);
    }

    /// Makes the nodes that are added from now on come from a node, because they replace it or prepare its inputs.
    pub(crate) fn at(&mut self, node: usize) {
        self.origin = self.origins.get(node).copied().flatten();
    }

    /// Returns a name that no value and no node has: the hint, or the hint and a number.
    pub(crate) fn fresh(&mut self, hint: &str) -> String {
        self.names.fresh(hint)
    }

    /// Adds a node with one output and returns the output's name.
    pub(crate) fn node(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.add(NewNode::new(op_type, inputs))
    }

    /// Adds a node and returns the name of its first output.
    pub(crate) fn add(&mut self, new: NewNode) -> String {
        let takes_over = new.has_outputs();
        let proto = new.into_proto(&mut self.names);
        if takes_over {
            proto.output.iter().for_each(|name| self.names.take(Some(name)));
            self.changed.extend(proto.output.iter().cloned());
        }
        let output = proto.output.first().cloned().unwrap_or_default();
        let index = self.nodes().len();
        self.graph().node.push(proto);
        self.origins.push(self.origin);
        self.index(index);
        output
    }

    /// Adds a node with one output, or reuses an equal one that was added here. Returns the output's name.
    ///
    /// Do not call [`replace_uses`](Self::replace_uses) on its inputs later, because that would change the shared node.
    ///
    /// # Errors
    /// Returns [`ProtoError::Encode`](crate::ProtoError::Encode).
    pub(crate) fn shared(&mut self, new: NewNode) -> Result<String, OnnxError> {
        let key = new.key()?;
        if let Some(output) = self.shared.get(&key) {
            return Ok(output.clone());
        }
        let output = self.add(new);
        self.shared.insert(key, output.clone());
        Ok(output)
    }

    /// Adds a cast of a value, unless it has the type already. Returns the name.
    pub(crate) fn cast(&mut self, value: &str, from: ElementType, to: ElementType) -> String {
        if from == to { value.to_owned() } else { self.add(NewNode::cast(value, to)) }
    }

    /// Adds an int64 scalar with a dimension of a value. Returns the name.
    ///
    /// # Errors
    /// Returns the errors of [`shared`](Self::shared).
    pub(crate) fn size(&mut self, value: &str, axis: usize) -> Result<String, OnnxError> {
        let axis = i64::try_from(axis).unwrap_or(i64::MAX);
        let shape = NewNode::new("Shape", &[value]).int("start", axis).int("end", axis.saturating_add(1));
        let shape = self.shared(shape)?;
        let zero = self.ints(&[0])?;
        self.shared(NewNode::new("Squeeze", &[&shape, &zero]))
    }

    /// Adds the numbers `0..limit` of an int64 scalar. Returns the name.
    ///
    /// # Errors
    /// Returns the errors of [`shared`](Self::shared).
    pub(crate) fn range(&mut self, limit: &str) -> Result<String, OnnxError> {
        let (zero, one) = (self.scalar_i64(0)?, self.scalar_i64(1)?);
        self.shared(NewNode::new("Range", &[&zero, limit, &one]))
    }

    /// Removes a node. Another node must then produce its outputs, unless no node reads them.
    pub(crate) fn remove_node(&mut self, index: usize) {
        self.removed.insert(index);
        for output in self.model.graph.node.get(index).into_iter().flat_map(|node| &node.output) {
            if self.producers.get(output) == Some(&index) {
                self.producers.remove(output);
            }
        }
    }

    /// Replaces a node with one that produces the same values, with the same types and shapes.
    pub(crate) fn replace_node(&mut self, index: usize, new: NewNode) {
        if let Some(node) = self.model.graph.get_or_insert_default().node.get_mut(index) {
            let old = std::mem::take(node);
            *node = new.in_place_of(old);
        }
        self.index(index);
    }

    /// Replaces `old` with `new` in every node that reads `old` now, including subgraphs.
    ///
    /// Nodes that are added later may still read `old`. An output of the graph keeps the name `old`.
    pub(crate) fn replace_uses(&mut self, old: &str, new: &str) {
        for reader in self.readers.remove(old).unwrap_or_default() {
            let Some(node) = self.graph().node.get_mut(reader.node) else { continue };
            let is_replaced = match reader.slot {
                Some(slot) => match node.input.get_mut(slot).filter(|input| *input == old) {
                    Some(input) => {
                        new.clone_into(input);
                        true
                    }
                    None => false,
                },
                None => replace_captures(node, old, new),
            };
            if is_replaced {
                self.reads_changed(reader, new);
            }
        }
    }

    /// Adds an int64 constant of rank 1.
    pub(crate) fn ints(&mut self, values: &[i64]) -> Result<String, OnnxError> {
        self.int64(vec![values.len()], values)
    }

    /// Adds an int64 constant of rank 0.
    pub(crate) fn scalar_i64(&mut self, value: i64) -> Result<String, OnnxError> {
        self.int64(Vec::new(), &[value])
    }

    /// Adds a constant of rank 0 of float, double, float16 or bfloat16.
    ///
    /// The constant is the nearest value of that type, or an infinity if the value is beyond the type's
    /// range.
    ///
    /// # Errors
    /// Returns [`GraphError::NotAFloat`] for another type.
    pub(crate) fn float(&mut self, element: ElementType, value: f64) -> Result<String, OnnxError> {
        self.floats(element, Vec::new(), &[value])
    }

    /// Adds a tensor of a type of floats, as [`float`](Self::float) adds a number. Returns its name.
    ///
    /// # Errors
    /// Returns [`GraphError::NotAFloat`] for another type, and the errors of [`Tensor::new`].
    pub(crate) fn floats(
        &mut self,
        element: ElementType,
        shape: Vec<usize>,
        values: &[f64],
    ) -> Result<String, OnnxError> {
        #[expect(clippy::as_conversions, reason = "rounds to nearest, to an infinity beyond the range")]
        let single = |value: f64| value as f32;
        let values = values.iter().copied();
        let bytes = match element {
            ElementType::Float32 => values.flat_map(|value| single(value).to_le_bytes()).collect(),
            ElementType::Float64 => values.flat_map(f64::to_le_bytes).collect(),
            ElementType::Float16 => values.flat_map(|value| f16::from_f64(value).to_le_bytes()).collect(),
            ElementType::BFloat16 => values.flat_map(|value| bf16::from_f64(value).to_le_bytes()).collect(),
            _ => return Err(GraphError::NotAFloat { element }.into()),
        };
        self.constant(&Tensor::new(element, shape, Data::Bytes(bytes))?)
    }

    /// Adds an initializer with this value, or reuses an equal one. Returns its name.
    pub(crate) fn constant(&mut self, value: &Tensor) -> Result<String, OnnxError> {
        let message = tensor_proto::encode("", value);
        let bytes = message.raw_data.as_deref().cloned().unwrap_or_default();
        let key = (value.element().onnx_code(), message.dims.clone(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return Ok(name.clone());
        }
        let name = self.initializer("constant", message);
        self.constants.insert(key, name.clone());
        Ok(name)
    }

    /// Adds an initializer. Returns its name, which is the hint, or the hint and a number.
    pub(crate) fn initializer(&mut self, hint: &str, message: TensorProto) -> String {
        let name = self.names.fresh(hint);
        self.graph().initializer.push(TensorProto { name: Some(name.clone()), ..message });
        name
    }

    fn int64(&mut self, shape: Vec<usize>, values: &[i64]) -> Result<String, OnnxError> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(&Tensor::new(ElementType::Int64, shape, Data::Bytes(bytes))?)
    }

    /// Adds an input after the existing inputs of the graph. Returns its name, which is the hint, or the hint
    /// and a number.
    pub(crate) fn add_input(&mut self, hint: &str, element: ElementType, dims: &[Dimension<'_>]) -> String {
        let name = self.names.fresh(hint);
        let input = ValueInfoProto::tensor(&name, element.onnx_code(), dims);
        let inputs = &mut self.graph().input;
        let place = Declared::Input(inputs.len());
        inputs.push(input);
        self.declared.entry(name.clone()).or_default().push(place);
        name
    }

    /// Adds an output of the graph that a node with this output produces.
    pub(crate) fn add_output(&mut self, name: &str, element: ElementType, dims: &[Dimension<'_>]) {
        let output = ValueInfoProto::tensor(name, element.onnx_code(), dims);
        let outputs = &mut self.graph().output;
        let place = Declared::Output(outputs.len());
        outputs.push(output);
        self.declared.entry(name.to_owned()).or_default().push(place);
    }

    /// Changes the declared dimensions of an input or an output of the graph.
    ///
    /// # Errors
    /// * Returns [`GraphError::ValueMissing`] if no input or output has this name.
    /// * Returns [`GraphError::NotATensor`] if it is not a tensor.
    pub(crate) fn set_dims(&mut self, name: &str, dims: &[Dimension<'_>]) -> Result<(), OnnxError> {
        self.declarations(name, |tensor| tensor.shape = TensorShapeProto::from(dims).into())
    }

    /// Changes the declared element type of an input or an output of the graph.
    ///
    /// # Errors
    /// Returns the errors of [`set_dims`](Self::set_dims).
    pub(crate) fn set_element(&mut self, name: &str, element: ElementType) -> Result<(), OnnxError> {
        self.declarations(name, |tensor| tensor.elem_type = Some(element.onnx_code()))
    }

    /// Drops an input of the graph when the changes are complete, unless a node still reads it.
    pub(crate) fn drop_unread(&mut self, input: &str) {
        self.unread.insert(input.to_owned());
    }

    /// Completes the changes and puts the graph in order. Returns where its nodes come from.
    ///
    /// * Nodes that no output depends on and unused initializers are dropped.
    /// * Every node is moved after the nodes that it reads from, and otherwise keeps its place. A new node is
    ///   placed before the first node that needs it.
    /// * Declared shapes that may have become wrong are dropped.
    ///
    /// # Errors
    /// Returns the errors of [`Graph::new`]: [`GraphError::ValueMissing`] if a node still reads from a removed
    /// one, [`GraphError::DuplicateName`], and [`GraphError::Cycle`].
    pub(crate) fn finish(self) -> Result<Origins, OnnxError> {
        let graph = self.model.graph.get_or_insert_default();
        let order = finish::finish(graph, &self.removed, &self.unread, self.changed)?;
        Graph::new(self.model)?;
        Ok(Origins::new(order.iter().map(|&index| self.origins.get(index).copied().flatten())))
    }

    /// Changes every declaration of an input or an output of the graph.
    fn declarations(
        &mut self,
        name: &str,
        change: impl Fn(&mut type_proto::Tensor),
    ) -> Result<(), OnnxError> {
        let graph = self.model.graph.get_or_insert_default();
        let places =
            self.declared.get(name).ok_or_else(|| GraphError::ValueMissing { name: name.to_owned() })?;
        for place in places {
            let value = match *place {
                Declared::Input(at) => graph.input.get_mut(at),
                Declared::Output(at) => graph.output.get_mut(at),
            };
            match value.map(|value| &mut value.r#type.get_or_insert_default().value) {
                Some(Some(TypeValue::TensorType(tensor))) => change(tensor),
                _ => return Err(GraphError::NotATensor { name: name.to_owned(), kind: "value" }.into()),
            }
        }
        self.changed.insert(name.to_owned());
        Ok(())
    }

    fn graph(&mut self) -> &mut GraphProto {
        self.model.graph.get_or_insert_default()
    }

    /// Records what a node produces and reads.
    fn index(&mut self, index: usize) {
        let Some(node) = self.model.graph.node.get(index) else { return };
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            self.producers.insert(name.clone(), index);
        }
        for (slot, name) in node.input.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            let reader = Reader { node: index, slot: Some(slot) };
            self.readers.entry(name.clone()).or_default().insert(reader);
        }
        for name in subgraphs(node).flat_map(captures) {
            let reader = Reader { node: index, slot: None };
            self.readers.entry(name.to_owned()).or_default().insert(reader);
        }
    }

    /// Records that a node reads a value that it did not read before, so the shapes of its outputs may have
    /// changed.
    fn reads_changed(&mut self, reader: Reader, value: &str) {
        self.readers.entry(value.to_owned()).or_default().insert(reader);
        if let Some(node) = self.model.graph.node.get(reader.node) {
            self.changed.extend(node.output.iter().cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter::spec::Dimension;

    use super::{Editor, NewNode};
    use crate::proto::ModelProto;
    use crate::support::{Nodes, assert_refused, graph_mut, lines, parsed, values};
    use crate::{Graph, GraphError};

    /// Makes `a -> Neg -> b -> Abs -> c -> If -> y`, where the bodies also read `b` and `c`, and an unused
    /// `Neg -> dead`.
    fn model() -> ModelProto {
        let nodes = format!("b = Neg(a); dead = Neg(a); c = Abs(b); {CHOICE}");
        let mut model = parsed("a, flag: float[2]", &nodes, "y: float[2]");
        let graph = graph_mut(&mut model);
        for body in &mut graph.node[3].attribute {
            body.g.get_or_insert_default().value_info = values("inner: float[2]");
        }
        graph.value_info = values("b, c, dead: float[2]");
        model.proto().clone()
    }

    const CHOICE: &str = "y = If(flag) {then_branch={inner = Exp(b)}, else_branch={inner = Exp(c)}}";

    fn value_infos(model: &ModelProto) -> Vec<&str> {
        model.graph.value_info.iter().filter_map(|value| value.name.as_deref()).collect()
    }

    #[test]
    fn nothing_changed_but_what_no_output_needs() {
        let mut model = model();
        Editor::new(&mut model).unwrap().finish().unwrap();
        assert_eq!(lines(&model.graph.node), ["b = Neg(a)", "c = Abs(b)", CHOICE]);
        assert_eq!(value_infos(&model), ["b", "c"]);
    }

    #[test]
    fn new_nodes_stand_before_the_first_that_needs_them_and_have_names_of_their_own() {
        let mut model = model();
        let mut editor = Editor::new(&mut model).unwrap();
        let twice = editor.node("Add", &["c", "c"]);
        let one = editor.ints(&[1]).unwrap();
        assert_eq!(editor.ints(&[1]).unwrap(), one);
        assert_ne!(editor.scalar_i64(1).unwrap(), one);
        let late = editor.add(NewNode::new("Sub", &[&twice, &one]).called("inner"));
        assert_eq!((twice.as_str(), late.as_str()), ("add", "inner_1"));
        editor.replace_uses("flag", &late);
        editor.finish().unwrap();
        let (sub, choice) = (format!("inner_1 = Sub(add, {one})"), CHOICE.replace("flag", "inner_1"));
        assert_eq!(lines(&model.graph.node), ["b = Neg(a)", "c = Abs(b)", "add = Add(c, c)", &sub, &choice]);
        let initializers: Vec<_> = model.graph.initializer.iter().map(|tensor| tensor.name.clone()).collect();
        assert_eq!(initializers, [Some(one)], "nothing uses the scalar");
        assert_eq!(value_infos(&model), ["b", "c"]);
    }

    #[test]
    fn uses_are_replaced_in_subgraphs_and_what_depends_on_them_loses_its_shape() {
        let mut model = model();
        let mut editor = Editor::new(&mut model).unwrap();
        editor.replace_uses("b", "a");
        editor.finish().unwrap();
        assert_eq!(lines(&model.graph.node), ["c = Abs(a)", &CHOICE.replace("Exp(b)", "Exp(a)")]);
        let then = &model.graph.node[1].attribute[0].g;
        assert!(then.value_info.is_empty() && value_infos(&model).is_empty());
    }

    #[test]
    fn another_node_takes_over_an_output() {
        let mut model = model();
        let mut editor = Editor::new(&mut model).unwrap();
        editor.remove_node(3);
        editor.add(NewNode::new("Relu", &["c"]).outputs(&["y"]));
        editor.finish().unwrap();
        assert_eq!(lines(&model.graph.node), ["b = Neg(a)", "c = Abs(b)", "y = Relu(c)"]);
    }

    #[test]
    fn inputs_and_dimensions() {
        let mut model = model();
        let mut editor = Editor::new(&mut model).unwrap();
        let batch = [Dimension::Symbolic("batch"), Dimension::Known(3), Dimension::Unknown];
        assert_eq!(editor.add_input("write_indices", ElementType::Int64, &batch[..1]), "write_indices");
        assert_eq!(editor.add_input("inner", ElementType::Int64, &[]), "inner_1");
        editor.set_dims("write_indices", &batch).unwrap();
        assert_refused!(editor.set_dims("c", &[]), GraphError::ValueMissing { name } if name == "c");
        editor.drop_unread("a");
        let spare = editor.add_input("spare", ElementType::Int64, &[]);
        editor.drop_unread(&spare);
        editor.finish().unwrap();
        let graph = Graph::new(&model).unwrap();
        assert_eq!(graph.input_names().collect::<Vec<_>>()[2..], ["write_indices", "inner_1"]);
    }

    #[test]
    fn cycles_and_missing_values_are_refused() {
        let mut cyclic = model();
        let mut editor = Editor::new(&mut cyclic).unwrap();
        editor.replace_uses("a", "c");
        assert_refused!(editor.finish(), GraphError::Cycle);

        let mut missing = model();
        let mut editor = Editor::new(&mut missing).unwrap();
        assert_eq!(editor.producer("b"), Some(0));
        editor.remove_node(0);
        assert_eq!(editor.producer("b"), None);
        assert_refused!(editor.finish(), GraphError::ValueMissing { name } if name == "b");
    }

    #[test]
    fn constants_of_every_float() {
        let mut model = model();
        let mut editor = Editor::new(&mut model).unwrap();
        let mut bytes = |element, value| {
            let name = editor.float(element, value).unwrap();
            let tensor =
                editor.model.graph.initializer.iter().find(|tensor| tensor.name.as_ref() == Some(&name));
            tensor.unwrap().raw_data.clone().unwrap().to_vec()
        };
        assert_eq!(bytes(ElementType::Float32, f64::from(f32::MIN)), f32::MIN.to_le_bytes());
        assert_eq!(bytes(ElementType::Float64, 0.1), 0.1_f64.to_le_bytes());
        assert_eq!(bytes(ElementType::Float16, -65504.0), [0xFF, 0xFB]);
        assert_eq!(bytes(ElementType::Float16, f64::from(f32::MIN)), [0x00, 0xFC], "minus infinity");
        assert_eq!(bytes(ElementType::BFloat16, 1.0), [0x80, 0x3F]);
        let int64 = ElementType::Int64;
        assert_refused!(editor.float(int64, 1.0), GraphError::NotAFloat { element: ElementType::Int64 });
    }

    /// Replaces each of 20,000 nodes in a chain. This takes seconds, whereas quadratic work would take
    /// minutes.
    #[test]
    fn large_graphs() {
        let mut model = model();
        let graph = model.graph.get_or_insert_default();
        let chain: String = (1..20_000).map(|at| format!("v{at} = Neg(v{});", at - 1)).collect();
        graph.node = Nodes::parse(&format!("v0 = Neg(a); {chain} y = Neg(v19999)")).nodes;
        let mut editor = Editor::new(&mut model).unwrap();
        for index in 0..20_000 {
            let (value, absolute) = (format!("v{index}"), editor.fresh("abs"));
            editor.replace_uses(&value, &absolute);
            editor.add(NewNode::new("Abs", &[&value]).outputs(&[&absolute]));
        }
        editor.finish().unwrap();
        assert_eq!(model.graph.node.len(), 40_001);
        assert_eq!(lines(&model.graph.node[..3]), ["v0 = Neg(a)", "abs = Abs(v0)", "v1 = Neg(abs)"]);
    }
}
