//! The changes that make a model hostile. Each changes one thing, and keeps the rest of the model as it is.

mod attributes;
mod dims;
mod external;
mod extras;
mod flow;
mod functions;
mod nesting;
mod operators;
mod tensors;
mod types;

use kvscatter_onnx::proto::ModelProto;

use crate::dice::Dice;

pub(crate) use external::leads_out;

/// A change. It does nothing if the model lacks what it changes.
pub(crate) type Trick = (&'static str, fn(&mut Dice, &mut ModelProto));

const KINDS: [&[Trick]; 10] = [
    attributes::ALL,
    dims::ALL,
    extras::ALL,
    external::ALL,
    flow::ALL,
    functions::ALL,
    nesting::ALL,
    operators::ALL,
    tensors::ALL,
    types::ALL,
];

/// Changes a model, and returns the names of the changes.
pub(crate) fn apply(dice: &mut Dice, model: &mut ModelProto) -> Vec<&'static str> {
    let count = match dice.below(100) {
        0..=9 => 0,
        10..=49 => 1,
        50..=74 => 2,
        75..=94 => 3 + dice.below(3),
        _ => 6 + dice.below(10),
    };
    let tricks = (0..count).map(|_| {
        let kind = *dice.pick(&KINDS);
        let (name, change) = *dice.pick(kind);
        change(dice, model);
        name
    });
    tricks.collect()
}
