//! Samples of layers in turn, at new positions in every step, as a decoder writes.

use std::hint::black_box;
use std::time::Instant;

use super::sampler::{Lane, Sampler, TimeSample, Turn};
use crate::case::{Case, Parameters, Temperature};
use crate::engine::Failed;
use crate::error::BenchError;
use crate::layout::runs;
use crate::scene::Scene;

/// A sampler that makes one call for each sample, on layers that belong to the seat.
///
/// As in a decoder, the memory is in the state in which the same engine left it in the step before. No other
/// engine has warmed it up or cooled it down.
pub(super) struct Cold {
    /// The number of rounds in a step. It is the number of layers of every seat.
    rounds: usize,
    step: Option<usize>,
}

impl Cold {
    pub(super) fn new(case: &Case, seats: usize) -> Result<Self, BenchError> {
        let Parameters { layers, temperature, ref name, .. } = *case.parameters();
        let each = if temperature == Temperature::FlushedRows { 2 } else { 1 };
        if layers < seats * each {
            return Err(BenchError::Layers { name: name.clone(), layers, needed: seats * each, each });
        }
        Ok(Self { rounds: layers / seats, step: None })
    }
}

impl Sampler for Cold {
    fn sample(
        &mut self,
        scene: &mut Scene,
        lanes: &mut [Lane<'_>],
        turn: Turn,
    ) -> Result<TimeSample, Failed> {
        let step = turn.round / self.rounds;
        let layer = |round: usize| round % self.rounds * turn.seats + turn.seat;
        if self.step.replace(step) != Some(step) {
            scene.go_to(step);
            lanes.iter_mut().for_each(|lane| lane.run.aim(scene.starts()));
        }

        let Lane { task, run, .. } = &mut lanes[turn.lane];
        let written = runs(scene.case(), *task, scene.starts());
        scene.sweep();
        if scene.case().parameters().temperature == Temperature::FlushedRows {
            run.run(&mut scene.call(layer(turn.round + self.rounds - 1)))?;
        }
        scene.touch_updates();
        let mut call = scene.call(layer(turn.round));
        let began = Instant::now();
        run.run(&mut call)?;
        let wrote = began.elapsed();
        for buffers in call.buffers() {
            black_box(written.read(buffers.cache));
        }
        let read = began.elapsed();
        let [write, write_and_read] = [wrote, read].map(|time| time.as_secs_f64() * 1e9);
        Ok(TimeSample { write, write_and_read: Some(write_and_read) })
    }
}
