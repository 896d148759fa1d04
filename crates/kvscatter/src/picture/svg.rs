//! The picture as an SVG document.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use core::ops::Range;

use super::model::{Lane, Mark, Picture, SampleOutcome};
use super::scale::Scale;
use super::words::{Ends, Sees, UNTOUCHED, digits, plural};
use crate::Argument;

/// A [`Picture`] as a standalone SVG document of fixed size, which `Display` prints.
///
/// The document has a background and follows the light or dark colour scheme of the reader. Its description
/// contains the content of the picture in words.
#[derive(Clone, Copy, Debug)]
pub struct Svg<'a> {
    picture: &'a Picture,
}

/// The width of one character of monospace text in pixels, rounded up. The constants below are pixels too.
const ADVANCE: usize = 8;
const MARGIN: usize = 24;
const GAP: usize = 12;
const HEADING: usize = 36;
const RULER: usize = 92;
const LANE: usize = 24;
const PITCH: usize = 52;
/// The baseline of the note under a lane.
const NOTE: usize = 38;
const LEGEND: usize = 12;
/// The smallest width of a slot at which its borders are drawn.
const CELL: usize = 8;
/// The smallest width of a run.
const RUN: usize = 3;

const STYLE: &str = "\
  <style>
    .card { fill: #ffffff; stroke: #d0d7de }
    text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #57606a }
    .heading { font-size: 15px; font-weight: 600; fill: #1f2328 }
    .name { fill: #1f2328 }
    .end { text-anchor: end }
    .line { stroke: #8c959f; fill: none }
    .grid { stroke: #8c959f; stroke-opacity: 0.35 }
    .ground { fill: #f3f5f7 }
    .dot { fill: #afb8c1 }
    .written { fill: #0969da }
    .wrapped { fill: #fff1d6 }
    .stripe { stroke: #bc4c00; stroke-width: 4 }
    .cross { stroke: #6e7781; stroke-width: 1.5 }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #30363d }
      text { fill: #9198a1 }
      .heading, .name { fill: #f0f6fc }
      .ground { fill: #161b22 }
      .dot { fill: #484f58 }
      .written { fill: #4493f8 }
      .wrapped { fill: #3d2a00 }
      .stripe { stroke: #f0883e }
      .cross { stroke: #8b949e }
    }
  </style>
  <defs>
    <pattern id='old' width='8' height='8' patternUnits='userSpaceOnUse'>\
<rect class='ground' width='8' height='8'/><circle class='dot' cx='4' cy='4' r='1.2'/></pattern>
    <pattern id='written' width='8' height='8' patternUnits='userSpaceOnUse'>\
<rect class='written' width='8' height='8'/></pattern>
    <pattern id='wrapped' width='8' height='8' patternUnits='userSpaceOnUse' patternTransform='rotate(45)'>\
<rect class='wrapped' width='8' height='8'/><path class='stripe' d='M2 0V8'/></pattern>
    <pattern id='skipped' width='12' height='12' patternUnits='userSpaceOnUse'>\
<rect class='ground' width='12' height='12'/><path class='cross' d='M3 3L9 9M9 3L3 9'/></pattern>
  </defs>";

/// The pattern of visible slots, in pictures that show them.
const VISIBLE: &str = "\
  <defs>
    <pattern id='visible' width='8' height='8' patternUnits='userSpaceOnUse'>\
<rect class='ground' width='8' height='8'/><rect class='written' y='3' width='8' height='2'/></pattern>
  </defs>";

impl<'a> Svg<'a> {
    pub(super) const fn new(picture: &'a Picture) -> Self {
        Self { picture }
    }

    fn head(&self, f: &mut fmt::Formatter<'_>, page: &Page) -> fmt::Result {
        let Page { width, height, .. } = *page;
        let heading = Heading(self.picture);
        writeln!(
            f,
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' \
             viewBox='0 0 {width} {height}' role='img' aria-labelledby='title desc'>"
        )?;
        writeln!(f, "  <title id='title'>{heading}</title>\n  <desc id='desc'>")?;
        for lane in &self.picture.lanes {
            writeln!(f, "    {}", Sentence { positions: self.picture.positions, lane })?;
        }
        writeln!(f, "  </desc>\n{STYLE}")?;
        if self.picture.marks().any(|mark| mark == Mark::Visible) {
            writeln!(f, "{VISIBLE}")?;
        }
        writeln!(
            f,
            "  <rect class='card' x='0.5' y='0.5' width='{}' height='{}' rx='8'/>",
            width.saturating_sub(1),
            height.saturating_sub(1)
        )?;
        writeln!(f, "  <text class='heading' x='{MARGIN}' y='{HEADING}'>{heading}</text>")
    }

    /// Draws the ruler above the lanes, in the coordinates of the lanes, which begin at (0, 0).
    fn ruler(f: &mut fmt::Formatter<'_>, page: &Page) -> fmt::Result {
        writeln!(f, "  <g transform='translate({} {RULER})'>", page.left)?;
        writeln!(f, "    <text class='end' x='-{GAP}' y='-20'>slot</text>")?;
        for (slot, x) in page.scale.ticks(ADVANCE) {
            writeln!(f, "    <text x='{x}' y='-20'>{slot}</text><path class='line' d='M{x}.5 -14v8'/>")?;
        }
        writeln!(f, "  </g>")
    }

    fn lane(&self, f: &mut fmt::Formatter<'_>, page: &Page, top: usize, lane: &Lane) -> fmt::Result {
        writeln!(f, "  <g transform='translate({} {top})'>", page.left)?;
        writeln!(f, "    <text class='name end' x='-{GAP}' y='10'>sample {}</text>", lane.sample)?;
        if let Some(position) = lane.position {
            writeln!(
                f,
                "    <text class='end' x='-{GAP}' y='25'>{} {position}</text>",
                self.picture.positions
            )?;
        }
        let width = page.scale.columns();
        let ground = if lane.outcome == SampleOutcome::Skipped { Mark::Skipped } else { Mark::Old };
        bar(f, &(0..width), ground)?;
        for run in lane.seen() {
            bar(f, &page.bar_of(run), Mark::Visible)?;
        }
        // The shorter run is drawn last. If both runs share a pixel, the longer one is also visible in the
        // next pixel.
        let mut runs: Vec<_> = lane.runs().collect();
        runs.sort_by_key(|(_, run)| Reverse(run.len()));
        for (mark, run) in runs {
            bar(f, &page.bar_of(run), mark)?;
        }
        page.slot_borders(f)?;
        writeln!(f, "    <rect class='line' width='{width}' height='{LANE}'/>")?;
        page.notes(f, lane)?;
        writeln!(f, "  </g>")
    }
}

fn bar(f: &mut fmt::Formatter<'_>, columns: &Range<usize>, mark: Mark) -> fmt::Result {
    let (x, width) = (columns.start, columns.len());
    writeln!(f, "    <rect x='{x}' width='{width}' height='{LANE}' fill='url(#{})'/>", mark.name())
}

fn legend(f: &mut fmt::Formatter<'_>, picture: &Picture, top: usize) -> fmt::Result {
    let mut left = MARGIN;
    for mark in picture.marks() {
        let name = mark.name();
        writeln!(f, "  <g transform='translate({left} {top})'>")?;
        writeln!(f, "    <rect width='24' height='{LEGEND}' fill='url(#{name})'/>")?;
        writeln!(
            f,
            "    <rect class='line' width='24' height='{LEGEND}'/><text x='32' y='10'>{name}</text>"
        )?;
        writeln!(f, "  </g>")?;
        left = left.saturating_add(name.len().saturating_mul(ADVANCE)).saturating_add(56);
    }
    Ok(())
}

/// The scale and the coordinates of the document.
struct Page {
    scale: Scale,
    /// The left edge of the lanes.
    left: usize,
    width: usize,
    height: usize,
}

impl Page {
    fn new(picture: &Picture) -> Self {
        let scale = Scale::new(picture.capacity, 800, 80);
        let name = picture.positions.to_string().len().saturating_add(1);
        let label = |lane: &Lane| {
            let position =
                lane.position.map_or(0, |position| position.to_string().len().saturating_add(name));
            position.max("sample ".len().saturating_add(digits(lane.sample)))
        };
        let label = picture.lanes.iter().map(label).fold("slot".len(), usize::max);
        let left = label.saturating_mul(ADVANCE).saturating_add(GAP).saturating_add(MARGIN);
        // The last number of the ruler begins at its tick and may extend beyond the lane.
        let number = |(slot, x): (usize, usize)| digits(slot).saturating_mul(ADVANCE).saturating_add(x);
        let right = scale.ticks(ADVANCE).last().copied().map_or(0, number).max(scale.columns());
        let width = left.saturating_add(right).saturating_add(MARGIN);
        let lanes = picture.lanes.len().saturating_mul(PITCH).saturating_add(more_height(picture));
        let height =
            RULER.saturating_add(lanes).saturating_add(LEGEND).saturating_add(MARGIN).saturating_add(8);
        Self { scale, left, width: width.max(480), height }
    }

    /// Returns the pixels of a run, enlarged so that the run is visible.
    fn bar_of(&self, run: &Range<usize>) -> Range<usize> {
        let Range { start, end } = self.scale.columns_of(run);
        let end = end.max(start.saturating_add(RUN)).min(self.scale.columns());
        start.min(end.saturating_sub(RUN))..end
    }

    fn slot_borders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = self.scale.columns_per_slot();
        if cell < CELL {
            return Ok(());
        }
        write!(f, "    <path class='grid' d='")?;
        for x in (cell..self.scale.columns()).step_by(cell) {
            write!(f, "M{x}.5 0v{LANE}")?;
        }
        writeln!(f, "'/>")
    }

    /// Writes the slot numbers under their runs, or words if no slot is written.
    fn notes(&self, f: &mut fmt::Formatter<'_>, lane: &Lane) -> fmt::Result {
        let mut runs: Vec<_> =
            lane.runs().map(|(_, run)| (self.bar_of(run), Ends(run).to_string())).collect();
        if runs.is_empty() {
            let words = if lane.outcome == SampleOutcome::Skipped { Mark::Skipped.name() } else { UNTOUCHED };
            return writeln!(f, "    <text y='{NOTE}'>{words}</text>");
        }
        runs.reverse(); // the wrapped run is on the left
        let mut free = 0;
        for (bar, ends) in runs {
            let extent = ends.len().saturating_mul(ADVANCE);
            let centre = bar.start.saturating_add(bar.len() / 2);
            let most = self.scale.columns().saturating_sub(extent);
            let x = centre.saturating_sub(extent / 2).min(most).max(free);
            writeln!(f, "    <text x='{x}' y='{NOTE}'>{ends}</text>")?;
            free = x.saturating_add(extent).saturating_add(ADVANCE);
        }
        Ok(())
    }
}

/// Returns the height of the line with the number of samples without a lane.
fn more_height(picture: &Picture) -> usize {
    if picture.hidden() > 0 { 28 } else { 0 }
}

struct Heading<'a>(&'a Picture);

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Picture { capacity, samples, skipped, .. } = *self.0;
        write!(f, "{samples} sample{} × {capacity} slot{}", plural(samples), plural(capacity))?;
        if skipped > 0 { write!(f, ", {skipped} skipped") } else { Ok(()) }
    }
}

/// The description of one lane in words.
struct Sentence<'a> {
    positions: Argument,
    lane: &'a Lane,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { positions, lane } = self;
        write!(f, "Sample {}", lane.sample)?;
        if let Some(position) = lane.position {
            write!(f, ", {positions} {position}")?;
        }
        if lane.outcome == SampleOutcome::Skipped {
            return f.write_str(": skipped.");
        }
        let mut runs = lane.runs().peekable();
        if runs.peek().is_none() {
            return write!(f, ": {UNTOUCHED}.");
        }
        for (mark, run) in runs {
            let separator = if mark == Mark::Written { ":" } else { "," };
            write!(f, "{separator} {} {}", mark.name(), Ends(run))?;
        }
        write!(f, "{}.", Sees(lane))
    }
}

impl fmt::Display for Svg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let page = Page::new(self.picture);
        self.head(f, &page)?;
        Self::ruler(f, &page)?;
        let mut top = RULER;
        for lane in &self.picture.lanes {
            self.lane(f, &page, top, lane)?;
            top = top.saturating_add(PITCH);
        }
        let hidden = self.picture.hidden();
        if hidden > 0 {
            let (x, y) = (page.left, top.saturating_add(10));
            writeln!(f, "  <text x='{x}' y='{y}'>… {hidden} more sample{}</text>", plural(hidden))?;
            top = top.saturating_add(more_height(self.picture));
        }
        legend(f, self.picture, top.saturating_add(8))?;
        writeln!(f, "</svg>")
    }
}
