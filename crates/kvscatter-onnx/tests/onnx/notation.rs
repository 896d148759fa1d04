//! Reads graphs from text, and writes them as text.

use half::{bf16, f16};
use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::attribute_proto::AttributeType;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto, TensorProto, ValueInfoProto};

use super::{float, graph, insert, int, int64, int64s, ints, model, node, raw, string, tensor, value};

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
    pub(super) unnamed: Vec<String>,
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

/// Returns nodes as the text from which they could be parsed.
pub(crate) fn lines(nodes: &[NodeProto]) -> Vec<String> {
    let line = |node: &NodeProto| {
        let attributes: Vec<_> = node.attribute.iter().map(attribute_text).collect();
        let attributes = attributes.join(", ");
        let attributes = if attributes.is_empty() { attributes } else { format!(" {{{attributes}}}") };
        let inputs: Vec<_> = node.input.iter().map(|name| if name.is_empty() { "_" } else { name }).collect();
        let op_type = node.op_type.as_deref().unwrap();
        format!("{} = {op_type}({}){attributes}", node.output.join(", "), inputs.join(", "))
    };
    nodes.iter().map(line).collect()
}

fn attribute_text(attribute: &AttributeProto) -> String {
    let value = match attribute.r#type.unwrap() {
        AttributeType::INT => attribute.i.unwrap().to_string(),
        AttributeType::INTS => format!("{:?}", attribute.ints),
        AttributeType::GRAPH => format!("{{{}}}", lines(&attribute.g.node).join("; ")),
        other => panic!("{other:?}"),
    };
    format!("{}={value}", attribute.name.as_deref().unwrap())
}
