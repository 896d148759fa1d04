//! Generates the texts after prompts, for one call or for the turns of a chat.

use std::ops::ControlFlow;

use kvscatter_session::{Engine, GenerateOptions, Generated, Generator};

use super::args::Generate;
use super::show::{Encoded, Texts};
use super::writer::Writer;
use crate::error::CommandError;
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::text::{Message, Role, TextError, Tokenizer};

/// Prompts and the texts after them. The turns of a chat are such prompts, too.
#[derive(Default)]
pub(super) struct Turns {
    /// The tokens of the prompts.
    pub(super) ids: Vec<Vec<i64>>,
    pub(super) texts: Texts,
    /// `None` without a prompt.
    pub(super) generated: Option<Generated>,
}

/// A decoder that generates texts.
pub(super) struct Texter<'a> {
    pub(super) args: &'a Generate,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) generator: Generator,
    /// What the encoder has computed, if there is one.
    pub(super) encoded: Option<Encoded>,
    pub(super) options: GenerateOptions,
    pub(super) room: Room,
}

/// The room for the tokens of a sample.
pub(super) struct Room {
    /// The slots of each sample, if they are known before the model is loaded.
    pub(super) slots: Option<usize>,
    /// The tokens of the saved prompt before every prompt.
    pub(super) prefix: usize,
    /// The option that sets the slots, in parentheses, or an empty string.
    pub(super) sized_by: &'static str,
}

impl Texter<'_> {
    /// Generates the texts after prompts. `headings` are the prompts as texts, if there are several.
    pub(super) fn generate(
        &mut self,
        prompts: &[Vec<i64>],
        headings: &[String],
        interrupts: &Interrupts,
        output: &mut Output,
    ) -> Result<(Generated, Vec<String>), CommandError> {
        let (stops, chunk) = (&self.args.stop, self.options.chunk);
        let mut writer = Writer::new(self.tokenizer, prompts.len(), headings, stops, chunk, output);
        let mut failed = None;
        let generated =
            self.generator.generate(prompts, &self.options, &mut |event| match writer.take(event) {
                Ok(()) if !interrupts.has_one() && !writer.is_unread() => ControlFlow::Continue(()),
                Ok(()) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            });
        let texts = writer.finish();
        match failed {
            Some(error) => Err(error),
            None => Ok((generated?, texts?)),
        }
    }

    /// Prints what the generation took, or the whole document with `--json`.
    pub(super) fn show(
        &self,
        engine: &dyn Engine,
        turns: Turns,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        let Some(generated) = turns.generated else { return Ok(()) };
        let mut generation = self.args.generation(engine, &self.generator, turns.ids, generated);
        generation.encoded = self.encoded;
        generation.texts = Some(turns.texts);
        generation.sized_by = self.room.sized_by;
        Ok(generation.show(output)?)
    }
}

/// Returns the message of the system, if there is one.
pub(super) fn system(args: &Generate) -> Option<Message> {
    args.system.clone().map(|content| Message { role: Role::System, content })
}

impl Room {
    /// Checks that a prompt fits into the cache.
    pub(super) fn check(&self, what: &str, tokens: &[i64]) -> Result<(), TextError> {
        let &Self { slots, prefix, sized_by } = self;
        match slots.filter(|slots| tokens.len().saturating_add(prefix) > *slots) {
            None => Ok(()),
            Some(capacity) => Err(TextError::PromptTooLong {
                what: what.to_owned(),
                tokens: tokens.len(),
                prefix,
                capacity,
                sized_by,
            }),
        }
    }
}
