//! Checks subjects, and then times all of them in turn.

use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use crate::statistics::{MedianSpread, Timings};

/// The error of a call.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// What is timed: kvscatter, another library or a yardstick, ready for one case.
pub(crate) trait Subject<S> {
    /// Makes so many calls on the scene, and returns their time.
    fn time(&mut self, scene: &mut S, calls: usize) -> Result<Duration, Failed>;

    /// Makes one call, and compares its result with the expected one.
    fn check(&mut self, scene: &mut S) -> Result<(), String>;
}

/// A subject, or the reason why it does not do the case.
pub(crate) type Prepared<S> = Result<Box<dyn Subject<S>>, String>;

/// The memory that the subjects of a case use.
pub(crate) trait Scene {
    /// Whether a sample is one call on memory that only its subject uses, instead of many calls on the same memory.
    ///
    /// Returns an error if there is not enough memory for `seats` subjects.
    fn is_cold(&self, seats: usize) -> Result<bool, String> {
        let _ = seats;
        Ok(false)
    }

    /// Prepares the next sample of a cold case.
    fn turn_to(&mut self, turn: Turn) {
        let _ = turn;
    }
}

/// The next sample. The first subject has a second seat, because it is timed twice in each round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) seat: usize,
    pub(crate) seats: usize,
    pub(crate) round: usize,
}

/// The times of a case. They are paired by round.
pub(crate) struct Measured {
    /// The name and the times of each subject, or the reason why it has none.
    pub(crate) subjects: Vec<(String, Result<Timings, String>)>,
    /// The A/A spread: the ratio of the first subject's two times.
    pub(crate) noise: MedianSpread,
}

impl Measured {
    pub(crate) fn times(&self, subject: &str) -> Option<&Timings> {
        self.subjects.iter().find(|(name, _)| name == subject)?.1.as_ref().ok()
    }
}

/// The time to spend on one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The time for all samples of all subjects together. A measurement stops when it is used up.
    pub(crate) time: Duration,
    /// The number of rounds that are made even if the time is used up.
    pub(crate) min_rounds: usize,
}

impl Budget {
    /// Returns a budget of rounds alone, and of three if the run is quick.
    pub(crate) fn rounds(quick: bool, rounds: usize) -> Self {
        Self { time: Duration::ZERO, min_rounds: if quick { 3 } else { rounds } }
    }
}

/// Checks every subject on the scene, and times those whose result is right.
pub(crate) fn measure<S: Scene>(
    scene: &mut S,
    subjects: Vec<(String, Prepared<S>)>,
    budget: Budget,
) -> Result<Measured, String> {
    let (mut lanes, mut places) = (Vec::new(), Vec::new());
    for (name, subject) in subjects {
        let checked = subject.and_then(|mut subject| {
            subject.check(scene).map_err(|why| format!("wrong, not timed: {why}"))?;
            Ok(subject)
        });
        places.push((
            name.clone(),
            checked.map(|subject| {
                lanes.push((name, subject));
                lanes.len() - 1
            }),
        ));
    }
    let is_cold = scene.is_cold(lanes.len() + 1)?;
    let mut batches = vec![None; lanes.len()];
    let (times, noise) = in_turn(lanes.len(), budget, |lane, turn| {
        let (name, subject) = &mut lanes[lane];
        let nanoseconds = if is_cold {
            scene.turn_to(turn);
            subject.time(scene, 1).map(|time| time.as_secs_f64() * 1e9)
        } else {
            sample(&mut batches[lane], |calls| subject.time(scene, calls))
        };
        nanoseconds.map_err(|error| format!("{name}: {error}").into())
    })
    .map_err(|error| error.to_string())?;
    let subjects = places.into_iter().map(|(name, place)| (name, place.map(|lane| times[lane].clone())));
    Ok(Measured { subjects: subjects.collect(), noise })
}

/// Times calls in turn, by their names. `time` gets the index of a call and how often to make it.
pub(crate) fn measure_calls(
    names: &[String],
    budget: Budget,
    mut time: impl FnMut(usize, usize) -> Result<Duration, Failed>,
) -> Result<Measured, String> {
    let mut batches = vec![None; names.len()];
    let sample = |call: usize, _| sample(&mut batches[call], |count| time(call, count));
    let (times, noise) = in_turn(names.len(), budget, sample).map_err(|error| error.to_string())?;
    Ok(Measured { subjects: names.iter().cloned().zip(times.into_iter().map(Ok)).collect(), noise })
}

