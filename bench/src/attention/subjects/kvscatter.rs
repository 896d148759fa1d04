//! The kernels of `kvscatter-attention`, called directly.

use std::time::{Duration, Instant};

use kvscatter::{ElementType, Isa};
use kvscatter_attention::{self as ours, Float, Inputs, Outputs, Scratch, Shapes, Strides, Valid};

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

/// How keys and values lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Placement {
    /// Whether the heads of a slot are neighbours, as in `[batch, slots, heads, size]`.
    pub(super) is_by_token: bool,
    /// The number of slots of a block, if samples have blocks in random order.
    pub(super) block: Option<usize>,
}

/// Prepares a call on copies of the caches that are placed in another way.
pub(super) fn prepare_placed<T: Float>(scene: &Scene, placement: Placement) -> Prepared<Scene> {
    let case = &scene.case;
    let Attention { heads, head_size, capacity, .. } = *case;
    // Without blocks, each sample has one.
    let block = placement.block.unwrap_or(capacity);
    let per_sample = capacity.div_ceil(block);
    let count = case.batch() * per_sample;
    let table = if placement.block.is_some() { shuffled(count) } else { (0..count as i32).collect() };
    let [head, row] =
        if placement.is_by_token { [head_size, heads * head_size] } else { [block * head_size, head_size] };
    let outer = heads * block * head_size;
    let caches = [&scene.key, &scene.value].map(|cache| {
        let mut placed = vec![T::of_f32(0.0); count * outer];
        for (at, from) in elements::<T>(cache.bytes()).chunks_exact(head_size).enumerate() {
            let (sample, of_head, slot) = (at / capacity / heads, at / capacity % heads, at % capacity);
            let number = table[sample * per_sample + slot / block] as usize;
            let to = number * outer + of_head * head + slot % block * row;
            placed[to..to + head_size].copy_from_slice(from);
        }
        placed
    });
    let query = [case.batch(), case.query_heads, case.queries, head_size];
    let cache = [count, heads, block, head_size];
    let element = case.element.onnx();
    let shapes = Shapes { element, query: &query, key: &cache, value: &cache, mask: None, past: None };
    let places = Some([outer, head, row]);
    let strides = Strides { key: places, value: places, ..Strides::default() };
    let op = ours::Attention::new().causal(true);
    let op = if placement.block.is_some() { op.blocks(per_sample) } else { op };
    let prepared = op.prepare_strided(&shapes, &strides).map_err(|error| error.to_string())?;
    let scratch = prepared.scratch(case.threads);
    let output = vec![T::of_f32(0.0); query.iter().product()];
    let table = placement.block.map(|_| table);
    let call = Call { prepared, scratch, output, table };
    Ok(Box::new(Whole { call, caches: Some(caches) }))
}

/// Returns the numbers below `count` in an order that is random, and the same in every run.
fn shuffled(count: usize) -> Vec<i32> {
    let mut numbers: Vec<_> = (0..count as i32).collect();
    let mut state = 1_u64;
    for last in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(last, (state >> 33) as usize % (last + 1));
    }
    numbers
}

struct Call<T> {
    prepared: ours::Prepared,
    scratch: Scratch,
    output: Vec<T>,
    /// The blocks of each sample, if the caches are in blocks.
    table: Option<Vec<i32>>,
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
        Ok(Self { prepared, scratch, output: vec![T::of_f32(0.0); query.iter().product()], table: None })
    }

    fn run(
        &mut self,
        query: &[T],
        [key, value]: [&[T]; 2],
        lengths: &[i64],
        executor: Option<&dyn kvscatter::Executor>,
    ) -> Result<(), Failed> {
        let (valid, block_table) = (Valid::Lengths(lengths), self.table.as_deref());
        let inputs = Inputs { valid, block_table, ..Inputs::new(query, key, value) };
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
