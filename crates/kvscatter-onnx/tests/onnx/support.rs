//! Helpers that build and change models briefly. Graphs are written as text, see [`Nodes`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_onnx::convert::{ConvertOptions, ConvertRefusal, Converted, convert};
use kvscatter_onnx::internal::proto::attribute_proto::AttributeType;
use kvscatter_onnx::internal::proto::tensor_shape_proto::{self, dimension::Value as DimValue};
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, ValueInfoProto,
};
use kvscatter_onnx::{Data, Dimension, Model, Tensor};

/// Returns the path of a file in the repository's testdata.
pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// Reads a decoder of the repository's testdata.
pub(crate) fn load(decoder: &str) -> Model {
    Model::load(&testdata(&format!("{decoder}/model.onnx"))).unwrap()
}

/// Declares a value. In `dims`, `?` is an unknown dimension, a number is a size, and a word is a symbol.
pub(crate) fn value(name: &str, element: ElementType, dims: &[&str]) -> ValueInfoProto {
    let dims: Vec<_> = dims
        .iter()
        .map(|dim| match dim.parse() {
            Ok(size) => Dimension::Known(size),
            Err(_) if *dim == "?" => Dimension::Unknown,
            Err(_) => Dimension::Symbolic(dim),
        })
        .collect();
    ValueInfoProto::tensor(name, element.onnx_code(), &dims)
}

/// Creates a node of the default domain whose name is `n` followed by its output.
pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto { name: Some(format!("n{output}")), ..NodeProto::new(op_type, inputs, &[output]) }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto::int(name, value)
}

pub(crate) fn tensor(name: &str, value: &Tensor) -> AttributeProto {
    AttributeProto::tensor(name, kvscatter_onnx::internal::tensor_proto::encode("", value))
}

pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto::float(name, value)
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto::ints(name, values)
}

pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto::string(name, value)
}