/// Takes one sample of every call in each round, and two of the first one, until the budget is used up.
fn in_turn(
    calls: usize,
    budget: Budget,
    mut sample: impl FnMut(usize, Turn) -> Result<f64, Failed>,
) -> Result<(Vec<Timings>, MedianSpread), Failed> {
    if calls == 0 {
        return Ok((Vec::new(), MedianSpread::NONE));
    }
    let seats = calls + 1;
    let mut samples = vec![Vec::new(); seats];
    let began = Instant::now();
    for round in 0.. {
        for seat in order(round, seats) {
            samples[seat].push(sample(seat % calls, Turn { seat, seats, round })?);
        }
        if round + 1 >= budget.min_rounds && began.elapsed() >= budget.time {
            break;
        }
    }
    let mut times: Vec<_> = samples.into_iter().map(Timings::new).collect();
    let again = times.split_off(calls);
    Ok((times.clone(), again[0].spread_from(&times[0])))
}

/// Returns the seats of a round in random order, so that no subject always follows the same other one. The order is
/// the same on every machine.
fn order(round: usize, seats: usize) -> Vec<usize> {
    let mut order: Vec<_> = (0..seats).collect();
    order.sort_by_cached_key(|&seat| {
        let mut hasher = DefaultHasher::new();
        (round, seat).hash(&mut hasher);
        hasher.finish()
    });
    order
}

/// The shortest time of a sample. It is long compared with the time to read the clock.
const SAMPLE: Duration = Duration::from_micros(10);

/// The time from which a call is not repeated to warm up memory that the previous subject has cooled down.
const LONG: Duration = Duration::from_millis(2);

/// Returns the nanoseconds of one call. `batch` is the number of calls in a sample, which the first sample determines.
fn sample(
    batch: &mut Option<usize>,
    mut time: impl FnMut(usize) -> Result<Duration, Failed>,
) -> Result<f64, Failed> {
    let calls = match *batch {
        Some(calls) => calls,
        None => {
            let mut calls = 1;
            // CPU caches, page tables and the branch predictor warm up in this loop.
            while time(calls)? < SAMPLE {
                calls *= 2;
            }
            *batch.insert(calls)
        }
    };
    if time(1)? < LONG {
        time(calls.div_ceil(8))?;
    }
    Ok(time(calls)?.as_secs_f64() * 1e9 / calls as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::{Budget, Failed, Measured, Prepared, Scene, Subject, measure, measure_calls, order};

    /// The fewest rounds.
    pub(crate) const SHORT: Budget = Budget { time: Duration::ZERO, min_rounds: 1 };

    #[test]
    fn every_seat_follows_every_other() {
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
        let names = ["a", "b"].map(str::to_owned);
        let budget = Budget { min_rounds: 3, ..SHORT };
        let Measured { subjects, noise } = measure_calls(&names, budget, |call, calls| {
            Ok(Duration::from_millis(1 + 2 * call as u64) * u32::try_from(calls).unwrap())
        })
        .unwrap();
        let times: Vec<_> =
            subjects.into_iter().map(|(_, times)| times.unwrap().by_round().to_vec()).collect();
        assert_eq!(times, [[1e6; 3], [3e6; 3]]);
        assert_eq!((noise.lowest, noise.highest), (1.0, 1.0));
        assert!(measure_calls(&names, budget, |_, _| Err("broken".into())).is_err());
    }

    struct Calls(usize);

    impl Scene for Calls {}

    /// A subject whose check returns this.
    struct Checked(Result<(), String>);

    impl Subject<Calls> for Checked {
        fn time(&mut self, scene: &mut Calls, calls: usize) -> Result<Duration, Failed> {
            scene.0 += calls;
            Ok(Duration::from_secs(1))
        }

        fn check(&mut self, _: &mut Calls) -> Result<(), String> {
            self.0.clone()
        }
    }

    #[test]
    fn a_subject_is_timed_only_if_it_is_right() {
        let subject = |name: &str, check| {
            (name.to_owned(), Ok::<Box<dyn Subject<Calls>>, String>(Box::new(Checked(check))))
        };
        let absent: (String, Prepared<Calls>) = ("absent".to_owned(), Err("too old".to_owned()));
        let wrong = subject("wrong", Err("byte 7".to_owned()));
        let measured = measure(&mut Calls(0), vec![wrong, subject("right", Ok(())), absent], SHORT).unwrap();
        let [wrong, right, absent] = ["wrong", "right", "absent"].map(|name| measured.times(name));
        assert!(wrong.is_none() && right.is_some() && absent.is_none());
        let reasons: Vec<_> =
            measured.subjects.iter().filter_map(|(_, times)| times.as_ref().err()).collect();
        assert_eq!(reasons, ["wrong, not timed: byte 7", "too old"]);

        let mut calls = Calls(0);
        let wrong = subject("wrong", Err(String::new()));
        assert!(measure(&mut calls, vec![wrong], SHORT).unwrap().times("wrong").is_none());
        assert_eq!(calls.0, 0);
    }
}
