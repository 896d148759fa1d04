//! Times one decode step at a context length, with growing caches and with static ones.
//!
//! The caches are timed alone, and as part of the whole step.

use std::path::Path;

use kvscatter::ElementType;
use kvscatter_bench::{Spread, Timings};
use kvscatter_onnx::convert::Converted;
use kvscatter_onnx::proto::{GraphProto, ModelProto};
use kvscatter_onnx::{CachePath, Model};
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, Session, Step, Tensor};
use serde::{Deserialize, Serialize};

use super::decoder::{Decoder, LOGITS, MASK, POSITIONS, TOKENS};

/// The results at one context length.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The tokens in the caches before the step.
    pub(super) context: usize,
    pub(super) growing: Times,
    pub(super) fixed: Times,
    /// The ratio of growing to fixed caches, within a round.
    pub(super) caches_ratio: Spread,
    pub(super) step_ratio: Spread,
    /// The largest difference between the logits of both.
    pub(super) difference: f32,
}

/// The times of one decoder, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Times {
    /// The nodes between past and present of all caches, alone.
    pub(super) caches: Spread,
    /// The whole step.
    pub(super) step: Spread,
}

/// The largest allowed difference of logits. A few thousand products summed in another order differ far less.
const TOLERANCE: f32 = 1e-3;

/// Engines run on one thread, because this benchmark does not compare how they use threads.
const OPTIONS: LoadOptions = LoadOptions { threads: Some(1) };

/// Both decoders, loaded.
pub(super) struct Pair {
    growing: Loaded,
    fixed: Loaded,
    decoder: Decoder,
    capacity: usize,
}

struct Loaded {
    caches: Box<dyn Session>,
    step: Box<dyn Session>,
    paths: Vec<CachePath>,
    write_indices: Option<String>,
}

impl Pair {
    pub(super) fn load(
        engine: &dyn Engine,
        folder: &Path,
        decoder: &Decoder,
        original: &Model,
        converted: &Converted,
        capacity: usize,
    ) -> Result<Self, String> {
        let growing = Loaded::new(engine, &folder.join("growing"), original, None)?;
        let write_indices = Some(converted.write_indices.clone());
        let fixed = Loaded::new(engine, &folder.join("fixed"), &converted.model, write_indices)?;
        Ok(Self { growing, fixed, decoder: *decoder, capacity })
    }

    /// Compares the logits of both decoders, then times them in turn.
    pub(super) fn measure(&mut self, context: usize, rounds: usize) -> Result<Measured, String> {
        let mut growing = self.bind(&self.growing, context, context, context + 1)?;
        let mut fixed = self.bind(&self.fixed, context, self.capacity, self.capacity)?;
        let difference = {
            let (theirs, ours) = (growing.step(&mut self.growing)?.1, fixed.step(&mut self.fixed)?.1);
            theirs.iter().zip(&ours).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        if difference.is_nan() || difference > TOLERANCE {
            return Err(format!("at {context} tokens the logits differ by {difference}"));
        }
        let mut times: [Vec<f64>; 4] = Default::default();
        for round in 0..=rounds {
            let round_times = [
                growing.caches(&mut self.growing)?,
                fixed.caches(&mut self.fixed)?,
                growing.step(&mut self.growing)?.0,
                fixed.step(&mut self.fixed)?.0,
            ];
            // The first round is a warm-up.
            if round > 0 {
                times.iter_mut().zip(round_times).for_each(|(times, time)| times.push(time));
            }
        }
        let [growing_caches, fixed_caches, growing_step, fixed_step] = times.map(Timings::new);
        Ok(Measured {
            context,
            growing: Times { caches: growing_caches.spread(), step: growing_step.spread() },
            fixed: Times { caches: fixed_caches.spread(), step: fixed_step.spread() },
            caches_ratio: growing_caches.over(&fixed_caches),
            step_ratio: growing_step.over(&fixed_step),
            difference,
        })
    }

    /// Creates the tensors of a step. `length` is the length of the pasts, `slots` that of the mask.
    fn bind(&self, loaded: &Loaded, context: usize, length: usize, slots: usize) -> Result<Bound, String> {
        let Decoder { heads, head_size, .. } = self.decoder;
        let zeros = |length| {
            Tensor::zeros(ElementType::Float32, &[1, heads, length, head_size])
                .map_err(|error| error.to_string())
        };
        let ints = |shape: &[usize], values: &[i64]| {
            Tensor::int64s(shape, values).map_err(|error| error.to_string())
        };
        let (mut pasts, mut presents, mut updates) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, path) in loaded.paths.iter().enumerate() {
            let mut past = zeros(length)?;
            fill(&mut past, context, heads, head_size, seed);
            pasts.push(past);
            if path.grows {
                presents.push(zeros(context + 1)?);
            }
            for (name, _) in &path.updates {
                updates.push((name.clone(), zeros(1)?));
            }
        }
        let start = context as i64;
        let mask: Vec<_> = (0..slots).map(|slot| i64::from(slot <= context)).collect();
        let feeds = vec![
            (TOKENS.to_owned(), ints(&[1, 1], &[7])?),
            (POSITIONS.to_owned(), ints(&[1, 1], &[start])?),
            (MASK.to_owned(), ints(&[1, slots], &mask)?),
        ];
        let starts = loaded.write_indices.iter().map(|name| Ok((name.clone(), ints(&[1], &[start])?)));
        Ok(Bound { pasts, presents, updates, feeds, starts: starts.collect::<Result<_, String>>()? })
    }
}

