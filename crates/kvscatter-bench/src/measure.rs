//! Checks every engine and then times all of them in turn.

mod check;
mod cold;
mod hot;
mod sampler;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Failed};
use crate::engines::{self, HAND_LOOP};
use crate::error::BenchError;
use crate::expected::Reference;
use crate::report::{EngineOutcome, Noise, Outcome, Report, Times};
use crate::scene::Scene;
use crate::statistics::{MedianSpread, Timings};
use sampler::{Lane, Sampler, TimeSample, Turn};

/// The time to spend on one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The time for all samples of all engines together. A measurement stops when it is used up.
    pub time: Duration,
    /// The minimum number of rounds, even if the time is used up. Each round takes one sample of every
    /// engine.
    pub min_rounds: usize,
}

/// The progress of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The result of an engine is being compared with the expected one.
    Checking {
        /// The name of the engine.
        engine: &'a str,
    },
    /// Samples are being taken.
    Sampling {
        /// The part of the samples that is done, from 0 to 1.
        done: f64,
    },
}

impl Budget {
    /// Returns a budget that is enough to see that everything works.
    #[must_use]
    pub const fn quick() -> Self {
        Self { time: Duration::from_millis(250), min_rounds: 9 }
    }

    /// Returns a budget that is enough for a result.
    #[must_use]
    pub const fn full() -> Self {
        Self { time: Duration::from_secs(3), min_rounds: 41 }
    }

    /// Returns the part of the budget that is used up.
    fn used(&self, rounds: usize, time: Duration) -> f64 {
        let of_rounds = rounds as f64 / self.min_rounds.max(1) as f64;
        let of_time = time.as_secs_f64() / self.time.as_secs_f64().max(f64::MIN_POSITIVE);
        of_rounds.min(of_time).min(1.0)
    }
}

/// Checks every engine on the scene's case, and times the engines whose result is correct.
///
/// Each round times every engine once, in a new order. The hand-written loop, or else the first engine, is
/// timed twice, which gives the A/A spread. In a cold case every turn has separate layers, so that only the
/// engine itself has warmed its memory.
///
/// # Errors
/// - Returns [`BenchError::Layers`] if a cold case has too few layers.
/// - Returns [`BenchError::Engine`] if an engine fails after it has passed its check.
pub fn measure(
    scene: &mut Scene,
    contestants: &[Box<dyn Engine>],
    budget: Budget,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report, BenchError> {
    let reference = Reference::of(scene.case());
    let mut lanes = Vec::new();
    let mut places = Vec::new();
    for engine in contestants {
        progress(Progress::Checking { engine: engine.name() });
        places.push(lane(engine.as_ref(), scene, reference).map(|lane| {
            lanes.push(lane);
            lanes.len() - 1
        }));
    }

    let again = lanes.iter().position(|lane| lane.name == HAND_LOOP).unwrap_or_default();
    let seats: Vec<_> = (0..lanes.len()).chain((!lanes.is_empty()).then_some(again)).collect();
    let samples = sample_in_turn(scene, &mut lanes, &seats, budget, progress)?;
    let times: Vec<_> = samples.into_iter().map(Times::from_samples).collect();

    let noise = lanes.get(again).map(|lane| Noise {
        engine: lane.name.to_owned(),
        spread: times[lanes.len()].write.spread_from(&times[again].write),
    });
    let outcome = |place: Result<usize, Outcome>| match place {
        Ok(lane) => Outcome::Measured(times[lane].clone()),
        Err(outcome) => outcome,
    };
    let names = contestants.iter().map(|engine| engine.name().to_owned());
    let entries =
        names.zip(places).map(|(engine, place)| EngineOutcome { engine, outcome: outcome(place) }).collect();
    let isa = engines::isa(scene.case()).map(|isa| isa.to_string());
    Ok(Report { case: scene.case().clone(), isa, checked_by: reference, entries, noise })
}

/// Prepares and checks an engine. Returns the reason if it cannot be timed.
fn lane<'e>(engine: &'e dyn Engine, scene: &mut Scene, reference: Reference) -> Result<Lane<'e>, Outcome> {
    let run = engine.prepare(scene.case(), scene).map_err(|cause| Outcome::Unsupported(cause.0))?;
    let mut lane = Lane { name: engine.name(), task: engine.task(), run };
    check::check(scene, &mut lane, reference)?;
    Ok(lane)
}

