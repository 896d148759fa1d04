//! Pictures of the caches, slot by slot and step by step, one for each sample of a scenario.

use std::ops::Range;

use maud::{Markup, html};

use super::plain::Plain;
use crate::certificate::{Occupancy, OccupancyStep, SampleSlots};
use crate::report::words;

/// The maximum number of samples of a scenario that are drawn. More samples would not show anything new.
const MOST_SAMPLES: usize = 8;
/// The maximum number of steps that are drawn. Of a scenario with more steps, the first and the last are
/// drawn, half of each.
const MOST_STEPS: usize = 48;

/// Lengths in pixels at the picture's natural size.
const LEFT: usize = 112;
const SLOTS: usize = 720;
const RIGHT: usize = 88;
const RULER: usize = 34;
const LANE: usize = 11;
const PITCH: usize = 15;
/// The smallest width of a run.
const MIN_WIDTH: f64 = 2.0;
/// The width from which slots have borders.
const CELL: f64 = 6.0;

/// The contents of a slot after a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Untouched,
    Token,
    NewToken,
    Padding,
    NewPadding,
    Clobbered,
}

const LEGEND: [(Mark, &str); 6] = [
    (Mark::NewToken, "token, written in this step"),
    (Mark::Token, "token of an earlier step"),
    (Mark::NewPadding, "padding, written in this step"),
    (Mark::Padding, "padding of an earlier step"),
    (Mark::Untouched, "never written, unchanged"),
    (Mark::Clobbered, "changed, although no write index names it"),
];

pub(super) fn section(scenarios: &[Occupancy]) -> Markup {
    html! {
        section #occupancy {
            h2 { "Occupancy" }
            @if scenarios.is_empty() {
                p { "No scenario was run." }
            } @else {
                p {
                    "The slots of each sample along the sequence axis, from left to right, after each step, from top "
                    "to bottom. Every cache was compared with this picture, byte for byte."
                }
                (patterns())
                (legend())
                @for scenario in scenarios { (figure(scenario)) }
            }
        }
    }
}

/// Renders the hatching patterns that the pictures refer to. Marks have patterns so that they do not depend
/// on colour alone.
fn patterns() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" { defs {
            pattern #untouched width="8" height="8" patternUnits="userSpaceOnUse" {
                rect.ground width="8" height="8" {}
                circle.dot cx="4" cy="5.5" r="1" {}
            }
            pattern #padding width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.ground width="6" height="6" {}
                path.old d="M1.5 0V6" {}
            }
            pattern #new-padding width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                rect.ground width="6" height="6" {}
                path.new d="M1.5 0V6" {}
            }
            pattern #clobbered width="6" height="6" patternUnits="userSpaceOnUse" {
                rect.bad width="6" height="6" {}
                path.cross d="M1 1L5 5M5 1L1 5" {}
            }
        } }
    }
}

fn legend() -> Markup {
    html! {
        ul.legend {
            @for (mark, meaning) in LEGEND {
                li {
                    svg width="24" height=(LANE) aria-hidden="true" {
                        rect.(mark.class()) width="24" height=(LANE) {}
                        rect.frame width="24" height=(LANE) {}
                    }
                    " " (meaning)
                }
            }
        }
    }
}

fn figure(scenario: &Occupancy) -> Markup {
    let samples = scenario.steps.iter().map(|step| step.samples.len()).max().unwrap_or_default();
    html! {
        figure {
            figcaption {
                h3 {
                    (Plain(&scenario.scenario))
                    @if scenario.is_ring { " (rings of " (scenario.capacity) " slots)" }
                }
                p {
                    (Plain(&scenario.description))
                    @if scenario.is_ring { ". Position p is in slot p mod " (scenario.capacity) }
                }
            }
            @for sample in 0..samples.min(MOST_SAMPLES) { (picture(scenario, sample)) }
            @if samples > MOST_SAMPLES { p.note { (samples - MOST_SAMPLES) " more samples" } }
        }
    }
}

