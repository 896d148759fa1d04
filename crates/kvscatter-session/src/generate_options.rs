//! The options of generation.

use crate::error::{GenerateSetting, SessionError};
use crate::opening::check_tokens;

/// The options of generation. By default, every token is the most likely one.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The maximum number of tokens that are generated for each prompt. If `None`, a sample ends with an end token or
    /// when the cache is full. Neither may ever happen if all caches are rings.
    pub max_new_tokens: Option<usize>,
    /// The tokens that end a sample.
    pub eos: Vec<i64>,
    /// The maximum number of tokens of one prompt that are fed in one run of the model.
    pub chunk: usize,
    /// The number that divides the positive logits of tokens that are in the prompt or were generated, and multiplies
    /// the negative ones. Above 1 it makes repetitions less likely, and 1 changes nothing.
    pub repetition_penalty: f32,
    /// How tokens are drawn at random. If `None`, every token is the most likely one.
    pub sampling: Option<Sampling>,
}

impl Default for GenerateOptions {
    /// Returns options without a maximum number of tokens, end tokens, a penalty and sampling, and with a chunk of 512
    /// tokens.
    fn default() -> Self {
        Self { max_new_tokens: None, eos: Vec::new(), chunk: 512, repetition_penalty: 1.0, sampling: None }
    }
}

impl GenerateOptions {
    /// Checks these options and prompts, which follow a saved prompt of `prefix` tokens. The numbers of tokens that the
    /// model knows and that a sample may have are checked if they are given, so this needs no loaded model.
    ///
    /// # Errors
    /// Returns the errors of [`Generator::generate`](crate::Generator::generate) about options, tokens and lengths of
    /// prompts.
    pub fn check(
        &self,
        prompts: &[Vec<i64>],
        prefix: usize,
        vocabulary: Option<usize>,
        capacity: Option<usize>,
    ) -> Result<(), SessionError> {
        if prompts.is_empty() {
            return Err(SessionError::NoPrompts);
        }
        if self.chunk == 0 {
            return Err(SessionError::NoChunk);
        }
        GenerateSetting::RepetitionPenalty.check(self.repetition_penalty)?;
        self.sampling.as_ref().map_or(Ok(()), Sampling::check)?;
        self.check_eos(vocabulary)?;
        for (prompt, tokens) in prompts.iter().enumerate() {
            if tokens.is_empty() {
                return Err(SessionError::PromptEmpty { prompt });
            }
            check_tokens(tokens, vocabulary, |index, token| SessionError::PromptTokenUnknown {
                prompt,
                index,
                token,
                vocabulary,
            })?;
            let tokens = prefix.saturating_add(tokens.len());
            let slots = self.slots(tokens).unwrap_or(tokens);
            if let Some(capacity) = capacity.filter(|capacity| slots > *capacity) {
                let generated = self.max_new_tokens.unwrap_or(1);
                return Err(SessionError::PromptTooLong { prompt, tokens, generated, capacity });
            }
        }
        Ok(())
    }

    /// Checks the tokens that end a sample.
    pub(crate) fn check_eos(&self, vocabulary: Option<usize>) -> Result<(), SessionError> {
        check_tokens(&self.eos, vocabulary, |index, token| SessionError::EosUnknown {
            index,
            token,
            vocabulary,
        })
    }

    /// Returns the number of slots that a prompt of this many tokens and its new tokens take, or `None` if there may be
    /// any number of new tokens. The last generated token is not fed, so it needs no slot.
    pub(crate) fn slots(&self, prompt: usize) -> Option<usize> {
        self.max_new_tokens.map(|tokens| prompt.saturating_add(tokens.saturating_sub(1)).max(1))
    }
}

/// The options of a random choice of tokens.
///
/// The options have the meaning and the order of transformers' `generate`: the temperature, then `top_k`, `top_p` and
/// `min_p`. Each of the last three chooses among the tokens that the options before it keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The number that divides the logits, above 0. Below 1 it makes likely tokens more likely.
    pub temperature: f32,
    /// The number of most likely tokens that are kept, with those that are as likely as the last of them. 0 keeps all
    /// tokens.
    pub top_k: usize,
    /// Keeps the fewest most likely tokens whose probabilities sum to at least this number. It is above 0, and 1 keeps
    /// all tokens.
    pub top_p: f32,
    /// Keeps tokens that have at least this part of the probability of the most likely token. 0 keeps all tokens.
    pub min_p: f32,
    /// The seed of the random numbers.
    ///
    /// Each sample has a separate sequence of numbers. It depends on the seed and on the number of equal prompts before
    /// it in the same call. So a text does not depend on the other prompts, and equal prompts get different texts.
    pub seed: u64,
}

impl Default for Sampling {
    /// Returns the defaults of transformers' `generate`, and the seed 0.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 50, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

impl Sampling {
    /// Checks the options.
    pub(crate) fn check(&self) -> Result<(), SessionError> {
        GenerateSetting::Temperature.check(self.temperature)?;
        GenerateSetting::TopP.check(self.top_p)?;
        GenerateSetting::MinP.check(self.min_p)
    }
}

impl GenerateSetting {
    /// Checks a value of the option.
    ///
    /// # Errors
    /// Returns [`SessionError::OptionRange`] for a value outside the [range](Self::range).
    pub fn check(self, value: f32) -> Result<(), SessionError> {
        let is_valid = match self {
            Self::Temperature | Self::RepetitionPenalty => value > 0.0 && value.is_finite(),
            Self::TopP => value > 0.0 && value <= 1.0,
            Self::MinP => (0.0..=1.0).contains(&value),
        };
        if is_valid { Ok(()) } else { Err(SessionError::OptionRange { setting: self, value }) }
    }
}