/// Creates an initializer of integers.
pub(crate) fn int64s(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(ElementType::Int64.onnx_code()),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// Creates a body of `If`, `Loop` or `Scan`. Its outputs only have names.
pub(crate) fn graph(name: &str, nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    let output = |name: &&str| ValueInfoProto::new(name);
    let body =
        GraphProto { node: nodes, output: outputs.iter().map(output).collect(), ..GraphProto::default() };
    AttributeProto::graph(name, body)
}

/// Creates a model of opset 24.
pub(crate) fn model(
    inputs: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
) -> Model {
    let graph = GraphProto { input: inputs, node: nodes, output: outputs, ..GraphProto::default() };
    Model::from_proto(ModelProto::new(11, &[("", 24)], graph))
}

/// Creates a model of opset 24 of a text: [`values`], [`Nodes`] and [`values`].
pub(crate) fn parsed(inputs: &str, nodes: &str, outputs: &str) -> Model {
    Nodes::parse(nodes).model(values(inputs), values(outputs))
}

/// Declares the values of a text such as `x, y: float[batch, 2, ?], flag: bool[]`.
pub(crate) fn values(text: &str) -> Vec<ValueInfoProto> {
    let declared = text.split(']').filter(|declared| !declared.trim().is_empty());
    let declare = |declared: &str| {
        let (names, ty) = declared.split_once(':').unwrap();
        let (element, dims) = ty.split_once('[').unwrap();
        let words = |list| str::split(list, ',').map(str::trim).filter(|word| !word.is_empty());
        let (element, dims) =
            (ElementType::from_name(element.trim()).unwrap(), words(dims).collect::<Vec<_>>());
        words(names).map(|name| value(name, element, &dims)).collect::<Vec<_>>()
    };
    declared.flat_map(declare).collect()
}

/// The nodes and initializers of a graph, which are added as text.
///
/// A text has statements, one a line or separated by `;`:
/// - `y = Attention(q, Neg(k), _) {q_num_heads=4}` is a node. An argument may be a node or an initializer, which gets a
///   name, and `_` is an argument that is absent.
/// - `a, b = Odd@com.example(x)` is a node with two outputs and a domain, whose version is 1.
/// - `one = [1]` is an initializer. `1` is a scalar and `[1, 2]` a list of int64. `0.5` is a scalar of the float type
///   of the graph, and `0.5[6, 1]` a tensor of that type whose elements are 0.5 and -0.25.
///
/// Attributes are integers, floats with a point, lists, `"texts"`, types such as `to=bool`, tensors `int64[1, 2]`,
/// `$axis` for an attribute of the function, and bodies in braces. A body returns the outputs of its last node, or ends
/// with `return a, b`.
pub(crate) struct Nodes {
    /// The type of floats.
    pub(crate) element: ElementType,
    pub(crate) nodes: Vec<NodeProto>,
    pub(crate) initializers: Vec<TensorProto>,
    /// The names of values that the text does not name.
    unnamed: Vec<String>,
}

impl Nodes {
    pub(crate) fn new(element: ElementType) -> Self {
        Self { element, nodes: Vec::new(), initializers: Vec::new(), unnamed: Vec::new() }
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut nodes = Self::new(ElementType::Float32);
        nodes.add(text);
        nodes
    }

    /// Adds statements, and returns the name of the last value.
    pub(crate) fn add(&mut self, text: &str) -> String {
        self.apply(text, "")
    }

    /// Adds statements in which `$` is a value, and returns the name of the last value.
    pub(crate) fn apply(&mut self, text: &str, value: &str) -> String {
        let mut parser = Parser { rest: text, value, nodes: self };
        let mut last = Vec::new();
        while !parser.is_at_end() {
            last = parser.statement();
        }
        last.first().cloned().unwrap_or_default()
    }

    pub(crate) fn model(self, inputs: Vec<ValueInfoProto>, outputs: Vec<ValueInfoProto>) -> Model {
        let mut model = model(inputs, Vec::new(), outputs);
        insert(&mut model, 0, self);
        model
    }

    /// Adds an initializer of numbers as text.
    fn constant(&mut self, name: &str, text: &str) {
        let list =
            |text: &str| text.split(',').map(|word| word.trim().parse().unwrap()).collect::<Vec<i64>>();
        let tensor = match text.trim_end_matches(']').split_once('[') {
            Some(("", numbers)) => {
                let numbers = list(numbers);
                int64s(name, &[numbers.len().try_into().unwrap()], &numbers)
            }
            None if text.parse::<i64>().is_ok() => int64s(name, &[], &list(text)),
            None => self.floats(name, &[], text.parse().unwrap()),
            Some((first, dims)) => self.floats(name, &list(dims), first.parse().unwrap()),
        };
        match self.initializers.iter().find(|known| known.name.as_deref() == Some(name)) {
            Some(known) => assert_eq!(known, &tensor),
            None => self.initializers.push(tensor),
        }
    }

    fn floats(&self, name: &str, dims: &[i64], first: f32) -> TensorProto {
        let numbers = (0..dims.iter().product()).map(|at: i64| first * if at % 3 == 0 { 1.0 } else { -0.5 });
        let data: Vec<u8> = match self.element {
            ElementType::Float16 => numbers.flat_map(|it| f16::from_f32(it).to_le_bytes()).collect(),
            ElementType::BFloat16 => numbers.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect(),
            _ => numbers.flat_map(f32::to_le_bytes).collect(),
        };
        raw(name, self.element, dims, data)
    }
}

/// The rest of a text that is read.
struct Parser<'t, 'n> {
    rest: &'t str,
    value: &'t str,
    nodes: &'n mut Nodes,
}

impl<'t> Parser<'t, '_> {
    fn is_at_end(&mut self) -> bool {
        self.rest = self.rest.trim_start_matches([' ', '\n', ';']);
        self.rest.is_empty()
    }

    fn takes(&mut self, token: char) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.strip_prefix(token).inspect(|rest| self.rest = rest).is_some()
    }

    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        self.until(&[' ', '\n', ',', '(', ')', '[', ']', '{', '}', '=', ';'])
    }

    fn until(&mut self, ends: &[char]) -> &'t str {
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        word
    }

    /// Reads a statement, and returns the names of its values.
    fn statement(&mut self) -> Vec<String> {
        let start = self.rest;
        let mut outputs = vec![name(self.word())];
        let returns = outputs == ["return"];
        if returns {
            outputs = vec![name(self.word())];
        }
        while self.takes(',') {
            outputs.push(name(self.word()));
        }
        if returns {
            return outputs;
        }
        if !self.takes('=') {
            (self.rest, outputs) = (start, Vec::new());
        }
        let value = self.value(&outputs);
        if outputs.is_empty() { vec![value] } else { outputs }
    }

    /// Reads a node, an initializer or a name. Returns the name of the first value.
    fn value(&mut self, outputs: &[String]) -> String {
        let (start, word) = (self.rest.trim_start(), self.word());
        if word.is_empty() || word.parse::<f32>().is_ok() {
            if self.rest.starts_with('[') {
                self.until(&[']']);
                assert!(self.takes(']'), "{start}");
            }
            let text = start.strip_suffix(self.rest).unwrap();
            assert!(!text.is_empty(), "{start}");
            let name = outputs.first().map_or(text, String::as_str);
            self.nodes.constant(name, text);
            return name.to_owned();
        }
        if !self.rest.starts_with('(') {
            return if word == "$" { self.value.to_owned() } else { name(word) };
        }
        let (op_type, domain) = word.split_once('@').unwrap_or((word, ""));
        let mut inputs = Vec::new();
        self.takes('(');
        while !self.takes(')') {
            inputs.push(self.value(&[]));
            self.takes(',');
        }
        let unnamed = [format!("{}_{}", op_type.to_lowercase(), self.nodes.nodes.len())];
        let outputs = if outputs.is_empty() {
            self.nodes.unnamed.extend(unnamed.clone());
            &unnamed
        } else {
            outputs
        };
        let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
        let mut made = node(op_type, &inputs, &outputs[0]);
        made.output = outputs.to_vec();
        made.domain = Some(domain.to_owned()).filter(|domain| !domain.is_empty());
        if self.takes('{') {
            while !self.takes('}') {
                made.attribute.push(self.attribute());
                self.takes(',');
            }
        }
        self.nodes.nodes.push(made);
        outputs[0].clone()
    }

    fn attribute(&mut self) -> AttributeProto {
        let name = self.word();
        assert!(self.takes('='), "{name}: {}", self.rest);
        if self.takes('"') {
            let text = string(name, self.until(&['"']));
            self.takes('"');
            return text;
        }
        if self.takes('[') {
            let list = self.until(&[']']);
            self.takes(']');
            let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
            if list.contains('.') {
                let floats = words.map(|word| word.parse().unwrap()).collect();
                return AttributeProto { floats, ..AttributeProto::new(name, AttributeType::FLOATS) };
            }
            return ints(name, &words.map(|word| word.parse().unwrap()).collect::<Vec<_>>());
        }
        if self.takes('{') {
            let mut body = Nodes::new(self.nodes.element);
            let mut parser = Parser { rest: self.rest, value: self.value, nodes: &mut body };
            let mut outputs = Vec::new();
            while !parser.takes('}') {
                outputs = parser.statement();
                parser.is_at_end();
            }
            self.rest = parser.rest;
            let outputs: Vec<_> = outputs.iter().map(String::as_str).collect();
            let mut graph = graph(name, body.nodes, &outputs);
            graph.g.get_or_insert_default().initializer = body.initializers;
            return graph;
        }
        let word = self.word();
        if word == "int64" && self.takes('[') {
            let list = self.until(&[']']);
            self.takes(']');
            let numbers: Vec<_> = list.split(',').map(|number| number.trim().parse().unwrap()).collect();
            return tensor(name, &int64(&[numbers.len()], &numbers));
        }
        if let Some(outer) = word.strip_prefix('$') {
            return AttributeProto {
                ref_attr_name: Some(outer.to_owned()),
                ..AttributeProto::new(name, AttributeType::INT)
            };
        }
        match (word.parse(), word.parse()) {
            (Ok(number), _) => int(name, number),
            (_, Ok(number)) => float(name, number),
            _ => int(name, ElementType::from_name(word).unwrap().onnx_code().into()),
        }
    }
}