fn picture(scenario: &Occupancy, sample: usize) -> Markup {
    let lanes = lanes(scenario, sample);
    let hidden = lanes.len().saturating_sub(MOST_STEPS);
    let (first, last) = lanes.split_at(if hidden > 0 { MOST_STEPS / 2 } else { lanes.len() });
    let last = last.get(hidden..).unwrap_or_default();
    let rows = first.len() + last.len() + usize::from(hidden > 0);
    let (width, height) = (LEFT + SLOTS + RIGHT, RULER + rows * PITCH);
    let label = format!("Slots of sample {sample} after each of {} steps", lanes.len());
    html! {
        div.wide {
            svg.picture viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(label) {
                text.name.end x=(LEFT - 12) y="12" { "sample " (sample) }
                (ruler(scenario.capacity))
                @for (row, lane) in first.iter().enumerate() { (lane.draw(scenario.capacity, row)) }
                @if hidden > 0 {
                    text x=(LEFT) y=(RULER + first.len() * PITCH + 10) { "… " (hidden) " more steps" }
                }
                @for (row, lane) in last.iter().enumerate() {
                    (lane.draw(scenario.capacity, first.len() + 1 + row))
                }
            }
        }
    }
}

fn ruler(capacity: usize) -> Markup {
    // The labels are at most eight multiples of a power of two, and the last slot.
    let step = capacity.div_ceil(8).next_power_of_two();
    let last = capacity.saturating_sub(1);
    let ticks = (0..last.saturating_sub(step / 2)).step_by(step).chain([last]);
    html! {
        text.end x=(LEFT - 12) y="27" { "step" }
        text x=(LEFT + SLOTS + 10) y="27" { "tokens" }
        @for slot in ticks {
            text x=(coordinate(at(slot, capacity))) y="27" { (slot) }
        }
    }
}

/// One step of one sample.
struct Lane<'o> {
    step: usize,
    what: &'o OccupancyStep,
    slots: &'o SampleSlots,
    /// The mark of each slot.
    marks: Vec<Mark>,
}

/// Returns the lanes of a sample. A slot keeps its mark until it is written again.
fn lanes<'o>(scenario: &'o Occupancy, sample: usize) -> Vec<Lane<'o>> {
    let mut slots_so_far = vec![Mark::Untouched; scenario.capacity];
    let steps = scenario.steps.iter().enumerate();
    let lane = |(step, what): (usize, &'o OccupancyStep)| {
        let slots = what.samples.get(sample)?;
        let mut marks = slots_so_far.clone();
        paint(&mut marks, &slots.valid, |_| Mark::Token);
        paint(&mut marks, &slots.written, |mark| match mark {
            Mark::Token => Mark::NewToken,
            _ => Mark::NewPadding,
        });
        paint(&mut marks, &slots.clobbered, |_| Mark::Clobbered);
        paint(&mut slots_so_far, &slots.written, |_| Mark::Padding);
        Some(Lane { step, what, slots, marks })
    };
    steps.filter_map(lane).collect()
}

/// Marks ranges of slots. Slots beyond the capacity are ignored.
fn paint(marks: &mut [Mark], runs: &[Range<usize>], mark: impl Fn(Mark) -> Mark) {
    for run in runs {
        let end = run.end.min(marks.len());
        for slot in marks.get_mut(run.start..end).unwrap_or_default() {
            *slot = mark(*slot);
        }
    }
}

impl Lane<'_> {
    fn draw(&self, capacity: usize, row: usize) -> Markup {
        let (top, phase) = (RULER + row * PITCH, words::phase(self.what.phase));
        let tokens: usize = self.slots.valid.iter().map(Range::len).sum();
        html! {
            g transform=(format!("translate(0 {top})")) {
                title { "step " (self.step) ", " (phase) ": writes " (slots(&self.slots.written)) }
                text.end x=(LEFT - 12) y="9.5" { (phase) " " (self.step) }
                rect.untouched x=(LEFT) width=(SLOTS) height=(LANE) {}
                @for (mark, run) in self.runs() {
                    @let (left, width) = (at(run.start, capacity), at(run.end, capacity) - at(run.start, capacity));
                    rect.(mark.class()) x=(coordinate(left)) width=(coordinate(width.max(MIN_WIDTH))) height=(LANE) {}
                }
                @let cell = SLOTS as f64 / capacity.max(1) as f64;
                @if cell >= CELL { path.grid d=(borders(capacity)) {} }
                rect.frame x=(LEFT) width=(SLOTS) height=(LANE) {}
                text x=(LEFT + SLOTS + 10) y="9.5" { (tokens) }
            }
        }
    }

    /// Returns ranges of neighbouring slots with the same mark. Untouched slots are left out.
    fn runs(&self) -> Vec<(Mark, Range<usize>)> {
        let mut start = 0;
        let run = |slots: &[Mark]| {
            let run = start..start + slots.len();
            start = run.end;
            slots.first().map(|mark| (*mark, run))
        };
        let runs = self.marks.chunk_by(|a, b| a == b).filter_map(run);
        runs.filter(|(mark, _)| *mark != Mark::Untouched).collect()
    }
}

