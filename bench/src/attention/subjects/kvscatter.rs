//! The kernels of `kvscatter-attention`, called directly.

use std::time::{Duration, Instant};

use kvscatter::{ElementType, Isa};
use kvscatter_attention::{self as ours, Float, Inputs, Outputs, Scratch, Shapes, Valid};

use super::run::with_threads;
use crate::attention::case::Attention;
use crate::attention::scene::{Layout, Scene, elements};
use crate::measure::{Failed, Prepared, Subject};

/// Prepares a call on the scene's caches.
pub(super) fn prepare<T: Float>(scene: &Scene, isa: Isa) -> Prepared<Scene> {
    Ok(Box::new(Whole { call: Call::<T>::new(&scene.case, scene.case.batch(), isa)?, caches: None }))
}

/// Prepares a call on copies of the caches with fewer slots.
pub(super) fn prepare_small<T: Float>(scene: &Scene, slots: usize) -> Prepared<Scene> {
    let case = Attention { capacity: slots, ..scene.case.clone() };
    let len = case.batch() * case.heads * slots * case.head_size;
    let mut caches = [(); 2].map(|()| vec![T::of_f32(0.0); len]);
    for (head, valid) in scene.valid_bytes().enumerate() {
        for (cache, valid) in caches.iter_mut().zip(valid) {
            let valid = elements::<T>(valid);
            cache[head * slots * case.head_size..][..valid.len()].copy_from_slice(valid);
        }
    }
    Ok(Box::new(Whole { call: Call::<T>::new(&case, case.batch(), Isa::allowed())?, caches: Some(caches) }))
}

/// Prepares one call for each sample.
pub(super) fn prepare_by_sample<T: Float>(scene: &Scene) -> Prepared<Scene> {
    Ok(Box::new(BySample { call: Call::<T>::new(&scene.case, 1, Isa::allowed())?, outputs: Vec::new() }))
}

struct Call<T> {
    prepared: ours::Prepared,
    scratch: Scratch,
    output: Vec<T>,
}

impl<T: Float> Call<T> {
    fn new(case: &Attention, batch: usize, isa: Isa) -> Result<Self, String> {
        let query = [batch, case.query_heads, case.queries, case.head_size];
        let cache = [batch, case.heads, case.capacity, case.head_size];
        let element: ElementType = case.element.onnx();
        let shapes = Shapes { element, query: &query, key: &cache, value: &cache, mask: None, past: None };
        let prepared =
            ours::Attention::new().causal(true).prepare(&shapes).map_err(|error| error.to_string())?;
        let prepared = prepared.with_isa(isa);
        let scratch = prepared.scratch(case.threads);
        Ok(Self { prepared, scratch, output: vec![T::of_f32(0.0); query.iter().product()] })
    }

    fn run(
        &mut self,
        query: &[T],
        [key, value]: [&[T]; 2],
        lengths: &[i64],
        executor: Option<&dyn kvscatter::Executor>,
    ) -> Result<(), Failed> {
        let inputs = Inputs { valid: Valid::Lengths(lengths), ..Inputs::new(query, key, value) };
        let mut outputs = Outputs::new(&mut self.output);
        Ok(self.prepared.run(&inputs, &mut outputs, &mut self.scratch, executor)?)
    }
}

/// One call on all samples.
struct Whole<T> {
    call: Call<T>,
    /// Caches other than those of the scene.
    caches: Option<[Vec<T>; 2]>,
}

impl<T: Float> Subject<Scene> for Whole<T> {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        let caches = match &self.caches {
            Some(caches) => caches.each_ref().map(Vec::as_slice),
            None => [&scene.key, &scene.value].map(|cache| elements::<T>(cache.bytes())),
        };
        with_threads(&scene.case, |executor| {
            let began = Instant::now();
            for _ in 0..calls {
                self.call.run(elements(scene.query.bytes()), caches, &scene.lengths, executor)?;
            }
            Ok(began.elapsed())
        })
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        scene.check(&self.call.output, Layout::Heads)
    }
}

/// One call for each sample.
struct BySample<T> {
    call: Call<T>,
    /// The outputs of all samples, after the first [`Subject::time`].
    outputs: Vec<T>,
}

impl<T: Float> BySample<T> {
    fn round(
        &mut self,
        scene: &Scene,
        executor: Option<&dyn kvscatter::Executor>,
        mut after: impl FnMut(&[T]),
    ) -> Result<(), Failed> {
        let Attention { heads, head_size, capacity, .. } = scene.case;
        let sample = heads * capacity * head_size;
        let queries = elements::<T>(scene.query.bytes()).chunks_exact(self.call.output.len());
        let [keys, values] = [&scene.key, &scene.value].map(|cache| elements::<T>(cache.bytes()));
        let caches = keys.chunks_exact(sample).zip(values.chunks_exact(sample));
        for ((query, (key, value)), length) in queries.zip(caches).zip(&scene.lengths) {
            self.call.run(query, [key, value], std::slice::from_ref(length), executor)?;
            after(&self.call.output);
        }
        Ok(())
    }
}

impl<T: Float> Subject<Scene> for BySample<T> {
    fn time(&mut self, scene: &mut Scene, calls: usize) -> Result<Duration, Failed> {
        let scene = &*scene;
        with_threads(&scene.case, |executor| {
            let began = Instant::now();
            for _ in 0..calls {
                self.round(scene, executor, |_| ())?;
            }
            let elapsed = began.elapsed();
            if self.outputs.is_empty() {
                let mut outputs = Vec::new();
                self.round(scene, executor, |output| outputs.extend_from_slice(output))?;
                self.outputs = outputs;
            }
            Ok(elapsed)
        })
    }

    fn check(&mut self, scene: &mut Scene) -> Result<(), String> {
        self.time(scene, 1).map_err(|error| error.to_string())?;
        scene.check(&self.outputs, Layout::Heads)
    }
}
