//! Graphs of `TensorScatter`, `Identity`, `Add` and `Constant`, which the crate evaluates itself.

use kvscatter::ElementType;
use kvscatter_onnx::proto::{GraphProto, ModelProto, NodeProto};

use super::dice::Dice;
use crate::support::{float, int, int64, int64s, ints, model as whole, node, string, tensor, value};

/// Makes a graph that is valid in most cases.
pub(super) fn model(dice: &mut Dice) -> ModelProto {
    let mut made = GraphProto::default();
    let batch = dice.below(3) + 1;
    let batch = if dice.chance(50) { batch.to_string() } else { "batch".to_owned() };
    made.input.push(value("write_indices", ElementType::Int64, &[&batch]));
    let mut indices = vec!["write_indices".to_owned()];
    for at in 0..dice.below(3) {
        let index = index(dice, &mut made, &indices, at);
        indices.push(index);
    }
    for layer in 0..=dice.below(4) {
        cache(dice, &mut made, &batch, &indices, layer);
    }
    let mut model = whole(made.input, made.node, made.output).proto().clone();
    model.graph.get_or_insert_default().initializer = made.initializer;
    model
}

/// Adds a value that can be used as `write_indices`.
fn index(dice: &mut Dice, graph: &mut GraphProto, known: &[String], at: usize) -> String {
    let (name, from) = (format!("index{at}"), dice.pick(known).clone());
    if dice.chance(8) {
        wrong_index(dice, graph, &from, &name);
        return name;
    }
    match dice.below(5) {
        0 => graph.node.push(node("Identity", &[&from], &name)),
        1 => {
            let mut constant = node("Constant", &[], &name);
            constant.attribute = vec![ints("value_ints", &[0])];
            graph.node.push(constant);
        }
        2 => graph.initializer.push(int64s(&name, &[1], &[0])),
        3 => {
            graph.initializer.push(int64s(
                &format!("{name}_offset"),
                &[],
                &[i64::try_from(dice.below(3)).unwrap()],
            ));
            graph.node.push(node("Add", &[&from, &format!("{name}_offset")], &name));
        }
        _ => {
            let mut constant = node("Constant", &[], &format!("{name}_offset"));
            constant.attribute = vec![tensor("value", &int64(&[1], &[1]))];
            graph.node.extend([constant, node("Add", &[&format!("{name}_offset"), &from], &name)]);
        }
    }
    name
}

/// Adds a value that breaks a rule of `Add` or `Constant`.
fn wrong_index(dice: &mut Dice, graph: &mut GraphProto, from: &str, name: &str) {
    let other = format!("{name}_other");
    let mut constant = node("Constant", &[], &other);
    constant.attribute = match dice.below(5) {
        0 => vec![float("value_float", 1.5)],
        1 => vec![ints("value_ints", &[1; 7])],
        2 => vec![ints("value_ints", &[1]), int("value_int", 1)],
        3 => vec![string("value_string", "circular")],
        _ => vec![],
    };
    let left = if dice.chance(50) { from } else { &other };
    graph.node.extend([constant, node("Add", &[left, &other], name)]);
}

/// Adds a cache with one to three writes.
fn cache(dice: &mut Dice, graph: &mut GraphProto, batch: &str, indices: &[String], layer: usize) {
    let element = match dice.below(3) {
        0 => ElementType::Float32,
        1 => ElementType::Float16,
        _ => *dice.pick(&ElementType::ALL),
    };
    let rank = 2 + dice.below(4);
    let axis = 1 + dice.below(rank - 1);
    let mut dims: Vec<String> = (0..rank).map(|_| (1 + dice.below(4)).to_string()).collect();
    batch.clone_into(&mut dims[0]);
    dims[axis] = (8 + dice.below(9)).to_string();
    if dice.chance(20) {
        dims[axis] = "slots".to_owned();
    }
    let past = format!("past{layer}");
    graph.input.push(value(&past, element, &borrowed(&dims)));
    let mut update = dims.clone();
    let mut last = past;
    for write in 0..=dice.below(3) {
        let new = format!("new{layer}_{write}");
        update[axis] = (1 + dice.below(2)).to_string();
        graph.input.push(value(&new, element, &borrowed(&update)));
        let present = format!("present{layer}_{write}");
        let mut scatter = scatter(dice, axis, rank);
        let index = if dice.chance(85) { dice.pick(indices).as_str() } else { "" };
        scatter.input = [&last, &new, index].map(str::to_owned).to_vec();
        if index.is_empty() && dice.chance(50) {
            scatter.input.pop();
        }
        scatter.output = vec![present.clone()];
        graph.node.push(scatter);
        last = present;
    }
    if dice.chance(30) {
        let copy = format!("copy{layer}");
        graph.node.push(node("Identity", &[&last], &copy));
        last = copy;
    }
    graph.output.push(value(&last, element, &borrowed(&dims)));
}

fn scatter(dice: &mut Dice, axis: usize, rank: usize) -> NodeProto {
    let mut scatter = node("TensorScatter", &[], "");
    let (axis, rank) = (i64::try_from(axis).unwrap(), i64::try_from(rank).unwrap());
    if axis != rank - 2 || dice.chance(50) {
        scatter.attribute.push(int("axis", if dice.chance(50) { axis } else { axis - rank }));
    }
    if dice.chance(40) {
        scatter.attribute.push(string("mode", if dice.chance(80) { "circular" } else { "linear" }));
    }
    scatter
}

fn borrowed(dims: &[String]) -> Vec<&str> {
    dims.iter().map(String::as_str).collect()
}
