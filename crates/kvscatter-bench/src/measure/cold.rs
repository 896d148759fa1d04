//! Layer after layer, at new positions every step, as a decoder writes.

use std::hint::black_box;
use std::time::Instant;

use super::{Lane, Sample, Sampler};
use crate::engine::Failed;
use crate::layout::runs;
use crate::scene::Scene;

/// One call per sample. Engines take turns from layer to layer, so that none finds what another has just warmed up.
pub(super) struct Cold {
    /// Calls so far: which layer and which step comes next.
    calls: usize,
}

impl Cold {
    pub(super) fn new() -> Self {
        Self { calls: 0 }
    }
}

impl Sampler for Cold {
    fn sample(&mut self, scene: &mut Scene, lanes: &mut [Lane<'_>], turn: usize) -> Result<Sample, Failed> {
        let layers = scene.case().parameters().layers;
        let (step, layer) = (self.calls / layers, self.calls % layers);
        if layer == 0 {
            scene.go_to(step);
            for lane in lanes.iter_mut() {
                lane.run.aim(scene.starts());
            }
        }
        self.calls += 1;

        let Lane { task, run, .. } = &mut lanes[turn];
        let written = runs(scene.case(), *task, scene.starts());
        scene.sweep();
        scene.touch_updates();
        let mut call = scene.call(layer);
        let began = Instant::now();
        run.run(&mut call)?;
        let wrote = began.elapsed();
        for tensor in call.tensors() {
            black_box(written.read(tensor.cache));
        }
        let read = began.elapsed();
        let [write, write_and_read] = [wrote, read].map(|time| time.as_secs_f64() * 1e9);
        Ok(Sample { write, write_and_read: Some(write_and_read) })
    }
}