fn name(word: &str) -> String {
    if word == "_" { String::new() } else { word.to_owned() }
}

pub(crate) fn graph_mut(model: &mut Model) -> &mut GraphProto {
    model.proto_mut().graph.get_or_insert_default()
}

/// Inserts nodes before the node at a place. Initializers and domains are added.
pub(crate) fn insert(model: &mut Model, at: usize, mut nodes: Nodes) {
    let imports = &mut model.proto_mut().opset_import;
    let known: BTreeSet<_> = imports.iter().filter_map(|import| import.domain.clone()).collect();
    let domains: BTreeSet<_> = nodes.nodes.iter().filter_map(|node| node.domain.clone()).collect();
    imports.extend(domains.difference(&known).map(|domain| opset(domain, 1)));
    let graph = graph_mut(model);
    let taken: BTreeSet<_> = graph.node.iter().flat_map(|node| node.output.clone()).collect();
    for name in nodes.unnamed.iter().filter(|name| taken.contains(*name)) {
        let fresh =
            (1..).map(|number| format!("{name}_{number}")).find(|name| !taken.contains(name)).unwrap();
        let values = nodes.nodes.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        values.filter(|value| *value == name).for_each(|value| value.clone_from(&fresh));
    }
    graph.node.splice(at..at, nodes.nodes);
    for tensor in nodes.initializers {
        if !graph.initializer.contains(&tensor) {
            graph.initializer.push(tensor);
        }
    }
}