/// Returns the samples of every seat, one in each round. `seats` contains the lane of each seat.
fn sample_in_turn(
    scene: &mut Scene,
    lanes: &mut [Lane<'_>],
    seats: &[usize],
    budget: Budget,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Vec<Vec<TimeSample>>, BenchError> {
    if seats.is_empty() {
        return Ok(Vec::new());
    }
    let mut sampler: Box<dyn Sampler> = match scene.case().parameters().temperature.is_cold() {
        false => Box::new(hot::Hot::new(lanes.len())),
        true => Box::new(cold::Cold::new(scene.case(), seats.len())?),
    };
    let sample = |seat: usize, round| {
        let turn = Turn { lane: seats[seat], seat, seats: seats.len(), round };
        sampler.sample(scene, lanes, turn).map_err(|cause| BenchError::Engine {
            engine: lanes[turn.lane].name.to_owned(),
            cause: cause.to_string(),
        })
    };
    rounds(seats.len(), budget, |done| progress(Progress::Sampling { done }), sample)
}

/// Times several calls in turn, as [`measure`] does in hot cases, and the first of them twice.
///
/// `time` gets the index of a call. Its second argument is the number of times to make this call. It returns the
/// time.
///
/// Returns the times of each call, and the A/A spread of the first one. There must be at least one call.
///
/// # Errors
/// Returns the first error of `time`.
pub fn measure_calls(
    calls: usize,
    budget: Budget,
    mut time: impl FnMut(usize, usize) -> Result<Duration, Failed>,
) -> Result<(Vec<Timings>, MedianSpread), Failed> {
    let mut batches = vec![None; calls];
    // The last seat is the second one of the first call.
    let call = |seat: usize| seat % calls.max(1);
    let sample = |seat, _| hot::sample(&mut batches[call(seat)], |count| time(call(seat), count));
    let samples = rounds(calls + 1, budget, |_| (), sample)?;
    let mut times: Vec<_> = samples.into_iter().map(Timings::new).collect();
    let again = times.split_off(calls);
    let noise = times.iter().zip(&again).map(|(first, again)| again.spread_from(first)).next();
    Ok((times, noise.unwrap_or(MedianSpread { lowest: 1.0, highest: 1.0 })))
}

/// Takes one sample of every seat in each round, until the budget is used up.
fn rounds<T, E>(
    seats: usize,
    budget: Budget,
    mut progress: impl FnMut(f64),
    mut sample: impl FnMut(usize, usize) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut samples: Vec<Vec<T>> = (0..seats).map(|_| Vec::new()).collect();
    let began = Instant::now();
    for round in 0.. {
        for seat in order(round, seats) {
            samples[seat].push(sample(seat, round)?);
        }
        let done = budget.used(round + 1, began.elapsed());
        progress(done);
        if done >= 1.0 {
            break;
        }
    }
    Ok(samples)
}

/// Returns the engines of a round in random order, so that no engine always follows the same other one. The
/// order is the same on every machine.
fn order(round: usize, seats: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..seats).collect();
    order.sort_by_cached_key(|&seat| {
        let mut hasher = DefaultHasher::new();
        (round, seat).hash(&mut hasher);
        hasher.finish()
    });
    order
}

impl Times {
    fn from_samples(samples: Vec<TimeSample>) -> Self {
        let with_read: Option<Vec<_>> = samples.iter().map(|sample| sample.write_and_read).collect();
        Self {
            write: Timings::new(samples.iter().map(|sample| sample.write).collect()),
            write_and_read: with_read.map(Timings::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Budget, measure_calls, order};

    #[test]
    fn everyone_follows_everyone() {
        let mut followed = [[0; 4]; 4];
        for round in 0..1000 {
            let order = order(round, 4);
            let mut seats = order.clone();
            seats.sort_unstable();
            assert_eq!(seats, [0, 1, 2, 3]);
            order.windows(2).for_each(|pair| followed[pair[0]][pair[1]] += 1);
        }
        for (first, row) in followed.iter().enumerate() {
            for (second, times) in row.iter().enumerate().filter(|(second, _)| *second != first) {
                // The expected value is 250 of 1000 rounds, and the limits are four standard deviations away.
                assert!((195..=305).contains(times), "{second} after {first}: {times}");
            }
        }
    }

    #[test]
    fn every_call_is_timed_in_every_round() {
        let budget = Budget { time: Duration::ZERO, min_rounds: 3 };
        let (times, noise) = measure_calls(2, budget, |call, calls| {
            Ok(Duration::from_millis(1 + 2 * call as u64) * u32::try_from(calls).unwrap())
        })
        .unwrap();
        assert_eq!(times.iter().map(|times| times.by_round()).collect::<Vec<_>>(), [[1e6; 3], [3e6; 3]]);
        assert_eq!((noise.lowest, noise.highest), (1.0, 1.0));
        assert!(measure_calls(1, budget, |_, _| Err("broken".into())).is_err());
    }

    #[test]
    fn a_budget_is_used_up_by_time_and_rounds() {
        let budget = Budget { time: Duration::from_secs(2), min_rounds: 10 };
        assert_eq!(budget.used(5, Duration::from_secs(60)), 0.5);
        assert_eq!(budget.used(1000, Duration::from_secs(1)), 0.5);
        assert_eq!(budget.used(10, Duration::from_secs(2)), 1.0);
        let none = Budget { time: Duration::ZERO, min_rounds: 0 };
        assert_eq!(none.used(1, Duration::from_nanos(1)), 1.0);
    }
}