impl Loaded {
    fn new(
        engine: &dyn Engine,
        file: &Path,
        model: &Model,
        write_indices: Option<String>,
    ) -> Result<Self, String> {
        let paths = CachePath::of(model).map_err(|error| error.to_string())?;
        let paths = paths.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        let load = |model: &Model, extension| {
            let file = file.with_extension(extension);
            model.save(&file).map_err(|error| error.to_string())?;
            let file =
                Model::load(&file).and_then(|model| model.file()).map_err(|error| error.to_string())?;
            engine.load(&file, OPTIONS).map_err(|error| error.to_string())
        };
        Ok(Self {
            caches: load(&all(&paths), "caches.onnx")?,
            step: load(model, "onnx")?,
            paths,
            write_indices,
        })
    }
}

/// Returns one model with the paths of all caches, as in a decode step.
fn all(paths: &[CachePath]) -> Model {
    let mut graph = GraphProto { name: Some("caches".to_owned()), ..GraphProto::default() };
    for path in paths {
        let one = &path.model.proto().graph;
        graph.node.extend(one.node.iter().cloned());
        graph.output.extend(one.output.iter().cloned());
        // Two caches are written at the same positions.
        for input in &one.input {
            if !graph.input.iter().any(|other| other.name == input.name) {
                graph.input.push(input.clone());
            }
        }
    }
    let like = paths.first().map(|path| path.model.proto().clone()).unwrap_or_default();
    Model::from_proto(ModelProto { graph: graph.into(), ..like })
}

/// The tensors of a step.
struct Bound {
    pasts: Vec<Tensor>,
    /// The presents of growing caches. Their memory is allocated before, because allocation is not compared.
    presents: Vec<Tensor>,
    updates: Vec<(String, Tensor)>,
    feeds: Vec<(String, Tensor)>,
    starts: Vec<(String, Tensor)>,
}

impl Bound {
    /// Runs the caches alone, and returns the nanoseconds.
    fn caches(&mut self, loaded: &mut Loaded) -> Result<f64, String> {
        let inputs = self.updates.iter().chain(&self.starts);
        let inputs = inputs.map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let step = join(inputs, &mut self.pasts, &mut self.presents, &loaded.paths);
        let ran = loaded.caches.run(step).map_err(|error| error.to_string())?;
        Ok(ran.elapsed.as_secs_f64() * 1e9)
    }

    /// Runs the whole step, and returns the nanoseconds and the logits.
    fn step(&mut self, loaded: &mut Loaded) -> Result<(f64, Vec<f32>), String> {
        let inputs = self.feeds.iter().chain(&self.starts);
        let inputs = inputs.map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut step = join(inputs, &mut self.pasts, &mut self.presents, &loaded.paths);
        step.returned.push(LOGITS);
        let ran = loaded.step.run(step).map_err(|error| error.to_string())?;
        let logits = ran.returned.first().map(Tensor::bytes).unwrap_or_default();
        let logits = logits.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        Ok((ran.elapsed.as_secs_f64() * 1e9, logits.collect()))
    }
}

/// Creates a step with these caches. Growing caches have separate presents. Static ones are written in place.
fn join<'a>(
    mut inputs: Vec<(&'a str, &'a Tensor)>,
    pasts: &'a mut [Tensor],
    presents: &'a mut [Tensor],
    paths: &'a [CachePath],
) -> Step<'a> {
    if presents.is_empty() {
        let shared = paths.iter().zip(pasts);
        let shared =
            shared.map(|(path, cache)| InPlaceCache { past: &path.past.0, present: &path.present, cache });
        return Step { inputs, shared: shared.collect(), ..Step::default() };
    }
    inputs.extend(paths.iter().zip(&*pasts).map(|(path, past)| (path.past.0.as_str(), past)));
    let outputs = paths.iter().zip(presents).map(|(path, present)| (path.present.as_str(), present));
    Step { inputs, outputs: outputs.collect(), ..Step::default() }
}

/// Fills the first `context` slots of every head with values that do not depend on the length of the tensor.
fn fill(past: &mut Tensor, context: usize, heads: usize, head_size: usize, seed: usize) {
    let row = head_size * size_of::<f32>();
    let length = past.bytes().len() / (heads * row);
    for (head, slots) in past.bytes_mut().chunks_exact_mut(length * row).enumerate() {
        for (slot, bytes) in slots.chunks_exact_mut(row).take(context).enumerate() {
            for (at, value) in bytes.chunks_exact_mut(size_of::<f32>()).enumerate() {
                let word = (seed * heads + head) * 0x1_0001 + slot * 0x101 + at * 7;
                let unit = (word as u32).wrapping_mul(0x9E37_79B9) as f32 / u32::MAX as f32;
                value.copy_from_slice(&(unit - 0.5).to_le_bytes());
            }
        }
    }
}
