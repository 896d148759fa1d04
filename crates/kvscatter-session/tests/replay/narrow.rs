//! Gives the caches of a decoder fewer bytes, with the nodes that `convert --cache-type` writes.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::quantize::{MIN_SCALE, SCALE_FACTOR, rotate_row, rotation_block};
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as Dim;
use kvscatter_onnx::internal::proto::type_proto::Value as Type;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};

use super::protos::{floats, int64s, node, with};

const FLOAT: i32 = 1;
const INT8: i32 = 3;
const FLOAT16: i32 = 10;
const BFLOAT16: i32 = 16;

/// The type of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    Float16,
    BFloat16,
    Int8,
}

/// Replaces the float32 caches of a decoder that writes them with `TensorScatter`. The scales of int8 caches are more
/// caches, and keys of rows that can be rotated are rotated.
pub(crate) fn narrow(mut model: Model, to: Narrow) -> Model {
    let graph = model.proto_mut().graph.get_or_insert_default();
    graph.initializer.push(int64s("kv_last_axis", &[1], [-1]));
    graph.initializer.push(floats("kv_scale_factor", &[], [SCALE_FACTOR]));
    graph.initializer.push(floats("kv_min_scale", &[], [MIN_SCALE]));
    let nodes = std::mem::take(&mut graph.node);
    let keys = nodes.iter().filter(|node| node.op_type.as_deref() == Some("Attention"));
    let keys: BTreeSet<String> = keys.map(|node| node.input[1].clone()).collect();
    // The value that attention reads instead of a present, and the matrix that its queries are multiplied by.
    let mut read: BTreeMap<String, (String, Option<String>)> = BTreeMap::new();
    for mut of in nodes {
        if of.op_type.as_deref() == Some("TensorScatter") {
            let (present, is_key) = (of.output[0].clone(), keys.contains(&of.output[0]));
            read.insert(present, write(graph, of, to, is_key));
            continue;
        }
        let rotation = of.input.get(1).and_then(|key| read.get(key)?.1.clone());
        if let (Some("Attention"), Some(matrix)) = (of.op_type.as_deref(), rotation) {
            let rotated = format!("{}.rotated", of.output[0]);
            graph.node.push(node("MatMul", &[&of.input[0], &matrix], &[&rotated]));
            of.input[0] = rotated;
        }
        for input in &mut of.input {
            if let Some((values, _)) = read.get(input) {
                input.clone_from(values);
            }
        }
        graph.node.push(of);
    }
    model
}

/// Replaces the write of a cache. Returns the value that attention reads, and the matrix that rotates its queries.
fn write(graph: &mut GraphProto, scatter: NodeProto, to: Narrow, is_key: bool) -> (String, Option<String>) {
    let [past, rows, present] = [&scatter.input[0], &scatter.input[1], &scatter.output[0]];
    let of_past = |name: &str| format!("{past}.{name}");
    let into = |past: &str, rows: &str, present: &str| {
        let mut scatter = scatter.clone();
        (scatter.input[0], scatter.input[1]) = (past.to_owned(), rows.to_owned());
        scatter.output[0] = present.to_owned();
        scatter.name = Some(format!("make_{present}"));
        scatter
    };
    let values = of_past("values");
    if to != Narrow::Int8 {
        let element = if to == Narrow::Float16 { FLOAT16 } else { BFLOAT16 };
        let halves = of_past("halves");
        for port in ports(graph, past, present) {
            retype(port, element, None);
        }
        graph.node.push(with(node("Cast", &[rows], &[&halves]), "to", element.into()));
        graph.node.push(into(past, &halves, present));
        graph.node.push(with(node("Cast", &[present], &[&values]), "to", FLOAT.into()));
        return (values, None);
    }
    let (mut scales, mut size) = (Vec::new(), 0);
    for port in ports(graph, past, present) {
        let mut of_scale = port.clone();
        of_scale.name = Some(format!("{}_scale", port.name.as_deref().unwrap()));
        retype(&mut of_scale, FLOAT, Some(1));
        size = retype(port, INT8, None);
        scales.push(of_scale);
    }
    let [past_scales, present_scales] = [&scales[0], &scales[1]].map(|port| port.name.clone().unwrap());
    graph.output.push(scales.pop().unwrap());
    graph.input.push(scales.pop().unwrap());
    let matrix = (is_key && rotation_block(size).is_some()).then(|| rotation(graph, size));
    let mut rows = rows.clone();
    if let Some(matrix) = &matrix {
        graph.node.push(node("MatMul", &[&rows, matrix], &[&of_past("rotated")]));
        rows = of_past("rotated");
    }
    let [magnitudes, most, scaled, scale, codes, floats] =
        ["abs", "max", "scaled", "scale_rows", "codes", "floats"].map(of_past);
    let mut quantise = node("QuantizeLinear", &[&rows, &scale], &[&codes]);
    for (name, value) in [("axis", 3), ("block_size", size as i64), ("output_dtype", INT8.into())] {
        quantise.attribute.push(AttributeProto::int(name, value));
    }
    graph.node.extend([
        node("Abs", &[&rows], &[&magnitudes]),
        with(node("ReduceMax", &[&magnitudes, "kv_last_axis"], &[&most]), "keepdims", 1),
        node("Mul", &[&most, "kv_scale_factor"], &[&scaled]),
        node("Max", &[&scaled, "kv_min_scale"], &[&scale]),
        quantise,
        into(past, &codes, present),
        into(&past_scales, &scale, &present_scales),
        with(node("Cast", &[present], &[&floats]), "to", FLOAT.into()),
        node("Mul", &[&floats, &present_scales], &[&values]),
    ]);
    (values, matrix)
}

/// Returns the declarations of a past and its present.
fn ports<'g>(graph: &'g mut GraphProto, past: &str, present: &str) -> [&'g mut ValueInfoProto; 2] {
    let past = graph.input.iter_mut().find(|port| port.name.as_deref() == Some(past)).unwrap();
    let present = graph.output.iter_mut().find(|port| port.name.as_deref() == Some(present)).unwrap();
    [past, present]
}

/// Changes the type of a declared tensor, and the size of its last dimension. Returns the size before.
fn retype(port: &mut ValueInfoProto, element: i32, size: Option<i64>) -> usize {
    let declared = port.r#type.get_or_insert_default().value.as_mut();
    let Some(Type::TensorType(tensor)) = declared else { panic!("{:?} is no tensor", port.name) };
    tensor.elem_type = Some(element);
    let last = tensor.shape.get_or_insert_default().dim.last_mut().unwrap();
    let Some(Dim::DimValue(before)) = last.value else { panic!("{:?} has an open size", port.name) };
    last.value = Some(Dim::DimValue(size.unwrap_or(before)));
    before as usize
}

/// Returns the name of the Hadamard matrix of this size.
fn rotation(graph: &mut GraphProto, size: usize) -> String {
    let name = format!("kv_rotation_{size}");
    if !graph.initializer.iter().any(|tensor| tensor.name.as_deref() == Some(&name)) {
        let row = |index| {
            let mut row = vec![0.0; size];
            row[index] = 1.0;
            rotate_row(&mut row);
            row
        };
        graph.initializer.push(floats(&name, &[size, size], (0..size).flat_map(row)));
    }
    name
}
