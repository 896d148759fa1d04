//! Changes the types that are declared.

use kvscatter::ElementType;
use kvscatter_onnx::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::proto::{ModelProto, TypeProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{declaration, main_graph, tensor, tensor_type};

pub(super) const ALL: &[Trick] = &[
    ("another element type", element),
    ("another element type", element),
    ("another element type of a cache", of_cache),
    ("another element type of everything", of_all),
    ("no type", none),
    ("another kind of value", kind),
    ("nested types", nested),
    ("another element type of a tensor", of_tensor),
];

/// Returns one of ONNX's types, or a number that is no type.
fn code(dice: &mut Dice) -> i32 {
    match dice.below(10) {
        0 => *dice.pick(&[0, -1, 14, 15, 24, 25, 26, 27, 28, 99, i32::MAX, i32::MIN]),
        _ => dice.pick(&ElementType::ALL).onnx_code(),
    }
}

fn element(dice: &mut Dice, model: &mut ModelProto) {
    let code = code(dice);
    if let Some(value) = declaration(dice, model) {
        tensor_type(value).elem_type = Some(code);
    }
}

/// Changes the type of an input and of the outputs that had the same type and rank.
fn of_cache(dice: &mut Dice, model: &mut ModelProto) {
    let code = code(dice);
    let graph = main_graph(model);
    let Some(past) = dice.pick_mut(&mut graph.input) else { return };
    let was = tensor_type(past).clone();
    tensor_type(past).elem_type = Some(code);
    for value in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
        let ty = tensor_type(value);
        if ty.elem_type == was.elem_type && ty.shape.dim.len() == was.shape.dim.len() {
            ty.elem_type = Some(code);
        }
    }
}

fn of_all(dice: &mut Dice, model: &mut ModelProto) {
    let code = code(dice);
    let graph = main_graph(model);
    let floats = [ElementType::Float32, ElementType::Float16].map(|element| Some(element.onnx_code()));
    for value in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
        let ty = tensor_type(value);
        if floats.contains(&ty.elem_type) {
            ty.elem_type = Some(code);
        }
    }
}

fn none(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(value) = declaration(dice, model) {
        match dice.below(3) {
            0 => value.r#type = None.into(),
            1 => value.r#type.get_or_insert_default().value = None,
            _ => tensor_type(value).elem_type = None,
        }
    }
}

fn kind(dice: &mut Dice, model: &mut ModelProto) {
    let kind = match dice.below(5) {
        0 => TypeValue::SequenceType(Box::default()),
        1 => TypeValue::MapType(Box::default()),
        2 => TypeValue::OptionalType(Box::default()),
        3 => TypeValue::SparseTensorType(Box::default()),
        _ => TypeValue::OpaqueType(Box::default()),
    };
    if let Some(value) = declaration(dice, model) {
        value.r#type.get_or_insert_default().value = Some(kind);
    }
}

fn nested(dice: &mut Dice, model: &mut ModelProto) {
    let depth = *dice.pick(&[2, 20, 45, 60]);
    let Some(value) = declaration(dice, model) else { return };
    for _ in 0..depth {
        let inner = std::mem::take(&mut value.r#type);
        let outer = type_proto::Sequence { elem_type: inner, ..type_proto::Sequence::default() };
        let outer = TypeValue::SequenceType(Box::new(outer));
        value.r#type = TypeProto { value: Some(outer), ..TypeProto::default() }.into();
    }
}

fn of_tensor(dice: &mut Dice, model: &mut ModelProto) {
    let code = code(dice);
    if let Some(tensor) = tensor(dice, model) {
        tensor.data_type = Some(code);
    }
}
