//! The picture as text for a terminal.

use alloc::string::{String, ToString};
use core::fmt::{self, Write as _};

use super::model::{Lane, Mark, Picture, SampleOutcome};
use super::scale::Scale;
use super::words::{Ends, Sees, UNTOUCHED, digits, plural};

/// A [`Picture`] as text, which `Display` prints. Every line ends in a newline.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    picture: &'a Picture,
    width: usize,
    ascii: bool,
}

impl<'a> Text<'a> {
    pub(super) const fn new(picture: &'a Picture) -> Self {
        Self { picture, width: 80, ascii: false }
    }

    /// Sets the largest number of columns for the slots, which is at least 2. The labels on both sides need
    /// more columns.
    #[must_use]
    pub const fn width(self, columns: usize) -> Self {
        Self { width: columns, ..self }
    }

    /// Sets whether the text contains only ASCII characters.
    #[must_use]
    pub const fn ascii(self, ascii: bool) -> Self {
        Self { ascii, ..self }
    }

    fn ruler(&self, f: &mut fmt::Formatter<'_>, scale: Scale, left: Left) -> fmt::Result {
        let (numbers, marks) = scale.ruler(self.ascii);
        let Left { sample, position } = left;
        writeln!(f, "{:sample$}  {:position$}  {numbers}", "", "")?;
        writeln!(f, "{:>sample$}  {:>position$}  {marks}", SAMPLE, self.picture.positions.to_string())
    }

    fn lane(&self, f: &mut fmt::Formatter<'_>, scale: Scale, left: Left, lane: &Lane) -> fmt::Result {
        let Left { sample, position } = left;
        let given = lane.position.map_or_else(String::new, |position| position.to_string());
        write!(f, "{:>sample$}  {given:>position$}  ", lane.sample)?;
        for column in 0..scale.columns() {
            f.write_char(lane.mark(&scale.slots_of(column)).glyph(self.ascii))?;
        }
        writeln!(f, "  {}", Note(lane))
    }

    fn legend(&self, f: &mut fmt::Formatter<'_>, scale: Scale) -> fmt::Result {
        for mark in self.picture.marks() {
            write!(f, "{} {}  ", mark.glyph(self.ascii), mark.name())?;
        }
        writeln!(f, " {scale}")
    }
}

const SAMPLE: &str = "sample";

/// The widths of the labels on the left.
#[derive(Clone, Copy)]
struct Left {
    sample: usize,
    position: usize,
}

impl Left {
    fn new(picture: &Picture) -> Self {
        let positions = picture.lanes.iter().filter_map(|lane| lane.position);
        Self {
            sample: picture.lanes.iter().map(|lane| digits(lane.sample)).fold(SAMPLE.len(), usize::max),
            position: positions
                .map(|position| position.to_string().len())
                .fold(picture.positions.to_string().len(), usize::max),
        }
    }
}

/// The slots that a lane writes, and those that its last token sees, in words.
struct Note<'a>(&'a Lane);

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.outcome == SampleOutcome::Skipped {
            return f.write_str(Mark::Skipped.name());
        }
        let mut runs = self.0.runs();
        let Some((_, first)) = runs.next() else { return f.write_str(UNTOUCHED) };
        write!(f, "{}", Ends(first))?;
        runs.try_for_each(|(_, run)| write!(f, ", {}", Ends(run)))?;
        write!(f, "{}", Sees(self.0))
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let picture = self.picture;
        let scale = Scale::new(picture.capacity, self.width, 4);
        let left = Left::new(picture);
        self.ruler(f, scale, left)?;
        for lane in &picture.lanes {
            self.lane(f, scale, left, lane)?;
        }
        let hidden = picture.hidden();
        if hidden > 0 {
            let ellipsis = if self.ascii { "..." } else { "…" };
            writeln!(f, "{ellipsis} {hidden} more sample{}", plural(hidden))?;
        }
        if picture.skipped > 0 {
            let samples = picture.samples;
            writeln!(f, "{} of {samples} sample{} skipped", picture.skipped, plural(samples))?;
        }
        self.legend(f, scale)
    }
}
