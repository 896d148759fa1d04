//! Checks every engine, then times them in turn.

mod check;
mod cold;
mod hot;

use std::time::{Duration, Instant};

use crate::case::Temperature;
use crate::engine::{Engine, Failed, Run, Task};
use crate::engines::HAND_LOOP;
use crate::error::Error;
use crate::expected::Reference;
use crate::report::{Entry, Noise, Outcome, Report, Times};
use crate::scene::Scene;
use crate::statistics::Samples;

/// How long a case is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Time for all samples of all engines together.
    pub time: Duration,
    /// Rounds that are made even if the time is up; every round samples every engine.
    pub least_rounds: usize,
}

/// How far a measurement is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// An engine's result is compared.
    Checking {
        /// The engine.
        engine: &'a str,
    },
    /// Samples are taken.
    Sampling {
        /// From 0 to 1.
        done: f64,
    },
}

/// An engine that has passed its check.
struct Lane<'e> {
    name: &'e str,
    task: Task,
    run: Box<dyn Run>,
}

/// One sample, in nanoseconds per call.
#[derive(Clone, Copy, Debug)]
struct Sample {
    write: f64,
    write_and_read: Option<f64>,
}

/// How samples of a temperature are taken.
trait Sampler {
    fn sample(&mut self, scene: &mut Scene, lanes: &mut [Lane<'_>], turn: usize) -> Result<Sample, Failed>;
}

impl Budget {
    /// Enough to see that things work.
    #[must_use]
    pub const fn quick() -> Self {
        Self { time: Duration::from_millis(400), least_rounds: 9 }
    }

    /// Enough for a result.
    #[must_use]
    pub const fn full() -> Self {
        Self { time: Duration::from_secs(4), least_rounds: 41 }
    }

    /// The part of it that is used up.
    fn used(&self, rounds: usize, time: Duration) -> f64 {
        let of_rounds = rounds as f64 / self.least_rounds.max(1) as f64;
        let of_time = time.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        of_rounds.min(of_time).min(1.0)
    }
}

/// Checks every engine on the scene's case, and times those whose result is right.
///
/// Each round samples every engine once, in an order that changes from round to round; the hand-written loop (or else
/// the first engine) has two turns, which gives the A/A spread.
///
/// # Errors
/// [`Error::Engine`] if an engine fails after it has passed its check.
pub fn measure(
    scene: &mut Scene,
    engines: &[Box<dyn Engine>],
    budget: Budget,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, Error> {
    let reference = Reference::of(scene.case());
    let mut lanes = Vec::new();
    let mut places = Vec::new();
    for engine in engines {
        progress(Progress::Checking { engine: engine.name() });
        places.push(lane(engine.as_ref(), scene, reference).map(|lane| {
            lanes.push(lane);
            lanes.len() - 1
        }));
    }

    let again = lanes.iter().position(|lane| lane.name == HAND_LOOP).unwrap_or_default();
    let turns: Vec<_> = (0..lanes.len()).chain((!lanes.is_empty()).then_some(again)).collect();
    let samples = sample_in_turn(scene, &mut lanes, &turns, budget, progress)?;
    let times: Vec<_> = samples.into_iter().map(Times::from_samples).collect();

    let noise = lanes.get(again).map(|lane| Noise {
        engine: lane.name.to_owned(),
        spread: times[lanes.len()].write.over(&times[again].write),
    });
    let outcome = |place: Result<usize, Outcome>| match place {
        Ok(lane) => Outcome::Measured(times[lane].clone()),
        Err(outcome) => outcome,
    };
    let names = engines.iter().map(|engine| engine.name().to_owned());
    let entries =
        names.zip(places).map(|(engine, place)| Entry { engine, outcome: outcome(place) }).collect();
    Ok(Report { case: scene.case().clone(), checked_by: reference, entries, noise })
}

/// An engine that does the case and does it right, or why it is not timed.
fn lane<'e>(engine: &'e dyn Engine, scene: &mut Scene, reference: Reference) -> Result<Lane<'e>, Outcome> {
    let run = engine.prepare(scene.case(), scene).map_err(|cause| Outcome::Unsupported(cause.0))?;
    let mut lane = Lane { name: engine.name(), task: engine.task(), run };
    check::check(scene, &mut lane, reference)?;
    Ok(lane)
}

/// The samples of every turn, one per round.
fn sample_in_turn(
    scene: &mut Scene,
    lanes: &mut [Lane<'_>],
    turns: &[usize],
    budget: Budget,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Vec<Sample>>, Error> {
    let mut samples = vec![Vec::new(); turns.len()];
    if turns.is_empty() {
        return Ok(samples);
    }
    let failed =
        |engine: &str, cause: Failed| Error::Engine { engine: engine.to_owned(), cause: cause.to_string() };
    let mut sampler: Box<dyn Sampler> = match scene.case().parameters().temperature {
        Temperature::Hot => Box::new(hot::Hot::new(lanes.len())),
        Temperature::Unflushed | Temperature::Flushed => Box::new(cold::Cold::new()),
    };
    let began = Instant::now();
    for round in 0.. {
        for turn in order(round, turns.len()) {
            let sample = sampler.sample(scene, lanes, turns[turn]);
            samples[turn].push(sample.map_err(|cause| failed(lanes[turns[turn]].name, cause))?);
        }
        let done = budget.used(round + 1, began.elapsed());
        progress(Progress::Sampling { done });
        if done >= 1.0 {
            break;
        }
    }
    Ok(samples)
}

/// Who comes when: everyone takes every place, and behind each neighbour, as often as the others.
fn order(round: usize, turns: usize) -> impl Iterator<Item = usize> {
    (0..turns).map(move |place| {
        let place = if round.is_multiple_of(2) { place } else { turns - 1 - place };
        (place + round / 2) % turns
    })
}

impl Times {
    fn from_samples(samples: Vec<Sample>) -> Self {
        let with_read: Option<Vec<_>> = samples.iter().map(|sample| sample.write_and_read).collect();
        Self {
            write: Samples::new(samples.iter().map(|sample| sample.write).collect()),
            write_and_read: with_read.map(Samples::new),
        }
    }
}
