//! The options of the choice of tokens.

use clap::Args;
use kvscatter_session::{GenerateSetting, Sampling};

use crate::numbers::integer;

/// Options that draw tokens at random, as `generate` of transformers does. Without one, every token is the most likely.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(super) struct SamplingArgs {
    /// Divide the logits by this number; 0 always chooses the most likely token [default: 1]
    #[arg(long, value_name = "T", value_parser = temperature)]
    temperature: Option<f32>,

    /// Draw from this many most likely tokens; 0 is all tokens [default: 50]
    #[arg(long, value_name = "N", value_parser = integer::<usize>)]
    top_k: Option<usize>,

    /// Draw from the most likely tokens whose probabilities sum to this number [default: 1, all tokens]
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, GenerateSetting::TopP))]
    top_p: Option<f32>,

    /// Draw from tokens with at least this part of the probability of the most likely one [default: 0]
    #[arg(long, value_name = "P", value_parser = |text: &str| number(text, GenerateSetting::MinP))]
    min_p: Option<f32>,

    /// The seed of the random numbers [default: 0]
    #[arg(long, value_name = "N", value_parser = integer::<u64>)]
    seed: Option<u64>,

    /// Make tokens of the prompt and of the text less likely by this factor, also without sampling
    #[arg(
        long,
        value_name = "X",
        default_value = "1",
        value_parser = |text: &str| number(text, GenerateSetting::RepetitionPenalty)
    )]
    pub(super) repetition_penalty: f32,
}

impl SamplingArgs {
    /// Returns how tokens are drawn, or `None` if every token is the most likely one.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        let Self { temperature, top_k, top_p, min_p, seed, repetition_penalty: _ } = *self;
        let is_given =
            temperature.is_some() || top_k.is_some() || top_p.is_some() || min_p.is_some() || seed.is_some();
        if !is_given || temperature == Some(0.0) {
            return None;
        }
        let default = Sampling::default();
        Some(Sampling {
            temperature: temperature.unwrap_or(default.temperature),
            top_k: top_k.unwrap_or(default.top_k),
            top_p: top_p.unwrap_or(default.top_p),
            min_p: min_p.unwrap_or(default.min_p),
            seed: seed.unwrap_or(default.seed),
        })
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(0.0) => Ok(0.0),
        _ => number(text, GenerateSetting::Temperature)
            .map_err(|problem| problem.replace("above 0", "at least 0")),
    }
}

/// Parses a number in the range of an option.
fn number(text: &str, setting: GenerateSetting) -> Result<f32, String> {
    let number = text.parse().map_err(|_| "must be a number".to_owned())?;
    setting.check(number).map_err(|_| format!("must be {}", setting.range()))?;
    Ok(number)
}
