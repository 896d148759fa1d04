//! Changes the tensors that a model stores.

use kvscatter::ElementType;
use kvscatter_onnx::proto::{ModelProto, SparseTensorProto, TensorAnnotation, TensorProto, tensor_proto};

use super::Trick;
use super::extras::entry;
use crate::dice::Dice;
use crate::parts::{graph, tensor};
use crate::support::int64s;

pub(super) const ALL: &[Trick] = &[
    ("other values", values),
    ("other values", values),
    ("other values", values),
    ("another shape of a tensor", shape),
    ("fewer bytes", fewer_bytes),
    ("more bytes", more_bytes),
    ("two fields", two_fields),
    ("another field", other_field),
    ("a part of a tensor", segment),
    ("strings", strings),
    ("a tensor without values", empty),
    ("a tensor less", drop_tensor),
    ("a tensor twice", copy_tensor),
    ("a sparse initializer", sparse),
    ("an initializer of an input", of_input),
    ("quantization annotations", annotations),
];

/// Replaces integers by integers of any size, and floats by any floats.
fn values(dice: &mut Dice, model: &mut ModelProto) {
    let Some(tensor) = tensor(dice, model) else { return };
    let int64 = tensor.data_type == Some(ElementType::Int64.onnx_code());
    for _ in 0..=dice.below(2) {
        let (int, float) = (dice.int(), dice.float());
        let bytes = if int64 { int.to_le_bytes().to_vec() } else { float.to_le_bytes().to_vec() };
        if let Some(raw) = &mut tensor.raw_data
            && let Some(place) = dice.pick_mut(&mut raw.chunks_exact_mut(bytes.len()).collect::<Vec<_>>())
        {
            place.copy_from_slice(&bytes);
        }
        if let Some(place) = dice.pick_mut(&mut tensor.int64_data) {
            *place = int;
        }
        if let Some(place) = dice.pick_mut(&mut tensor.int32_data) {
            *place = i32::try_from(int).unwrap_or(i32::MIN);
        }
        if let Some(place) = dice.pick_mut(&mut tensor.float_data) {
            *place = float;
        }
    }
}

fn shape(dice: &mut Dice, model: &mut ModelProto) {
    let (first, second) = (dice.int(), dice.int());
    let Some(tensor) = tensor(dice, model) else { return };
    match dice.below(5) {
        0 => tensor.dims.push(1),
        1 => drop(tensor.dims.pop()),
        2 => tensor.dims = vec![first, second],
        3 => tensor.dims = vec![1; *dice.pick(&[9, 65, 3000])],
        _ => {
            if let Some(dim) = dice.pick_mut(&mut tensor.dims) {
                *dim = first;
            }
        }
    }
}

fn fewer_bytes(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(tensor) = tensor(dice, model) {
        if let Some(raw) = &mut tensor.raw_data {
            raw.truncate(dice.below(raw.len() + 1));
        }
        tensor.int64_data.pop();
        tensor.float_data.pop();
    }
}

fn more_bytes(dice: &mut Dice, model: &mut ModelProto) {
    let count = *dice.pick(&[1, 4, 8, 1000]);
    if let Some(tensor) = tensor(dice, model) {
        let raw = tensor.raw_data.get_or_insert_default();
        raw.resize(raw.len() + count, 0xA5);
    }
}

fn two_fields(dice: &mut Dice, model: &mut ModelProto) {
    let (int, float) = (dice.int(), dice.float());
    if let Some(tensor) = tensor(dice, model) {
        tensor.int64_data.push(int);
        tensor.float_data.push(float);
    }
}

fn other_field(dice: &mut Dice, model: &mut ModelProto) {
    let (int, float) = (dice.int(), dice.float());
    let Some(tensor) = tensor(dice, model) else { return };
    let count = usize::try_from(tensor.dims.iter().product::<i64>().clamp(0, 100)).unwrap();
    tensor.raw_data = None;
    match dice.below(4) {
        0 => tensor.int32_data = vec![i32::try_from(int).unwrap_or(i32::MAX); count],
        1 => tensor.uint64_data = vec![int.cast_unsigned(); count],
        2 => tensor.double_data = vec![f64::from(float); count],
        _ => tensor.int64_data = vec![int; count],
    }
}

