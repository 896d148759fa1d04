//! The texts of samples, and printing them while they are generated.

use std::io::Write;

use indicatif::ProgressBar;
use kvscatter_onnx::internal::text::names::{beginning, one_line, printable};
use kvscatter_session::{Event, NewTokens};

use crate::error::CommandError;
use crate::output::Output;
use crate::text::{Stops, TextError, TextStream, Tokenizer};

/// The most characters of a prompt that the heading of its text shows.
const HEADING: usize = 60;

/// The text of one sample so far.
struct SampleText<'t> {
    stream: TextStream<'t>,
    stops: Stops,
    /// The text without the end that may still change.
    text: String,
}

/// The texts of a generation. If there is only one, it is printed as it is generated. Otherwise each is printed under a
/// heading as soon as it and those before it have ended.
pub(super) struct Writer<'w> {
    samples: Vec<SampleText<'w>>,
    /// The prompts of the samples, if there are several.
    headings: &'w [String],
    /// The number of samples that were printed under headings.
    printed: usize,
    /// The most tokens of a prompt in one run of the model. A longer prefill shows a bar.
    chunk: usize,
    bar: Option<ProgressBar>,
    output: &'w mut Output,
}

impl<'w> Writer<'w> {
    pub(super) fn new(
        tokenizer: &'w Tokenizer,
        samples: usize,
        headings: &'w [String],
        stops: &[String],
        chunk: usize,
        output: &'w mut Output,
    ) -> Self {
        let sample =
            || SampleText { stream: tokenizer.stream(), stops: Stops::new(stops), text: String::new() };
        let samples = std::iter::repeat_with(sample).take(samples).collect();
        Self { samples, headings, printed: 0, chunk, bar: None, output }
    }

    /// Takes what a generation reports. Ends samples that have reached a stop text.
    pub(super) fn take(&mut self, event: Event<'_>) -> Result<(), CommandError> {
        match event {
            Event::Prefill { done, total } => {
                if self.bar.is_none() && total.saturating_sub(done) > self.chunk {
                    self.bar = Some(self.output.progress(total));
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
            let tokens = new.tokens(prompt).to_vec();
            for (token, kept) in tokens.into_iter().zip(1..) {
                let piece = sample.push(token)?;
                if is_printed {
                    print(self.output, &piece)?;
                }
                if sample.stops.has_stopped() {
                    new.stop(prompt, kept);
                    break;
                }
            }
        }
        while self.printed < self.samples.len() && new.end(self.printed).is_some() {
            self.end_next()?;
        }
        Ok(())
    }

    /// Returns whether the reader of standard output has closed it, so that the rest of the text is not needed.
    pub(super) fn is_unread(&self) -> bool {
        !self.output.is_json() && self.output.is_unread()
    }

    fn is_printed(&self) -> bool {
        self.samples.len() == 1 && !self.output.is_json()
    }

    fn clear_bar(&mut self) {
        self.bar.take().iter().for_each(ProgressBar::finish_and_clear);
    }

    /// Completes the text of the next sample, and prints what was not printed.
    fn end_next(&mut self) -> Result<(), CommandError> {
        let (number, is_printed) = (self.printed, self.is_printed());
        self.printed = number.saturating_add(1);
        let Some(sample) = self.samples.get_mut(number) else { return Ok(()) };
        let piece = sample.finish()?;
        if is_printed {
            let end = if sample.text.ends_with('\n') { "" } else { "\n" };
            return print(self.output, &(piece + end));
        }
        if !self.output.is_json() {
            let heading = self
                .headings
                .get(number)
                .map_or(String::new(), |prompt| beginning(&one_line(prompt), HEADING));
            let before = if number == 0 { "" } else { "\n" };
            writeln!(self.output, "{before}--- {}: {heading}", self.printed)?;
            print(self.output, &sample.text)?;
            writeln!(self.output)?;
        }
        Ok(())
    }

    /// Completes and returns the texts. Prints what was not printed.
    pub(super) fn finish(mut self) -> Result<Vec<String>, CommandError> {
        self.clear_bar();
        while self.printed < self.samples.len() {
            self.end_next()?;
        }
        Ok(self.samples.into_iter().map(|sample| sample.text).collect())
    }
}

impl SampleText<'_> {
    /// Takes the next token. Returns the text that is certain now.
    fn push(&mut self, token: i64) -> Result<String, TextError> {
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
fn print(output: &mut Output, piece: &str) -> Result<(), CommandError> {
    if !piece.is_empty() {
        output.write_all(printable(piece).as_bytes())?;
        output.flush()?;
    }
    Ok(())
}
