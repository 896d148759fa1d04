//! The picture of a ring whose layer has a window.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::iter;
use core::ops::Range;

use super::model::{Mark, Picture, SampleOutcome};
use super::scale::Scale;
use super::words::{Ends, plural};
use crate::Mode;
use crate::ring::{Feeding, Ring, high_after, least_capacity};
use crate::visibility::Visibility;

/// What a ring contains after a write, what the written tokens see, and how far a sample can be taken back.
///
/// ```
/// use kvscatter::picture::{Picture, RingPicture};
/// use kvscatter::{ElementType, Mode, spec::onnx::TensorScatter};
///
/// let ring = TensorScatter::new().mode(Mode::Circular);
/// let write = ring.prepare(ElementType::Float16, &[1, 1, 6, 64], &[1, 1, 3, 64])?;
/// let picture = RingPicture::new(&Picture::new(&write.plan(&[9])?, 1), 4);
/// let text = picture.text().ascii(true).to_string();
/// assert!(text.contains("contains          6   7   8   9   10  11\n"));
/// assert!(text.contains("token 9 sees      ------------####........  6-9\n"));
/// assert!(text.contains("exact: each token sees its window\n"));
/// # Ok::<(), kvscatter::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingPicture {
    /// The rule that decides whether a step is exact.
    pub ring: Ring,
    /// The number of samples of the cache. Samples without a lane are counted in the picture, but not drawn.
    pub samples: usize,
    /// The drawn samples, from top to bottom.
    pub lanes: Vec<RingLane>,
}

/// One sample of a [`RingPicture`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingLane {
    /// The index of the sample in the batch.
    pub sample: usize,
    /// The effect of the write on the sample.
    pub outcome: RingOutcome,
}

/// The effect of a write on one sample of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RingOutcome {
    /// The sample makes a step.
    Step(RingStep),
    /// Nothing is written.
    Nothing,
    /// The position of the sample is out of range, and the policy is to skip the sample.
    Skipped,
    /// The position is negative, so that it does not determine which tokens the ring contains.
    Negative,
}

/// A step of a sample that was not taken back before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingStep {
    /// The position of the first token that is written.
    pub start: usize,
    /// The number of tokens that are written.
    pub rows: usize,
    /// Whether each token sees its window.
    pub is_exact: bool,
    /// The largest number of tokens that an exact step can write here.
    pub most_rows: usize,
    /// The least number of slots with which steps of this number of tokens are exact.
    pub least_capacity: usize,
    /// The lowest position above 0 to which the sample can be taken back after an exact step, or 0 if every
    /// position is possible.
    pub least_start: usize,
}

impl RingPicture {
    /// Creates the picture of a write into a ring, for a window of `window` positions. It has the lanes of the
    /// picture of the write. A window of 0 is like 1.
    #[must_use]
    pub fn new(picture: &Picture, window: usize) -> Self {
        let ring = Ring::new(picture.capacity, window.max(1));
        let lane = |lane: &super::Lane| {
            let rows = lane.runs().fold(0, |rows: usize, (_, run)| rows.saturating_add(run.len()));
            let start = lane.position.map(usize::try_from);
            let outcome = match (&lane.outcome, start) {
                (SampleOutcome::Skipped, _) => RingOutcome::Skipped,
                (_, Some(Ok(start))) if rows > 0 => RingOutcome::Step(RingStep::new(&ring, start, rows)),
                (_, Some(Err(_))) if rows > 0 => RingOutcome::Negative,
                _ => RingOutcome::Nothing,
            };
            RingLane { sample: lane.sample, outcome }
        };
        Self { ring, samples: picture.samples, lanes: picture.lanes.iter().map(lane).collect() }
    }

    /// Returns the picture as text, with at most 80 columns of slots.
    #[must_use]
    pub const fn text(&self) -> RingText<'_> {
        RingText { picture: self, width: 80, ascii: false }
    }

    /// Returns the positions that a token needs and those that it still finds after a step.
    #[must_use]
    pub fn seen(&self, step: &RingStep, token: usize) -> Seen {
        let (tokens, query) = (to_i64(step.end()), to_i64(token));
        let window = |rule: Visibility| rule.causal().window(self.ring.window()).positions(tokens, query);
        let needed = window(Visibility::new(Mode::Linear, usize::MAX));
        let found = window(self.slots());
        Seen { lost: needed.start..found.start.max(needed.start), found }
    }

    /// Returns the rule for the slots of the ring, without a window.
    fn slots(&self) -> Visibility {
        Visibility::new(Mode::Circular, self.ring.capacity())
    }
}

