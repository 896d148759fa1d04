//! What a made-up encoder computes for random texts.

use kvscatter::ElementType;
use kvscatter_oracle::cases::Random;
use kvscatter_session::{EncoderOutputs, EncoderPort, Interface, Tensor, by_name};

/// The outputs of an encoder for a text.
pub(crate) struct Text {
    /// A tensor for each input of the decoder. A mask that is not given to the session is among them.
    pub(crate) outputs: EncoderOutputs,
    pub(crate) positions: Positions,
}

/// The positions of a text, which decide the texts that can be beside it.
#[derive(Clone, Debug)]
pub(crate) struct Positions {
    /// The number of positions in each input.
    lengths: Vec<usize>,
    /// Whether their mask is given.
    are_masked: bool,
}

impl Text {
    /// Returns outputs of random bytes, or `None` for a decoder that takes none.
    pub(crate) fn random(r: &mut Random, interface: &Interface) -> Option<Self> {
        if interface.encoder.is_empty() {
            return None;
        }
        let has_mask = interface.encoder.iter().any(EncoderPort::is_mask);
        let (length, are_masked) = (r.pick(&[3, 3, 3, 1, 4, 7]), has_mask && r.below(4) > 0);
        Some(Self::of_length(r, interface, length, are_masked))
    }

    /// Returns outputs of random bytes for a text of this many positions.
    pub(crate) fn of_length(r: &mut Random, interface: &Interface, length: usize, are_masked: bool) -> Self {
        let (mut outputs, mut lengths) = (EncoderOutputs::new(), Vec::new());
        for port in &interface.encoder {
            // A decoder may shorten the mask as the encoder shortens its positions.
            let length = if port.is_mask() && are_masked { length + r.below(3) } else { length };
            let mut tensor = Tensor::zeros(port.element, &port.shape(1, length)).unwrap();
            if port.is_mask() {
                let mask: Vec<_> = r.many(length, |r| i64::from(!are_masked || r.below(4) > 0));
                tensor = Tensor::integers(port.element, tensor.shape(), &mask).unwrap();
            } else {
                tensor.bytes_mut().fill_with(|| r.below(256) as u8);
            }
            outputs.push((port.name.clone(), tensor));
            lengths.push(length);
        }
        Self { outputs, positions: Positions { lengths, are_masked } }
    }

    /// Changes the keys or the values, so that the decoder does not take them.
    pub(crate) fn spoil(&mut self, r: &mut Random) {
        let is_mask = |at: &usize| self.outputs[*at].1.shape().len() == 2;
        let others: Vec<_> = (0..self.outputs.len()).filter(|at| !is_mask(at)).collect();
        let spoiled = r.pick(&others);
        let (name, tensor) = &mut self.outputs[spoiled];
        match r.below(5) {
            0 => name.push_str(".of.another.model"),
            1 => *tensor = Tensor::zeros(ElementType::Int8, tensor.shape()).unwrap(),
            2 => {
                let mut shape = tensor.shape().to_vec();
                shape[r.below(tensor.shape().len())] += 1;
                *tensor = Tensor::zeros(tensor.element(), &shape).unwrap();
            }
            3 => {
                let again = (name.clone(), Tensor::zeros(tensor.element(), tensor.shape()).unwrap());
                self.outputs.push(again);
            }
            _ => {
                self.outputs.swap_remove(spoiled);
            }
        }
    }

    /// Returns the outputs that the session gets.
    pub(crate) fn given(&self) -> Vec<(&str, &Tensor)> {
        let mut given = by_name(&self.outputs);
        given.retain(|(_, tensor)| self.positions.are_masked || tensor.shape().len() > 2);
        given
    }
}

impl Positions {
    /// Returns `true` if a batch can have both texts.
    pub(crate) fn fit_beside(&self, other: &Self) -> bool {
        self.lengths == other.lengths || (self.are_masked && other.are_masked)
    }

    /// Returns the positions of the same text after it was loaded. A saved sample has its mask.
    pub(crate) fn loaded(&self, interface: &Interface) -> Self {
        Self { are_masked: interface.encoder.iter().any(EncoderPort::is_mask), ..self.clone() }
    }
}