fn segment(dice: &mut Dice, model: &mut ModelProto) {
    let (begin, end) = (dice.int(), dice.int());
    if let Some(tensor) = tensor(dice, model) {
        tensor.segment =
            tensor_proto::Segment { begin: Some(begin), end: Some(end), ..tensor_proto::Segment::default() }
                .into();
    }
}

fn strings(dice: &mut Dice, model: &mut ModelProto) {
    let count = dice.below(20);
    if let Some(tensor) = tensor(dice, model) {
        tensor.data_type = Some(ElementType::String.onnx_code());
        tensor.raw_data = None;
        tensor.dims = vec![i64::try_from(count).unwrap()];
        tensor.string_data = vec![vec![0xFF; *dice.pick(&[0, 3, 5000])]; count];
    }
}

fn empty(dice: &mut Dice, model: &mut ModelProto) {
    let size = dice.int();
    if let Some(tensor) = tensor(dice, model) {
        tensor.raw_data = None;
        tensor.int64_data.clear();
        tensor.float_data.clear();
        if dice.chance(50) {
            tensor.dims = vec![0, size];
        }
    }
}

fn drop_tensor(dice: &mut Dice, model: &mut ModelProto) {
    let tensors = &mut graph(dice, model).initializer;
    if !tensors.is_empty() {
        tensors.remove(dice.below(tensors.len()));
    }
}

fn copy_tensor(dice: &mut Dice, model: &mut ModelProto) {
    let name = dice.name();
    let tensors = &mut graph(dice, model).initializer;
    if let Some(mut copy) = dice.pick_mut(tensors).cloned() {
        if dice.chance(70) {
            copy.name = Some(name);
        }
        tensors.push(copy);
    }
}

/// Replaces an initializer, or the values of a constant, by a sparse tensor.
fn sparse(dice: &mut Dice, model: &mut ModelProto) {
    let (index, size) = (dice.int(), dice.int());
    let graph = graph(dice, model);
    let values = match dice.below(graph.initializer.len() + 1) {
        at if at < graph.initializer.len() && dice.chance(50) => graph.initializer.remove(at),
        _ => int64s("sparse", &[2], &[1, 2]),
    };
    let indices = match dice.below(3) {
        0 => int64s("", &[2], &[index, 0]),
        1 => int64s("", &[2, 2], &[0, index, index, 0]),
        _ => TensorProto { dims: vec![size], data_type: Some(7), ..TensorProto::default() },
    };
    let sparse = SparseTensorProto {
        values: values.into(),
        indices: indices.into(),
        dims: vec![size, 1],
        ..SparseTensorProto::default()
    };
    match dice.pick_mut(&mut graph.node) {
        Some(node) if dice.chance(60) => {
            if let Some(attribute) = dice.pick_mut(&mut node.attribute) {
                attribute.t = None.into();
                attribute.sparse_tensor = sparse.into();
            }
        }
        _ => graph.sparse_initializer.push(sparse),
    }
}

fn of_input(dice: &mut Dice, model: &mut ModelProto) {
    let (size, value) = (dice.int(), dice.int());
    let graph = graph(dice, model);
    let Some(name) = dice.pick_mut(&mut graph.input).and_then(|input| input.name.clone()) else { return };
    let tensor = if dice.chance(50) { int64s(&name, &[1], &[value]) } else { int64s(&name, &[size, 0], &[]) };
    graph.initializer.push(tensor);
}

fn annotations(dice: &mut Dice, model: &mut ModelProto) {
    let names: Vec<_> = (0..4).map(|_| dice.name()).collect();
    let graph = graph(dice, model);
    let entries = names.iter().map(|name| entry(name, name)).collect();
    graph.quantization_annotation.push(TensorAnnotation {
        tensor_name: names.first().cloned(),
        quant_parameter_tensor_names: entries,
        ..TensorAnnotation::default()
    });
}