/// The positions of the window of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The positions that the ring no longer contains.
    pub lost: Range<i64>,
    /// The positions that the token sees.
    pub found: Range<i64>,
}

impl RingStep {
    fn new(ring: &Ring, start: usize, rows: usize) -> Self {
        let high = high_after(start, start, rows);
        Self {
            start,
            rows,
            is_exact: ring.takes(start, start, rows),
            most_rows: ring.most_rows(start, start),
            least_capacity: least_capacity(ring.window(), rows, 0, Feeding::WithoutPadding),
            least_start: ring.least_start(high),
        }
    }

    /// Returns the position after the last token.
    #[must_use]
    pub fn end(&self) -> usize {
        self.start.saturating_add(self.rows)
    }
}

/// A [`RingPicture`] as text, which `Display` prints. Every line ends in a newline.
#[derive(Clone, Copy, Debug)]
pub struct RingText<'a> {
    picture: &'a RingPicture,
    width: usize,
    ascii: bool,
}

impl RingText<'_> {
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

    fn scale(&self) -> Scale {
        Scale::new(self.picture.ring.capacity(), self.width, 4)
    }

    /// Writes what one sample writes, contains and sees.
    fn lane(&self, f: &mut fmt::Formatter<'_>, left: usize, lane: &RingLane) -> fmt::Result {
        let sample = lane.sample;
        let step = match &lane.outcome {
            RingOutcome::Step(step) => step,
            RingOutcome::Nothing => return writeln!(f, "sample {sample} writes nothing"),
            RingOutcome::Skipped => return writeln!(f, "sample {sample} is skipped"),
            RingOutcome::Negative => {
                return writeln!(f, "sample {sample} has a negative position: contents unknown");
            }
        };
        let last = step.end().saturating_sub(1);
        let position = if step.rows == 1 { "position" } else { "positions" };
        writeln!(f, "sample {sample} writes {position} {}", Ends(&(step.start..step.end())))?;
        writeln!(f, "  {:left$}  {}", "contains", self.contents(step))?;
        self.token(f, left, step, step.start)?;
        if last > step.start {
            self.token(f, left, step, last)?;
        }
        if step.is_exact { self.rewind(f, left, step) } else { self.loss(f, step) }
    }

    /// Returns the position in each slot, as far as the numbers have room.
    fn contents(&self, step: &RingStep) -> String {
        let (scale, rule) = (self.scale(), self.picture.slots());
        let slots: Vec<_> = match scale.columns_per_slot() {
            0..4 => scale.ticks(1),
            wide => (0..self.picture.ring.capacity()).map(|slot| (slot, slot.saturating_mul(wide))).collect(),
        };
        let (mut line, mut free) = (String::new(), 0);
        for (slot, column) in slots {
            let position = rule.position_of(to_i64(step.end()), slot);
            let number = position.map_or_else(|| "-".to_string(), |position| position.to_string());
            if column >= free {
                line.extend(iter::repeat_n(' ', column.saturating_sub(line.len())));
                line.push_str(&number);
                free = line.len().saturating_add(1);
            }
        }
        line
    }

    /// Writes the slots that a token sees.
    fn token(&self, f: &mut fmt::Formatter<'_>, left: usize, step: &RingStep, token: usize) -> fmt::Result {
        let Seen { lost, found } = self.picture.seen(step, token);
        let new = found.start.max(to_i64(step.start))..found.end;
        self.marks(f, left, &format!("token {token} sees"), [&lost, &new, &found])?;
        writeln!(f, "{}", Positions(unsigned(&found)))
    }

    /// Writes a line of marks for positions that are lost, new and old. The first of them that is in a column
    /// is drawn.
    fn marks(
        &self,
        f: &mut fmt::Formatter<'_>,
        left: usize,
        label: &str,
        [lost, new, found]: [&Range<i64>; 3],
    ) -> fmt::Result {
        let (scale, rule) = (self.scale(), self.picture.slots());
        let marks = [(Mark::Skipped, lost), (Mark::Written, new), (Mark::Visible, found)];
        let marks = marks.map(|(mark, positions)| (mark, rule.slots(positions.clone())));
        write!(f, "  {label:left$}  ")?;
        for column in 0..scale.columns() {
            let slots = scale.slots_of(column);
            let touches =
                |run: &Range<usize>| !run.is_empty() && run.start < slots.end && slots.start < run.end;
            let mark = marks.iter().find(|(_, runs)| runs.iter().any(touches));
            f.write_char(mark.map_or(Mark::Old, |(mark, _)| *mark).glyph(self.ascii))?;
        }
        Ok(())
    }

    /// Writes how far a sample can be taken back after an exact step.
    fn rewind(&self, f: &mut fmt::Formatter<'_>, left: usize, step: &RingStep) -> fmt::Result {
        let least = step.least_start;
        if least == 0 {
            return writeln!(f, "  exact: each token sees its window\n  rewind: to any position");
        }
        let before = self.picture.seen(step, least).found.start..to_i64(least);
        self.marks(f, left, &back_to(least), [&(0..0), &(0..0), &before])?;
        writeln!(f, "{}", Positions(unsigned(&before)))?;
        let back = step.end().saturating_sub(least);
        writeln!(f, "  exact: each token sees its window")?;
        writeln!(f, "  rewind: up to {back} token{}, back to position {least}", plural(back))
    }

    /// Writes what a step that is not exact has lost, and what would be exact.
    fn loss(&self, f: &mut fmt::Formatter<'_>, step: &RingStep) -> fmt::Result {
        let RingStep { start, rows, most_rows, least_capacity, .. } = *step;
        let lost = unsigned(&self.picture.seen(step, start).lost).unwrap_or_default();
        let position = if lost.len() == 1 { "position" } else { "positions" };
        writeln!(f, "  not exact: token {start} has lost {position} {}", Ends(&lost))?;
        if most_rows > 0 {
            writeln!(f, "  exact in this ring: at most {most_rows} token{}", plural(most_rows))?;
        }
        let slots = plural(least_capacity);
        writeln!(f, "  exact for {rows} token{}: a ring of {least_capacity} slot{slots}", plural(rows))
    }

    fn legend(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_lost = |lane: &RingLane| matches!(&lane.outcome, RingOutcome::Step(step) if !step.is_exact);
        let lost = self.picture.lanes.iter().any(is_lost).then_some((Mark::Skipped, "lost"));
        let names = [(Mark::Old, "not seen"), (Mark::Visible, "seen"), (Mark::Written, "seen, new")];
        for (mark, name) in names.into_iter().chain(lost) {
            write!(f, "{} {name}  ", mark.glyph(self.ascii))?;
        }
        writeln!(f, " {}", self.scale())
    }
}

