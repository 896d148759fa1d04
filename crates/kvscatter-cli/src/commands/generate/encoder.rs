//! The encoder of an encoder-decoder, and the texts that it reads.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use kvscatter_onnx::Data;
use kvscatter_session::{Encoder, EncoderOutputs, Engine, Generator, LoadOptions, Tensor};

use super::show::Encoded;
use crate::commands::named::{NamedFile, unique};
use crate::error::CommandError;
use crate::files;

#[derive(Debug, Args)]
pub(super) struct EncoderArgs {
    /// The encoder of an encoder-decoder, such as the one that kvscatter convert --encoder-output writes
    #[arg(long, value_name = "FILE", requires = "encoder_input")]
    encoder: Option<PathBuf>,

    /// An input of the encoder: a .npy, .npz, .pb or .safetensors file, or FILE#ENTRY; its first dimension counts the
    /// texts, one for each prompt
    #[arg(long, value_name = "NAME=FILE", requires = "encoder")]
    encoder_input: Vec<NamedFile>,
}

impl EncoderArgs {
    /// Runs the encoder, and lets the generator attend to its outputs. Returns `None` without an encoder.
    /// `is_continued` means that the prompts follow a saved one.
    pub(super) fn encode(
        &self,
        engine: &dyn Engine,
        generator: &mut Generator,
        options: LoadOptions,
        is_continued: bool,
    ) -> Result<Option<Encoded>, CommandError> {
        let Some(path) = &self.encoder else {
            // A saved prompt may have what an encoder has computed.
            return match generator.interface().encoder.first().filter(|_| !is_continued) {
                Some(port) => Err(CommandError::NoEncoder { input: port.name.clone() }),
                None => Ok(None),
            };
        };
        unique("--encoder-input", self.encoder_input.iter().map(|input| &input.name))?;
        let mut encoder = Encoder::open(engine, path, generator.interface(), options)?;
        let mut inputs = Vec::new();
        for given in &self.encoder_input {
            let input = encoder.inputs().iter().find(|input| input.name == given.name);
            let tensor = files::read(&given.location, input.map(|input| input.element))?;
            inputs.push((given.name.as_str(), tensor));
        }
        let texts = inputs.iter().filter_map(|(_, tensor)| tensor.shape().first().copied()).max();
        let start = Instant::now();
        let outputs: Result<Vec<EncoderOutputs>, CommandError> = (0..texts.unwrap_or_default())
            .map(|text| {
                let of_text = inputs.iter().map(|(name, tensor)| Ok((*name, row(tensor, text)?)));
                let of_text = of_text.collect::<Result<Vec<_>, CommandError>>()?;
                let of_text: Vec<_> = of_text.iter().map(|(name, tensor)| (*name, tensor)).collect();
                Ok(encoder.run(&of_text)?)
            })
            .collect();
        let outputs = outputs?;
        let encoded = Encoded {
            texts: outputs.len(),
            time: start.elapsed(),
            bytes: outputs.iter().flatten().map(|(_, tensor)| tensor.len()).sum(),
        };
        generator.set_encoder_outputs(outputs);
        Ok(Some(encoded))
    }
}

/// Returns one text of a tensor of several, with a batch of 1. A tensor of fewer texts has none, which the encoder
/// refuses.
fn row(tensor: &kvscatter_onnx::Tensor, text: usize) -> Result<Tensor, CommandError> {
    let shape = tensor.shape();
    let (count, inner) = shape.split_first().map_or((1, shape), |(count, inner)| (*count, inner));
    let shape: Vec<usize> = std::iter::once(usize::from(text < count)).chain(inner.iter().copied()).collect();
    let mut row = Tensor::zeros(tensor.element(), &shape)?;
    let first = text.saturating_mul(row.len());
    let bytes = match tensor.data() {
        Data::Bytes(bytes) => bytes.get(first..first.saturating_add(row.len())).unwrap_or_default(),
        Data::Strings(_) => &[],
    };
    row.bytes_mut().copy_from_slice(bytes);
    Ok(row)
}
