//! Pictures of the caches, slot by slot and step by step, one for each sample of a scenario.

use std::ops::Range;

use serde::Serialize;

use crate::certificate::{Occupancy, OccupancyStep, Phase};

/// The maximum number of samples of a scenario that are drawn. More samples would not show anything new.
const MOST_SAMPLES: usize = 8;
/// The maximum number of steps that are drawn. Of a scenario with more steps, the first and the last are
/// drawn, half of each.
const MOST_STEPS: usize = 48;

/// The contents of a slot after a step.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mark {
    Untouched,
    Token,
    NewToken,
    Padding,
    NewPadding,
    Clobbered,
}

/// The pictures of a scenario. Positions and lengths are shares of the capacity.
#[derive(Serialize)]
pub(super) struct Figure<'o> {
    name: &'o str,
    description: &'o str,
    is_ring: bool,
    capacity: usize,
    /// Slots that are labelled, with their positions.
    ticks: Vec<(usize, f64)>,
    pictures: Vec<Picture>,
    /// The number of samples that are not drawn.
    more_samples: usize,
}

/// The picture of one sample.
#[derive(Serialize)]
struct Picture {
    steps: usize,
    /// The number of rows of the picture.
    rows: usize,
    lanes: Vec<Lane>,
    hidden: Option<Hidden>,
}

/// Steps that are not drawn, and the row that mentions them.
#[derive(Serialize)]
struct Hidden {
    steps: usize,
    row: usize,
}

/// One step of one sample.
#[derive(Serialize)]
struct Lane {
    row: usize,
    step: usize,
    phase: Phase,
    /// The slots that the step writes.
    writes: String,
    /// The number of slots with tokens.
    tokens: usize,
    runs: Vec<Run>,
}

/// Neighbouring slots with the same mark.
#[derive(Serialize)]
struct Run {
    mark: Mark,
    start: f64,
    len: f64,
}

impl<'o> Figure<'o> {
    pub(super) fn new(scenario: &'o Occupancy) -> Self {
        let samples = scenario.steps.iter().map(|step| step.samples.len()).max().unwrap_or_default();
        // The labels are at most eight multiples of a power of two, and the last slot.
        let step = scenario.capacity.div_ceil(8).next_power_of_two();
        let last = scenario.capacity.saturating_sub(1);
        let ticks = (0..last.saturating_sub(step / 2)).step_by(step).chain([last]);
        Self {
            name: &scenario.scenario,
            description: &scenario.description,
            is_ring: scenario.is_ring,
            capacity: scenario.capacity,
            ticks: ticks.map(|slot| (slot, share(slot, scenario.capacity))).collect(),
            pictures: (0..samples.min(MOST_SAMPLES)).map(|sample| Picture::new(scenario, sample)).collect(),
            more_samples: samples.saturating_sub(MOST_SAMPLES),
        }
    }
}

impl Picture {
    fn new(scenario: &Occupancy, sample: usize) -> Self {
        let mut lanes = lanes(scenario, sample);
        let steps = lanes.len();
        let hidden = steps.saturating_sub(MOST_STEPS);
        let hidden = (hidden > 0).then_some(Hidden { steps: hidden, row: MOST_STEPS / 2 });
        if let Some(Hidden { steps, row }) = hidden {
            lanes.drain(row..row + steps);
            lanes.iter_mut().skip(row).for_each(|lane| lane.row -= steps - 1);
        }
        Self { steps, rows: lanes.len() + usize::from(hidden.is_some()), lanes, hidden }
    }
}

