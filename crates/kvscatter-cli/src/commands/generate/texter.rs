//! Generates the texts after prompts, for one call or for the turns of a chat.

use std::ops::ControlFlow;

use kvscatter_session::{Engine, GenerateOptions, Generated, Generator};

use super::args::Generate;
use super::show::Texts;
use super::writer::Writer;
use crate::error::CommandError;
use crate::interrupt::Interrupts;
use crate::output::Output;
use crate::text::{Message, Role, TextError, Tokenizer};

/// Prompts and the texts after them. The turns of a chat are such prompts, too.
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
    pub(super) options: GenerateOptions,
    /// The slots of each sample, if they are known.
    pub(super) room: Option<usize>,
}

impl Texter<'_> {
    /// Generates the texts after prompts.
    pub(super) fn generate(
        &mut self,
        prompts: &[Vec<i64>],
        interrupts: &Interrupts,
        output: &mut Output,
    ) -> Result<(Generated, Vec<String>), CommandError> {
        let most = self.options.max_new_tokens.unwrap_or(usize::MAX);
        let options = GenerateOptions { max_new_tokens: self.fitting(prompts), ..self.options.clone() };
        let (stops, chunk) = (&self.args.stop, options.chunk);
        let mut writer = Writer::new(self.tokenizer, prompts.len(), stops, &options.eos, most, chunk, output);
        let mut failed = None;
        let generated = self.generator.generate(prompts, &options, &mut |event| match writer.take(event) {
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

    /// Returns the most new tokens, if the cache has room for as many after each prompt. Otherwise a text ends when the
    /// cache is full.
    fn fitting(&self, prompts: &[Vec<i64>]) -> Option<usize> {
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0).saturating_add(self.generator.prefix());
        let capacity = self.generator.capacity().unwrap_or(usize::MAX);
        let room = capacity.saturating_sub(longest).saturating_add(1);
        self.options.max_new_tokens.filter(|most| *most <= room)
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
        generation.texts = Some(turns.texts);
        Ok(generation.show(output)?)
    }
}

/// Returns the message of the system, if there is one.
pub(super) fn system(args: &Generate) -> Option<Message> {
    args.system.clone().map(|content| Message { role: Role::System, content })
}

/// Checks that a prompt fits into the cache.
pub(super) fn check_length(
    args: &Generate,
    what: &str,
    tokens: &[i64],
    room: Option<usize>,
) -> Result<(), TextError> {
    match room.filter(|room| tokens.len() > *room) {
        None => Ok(()),
        Some(capacity) => {
            let hint = if args.preparing.is_off() { "" } else { " (--max-seq)" };
            Err(TextError::PromptTooLong { what: what.to_owned(), tokens: tokens.len(), capacity, hint })
        }
    }
}
