//! Standard output, which is text for people or, with `--json`, one JSON document.

use std::io::{self, BufWriter, Write};

use indicatif::ProgressBar;
use kvscatter::picture::{Picture, RingPicture};
use serde::Serialize;

use crate::{json, table};

pub(crate) use crate::table::{columns, hanging, paragraph};
pub(crate) use kvscatter_onnx::internal::text::names::one_line;

/// Standard output, or a buffer instead of it.
pub(crate) struct Output {
    stream: Stream,
    json: bool,
    /// Whether the reader has closed the pipe (`| head`). This is not an error. The work goes on, because its
    /// exit code still counts.
    unread: bool,
}

enum Stream {
    /// A stream that writes every line as soon as it ends, so that the user sees the progress of long work. Colours are
    /// written only to terminals, and not if `NO_COLOR` is set.
    Standard(anstream::AutoStream<io::StdoutLock<'static>>),
    Captured(Vec<u8>),
}

/// The result of a command that had no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
}

impl Outcome {
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
        }
    }
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        let stream = Stream::Standard(anstream::AutoStream::auto(io::stdout().lock()));
        Self { stream, json, unread: false }
    }

    /// Returns a buffer for the JSON document.
    pub(crate) fn captured() -> Self {
        Self { stream: Stream::Captured(Vec::new()), json: true, unread: false }
    }

    /// Returns what was written to a buffer.
    pub(crate) fn into_captured(self) -> Vec<u8> {
        match self.stream {
            Stream::Standard(_) => Vec::new(),
            Stream::Captured(bytes) => bytes,
        }
    }

    /// Returns a progress bar on standard error, without a length if it is 0. indicatif draws it only on a terminal,
    /// and nothing is drawn if the output is captured.
    pub(crate) fn progress(&self, steps: usize) -> ProgressBar {
        match (&self.stream, steps) {
            (Stream::Captured(_), _) => ProgressBar::hidden(),
            (Stream::Standard(_), 0) => ProgressBar::no_length(),
            (Stream::Standard(_), _) => ProgressBar::new(u64::try_from(steps).unwrap_or(u64::MAX)),
        }
    }

    /// Returns whether the command prints one JSON document instead of text.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns whether the reader of standard output has closed it.
    #[cfg(feature = "text")]
    pub(crate) fn is_unread(&self) -> bool {
        self.unread
    }

    /// Prints a picture that fits the terminal, with the labels on both sides of its lanes.
    pub(crate) fn picture(&mut self, picture: &Picture) -> io::Result<()> {
        self.fitted(|width| picture.text().width(width).to_string())
    }

    /// Prints a picture of a ring that fits the terminal.
    pub(crate) fn ring_picture(&mut self, picture: &RingPicture) -> io::Result<()> {
        self.fitted(|width| picture.text().width(width).to_string())
    }

    /// Prints a line on standard error that is not an error. Prints nothing with `--json`, or if standard error
    /// is closed.
    pub(crate) fn note(&self, text: &str) {
        if !self.json {
            let _ = writeln!(io::stderr(), "note: {}", one_line(text));
        }
    }

    fn fitted(&mut self, text: impl Fn(usize) -> String) -> io::Result<()> {
        write!(self, "{}", fitted(text, columns().unwrap_or(usize::MAX)))
    }

    /// Prints the JSON document.
    pub(crate) fn json(&mut self, document: &impl Serialize) -> io::Result<()> {
        let mut buffered = BufWriter::new(&mut *self);
        json::write(&mut buffered, document)?;
        writeln!(buffered)?;
        buffered.flush()
    }
}

impl Stream {
    fn as_write(&mut self) -> &mut dyn Write {
        match self {
            Self::Standard(stream) => stream,
            Self::Captured(bytes) => bytes,
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unread {
            return Ok(bytes.len());
        }
        match self.stream.as_write().write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.unread = true;
                Ok(bytes.len())
            }
            result => result,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.stream.as_write().flush() {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.unread = true;
                Ok(())
            }
            result => result,
        }
    }
}

/// Formats a picture with at most 80 columns of slots. Its lines have at most `columns`, unless that leaves
/// less than 16 columns of slots. If the legend is wider, its scale moves to a second line.
fn fitted(text: impl Fn(usize) -> String, columns: usize) -> String {
    const MAX_SLOTS: usize = 80;
    const MIN_SLOTS: usize = 16;
    // The legend, which is last, does not shrink with the lanes.
    let fits = |text: &String| text.lines().rev().skip(1).all(|line| line.chars().count() <= columns);
    let text = (MIN_SLOTS..=MAX_SLOTS).rev().map(&text).find(fits).unwrap_or_else(|| text(MIN_SLOTS));
    let legend = text.lines().next_back().map_or(0, |line| line.chars().count());
    match text.rsplit_once(LEGEND_GAP) {
        Some((marks, scale)) if legend > columns => format!("{marks}\n{scale}"),
        _ => text,
    }
}

/// The text between the marks and the scale of a picture's legend.
const LEGEND_GAP: &str = "   ";

/// Formats a table without frames that fits the terminal. Columns in `numbers` are aligned to the right.
pub(crate) fn table(
    headers: &[&str],
    numbers: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<_>> =
        rows.into_iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    table::table(headers, numbers, &rows)
}

/// Formats a number and its noun.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Quotes a word of a command line so that it can be pasted into a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=,:+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats a word in a colour. [`Output`] removes the colour if it is not wanted.
pub(crate) fn styled(word: &str, color: anstyle::AnsiColor) -> String {
    let style = color.on_default();
    format!("{style}{word}{style:#}")
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;
    use kvscatter::picture::Picture;
    use kvscatter::spec::onnx::TensorScatter;

    use super::{fitted, quoted};

    #[test]
    fn pictures_fit_the_terminal() {
        let write = TensorScatter::new().prepare(ElementType::Float16, &[2, 4096, 64], &[2, 3, 64]).unwrap();
        let picture = Picture::new(&write.plan(&[1000, 4000]).unwrap(), 8);
        let widest = |columns| {
            let text = fitted(|width| picture.text().width(width).to_string(), columns);
            text.lines().map(|line| line.chars().count()).max().unwrap()
        };
        assert!(widest(usize::MAX) > 100);
        for columns in [60, 80, 100] {
            assert!(widest(columns) <= columns, "{columns}: {}", widest(columns));
        }
    }

    #[test]
    fn words_can_be_pasted() {
        for (word, expected) in [
            ("--steps", "--steps"),
            ("a/b-c_1.onnx", "a/b-c_1.onnx"),
            ("two words", "'two words'"),
            ("it's", r"'it'\''s'"),
            ("", "''"),
            ("$(rm)", "'$(rm)'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
