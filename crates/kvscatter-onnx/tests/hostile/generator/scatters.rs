//! Graphs of `TensorScatter`, `Identity`, `Add` and `Constant`, which the crate evaluates itself.

use kvscatter::ElementType;
use kvscatter_onnx::Model;

use super::dice::Dice;
use crate::support::parsed;

/// The texts of a graph while it is made.
#[derive(Default)]
struct Texts {
    inputs: String,
    nodes: String,
    outputs: String,
}

/// Makes a graph that is valid in most cases.
pub(super) fn model(dice: &mut Dice) -> Model {
    let batch = dice.below(3) + 1;
    let batch = if dice.chance(50) { batch.to_string() } else { "batch".to_owned() };
    let mut made = Texts { inputs: format!("write_indices: int64[{batch}]"), ..Texts::default() };
    let mut indices = vec!["write_indices".to_owned()];
    for at in 0..dice.below(3) {
        let (name, from) = (format!("index{at}"), dice.pick(&indices).clone());
        made.nodes += &index(dice, &from, &name);
        indices.push(name);
    }
    for layer in 0..=dice.below(4) {
        cache(dice, &mut made, &batch, &indices, layer);
    }
    parsed(&made.inputs, &made.nodes, &made.outputs)
}

/// Returns nodes that make a value that can be used as `write_indices` in most cases.
fn index(dice: &mut Dice, from: &str, name: &str) -> String {
    if dice.chance(8) {
        // The value breaks a rule of `Add` or `Constant`.
        let other = format!("{name}_other");
        let attributes = [
            "value_float=1.5",
            "value_ints=[1, 1, 1, 1, 1, 1, 1]",
            "value_ints=[1], value_int=1",
            "value_string=\"circular\"",
            "",
        ];
        let attributes = dice.pick(&attributes);
        let left = if dice.chance(50) { from } else { &other };
        return format!("{other} = Constant() {{{attributes}}}; {name} = Add({left}, {other});");
    }
    match dice.below(5) {
        0 => format!("{name} = Identity({from});"),
        1 => format!("{name} = Constant() {{value_ints=[0]}};"),
        2 => format!("{name} = [0];"),
        3 => format!("{name} = Add({from}, {});", dice.below(3)),
        _ => format!("{name} = Add(Constant() {{value=int64[1]}}, {from});"),
    }
}

/// Adds a cache with one to three writes.
fn cache(dice: &mut Dice, made: &mut Texts, batch: &str, indices: &[String], layer: usize) {
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
    let cache = format!("{element}[{}]", dims.join(", "));
    let mut last = format!("past{layer}");
    made.inputs += &format!(", {last}: {cache}");
    for write in 0..=dice.below(3) {
        let (new, present) = (format!("new{layer}_{write}"), format!("present{layer}_{write}"));
        dims[axis] = (1 + dice.below(2)).to_string();
        made.inputs += &format!(", {new}: {element}[{}]", dims.join(", "));
        let index = match dice.below(100) {
            0..85 => format!(", {}", dice.pick(indices)),
            85..92 => ", _".to_owned(),
            _ => String::new(),
        };
        let attributes = attributes(dice, axis, rank);
        made.nodes += &format!("{present} = TensorScatter({last}, {new}{index}) {{{attributes}}};");
        last = present;
    }
    if dice.chance(30) {
        made.nodes += &format!("copy{layer} = Identity({last});");
        last = format!("copy{layer}");
    }
    made.outputs += &format!("{last}: {cache}");
}

fn attributes(dice: &mut Dice, axis: usize, rank: usize) -> String {
    let (axis, rank) = (i64::try_from(axis).unwrap(), i64::try_from(rank).unwrap());
    let mut attributes = String::new();
    if axis != rank - 2 || dice.chance(50) {
        attributes = format!("axis={}, ", if dice.chance(50) { axis } else { axis - rank });
    }
    if dice.chance(40) {
        attributes += if dice.chance(80) { "mode=\"circular\"" } else { "mode=\"linear\"" };
    }
    attributes
}
