//! Samples of one call that is repeated.

use std::time::{Duration, Instant};

use super::sampler::{Lane, Sampler, TimeSample, Turn};
use crate::call::Call;
use crate::engine::{Failed, Run};
use crate::scene::Scene;

/// The shortest time of a sample. It is long compared with the time to read the clock.
const SAMPLE: Duration = Duration::from_micros(10);

/// The time from which a call is not repeated to warm up memory that the previous engine has cooled down.
const LONG: Duration = Duration::from_millis(2);

/// A sampler that repeats a call until a sample is long enough.
pub(super) struct Hot {
    /// The number of calls in a sample of each lane, or `None` if it is not known yet.
    batches: Vec<Option<usize>>,
}

impl Hot {
    pub(super) fn new(lanes: usize) -> Self {
        Self { batches: vec![None; lanes] }
    }
}

impl Sampler for Hot {
    fn sample(
        &mut self,
        scene: &mut Scene,
        lanes: &mut [Lane<'_>],
        turn: Turn,
    ) -> Result<TimeSample, Failed> {
        let run = lanes[turn.lane].run.as_mut();
        let mut call = scene.call(0);
        let write = sample(&mut self.batches[turn.lane], |calls| time(run, &mut call, calls))?;
        Ok(TimeSample { write, write_and_read: None })
    }
}

/// Returns the nanoseconds of one call. `time` makes that many calls and returns their time. `batch` is the
/// number of calls in a sample, which the first sample determines.
pub(super) fn sample(
    batch: &mut Option<usize>,
    mut time: impl FnMut(usize) -> Result<Duration, Failed>,
) -> Result<f64, Failed> {
    let batch = match *batch {
        Some(batch) => batch,
        None => *batch.insert(calls_of_a_sample(&mut time)?),
    };
    let warm_up = time(1)?;
    if warm_up < LONG {
        time(batch.div_ceil(8))?;
    }
    Ok(time(batch)?.as_secs_f64() * 1e9 / batch as f64)
}

/// Returns the number of calls that take the time of a sample.
fn calls_of_a_sample(time: &mut impl FnMut(usize) -> Result<Duration, Failed>) -> Result<usize, Failed> {
    let mut batch = 1;
    // CPU caches, page tables and the branch predictor warm up in this loop.
    while time(batch)? < SAMPLE {
        batch *= 2;
    }
    Ok(batch)
}

fn time(run: &mut dyn Run, call: &mut Call<'_>, calls: usize) -> Result<Duration, Failed> {
    let began = Instant::now();
    for _ in 0..calls {
        run.run(call)?;
    }
    Ok(began.elapsed())
}
