//! Changes which values nodes read and write, and the order of the nodes.

use kvscatter_onnx::proto::{GraphProto, ModelProto, ValueInfoProto};

use super::Trick;
use crate::dice::Dice;
use crate::parts::{graph, main_graph, node, values};
use crate::support::node as new_node;

pub(super) const ALL: &[Trick] = &[
    ("a cycle", cycle),
    ("an input of itself", own_input),
    ("another input", rewire),
    ("another input", rewire),
    ("an unknown input", unknown_input),
    ("inputs in another order", swap_inputs),
    ("fewer inputs", cut_inputs),
    ("more inputs", more_inputs),
    ("an absent input", absent_input),
    ("fewer outputs", cut_outputs),
    ("a name twice", name_twice),
    ("nodes in another order", swap_nodes),
    ("a node less", drop_node),
    ("a node twice", copy_node),
    ("a layer twice", copy_layer),
    ("a declaration less", drop_declaration),
    ("an output of another value", other_output),
    ("an output that is an input", output_of_input),
    ("another name", rename),
    ("another name", rename),
    ("a chain", chain),
    ("a node of everything", fan),
];

fn cycle(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let count = graph.node.len();
    let from = dice.below(count);
    let Some(later) = graph.node.get(from + dice.below(count - from)).and_then(|node| node.output.first())
    else {
        return;
    };
    let later = later.clone();
    if let Some(input) = dice.pick_mut(&mut graph.node[from].input) {
        *input = later;
    }
}

fn own_input(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model)
        && let Some(output) = node.output.first()
    {
        node.input.push(output.clone());
    }
}

fn rewire(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let at = dice.below(graph.node.len());
    // The values before the node keep the order valid in most cases.
    let mut known = graph.clone();
    if dice.chance(80) {
        known.node.truncate(at);
    }
    let known = values(&known);
    if let Some(node) = graph.node.get_mut(at)
        && let Some(input) = dice.pick_mut(&mut node.input)
        && !known.is_empty()
    {
        dice.pick(&known).clone_into(input);
    }
}

fn unknown_input(dice: &mut Dice, model: &mut ModelProto) {
    let name = dice.name();
    if let Some(node) = node(dice, model)
        && let Some(input) = dice.pick_mut(&mut node.input)
    {
        *input = name;
    }
}

fn swap_inputs(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model)
        && !node.input.is_empty()
    {
        let (left, right) = (dice.below(node.input.len()), dice.below(node.input.len()));
        node.input.swap(left, right);
    }
}

fn cut_inputs(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model) {
        node.input.truncate(dice.below(node.input.len() + 1));
    }
}

fn more_inputs(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model)
        && let Some(input) = node.input.first().cloned()
    {
        let count = *dice.pick(&[1, 1, 2, 9, 100]);
        node.input.extend(std::iter::repeat_n(input, count));
    }
}

fn absent_input(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model)
        && let Some(input) = dice.pick_mut(&mut node.input)
    {
        input.clear();
    }
}

fn cut_outputs(dice: &mut Dice, model: &mut ModelProto) {
    if let Some(node) = node(dice, model) {
        node.output.truncate(dice.below(node.output.len() + 1));
    }
}

fn name_twice(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let known = values(graph);
    if let Some(node) = dice.pick_mut(&mut graph.node)
        && let Some(output) = dice.pick_mut(&mut node.output)
        && !known.is_empty()
    {
        dice.pick(&known).clone_into(output);
    }
}

fn swap_nodes(dice: &mut Dice, model: &mut ModelProto) {
    let nodes = &mut graph(dice, model).node;
    if !nodes.is_empty() {
        let at = dice.below(nodes.len());
        let other = if dice.chance(50) { (at + 1) % nodes.len() } else { dice.below(nodes.len()) };
        nodes.swap(at, other);
    }
}

fn drop_node(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    if graph.node.is_empty() {
        return;
    }
    let node = graph.node.remove(dice.below(graph.node.len()));
    // The readers of the node read its first input instead in most cases.
    if let (Some(from), Some(to)) = (node.output.first(), node.input.first())
        && dice.chance(80)
    {
        for input in graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|input| *input == from) {
            to.clone_into(input);
        }
    }
}

fn copy_node(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    if graph.node.is_empty() {
        return;
    }
    let at = dice.below(graph.node.len());
    let mut copy = graph.node[at].clone();
    if dice.chance(90) {
        copy.output.iter_mut().for_each(|output| output.push_str("_copy"));
    }
    graph.node.insert(at + 1, copy);
}

/// Appends the nodes again, with other names of their values.
fn copy_layer(dice: &mut Dice, model: &mut ModelProto) {
    let graph = main_graph(model);
    if graph.node.len() > 200 {
        return;
    }
    let own = |graph: &GraphProto| graph.node.iter().flat_map(|node| node.output.clone()).collect::<Vec<_>>();
    let made = own(graph);
    let mut copies = graph.node.clone();
    for name in copies.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
        if made.contains(name) {
            name.push_str("_2");
        }
    }
    graph.node.extend(copies);
    if dice.chance(50) {
        let outputs = graph.output.clone();
        graph.output.extend(
            outputs
                .into_iter()
                .map(|output| ValueInfoProto { name: output.name.map(|name| name + "_2"), ..output }),
        );
    }
}

fn drop_declaration(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let list = if dice.chance(50) { &mut graph.output } else { &mut graph.input };
    if !list.is_empty() {
        list.remove(dice.below(list.len()));
    }
}

fn other_output(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let known = values(graph);
    if let Some(output) = dice.pick_mut(&mut graph.output)
        && !known.is_empty()
    {
        output.name = Some(dice.pick(&known).clone());
    }
}

fn output_of_input(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    if let Some(input) = dice.pick_mut(&mut graph.input) {
        graph.output.push(input.clone());
    }
}

/// Renames a value everywhere in its graph.
fn rename(dice: &mut Dice, model: &mut ModelProto) {
    let name = dice.name();
    let graph = graph(dice, model);
    let known = values(graph);
    if known.is_empty() {
        return;
    }
    let old = dice.pick(&known).clone();
    let declared = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    let declared = declared.filter_map(|value| value.name.as_mut());
    let stored = graph.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut());
    let used = graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
    for place in declared.chain(stored).chain(used).filter(|place| **place == old) {
        name.clone_into(place);
    }
}

fn chain(dice: &mut Dice, model: &mut ModelProto) {
    let operator = *dice.pick(&["Identity", "Neg", "Cast", "Unsqueeze", "Shape"]);
    let count = *dice.pick(&[3, 50, 2000]);
    let graph = graph(dice, model);
    let known = values(graph);
    if known.is_empty() {
        return;
    }
    let mut last = dice.pick(&known).clone();
    for at in 0..count {
        let next = format!("chain{at}");
        graph.node.push(new_node(operator, &[&last], &next));
        last = next;
    }
    if let Some(output) = dice.pick_mut(&mut graph.output) {
        output.name = Some(last);
    }
}

fn fan(dice: &mut Dice, model: &mut ModelProto) {
    let graph = graph(dice, model);
    let known = values(graph);
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let operator = *dice.pick(&["Sum", "Concat", "Attention", "Max", "Odd"]);
    graph.node.push(new_node(operator, &known, "fan"));
    if let Some(output) = graph.output.first().cloned() {
        graph.output.push(ValueInfoProto { name: Some("fan".to_owned()), ..output });
    }
}