/// Returns the lanes of a sample. A slot keeps its mark until it is written again.
fn lanes(scenario: &Occupancy, sample: usize) -> Vec<Lane> {
    let mut slots_so_far = vec![Mark::Untouched; scenario.capacity];
    let lane = |(step, what): (usize, &OccupancyStep)| {
        let slots = what.samples.get(sample)?;
        let mut marks = slots_so_far.clone();
        paint(&mut marks, &slots.valid, |_| Mark::Token);
        paint(&mut marks, &slots.written, |mark| match mark {
            Mark::Token => Mark::NewToken,
            _ => Mark::NewPadding,
        });
        paint(&mut marks, &slots.clobbered, |_| Mark::Clobbered);
        paint(&mut slots_so_far, &slots.written, |_| Mark::Padding);
        Some(Lane {
            row: step,
            step,
            phase: what.phase,
            writes: slot_numbers(&slots.written),
            tokens: slots.valid.iter().map(Range::len).sum(),
            runs: runs(&marks),
        })
    };
    scenario.steps.iter().enumerate().filter_map(lane).collect()
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

/// Returns ranges of neighbouring slots with the same mark. Untouched slots are left out.
fn runs(marks: &[Mark]) -> Vec<Run> {
    let mut start = 0;
    let run = |slots: &[Mark]| {
        let (at, len) = (share(start, marks.len()), share(slots.len(), marks.len()));
        start += slots.len();
        slots.first().map(|&mark| Run { mark, start: at, len })
    };
    let runs = marks.chunk_by(|a, b| a == b).filter_map(run);
    runs.filter(|run| run.mark != Mark::Untouched).collect()
}

/// Formats ranges of slots: `slots 3-7, 9`.
fn slot_numbers(runs: &[Range<usize>]) -> String {
    let run = |run: &Range<usize>| match run.len() {
        1 => run.start.to_string(),
        _ => format!("{}-{}", run.start, run.end.saturating_sub(1)),
    };
    let runs: Vec<_> = runs.iter().filter(|run| !run.is_empty()).map(run).collect();
    if runs.is_empty() { "nothing".to_owned() } else { format!("slots {}", runs.join(", ")) }
}

fn share(slots: usize, capacity: usize) -> f64 {
    slots as f64 / capacity.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::{Lane, Mark, Picture, lanes};
    use crate::certificate::{Occupancy, OccupancyStep, Phase, SampleSlots};

    fn step(written: Range<usize>, valid: Range<usize>, clobbered: Vec<Range<usize>>) -> OccupancyStep {
        let samples = vec![SampleSlots { written: vec![written], valid: vec![valid], clobbered }];
        OccupancyStep { phase: Phase::Decode, rows: 1, samples }
    }

    fn scenario(steps: Vec<OccupancyStep>) -> Occupancy {
        let (scenario, description) = (String::new(), String::new());
        Occupancy { scenario, description, capacity: 8, is_ring: false, steps }
    }

    fn drawn(steps: Vec<OccupancyStep>) -> Vec<String> {
        let slot = |share: f64| (share * 8.0) as usize;
        let draw = |lane: Lane| {
            let mut drawn = ".".repeat(8);
            for run in lane.runs {
                let glyph = match run.mark {
                    Mark::Untouched => ".",
                    Mark::Token => "o",
                    Mark::NewToken => "O",
                    Mark::Padding => "-",
                    Mark::NewPadding => "=",
                    Mark::Clobbered => "!",
                };
                let start = slot(run.start);
                drawn.replace_range(start..start + slot(run.len), &glyph.repeat(slot(run.len)));
            }
            drawn
        };
        lanes(&scenario(steps), 0).into_iter().map(draw).collect()
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

    #[test]
    fn the_middle_of_many_steps_is_left_out() {
        let steps = (0..60).map(|at| step(at % 8..at % 8 + 1, 0..1, vec![])).collect();
        let picture = Picture::new(&scenario(steps), 0);
        let lanes: Vec<_> = picture.lanes.iter().map(|lane| (lane.row, lane.step)).collect();
        assert_eq!((picture.steps, picture.rows, lanes.len()), (60, 49, 48));
        assert_eq!(lanes[22..26], [(22, 22), (23, 23), (25, 36), (26, 37)]);
    }
}
