//! Helpers that build and change models briefly. Graphs are written as text, see [`Nodes`].

#[path = "notation.rs"]
mod notation;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::convert::{ConvertOptions, ConvertRefusal, Converted, convert};
use kvscatter_onnx::decoder::{Decoder, Hazard};
use kvscatter_onnx::internal::proto::tensor_proto::DataLocation;
use kvscatter_onnx::internal::proto::tensor_shape_proto::{self, dimension::Value as DimValue};
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, ValueInfoProto,
};
use kvscatter_onnx::{Data, Dimension, Model, Tensor};

pub(crate) use notation::{Nodes, lines, values};

/// Returns the path of a file in the repository's testdata.
pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// Reads a decoder of the repository's testdata.
pub(crate) fn load(decoder: &str) -> Model {
    Model::load(&testdata(&format!("{decoder}/model.onnx"))).unwrap()
}

/// Creates a folder with these files and their folders.
pub(crate) fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, contents) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    folder
}

/// Returns the decoder of a model that has one.
#[track_caller]
pub(crate) fn decoder(model: &Model) -> Decoder<'_> {
    Decoder::from_graph(&model.graph().unwrap()).unwrap()
}

/// Returns the kinds of hazards.
pub(crate) fn kinds(hazards: &[Hazard]) -> Vec<&'static str> {
    hazards.iter().map(Hazard::kind).collect()
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

/// Creates a function of a signature such as `F(a, b) -> c` and of nodes, in the domain `local`.
pub(crate) fn function(signature: &str, nodes: &str) -> FunctionProto {
    let (name, rest) = signature.split_once('(').unwrap();
    let (inputs, outputs) = rest.split_once(") -> ").unwrap();
    let names = |list: &str| list.split(", ").map(str::to_owned).collect();
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some("local".to_owned()),
        input: names(inputs),
        output: names(outputs),
        node: Nodes::parse(nodes).nodes,
        opset_import: vec![opset("", 24), opset("local", 1)],
        ..FunctionProto::default()
    }
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

/// Adds inputs, nodes after all others, and outputs.
pub(crate) fn extend(model: &mut Model, inputs: &str, nodes: &str, outputs: &str) {
    append(model, nodes);
    let graph = graph_mut(model);
    graph.input.extend(values(inputs));
    graph.output.extend(values(outputs));
}

/// Merges a decoder with one without a past, as Optimum does.
///
/// The outputs of both branches have the names of the graph's outputs. The branch with the past has all nodes and the
/// small initializers.
pub(crate) fn merge(model: &mut Model) {
    let graph = graph_mut(model);
    let outputs: Vec<_> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let without: String = outputs.iter().map(|output| format!("{output} = Neg(input_ids);")).collect();
    let outputs = outputs.join(", ");
    let choice = format!(
        "{outputs} = If(use_cache_branch)
            {{then_branch={{return {outputs}}}, else_branch={{{without} return {outputs}}}}}"
    );
    let mut choice = Nodes::parse(&choice).nodes.remove(0);
    let is_small = |tensor: &TensorProto| {
        tensor.dims.is_empty() || (tensor.dims.len() == 1 && tensor.data_type == Some(7))
    };
    let all = std::mem::take(&mut graph.initializer);
    let with_past = choice.attribute[0].g.get_or_insert_default();
    (with_past.initializer, graph.initializer) = all.into_iter().partition(is_small);
    with_past.output.clone_from(&graph.output);
    with_past.node = std::mem::take(&mut graph.node);
    with_past.value_info = std::mem::take(&mut graph.value_info);
    graph.node = vec![choice];
    graph.input.extend(values("use_cache_branch: bool[1]"));
}

/// How a decoder counts the places of new tokens and of slots in a window.
pub(crate) const BY_SLOTS: [&str; 2] = ["own_slots", "slot_numbers"];
pub(crate) const BY_TOKENS: [&str; 2] = ["own_tokens", "token_numbers"];

