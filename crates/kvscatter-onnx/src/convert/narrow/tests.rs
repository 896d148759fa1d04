//! Tests that the proof refuses nodes that compute something else.

use kvscatter::ElementType;

use super::nodes::NarrowNodes;
use super::proof;
use super::sites::NarrowSites;
use crate::convert::{CacheType, ConvertRefusal, convert};
use crate::decoder::Decoder;
use crate::edit::Editor;
use crate::proto::{GraphProto, NodeProto, TensorProto};
use crate::support::{first, graph_mut, load, maker};
use crate::{Model, OnnxError};

/// Makes the caches of a decoder narrower, changes the result, and checks it.
fn checked(asked: CacheType, change: impl FnOnce(&mut GraphProto)) -> Result<String, OnnxError> {
    let model = convert(&load("mobius-llama-dynamic"), 16).unwrap().model;
    let graph = model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let sites = NarrowSites::find(&graph, &decoder, asked, true).unwrap();
    let mut narrow: Model = model.clone();
    let mut editor = Editor::new(narrow.proto_mut()).unwrap();
    let written = NarrowNodes::write(&mut editor, &sites).unwrap();
    editor.finish().unwrap();
    change(graph_mut(&mut narrow));
    proof::check(&graph, &narrow.graph().unwrap(), &sites, &written)
}

/// Returns the first node of an operator that makes new rows of the first cache of keys, or that reads it.
fn node<'g>(graph: &'g mut GraphProto, op_type: &str) -> &'g mut NodeProto {
    let writer = maker(graph, "present.0.key");
    let is_found = |node: &NodeProto| node.op_type.as_deref() == Some(op_type);
    let mut value = graph.node[writer].input[1].clone();
    loop {
        let place = maker(graph, &value);
        if is_found(&graph.node[place]) {
            return &mut graph.node[place];
        }
        value = match graph.node[place].op_type.as_deref() {
            // The scale of a row.
            Some("QuantizeLinear") if op_type != "MatMul" => graph.node[place].input[1].clone(),
            _ => graph.node[place].input[0].clone(),
        };
    }
}

/// Changes a float of an initializer.
fn change_float(graph: &mut GraphProto, name: &str, at: usize, change: impl Fn(f32) -> f32) {
    let tensor: &mut TensorProto =
        graph.initializer.iter_mut().find(|tensor| tensor.name.as_deref() == Some(name)).unwrap();
    let mut bytes = tensor.raw_data.take().unwrap().to_vec();
    let number = bytes.chunks_mut(4).nth(at).unwrap();
    let changed = change(f32::from_le_bytes(number.try_into().unwrap()));
    number.copy_from_slice(&changed.to_le_bytes());
    tensor.raw_data = Some(bytes.into());
}

#[test]
fn other_nodes_are_refused() {
    type Change = (&'static str, CacheType, fn(&mut GraphProto));
    let changes: [Change; 9] = [
        ("a scale of the next float32", CacheType::Int8, |graph| {
            let factor = node(graph, "Mul").input[1].clone();
            change_float(graph, &factor, 0, f32::next_up);
        }),
        ("a larger smallest scale", CacheType::Int8, |graph| {
            let least = node(graph, "Max").input[1].clone();
            change_float(graph, &least, 0, |number| number * 2.0);
        }),
        ("the largest number instead of the largest magnitude", CacheType::Int8, |graph| {
            node(graph, "Abs").op_type = Some("Identity".to_owned());
        }),
        ("a sign in the rotation", CacheType::Int8, |graph| {
            let matrix = node(graph, "MatMul").input[1].clone();
            change_float(graph, &matrix, 17, |number| -number);
        }),
        ("queries that are not rotated", CacheType::Int8, |graph| {
            let attention = first(graph, "Attention");
            let rotated = maker(graph, &graph.node[attention].input[0]);
            graph.node[rotated].op_type = Some("Identity".to_owned());
            graph.node[rotated].input.truncate(1);
        }),
        ("a sum of codes and scales", CacheType::Int8, |graph| {
            let attention = first(graph, "Attention");
            let read = maker(graph, &graph.node[attention].input[2]);
            graph.node[read].op_type = Some("Add".to_owned());
        }),
        ("another mask", CacheType::Int8, |graph| {
            let attention = first(graph, "Attention");
            graph.node[attention].input[3].clear();
        }),
        ("another operator elsewhere", CacheType::Float16, |graph| {
            let place = first(graph, "LessOrEqual");
            graph.node[place].op_type = Some("Less".to_owned());
        }),
        ("bfloat16 as float16", CacheType::Float16, |graph| {
            let cast = node(graph, "Cast");
            cast.attribute[0].i = Some(ElementType::BFloat16.onnx_code().into());
        }),
    ];
    for (name, asked, change) in changes {
        let Err(error) = checked(asked, change) else { panic!("{name}") };
        assert!(matches!(error.cause(), Some(ConvertRefusal::PassDiffers { .. })), "{name}: {error}");
    }
}
