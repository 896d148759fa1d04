//! Changes the dimensions that are declared.

use kvscatter_onnx::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::{ModelProto, TensorShapeProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{declaration, main_graph, tensor_type};

pub(super) const ALL: &[Trick] = &[
    ("another size", size),
    ("another size", size),
    ("another size of every dimension with a symbol", size_of_symbol),
    ("another symbol", symbol),
    ("one symbol for everything", one_symbol),
    ("an unknown dimension", unknown),
    ("no shape", no_shape),
    ("a dimension less", less),
    ("a dimension more", more),
    ("many dimensions", many),
    ("dimensions in another order", swap),
    ("a product that overflows", overflow),
];

fn dim<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut Dimension> {
    let value = declaration(dice, model)?;
    dice.pick_mut(&mut tensor_type(value).shape.get_or_insert_default().dim)
}

fn size(dice: &mut Dice, model: &mut ModelProto) {
    let size = dice.int();
    if let Some(dim) = dim(dice, model) {
        dim.value = Some(DimValue::DimValue(size));
    }
}

fn size_of_symbol(dice: &mut Dice, model: &mut ModelProto) {
    let size = dice.int();
    let Some(DimValue::DimParam(symbol)) = dim(dice, model).and_then(|dim| dim.value.clone()) else { return };
    let graph = main_graph(model);
    for value in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
        for dim in &mut tensor_type(value).shape.get_or_insert_default().dim {
            if dim.value == Some(DimValue::DimParam(symbol.clone())) {
                dim.value = Some(DimValue::DimValue(size));
            }
        }
    }
}

fn symbol(dice: &mut Dice, model: &mut ModelProto) {
    let name = match dice.below(3) {
        0 => dice.name(),
        _ => (*dice.pick(&["batch", "tokens", "past", "total", "past + tokens", "2 * batch"])).to_owned(),
    };
    if let Some(dim) = dim(dice, model) {
        dim.value = Some(DimValue::DimParam(name));
    }
}

fn one_symbol(_: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    for value in graph.input.iter_mut().chain(&mut graph.output) {
        for dim in &mut tensor_type(value).shape.get_or_insert_default().dim {
            dim.value = Some(DimValue::DimParam("n".to_owned()));
        }
    }
}

fn unknown(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(dim) = dim(dice, model) {
        dim.value = None;
    }
}

fn no_shape(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(value) = declaration(dice, model) {
        tensor_type(value).shape = None.into();
    }
}

fn shape<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut TensorShapeProto> {
    let value = declaration(dice, model)?;
    Some(tensor_type(value).shape.get_or_insert_default())
}

fn less(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(shape) = shape(dice, model)
        && !shape.dim.is_empty()
    {
        shape.dim.remove(dice.below(shape.dim.len()));
    }
}

fn more(dice: &mut Dice, model: &mut ModelProto) {
    let dim = Dimension { value: Some(DimValue::DimValue(dice.int())), ..Dimension::default() };
    if let Some(shape) = shape(dice, model) {
        shape.dim.insert(dice.below(shape.dim.len() + 1), dim);
    }
}

fn many(dice: &mut Dice, model: &mut ModelProto) {
    let (count, size) = (*dice.pick(&[7, 9, 33, 65, 5000]), *dice.pick(&[0, 1, 2, i64::MAX]));
    let dim = Dimension { value: Some(DimValue::DimValue(size)), ..Dimension::default() };
    if let Some(shape) = shape(dice, model) {
        shape.dim.extend(std::iter::repeat_n(dim, count));
    }
}

fn swap(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(shape) = shape(dice, model)
        && !shape.dim.is_empty()
    {
        let (left, right) = (dice.below(shape.dim.len()), dice.below(shape.dim.len()));
        shape.dim.swap(left, right);
    }
}

fn overflow(dice: &mut Dice, model: &mut ModelProto) {
    let sizes =
        *dice.pick(&[[1 << 32, 1 << 32], [i64::MAX, 2], [i64::MAX, 0], [1 << 62, 3], [1 << 31, 1 << 30]]);
    if let Some(shape) = shape(dice, model) {
        for (dim, size) in shape.dim.iter_mut().rev().zip(sizes) {
            dim.value = Some(DimValue::DimValue(size));
        }
    }
}