/// Adds nodes of a text after all others.
pub(crate) fn append(model: &mut Model, nodes: &str) {
    let end = graph_mut(model).node.len();
    insert(model, end, Nodes::parse(nodes));
}

/// Returns the place of the first node of an operator.
pub(crate) fn first(graph: &GraphProto, op_type: &str) -> usize {
    graph.node.iter().position(|node| node.op_type.as_deref() == Some(op_type)).unwrap()
}

/// Returns the place of the node that makes a value.
pub(crate) fn maker(graph: &GraphProto, value: &str) -> usize {
    graph.node.iter().position(|node| node.output.iter().any(|output| output == value)).unwrap()
}

/// Returns the place of the first node that reads a value.
pub(crate) fn reader(graph: &GraphProto, value: &str) -> usize {
    graph.node.iter().position(|node| node.input.iter().any(|input| input == value)).unwrap()
}

/// Returns the nodes of an operator.
pub(crate) fn nodes_mut<'g>(
    graph: &'g mut GraphProto,
    op_type: &str,
) -> impl Iterator<Item = &'g mut NodeProto> {
    graph.node.iter_mut().filter(move |node| node.op_type.as_deref() == Some(op_type))
}

/// Makes all nodes read `new` instead of `old`.
pub(crate) fn reroute(graph: &mut GraphProto, old: &str, new: &str) {
    let inputs = graph.node.iter_mut().flat_map(|node| &mut node.input);
    inputs.filter(|input| *input == old).for_each(|input| new.clone_into(input));
}

/// Replaces the declarations of inputs and outputs by those of a text.
pub(crate) fn declare(model: &mut Model, text: &str) {
    let graph = graph_mut(model);
    for new in values(text) {
        let declared = graph.input.iter_mut().chain(&mut graph.output).find(|it| it.name == new.name);
        *declared.unwrap() = new;
    }
}

/// Replaces a symbol in the inputs and outputs by a size.
pub(crate) fn fix_dim(model: &mut Model, symbol: &str, size: i64) {
    let graph = graph_mut(model);
    for declared in graph.input.iter_mut().chain(&mut graph.output) {
        let Some(TypeValue::TensorType(tensor)) = &mut declared.r#type.get_or_insert_default().value else {
            continue;
        };
        let dims = &mut tensor.shape.get_or_insert_default().dim;
        let is_symbol = |dim: &&mut tensor_shape_proto::Dimension| {
            dim.value == Some(DimValue::DimParam(symbol.to_owned()))
        };
        dims.iter_mut().filter(is_symbol).for_each(|dim| dim.value = Some(DimValue::DimValue(size)));
    }
}

/// Returns the numbers of attention operations, of `Attention` nodes, and of those that took the place of others.
pub(crate) fn counts(converted: &Converted) -> (usize, usize, usize) {
    let attention = &converted.report.attention;
    (attention.count, attention.nodes, attention.fused)
}

/// Returns why a model is not converted.
pub(crate) fn refusal(model: &Model, options: impl Into<ConvertOptions>) -> ConvertRefusal {
    let error = convert(model, options).unwrap_err();
    error.cause().cloned().unwrap_or_else(|| panic!("{error}"))
}

/// Creates an initializer.
pub(crate) fn raw(name: &str, element: ElementType, dims: &[i64], data: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(element.onnx_code()),
        raw_data: Some(data.into()),
        ..TensorProto::default()
    }
}

pub(crate) fn entry(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value.to_owned()),
        ..StringStringEntryProto::default()
    }
}

pub(crate) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto::new(domain, version)
}

pub(crate) fn bytes(element: ElementType, shape: &[usize], bytes: &[u8]) -> Tensor {
    Tensor::new(element, shape.to_vec(), Data::Bytes(bytes.to_vec())).unwrap()
}

pub(crate) fn int64(shape: &[usize], values: &[i64]) -> Tensor {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    bytes(ElementType::Int64, shape, &data)
}

/// Asserts that the result is an error whose root cause matches a pattern.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err(error) => assert!(matches!(error.cause(), Some($pattern) $(if $guard)?), "{error}"),
            Ok(value) => panic!("{value:?}"),
        }
    };
}
pub(crate) use assert_refused;
