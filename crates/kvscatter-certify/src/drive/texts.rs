//! The texts that the sequences of an encoder-decoder attend to.
//!
//! An encoder is not needed to compare two decoders. Each sequence has random keys and values in place of the outputs
//! of an encoder, so that a decoder that exchanges samples computes other logits.

use std::hash::{DefaultHasher, Hash, Hasher};

use kvscatter_session::{
    EncoderInputs, EncoderOutputs, EncoderPort, Interface, Session, SessionError, Tensor, by_name,
};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::SeedableRng;

use super::values;

/// The number of positions of a text, if the model leaves it open.
const LENGTH: usize = 9;

/// Returns the number of positions of each text.
pub(crate) fn length(interface: &Interface) -> usize {
    interface.encoder.iter().find_map(EncoderPort::fixed_length).unwrap_or(LENGTH)
}

/// The texts of all sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Texts {
    pub(crate) seed: u64,
}

impl Texts {
    /// Returns the inputs of a batch whose samples attend to the texts of these sequences.
    pub(crate) fn of_batch(
        self,
        session: &dyn Session,
        interface: &Interface,
        sequences: &[usize],
    ) -> Result<EncoderInputs, SessionError> {
        let mut inputs = EncoderInputs::new(interface, sequences.len(), u64::MAX);
        if interface.encoder.is_empty() {
            return Ok(inputs);
        }
        for (sample, sequence) in sequences.iter().enumerate() {
            let outputs = self.of_sequence(interface, *sequence)?;
            inputs.set(session, sample, &by_name(&outputs))?;
        }
        Ok(inputs)
    }

    /// Returns what an encoder might compute for the text of a sequence. The values depend on the names of the inputs,
    /// so they are the same for a model and its original.
    pub(crate) fn of_sequence(
        self,
        interface: &Interface,
        sequence: usize,
    ) -> Result<EncoderOutputs, SessionError> {
        let length = length(interface);
        let tensor = |port: &EncoderPort| {
            let shape = port.shape(1, length);
            if port.is_mask() {
                // The last positions of some texts are padding.
                let real = length.saturating_sub(sequence % 3).max(1);
                let marks: Vec<_> = (0..length).map(|position| i64::from(position < real)).collect();
                return Tensor::integers(port.element, &shape, &marks);
            }
            let mut tensor = Tensor::zeros(port.element, &shape)?;
            let mut hasher = DefaultHasher::new();
            (self.seed, sequence, &port.name).hash(&mut hasher);
            values::paint(port.element, tensor.bytes_mut(), &mut Pcg64Mcg::seed_from_u64(hasher.finish()));
            Ok(tensor)
        };
        interface.encoder.iter().map(|port| Ok((port.name.clone(), tensor(port)?))).collect()
    }
}
