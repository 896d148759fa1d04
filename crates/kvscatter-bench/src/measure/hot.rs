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
        let batch = match self.batches[turn.lane] {
            Some(batch) => batch,
            None => *self.batches[turn.lane].insert(batch(run, &mut call)?),
        };
        let warm_up = time(run, &mut call, 1)?;
        if warm_up < LONG {
            time(run, &mut call, batch.div_ceil(8))?;
        }
        let write = time(run, &mut call, batch)?.as_secs_f64() * 1e9 / batch as f64;
        Ok(TimeSample { write, write_and_read: None })
    }
}

/// Returns the number of calls that take the time of a sample.
fn batch(run: &mut dyn Run, call: &mut Call<'_>) -> Result<usize, Failed> {
    let mut batch = 1;
    // CPU caches, page tables and the branch predictor warm up in this loop.
    while time(run, call, batch)? < SAMPLE {
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