/// Returns a decoder whose causal mask has a window. The window hides a slot whose place is this far from a token's.
pub(crate) fn llama_with_window(window: i64, [own, slots]: [&str; 2]) -> Model {
    let mut model = load("mobius-llama-dynamic");
    let graph = graph_mut(&mut model);
    let place = first(graph, "Attention");
    let exported = graph.node[place].input[3].clone();
    reroute(graph, &exported, "windowed");
    let nodes = format!(
        "axis_1 = 1; window = {window}
        counts = CumSum(Cast(Equal(attention_mask, attention_mask)) {{to=int64}}, axis_1)
        slot_numbers = Sub(counts, axis_1)
        token_numbers = CumSum(attention_mask, axis_1)
        new = Neg(Slice(Shape(input_ids), [1], [2]))
        own_slots = Slice(slot_numbers, new, [{end}], [1])
        own_tokens = Slice(token_numbers, new, [{end}], [1])
        rows = Unsqueeze({own}, [2])
        columns = Unsqueeze({slots}, [1])
        near = Less(Sub(rows, columns), window)
        windowed = And({exported}, Unsqueeze(near, [1]))",
        end = i64::MAX
    );
    insert(&mut model, place, Nodes::parse(&nodes));
    model
}

/// Returns a decoder with a window of 4 slots in which tokens of a block see each other. `shown` computes the visible
/// slots from `causal`, `near` and `block`.
pub(crate) fn llama_with_blocks(shown: &str) -> Model {
    let mut model = llama_with_window(4, BY_SLOTS);
    let nodes = format!(
        "causal = LessOrEqual(columns, rows)
        ids = Slice(block_sequence_ids, new, [{end}], [1])
        own = Unsqueeze(ids, [2])
        block = And(Equal(own, Unsqueeze(block_sequence_ids, [1])), GreaterOrEqual(own, 0))
        blocks = Unsqueeze({shown}, [1])",
        end = i64::MAX
    );
    let graph = graph_mut(&mut model);
    let place = maker(graph, "windowed");
    "blocks".clone_into(&mut graph.node[place].input[1]);
    for attention in nodes_mut(graph, "Attention") {
        attention.attribute.retain(|attribute| attribute.name.as_deref() != Some("is_causal"));
    }
    let mask = graph.input.iter().find(|input| input.name.as_deref() == Some("attention_mask")).unwrap();
    graph.input.push(ValueInfoProto { name: Some("block_sequence_ids".to_owned()), ..mask.clone() });
    insert(&mut model, place, Nodes::parse(&nodes));
    model
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

/// Returns the operators of a model.
pub(crate) fn op_types(model: &Model) -> Vec<&str> {
    model.proto().graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect()
}

/// Returns how often an operator occurs in a model.
pub(crate) fn count(model: &Model, op_type: &str) -> usize {
    op_types(model).into_iter().filter(|found| *found == op_type).count()
}

/// Returns the names of the pasts and presents of the keys and values of two layers.
pub(crate) fn cache_names() -> [[String; 2]; 4] {
    ["0.key", "0.value", "1.key", "1.value"]
        .map(|cache| [format!("past_key_values.{cache}"), format!("present.{cache}")])
}

/// Returns the numbers of attention operations, of `Attention` nodes, and of those that took the place of others.
pub(crate) fn counts(converted: &Converted) -> (usize, usize, usize) {
    let attention = &converted.report.attention;
    (attention.count, attention.nodes, attention.fused)
}

/// Returns why attention operations stay as they are.
pub(crate) fn kept_reasons(converted: &Converted) -> Vec<String> {
    converted.report.attention.kept.iter().map(|kept| kept.reason.to_string()).collect()
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

/// Creates a tensor in another file, as these entries describe.
pub(crate) fn external(
    name: &str,
    element: ElementType,
    dims: &[i64],
    entries: &[(&str, &str)],
) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(element.onnx_code()),
        data_location: Some(DataLocation::EXTERNAL),
        external_data: entries.iter().map(|(key, value)| entry(key, value)).collect(),
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
