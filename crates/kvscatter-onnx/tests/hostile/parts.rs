//! Chooses parts of a model, also inside of nested graphs and functions.

use kvscatter_onnx::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};

use crate::dice::Dice;

pub(crate) fn main_graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.get_or_insert_default()
}

/// Chooses the graph of a model or, less often, a graph in one of its nodes.
pub(crate) fn graph<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> &'m mut GraphProto {
    nested(dice, main_graph(model))
}

fn nested<'m>(dice: &mut Dice, graph: &'m mut GraphProto) -> &'m mut GraphProto {
    let holders: Vec<_> =
        (0..graph.node.len()).filter(|&at| graph.node[at].attribute.iter().any(holds)).collect();
    if holders.is_empty() || dice.chance(50) {
        return graph;
    }
    let node = &mut graph.node[*dice.pick(&holders)];
    let mut bodies: Vec<_> =
        node.attribute.iter_mut().filter(|it| holds(it)).map(|it| it.g.get_or_insert_default()).collect();
    let at = dice.below(bodies.len());
    nested(dice, bodies.swap_remove(at))
}

fn holds(attribute: &AttributeProto) -> bool {
    attribute.g.is_set()
}

/// Chooses a node of a graph or, if there are functions, of a function in some cases.
pub(crate) fn node<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut NodeProto> {
    if !model.functions.is_empty() && dice.chance(30) {
        let function = dice.pick_mut(&mut model.functions)?;
        return dice.pick_mut(&mut function.node);
    }
    let graph = graph(dice, model);
    dice.pick_mut(&mut graph.node)
}

/// Returns the names of all values of a graph, or a name that none has.
pub(crate) fn values(graph: &GraphProto) -> Vec<String> {
    let declared = graph.input.iter().filter_map(|input| input.name.clone());
    let stored = graph.initializer.iter().filter_map(|tensor| tensor.name.clone());
    let made = graph.node.iter().flat_map(|node| node.output.clone());
    let mut names: Vec<_> = declared.chain(stored).chain(made).filter(|name| !name.is_empty()).collect();
    if names.is_empty() {
        names.push("none".to_owned());
    }
    names
}

/// Chooses the declaration of an input, an output or another value.
pub(crate) fn declaration<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut ValueInfoProto> {
    let graph = graph(dice, model);
    match dice.below(5) {
        0..=2 => dice.pick_mut(&mut graph.input),
        3 => dice.pick_mut(&mut graph.output),
        _ => dice.pick_mut(&mut graph.value_info),
    }
}

/// Returns the tensor type of a declaration. A declaration of another kind becomes a tensor.
pub(crate) fn tensor_type(value: &mut ValueInfoProto) -> &mut type_proto::Tensor {
    let ty = value.r#type.get_or_insert_default();
    if !matches!(ty.value, Some(TypeValue::TensorType(_))) {
        ty.value = Some(TypeValue::TensorType(Box::default()));
    }
    let Some(TypeValue::TensorType(tensor)) = &mut ty.value else { unreachable!("set above") };
    tensor
}

/// Chooses an initializer, or the value of a constant.
pub(crate) fn tensor<'m>(dice: &mut Dice, model: &'m mut ModelProto) -> Option<&'m mut TensorProto> {
    let graph = graph(dice, model);
    let constants = graph.node.iter_mut().flat_map(|node| &mut node.attribute).filter(|it| it.t.is_set());
    let constants = constants.map(|it| it.t.get_or_insert_default());
    let mut all: Vec<_> = graph.initializer.iter_mut().chain(constants).collect();
    // Small tensors are shapes, axes and bounds, which matter more than weights.
    if dice.chance(60) && all.iter().any(|it| is_small(it)) {
        all.retain(|it| is_small(it));
    }
    if all.is_empty() {
        return None;
    }
    let at = dice.below(all.len());
    Some(all.swap_remove(at))
}

fn is_small(tensor: &TensorProto) -> bool {
    tensor.dims.iter().all(|&dim| dim <= 8) && tensor.dims.len() < 2
}
