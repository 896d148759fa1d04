//! The texts of samples, and printing them while they are generated.

use std::io::Write;

use indicatif::ProgressBar;
use kvscatter_session::{Event, NewTokens};
use kvscatter_text::names::printable;

use crate::error::CommandError;
use crate::output::{Output, progress};
use crate::text::{Stops, TextError, TextStream, Tokenizer};

/// The text of one sample so far.
struct SampleText<'t> {
    stream: TextStream<'t>,
    stops: Stops,
    /// The text without the end that may still change.
    text: String,
    tokens: usize,
}

/// The texts of a generation. If there is only one, it is printed as it is generated.
pub(super) struct Writer<'w> {
    samples: Vec<SampleText<'w>>,
    /// The tokens that end a sample. They have no text.
    eos: &'w [i64],
    /// The most tokens of a sample.
    most: usize,
    /// The most tokens of a prompt in one run of the model. A longer prefill shows a bar.
    chunk: usize,
    bar: Option<ProgressBar>,
    output: &'w mut Output,
}

impl<'w> Writer<'w> {
    pub(super) fn new(
        tokenizer: &'w Tokenizer,
        samples: usize,
        stops: &[String],
        eos: &'w [i64],
        most: usize,
        chunk: usize,
        output: &'w mut Output,
    ) -> Self {
        let sample = || SampleText {
            stream: tokenizer.stream(),
            stops: Stops::new(stops),
            text: String::new(),
            tokens: 0,
        };
        let samples = std::iter::repeat_with(sample).take(samples).collect();
        Self { samples, eos, most, chunk, bar: None, output }
    }

    /// Takes what a generation reports. Ends samples that have reached a stop text or the most tokens.
    ///
    /// # Errors
    /// Returns the errors of the tokenizer and of standard output.
    pub(super) fn take(&mut self, event: Event<'_>) -> Result<(), CommandError> {
        match event {
            Event::Prefill { done, total } => {
                if self.bar.is_none() && total.saturating_sub(done) > self.chunk {
                    self.bar = Some(progress(total));
                }
                let done = u64::try_from(done).unwrap_or(u64::MAX);
                self.bar.iter().for_each(|bar| bar.set_position(done));
                Ok(())
            }
            Event::Tokens(new) => {
                self.clear_bar();
                self.tokens(new)
            }
        }
    }

    fn tokens(&mut self, mut new: NewTokens<'_>) -> Result<(), CommandError> {
        let is_printed = self.is_printed();
        for (prompt, sample) in self.samples.iter_mut().enumerate() {
            let tokens = new.of(prompt).to_vec();
            for (token, kept) in tokens.into_iter().zip(1..) {
                if self.eos.contains(&token) {
                    break;
                }
                let piece = sample.push(token)?;
                if is_printed {
                    print(self.output, &piece)?;
                }
                let is_long = sample.tokens >= self.most && new.end(prompt).is_none();
                if is_long || sample.stops.has_stopped() {
                    new.stop(prompt, kept);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the reader of standard output has closed it, so that the rest of the text is not needed.
    pub(super) fn is_unread(&self) -> bool {
        self.is_printed() && self.output.is_unread()
    }

    fn is_printed(&self) -> bool {
        self.samples.len() == 1 && !self.output.is_json()
    }

    fn clear_bar(&mut self) {
        self.bar.take().iter().for_each(ProgressBar::finish_and_clear);
    }

    /// Completes and returns the texts. Ends the line of a text that was printed.
    ///
    /// # Errors
    /// Returns the errors of [`take`](Self::take).
    pub(super) fn finish(mut self) -> Result<Vec<String>, CommandError> {
        self.clear_bar();
        let is_printed = self.is_printed();
        for sample in &mut self.samples {
            let piece = sample.finish()?;
            if is_printed {
                let end = if sample.text.ends_with('\n') { "" } else { "\n" };
                print(self.output, &(piece + end))?;
            }
        }
        Ok(self.samples.into_iter().map(|sample| sample.text).collect())
    }
}

impl SampleText<'_> {
    /// Takes the next token. Returns the text that is certain now.
    fn push(&mut self, token: i64) -> Result<String, TextError> {
        self.tokens = self.tokens.saturating_add(1);
        let piece = self.stops.push(&self.stream.push(token)?);
        self.text.push_str(&piece);
        Ok(piece)
    }

    /// Returns the rest of the text.
    fn finish(&mut self) -> Result<String, TextError> {
        let mut piece = self.stops.push(&self.stream.finish()?);
        piece.push_str(&self.stops.finish());
        self.text.push_str(&piece);
        Ok(piece)
    }
}

/// Prints a part of a text at once. A text comes from a model, so it must not control the terminal.
pub(super) fn print(output: &mut Output, piece: &str) -> Result<(), CommandError> {
    if !piece.is_empty() {
        output.write_all(printable(piece).as_bytes())?;
        output.flush()?;
    }
    Ok(())
}
