//! One hostile file, made from a seed.

use kvscatter_onnx::proto;

use crate::bases::Base;
use crate::dice::Dice;
use crate::tricks;

/// A hostile file and how it was made.
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) bytes: Vec<u8>,
    /// The contents of the file with the values, if the model has one.
    pub(crate) data: Option<&'static [u8]>,
    /// Whether a tensor names a file outside of the folder, so that the model must be refused.
    pub(crate) leads_out: bool,
    base: String,
    tricks: Vec<&'static str>,
}

impl Case {
    pub(crate) fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let Base { name, mut model, data } = Base::new(&mut dice);
        let mut tricks = tricks::apply(&mut dice, &mut model);
        let mut leads_out = tricks::leads_out(&model);
        let mut bytes = proto::encode(&model).expect("the model is small");
        if dice.chance(4) {
            // The bytes may make another model.
            leads_out = false;
            tricks.push("other bytes");
            change_bytes(&mut dice, &mut bytes);
        }
        Self { seed, bytes, data, leads_out, base: name, tricks }
    }

    /// Describes how the file was made.
    pub(crate) fn describe(&self) -> String {
        let Self { seed, bytes, base, tricks, .. } = self;
        format!("seed {seed}: {} bytes, {base} with {tricks:?}", bytes.len())
    }
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
