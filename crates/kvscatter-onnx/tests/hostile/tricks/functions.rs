//! Moves nodes into functions of the model, and breaks functions.

use kvscatter_onnx::proto::{FunctionProto, ModelProto, NodeProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{graph, main_graph};
use crate::support::{int, node as new_node, opset};

pub(super) const ALL: &[Trick] = &[
    ("a node in a function", extract),
    ("a node in a function", extract),
    ("a function that calls itself", recursive),
    ("functions that call each other", mutual),
    ("functions that call the next one twice", doubling),
    ("a call of a function that is missing", missing),
    ("a function with the name of an operator", operator),
    ("a function less input", fewer_inputs),
    ("a function twice", twice),
    ("a function without operator sets", without_opsets),
    ("an attribute of a function", attribute),
];

const DOMAIN: &str = "local";

fn import(model: &mut ModelProto) {
    if !model.opset_import.iter().any(|import| import.domain.as_deref() == Some(DOMAIN)) {
        model.opset_import.push(opset(DOMAIN, 1));
    }
}

fn function(
    name: &str,
    model: &ModelProto,
    nodes: Vec<NodeProto>,
    inputs: Vec<String>,
    outputs: Vec<String>,
) -> FunctionProto {
    FunctionProto {
        name: Some(name.to_owned()),
        domain: Some(DOMAIN.to_owned()),
        input: inputs,
        output: outputs,
        node: nodes,
        opset_import: model.opset_import.clone(),
        ..FunctionProto::default()
    }
}

fn call(name: &str, inputs: &[&str], output: &str) -> NodeProto {
    let mut call = new_node(name, inputs, output);
    call.domain = Some(DOMAIN.to_owned());
    call
}

/// Replaces a node by a call of a function with that node.
fn extract(dice: &mut Dice, model: &mut ModelProto) {
    import(model);
    let name = format!("f{}", model.functions.len());
    let graph = graph(dice, model);
    let Some(place) = dice.pick_mut(&mut graph.node) else { return };
    let inner = place.clone();
    let mut inputs: Vec<_> = inner.input.iter().filter(|input| !input.is_empty()).cloned().collect();
    inputs.dedup();
    let outputs = inner.output.clone();
    let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
    *place = call(&name, &names, "");
    place.output.clone_from(&outputs);
    let made = function(&name, model, vec![inner], inputs, outputs);
    model.functions.push(made);
}

/// Adds functions of one input and one output, and calls the first between a value and one of its readers.
fn add(dice: &mut Dice, model: &mut ModelProto, made: Vec<FunctionProto>) {
    import(model);
    let Some(name) = made.first().and_then(|function| function.name.clone()) else { return };
    model.functions.extend(made);
    let graph = main_graph(model);
    let at = dice.below(graph.node.len());
    let Some(reader) = graph.node.get_mut(at) else { return };
    let Some(input) = dice.pick_mut(&mut reader.input) else { return };
    let old = std::mem::replace(input, "called".to_owned());
    graph.node.insert(at, call(&name, &[&old], "called"));
}

fn of_nodes(name: &str, model: &ModelProto, nodes: Vec<NodeProto>) -> FunctionProto {
    let mut made = function(name, model, nodes, vec!["a".to_owned()], vec!["z".to_owned()]);
    made.opset_import.retain(|import| import.domain.as_deref() != Some(DOMAIN));
    made.opset_import.push(opset(DOMAIN, 1));
    made
}

fn recursive(dice: &mut Dice, model: &mut ModelProto) {
    let made = of_nodes("again", model, vec![call("again", &["a"], "z")]);
    add(dice, model, vec![made]);
}

fn mutual(dice: &mut Dice, model: &mut ModelProto) {
    let count = *dice.pick(&[2, 3, 40]);
    let made = (0..count).map(|at| {
        let next = format!("m{}", (at + 1) % count);
        of_nodes(&format!("m{at}"), model, vec![call(&next, &["a"], "z")])
    });
    let made = made.collect();
    add(dice, model, made);
}

fn doubling(dice: &mut Dice, model: &mut ModelProto) {
    let count = *dice.pick(&[4, 10, 14, 15, 30, 200]);
    let made = (0..=count).map(|at| {
        let next = format!("d{}", at + 1);
        let nodes = match at < count {
            true => vec![call(&next, &["a"], "b"), call(&next, &["b"], "z")],
            false => vec![new_node("Identity", &["a"], "z")],
        };
        of_nodes(&format!("d{at}"), model, nodes)
    });
    let made = made.collect();
    add(dice, model, made);
}

fn missing(dice: &mut Dice, model: &mut ModelProto) {
    import(model);
    let graph = graph(dice, model);
    if let Some(node) = dice.pick_mut(&mut graph.node) {
        node.domain = Some(DOMAIN.to_owned());
    }
}

/// Adds a function that has the name of an operator of the model.
fn operator(dice: &mut Dice, model: &mut ModelProto) {
    let Some(node) = dice.pick_mut(&mut main_graph(model).node).cloned() else { return };
    let nodes = vec![new_node("Identity", &["a"], "z")];
    let mut made = of_nodes(node.op_type.as_deref().unwrap_or_default(), model, nodes);
    made.domain = node.domain;
    model.functions.push(made);
}

fn fewer_inputs(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(function) = dice.pick_mut(&mut model.functions) {
        match dice.below(4) {
            0 => function.input.clear(),
            1 => function.output.clear(),
            2 => function.input.push("a".to_owned()),
            _ => function.node.clear(),
        }
    }
}

fn twice(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(function) = dice.pick_mut(&mut model.functions).cloned() {
        model.functions.push(function);
    }
}

fn without_opsets(dice: &mut Dice, model: &mut ModelProto) {
    let (domain, version) = (dice.name(), dice.int());
    if let Some(function) = dice.pick_mut(&mut model.functions) {
        match dice.below(3) {
            0 => function.opset_import.clear(),
            1 => function.opset_import.push(opset(&domain, version)),
            _ => function.opset_import.iter_mut().for_each(|import| import.version = Some(version)),
        }
    }
}

fn attribute(dice: &mut Dice, model: &mut ModelProto) {
    let (name, value) = (dice.name(), dice.int());
    if let Some(function) = dice.pick_mut(&mut model.functions) {
        function.attribute.push("axis".to_owned());
        function.attribute_proto.push(int(&name, value));
        for attribute in function.node.iter_mut().flat_map(|node| &mut node.attribute) {
            attribute.ref_attr_name = Some("axis".to_owned());
        }
    }
}
