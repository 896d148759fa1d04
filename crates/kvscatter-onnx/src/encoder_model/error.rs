//! Errors about an encoder and a decoder that do not belong together.

/// An error about an encoder and a decoder that do not belong together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case", prefix = "encoder_")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum EncoderError {
    /// The decoder has no input from an encoder.
    #[error("the decoder takes nothing from an encoder")]
    Nothing,
    /// The encoder does not have exactly one output of states.
    #[error("the encoder has {count} outputs of floats and rank 3: expected one, the states")]
    States { count: usize },
    /// No model computes an input of the decoder.
    #[error(
        "neither the encoder nor the decoder of the first step has an output for the decoder's input {input:?}"
    )]
    NotComputed { input: String },
    /// An output of the decoder of the first step depends on more than the states.
    #[error(
        "{output:?} of the first step depends on its input {input:?}: expected only the encoder's states"
    )]
    Depends { output: String, input: String },
    /// The weights of the models are in different folders.
    #[error(
        "the encoder and the decoder of the first step keep weights in files of different folders: expected one folder"
    )]
    Folders,
}

crate::cause!(EncoderError, Into::into);
