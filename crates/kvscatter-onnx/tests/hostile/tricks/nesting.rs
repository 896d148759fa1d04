//! Puts nodes into the bodies of other nodes.

use kvscatter::ElementType;
use kvscatter_onnx::proto::{ModelProto, ValueInfoProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{graph, main_graph, values};
use crate::support::{graph as body, node as new_node, value};

pub(super) const ALL: &[Trick] = &[
    ("a node in a body", wrap),
    ("a node in nested bodies", wrap_deeply),
    ("bodies beyond every limit", too_deep),
    ("everything in a branch", merge),
    ("everything in a branch", merge),
    ("a branch with inputs", inputs),
    ("a name of the outer graph again", shadow),
    ("a body that reads a later value", later),
    ("a body without a graph", without_graph),
    ("several bodies of one attribute", several),
];

const HOLDERS: [(&str, &[&str]); 4] = [
    ("If", &["then_branch", "else_branch"]),
    ("Loop", &["body"]),
    ("Scan", &["body"]),
    ("SequenceMap", &["body"]),
];

fn wrap(dice: &mut Dice, model: &mut ModelProto) {
    nest(dice, model, 1);
}

fn wrap_deeply(dice: &mut Dice, model: &mut ModelProto) {
    let depth = 2 + dice.below(20);
    nest(dice, model, depth);
}

fn too_deep(dice: &mut Dice, model: &mut ModelProto) {
    let depth = 25 + dice.below(100);
    nest(dice, model, depth);
}

/// Replaces a node by a node with a body, whose innermost body has the node.
fn nest(dice: &mut Dice, model: &mut ModelProto, depth: usize) {
    let (operator, bodies) = *dice.pick(&HOLDERS);
    let graph = graph(dice, model);
    let condition = values(graph).first().cloned().unwrap_or_default();
    let Some(place) = dice.pick_mut(&mut graph.node) else { return };
    let outputs = place.output.clone();
    let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let mut inner = std::mem::take(place);
    for level in 0..depth {
        let bodies = if level < 12 { bodies } else { &bodies[..1] };
        let mut holder = new_node(operator, &[&condition], "");
        holder.output.clone_from(&outputs);
        let first = body(bodies[0], vec![inner], &names);
        // Only the first body is nested, or the number of nodes would double in each level.
        let others = bodies[1..].iter().map(|name| {
            body(name, vec![new_node("Neg", &[&condition], names.first().unwrap_or(&""))], &names)
        });
        holder.attribute = std::iter::once(first).chain(others).collect();
        inner = holder;
    }
    *place = inner;
}

/// Moves all nodes into one branch of an `If`, as exporters of merged decoders do.
fn merge(dice: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    let outputs: Vec<String> = graph.output.iter().filter_map(|output| output.name.clone()).collect();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let first = graph.input.first().and_then(|input| input.name.clone()).unwrap_or_default();
    let nodes = std::mem::take(&mut graph.node);
    let other = match dice.below(3) {
        0 => nodes.clone(),
        _ => outputs.iter().map(|output| new_node("Neg", &[&first], output)).collect(),
    };
    let mut choice = new_node("If", &["merged"], "");
    choice.output = outputs.iter().map(|&output| output.to_owned()).collect();
    choice.attribute = vec![body("then_branch", nodes, &outputs), body("else_branch", other, &outputs)];
    if dice.chance(30) {
        choice.attribute.swap(0, 1);
    }
    if dice.chance(20) {
        let initializers = std::mem::take(&mut graph.initializer);
        choice.attribute[0].g.get_or_insert_default().initializer = initializers;
    }
    graph.node = vec![choice];
    graph.input.push(value("merged", ElementType::Bool, &["1"]));
}

fn inputs(dice: &mut Dice, model: &mut ModelProto) {
    let count = 1 + dice.below(3);
    let body = graph(dice, model);
    for at in 0..count {
        let name = Some(format!("input{at}"));
        body.input.push(ValueInfoProto { name, ..ValueInfoProto::default() });
    }
}

/// Defines a name of the outer graph again inside of a body.
fn shadow(dice: &mut Dice, model: &mut ModelProto) {
    let outer = values(main_graph(model));
    let inner = graph(dice, model);
    if let Some(node) = dice.pick_mut(&mut inner.node)
        && let Some(output) = dice.pick_mut(&mut node.output)
        && !outer.is_empty()
    {
        let name = dice.pick(&outer).clone();
        let old = std::mem::replace(output, name.clone());
        for input in inner.node.iter_mut().flat_map(|node| &mut node.input).filter(|input| **input == old) {
            name.clone_into(input);
        }
    }
}

/// Puts a node with a body first. The body reads a value that a later node makes.
fn later(dice: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    let known = values(graph);
    if known.is_empty() {
        return;
    }
    let read = dice.pick(&known).clone();
    let mut choice = new_node("If", &[dice.pick(&known).as_str()], "choice");
    let branch = |name| body(name, vec![new_node("Neg", &[&read], "inside")], &["inside"]);
    choice.attribute = vec![branch("then_branch"), branch("else_branch")];
    graph.node.insert(dice.below(graph.node.len()).min(1), choice);
}

fn without_graph(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    if let Some(node) = dice.pick_mut(&mut graph.node) {
        let mut attribute = body("then_branch", vec![], &[]);
        if dice.chance(50) {
            attribute.g = None.into();
        }
        node.attribute.push(attribute);
        node.op_type = Some("If".to_owned());
    }
}

fn several(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let copies = graph.node.iter().take(3).cloned().collect::<Vec<_>>();
    if let Some(node) = dice.pick_mut(&mut graph.node) {
        let mut attribute = body("graphs", copies, &[]);
        let one = attribute.g.get_or_insert_default().clone();
        attribute.graphs = vec![one; 1 + dice.below(3)];
        attribute.g = None.into();
        node.attribute.push(attribute);
    }
}
