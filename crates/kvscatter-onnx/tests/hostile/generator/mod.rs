//! Makes hostile files: a decoder or another graph with a few changes.
//!
//! The test, the run by hand and the fuzz target use this generator. Each file follows from its [`Dice`].

mod bases;
pub(crate) mod dice;
mod fields;
mod graphs;
mod scatters;
mod tree;
mod words;

use kvscatter_onnx::internal::proto;

use bases::Base;
use dice::Dice;
use tree::Message;

/// A change with its name, and how frequent it is. It does nothing if the model lacks what it changes.
type Change<M> = (&'static str, usize, fn(&mut Dice, &mut M));

/// A hostile file and how it was made.
pub(crate) struct Case {
    pub(crate) bytes: Vec<u8>,
    /// The contents of the file with the values, if the model has one.
    pub(crate) data: Option<&'static [u8]>,
    /// Whether a tensor names a file outside of the folder, so that the model must be refused.
    pub(crate) leads_out: bool,
    base: String,
    changes: Vec<&'static str>,
}

impl Case {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let Base { name, model, data } = Base::new(dice);
        let count = match dice.below(100) {
            0..=9 => 0,
            10..=49 => 1,
            50..=74 => 2,
            75..=94 => 3 + dice.below(3),
            _ => 6 + dice.below(10),
        };
        let of_fields = (0..count).filter(|_| dice.chance(50)).count();
        let mut model = proto::decode(&model).unwrap();
        let mut changes = change(dice, graphs::ALL, count - of_fields, &mut model);
        let mut root = Message::decode("Model", &proto::encode(&model).unwrap());
        changes.extend(change(dice, fields::ALL, of_fields, &mut root));
        let mut leads_out = leads_out(&root);
        let mut bytes = root.encode();
        if dice.chance(4) {
            // The bytes may make another model.
            leads_out = false;
            changes.push("other bytes");
            change_bytes(dice, &mut bytes);
        }
        Self { bytes, data, leads_out, base: name, changes }
    }

    /// Describes how the file was made.
    pub(crate) fn describe(&self) -> String {
        let Self { bytes, base, changes, .. } = self;
        format!("{} bytes, {base} with {changes:?}", bytes.len())
    }
}

/// Makes changes, and returns their names.
fn change<M>(dice: &mut Dice, all: &[Change<M>], count: usize, model: &mut M) -> Vec<&'static str> {
    let all: Vec<_> = all.iter().flat_map(|change| std::iter::repeat_n(change, change.1)).collect();
    let names = (0..count).map(|_| {
        let (name, _, change) = **dice.pick(&all);
        change(dice, model);
        name
    });
    names.collect()
}

/// Returns `true` if a tensor with values in another file names a location outside of the folder. Returns `false` for a
/// model with two copies of a field that may have one, because readers merge them.
fn leads_out(root: &Message) -> bool {
    let single = ["graph", "algorithm", "initialization", "g", "t", "sparse_tensor", "values", "indices"];
    let (mut found, mut is_merged) = (false, false);
    root.visit(&mut |message| {
        is_merged |= single.iter().any(|name| message.places(name).len() > 1);
        let location = message.all("external_data").find(|entry| entry.text("key") == "location");
        let location = location.map(|entry| entry.text("value")).unwrap_or_default();
        let is_external = message.int("data_location") == Some(1);
        found |= is_external && words::OUTSIDE.split('|').any(|outside| outside == location);
    });
    found && !is_merged
}

fn change_bytes(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.extend_from_within(at..),
            2 => drop(bytes.splice(at..at, [0x3A, 0x80, 0x80, 0x80, 0x08])),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let byte = bytes.get_mut(at);
                byte.into_iter().for_each(|byte| *byte ^= u8::try_from(1 + dice.below(255)).unwrap());
            }
        }
    }
}