impl fmt::Display for RingText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RingPicture { ring, samples, lanes } = self.picture;
        let (capacity, window) = (ring.capacity(), ring.window());
        writeln!(f, "a ring of {capacity} slot{} for a window of {window}", plural(capacity))?;
        match window.saturating_sub(1) {
            0 => writeln!(f, "each token sees only itself")?,
            before => writeln!(f, "each token sees itself and the {before} before it")?,
        }
        let labels = lanes.iter().filter_map(|lane| match &lane.outcome {
            RingOutcome::Step(step) => Some(step),
            _ => None,
        });
        // Positions of a sample have most digits at its end.
        let left = labels.map(|step| back_to(step.end()).len()).max();
        if let Some(left) = left {
            let (numbers, ticks) = self.scale().ruler(self.ascii);
            writeln!(f, "  {:left$}  {numbers}\n  {:left$}  {ticks}", "", "slot")?;
        }
        for lane in lanes {
            self.lane(f, left.unwrap_or_default(), lane)?;
        }
        let hidden = samples.saturating_sub(lanes.len());
        if hidden > 0 {
            let ellipsis = if self.ascii { "..." } else { "…" };
            writeln!(f, "{ellipsis} {hidden} more sample{}", plural(hidden))?;
        }
        self.legend(f)
    }
}

/// Positions after a line of marks, or nothing if there are none.
struct Positions(Option<Range<usize>>);

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |positions| write!(f, "  {}", Ends(positions)))
    }
}

/// Returns the label of the positions that a sample needs after it is taken back.
fn back_to(position: usize) -> String {
    format!("back to {position} needs")
}

/// Returns a range of positions, or `None` if it is empty.
fn unsigned(positions: &Range<i64>) -> Option<Range<usize>> {
    let range = usize::try_from(positions.start).ok()?..usize::try_from(positions.end).ok()?;
    (!range.is_empty()).then_some(range)
}

/// Converts a position. Positions above `i64::MAX` do not occur, because callers pass `i64`.
fn to_i64(position: usize) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}