impl Mark {
    fn class(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Token => "token",
            Self::NewToken => "new-token",
            Self::Padding => "padding",
            Self::NewPadding => "new-padding",
            Self::Clobbered => "clobbered",
        }
    }
}

/// Formats ranges of slots: `slots 3-7, 9`.
fn slots(runs: &[Range<usize>]) -> String {
    let run = |run: &Range<usize>| match run.len() {
        1 => run.start.to_string(),
        _ => format!("{}-{}", run.start, run.end.saturating_sub(1)),
    };
    let runs: Vec<_> = runs.iter().filter(|run| !run.is_empty()).map(run).collect();
    if runs.is_empty() { "nothing".to_owned() } else { format!("slots {}", runs.join(", ")) }
}

/// Returns the horizontal position at which a slot begins.
fn at(slot: usize, capacity: usize) -> f64 {
    LEFT as f64 + SLOTS as f64 * slot as f64 / capacity.max(1) as f64
}

fn borders(capacity: usize) -> String {
    (1..capacity).map(|slot| format!("M{} 0v{LANE}", coordinate(at(slot, capacity)))).collect()
}

/// Rounds to two digits, finer than any pixel.
fn coordinate(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::{Lane, Mark, lanes};
    use crate::certificate::{Occupancy, OccupancyStep, Phase, SampleSlots};

    fn step(written: Range<usize>, valid: Range<usize>, clobbered: Vec<Range<usize>>) -> OccupancyStep {
        let samples = vec![SampleSlots { written: vec![written], valid: vec![valid], clobbered }];
        OccupancyStep { phase: Phase::Decode, rows: 1, samples }
    }

    fn drawn(steps: Vec<OccupancyStep>) -> Vec<String> {
        let scenario = Occupancy {
            scenario: String::new(),
            description: String::new(),
            capacity: 8,
            is_ring: false,
            steps,
        };
        let glyph = |mark: &Mark| match mark {
            Mark::Untouched => '.',
            Mark::Token => 'o',
            Mark::NewToken => 'O',
            Mark::Padding => '-',
            Mark::NewPadding => '=',
            Mark::Clobbered => '!',
        };
        lanes(&scenario, 0).iter().map(|Lane { marks, .. }| marks.iter().map(glyph).collect()).collect()
    }

    #[test]
    fn padding_stays_until_a_token_is_written_over_it() {
        let steps = vec![
            step(0..5, 0..3, vec![]),
            step(3..4, 0..4, vec![]),
            step(4..5, 0..5, std::iter::once(6..7).collect()),
        ];
        assert_eq!(drawn(steps), ["OOO==...", "oooO-...", "ooooO.!."]);
    }

    #[test]
    fn a_step_that_wraps_has_two_ranges() {
        let mut steps = vec![step(0..6, 0..5, vec![]), step(5..8, 0..8, vec![])];
        let valid = std::iter::once(1..7).collect();
        let samples = SampleSlots { written: vec![0..1, 6..8], valid, clobbered: vec![] };
        steps.push(OccupancyStep { phase: Phase::Chunk, rows: 3, samples: vec![samples] });
        assert_eq!(drawn(steps), ["OOOOO=..", "oooooOOO", "=oooooO="]);
    }

    #[test]
    fn left_padding_and_what_lies_beyond_the_cache() {
        let steps = vec![step(0..4, 2..4, vec![]), step(4..99, 2..99, std::iter::once(50..60).collect())];
        assert_eq!(drawn(steps), ["==OO....", "--ooOOOO"]);
    }
}
