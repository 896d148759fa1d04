//! Times one decode step at a context length, with growing caches, with static ones, and with
//! `GroupQueryAttention`.
//!
//! The growing and the static caches are also timed alone.

use std::collections::BTreeSet;
use std::time::Duration;

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::Converted;
use kvscatter_onnx::internal::CachePath;
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto};
use kvscatter_session::{InPlaceCache, Session, Step, Tensor};

use super::decoder::{Decoder, LOGITS, MASK, POSITIONS, TOKENS};
use crate::measure::{Budget, Failed, Measured, measure_calls};
use crate::runtimes::Runtime;

pub(super) const GROWING: &str = "growing";
pub(super) const GROUP_QUERY: &str = "GroupQueryAttention";

/// The largest allowed difference of logits. A few thousand products summed in another order differ far less.
const TOLERANCE: f32 = 1e-3;

/// Engines run on one thread, because this benchmark does not compare how they use threads.
const THREADS: usize = 1;

/// The decoders that are timed.
pub(super) struct Decoders {
    decoder: Decoder,
    capacity: usize,
    loaded: Vec<Loaded>,
}

struct Loaded {
    name: String,
    step: Box<dyn Session>,
    /// The nodes between past and present, and the path of each. Only for growing and static caches.
    caches: Option<(Box<dyn Session>, Vec<CachePath>)>,
    inputs: Inputs,
    /// The names of all inputs of the model.
    takes: BTreeSet<String>,
    /// The output that is returned.
    output: String,
}

/// The inputs that tell a decoder where its tokens are.
enum Inputs {
    Growing,
    Static {
        write_indices: String,
        lengths: Option<String>,
        /// The number of slots of the caches of layers with a window.
        windowed: usize,
    },
    GroupQuery,
}

impl Loaded {
    fn new(name: &str, model: &Model, runtime: Runtime<'_>, inputs: Inputs) -> Result<Self, String> {
        let graph = model.graph().map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            step: runtime.load(model, THREADS)?,
            caches: None,
            inputs,
            takes: graph.input_names().map(str::to_owned).collect(),
            output: LOGITS.to_owned(),
        })
    }
}

impl Decoders {
    /// Returns an empty list.
    pub(super) fn new(decoder: &Decoder, capacity: usize) -> Self {
        Self { decoder: *decoder, capacity, loaded: Vec::new() }
    }

    /// Loads the decoder with growing caches.
    pub(super) fn add_growing(&mut self, original: &Model, runtime: Runtime<'_>) -> Result<(), String> {
        let caches = Some(caches(original, runtime)?);
        let growing = Loaded::new(GROWING, original, runtime, Inputs::Growing)?;
        self.loaded.push(Loaded { caches, ..growing });
        Ok(())
    }

    /// Loads a converted decoder. If it comes second, after growing caches, its caches are also timed alone.
    pub(super) fn add_static(
        &mut self,
        name: &str,
        converted: &Converted,
        runtime: Runtime<'_>,
    ) -> Result<(), String> {
        let is_second = matches!(self.loaded.as_slice(), [Loaded { inputs: Inputs::Growing, .. }]);
        let caches = is_second.then(|| caches(&converted.model, runtime)).transpose()?;
        let loaded = Loaded::new(name, &converted.model, runtime, self.inputs(converted))?;
        self.loaded.push(Loaded { caches, ..loaded });
        Ok(())
    }

    /// Loads a part of a converted decoder that has the decoder's inputs and this output.
    pub(super) fn add_part(
        &mut self,
        name: &str,
        converted: &Converted,
        (part, output): (&Model, String),
        runtime: Runtime<'_>,
    ) -> Result<(), String> {
        let loaded = Loaded::new(name, part, runtime, self.inputs(converted))?;
        self.loaded.push(Loaded { output, ..loaded });
        Ok(())
    }

    /// Loads the decoder with `GroupQueryAttention`.
    pub(super) fn add_group_query(&mut self, model: &Model, runtime: Runtime<'_>) -> Result<(), String> {
        self.loaded.push(Loaded::new(GROUP_QUERY, model, runtime, Inputs::GroupQuery)?);
        Ok(())
    }

    fn inputs(&self, converted: &Converted) -> Inputs {
        Inputs::Static {
            write_indices: converted.report.inputs.write_indices.clone(),
            lengths: converted.report.inputs.nonpad_kv_seqlen.clone(),
            windowed: converted.report.caches.rings.keys().next().map_or(self.capacity, |ring| ring.capacity),
        }
    }

    /// Creates the tensors of a step of every decoder, and compares the logits. Returns the largest difference.
    fn compared(&mut self, context: usize) -> Result<(Vec<Bound>, f32), String> {
        let bound =
            self.loaded.iter().map(|loaded| Bound::new(&self.decoder, self.capacity, loaded, context));
        let mut bound = bound.collect::<Result<Vec<_>, _>>()?;
        let mut reference: Option<Vec<f32>> = None;
        let mut largest = 0.0_f32;
        for (bound, loaded) in bound.iter_mut().zip(&mut self.loaded) {
            let logits = bound.step(loaded)?.1;
            if loaded.output != LOGITS {
                continue;
            }
            let reference = reference.get_or_insert_with(|| logits.clone());
            let differences = reference.iter().zip(&logits).map(|(a, b)| (a - b).abs());
            let difference = differences
                .fold(0.0, |most: f32, next| if next > most || next.is_nan() { next } else { most });
            if difference.is_nan() || difference > TOLERANCE || logits.len() != reference.len() {
                return Err(format!(
                    "at {context} tokens the logits of {} differ by {difference}",
                    loaded.name
                ));
            }
            largest = largest.max(difference);
        }
        Ok((bound, largest))
    }

    /// Compares the logits of all decoders at every context length, then times their steps at all lengths in turn.
    /// Returns the times by context length, and the largest difference of logits.
    pub(super) fn measure(
        &mut self,
        contexts: &[usize],
        budget: Budget,
    ) -> Result<(Vec<Measured>, f32), String> {
        let (mut bound, mut largest) = (Vec::new(), 0.0_f32);
        for &context in contexts {
            let (of_context, difference) = self.compared(context)?;
            bound.push(of_context);
            largest = largest.max(difference);
        }
        let count = contexts.len();
        let names: Vec<_> = self.loaded.iter().map(|loaded| loaded.name.clone()).collect();
        let lanes: Vec<_> = names.iter().flat_map(|name| std::iter::repeat_n(name.clone(), count)).collect();
        let Measured { subjects, noise } = measure_calls(&lanes, budget, |lane, calls| {
            let (form, context) = (lane / count, lane % count);
            repeated(calls, || Ok(bound[context][form].step(&mut self.loaded[form])?.0))
        })?;
        let at = |context: usize| Measured {
            subjects: subjects.iter().skip(context).step_by(count).cloned().collect(),
            noise,
        };
        Ok(((0..count).map(at).collect(), largest))
    }

    /// Times the caches of the growing and of the first static decoder alone, in turn.
    pub(super) fn measure_caches(&mut self, context: usize, budget: Budget) -> Result<Measured, String> {
        let of_caches: Vec<_> = self.loaded.iter_mut().filter(|loaded| loaded.caches.is_some()).collect();
        let names: Vec<_> = of_caches.iter().map(|loaded| loaded.name.clone()).collect();
        let (decoder, capacity) = (self.decoder, self.capacity);
        let mut bound = Vec::new();
        for loaded in of_caches {
            bound.push((Bound::new(&decoder, capacity, loaded, context)?, loaded));
        }
        measure_calls(&names, budget, |lane, calls| {
            let (bound, loaded) = &mut bound[lane];
            repeated(calls, || Ok(bound.caches(loaded)?))
        })
    }
}

/// Adds the times of so many calls.
pub(super) fn repeated(
    calls: usize,
    mut time: impl FnMut() -> Result<Duration, Failed>,
) -> Result<Duration, Failed> {
    let mut total = Duration::ZERO;
    for _ in 0..calls {
        total += time()?;
    }
    Ok(total)
}

impl Bound {
    /// Creates the tensors of a step.
    fn new(decoder: &Decoder, capacity: usize, loaded: &Loaded, context: usize) -> Result<Self, String> {
        let Decoder { kv_heads: heads, head_size, .. } = *decoder;
        let zeros = |length| {
            Tensor::zeros(ElementType::Float32, &[1, heads, length, head_size])
                .map_err(|error| error.to_string())
        };
        let grows = matches!(loaded.inputs, Inputs::Growing);
        let is_static = matches!(loaded.inputs, Inputs::Static { .. });
        let slots = if is_static { capacity } else { context + 1 };
        // Each layer has two caches.
        let length = |cache: usize| match loaded.inputs {
            Inputs::Growing => context,
            Inputs::Static { windowed, .. } if decoder.window(cache / 2).is_some() => windowed,
            Inputs::Static { .. } | Inputs::GroupQuery => capacity,
        };
        let mut names = decoder.caches();
        names.retain(|(past, _)| loaded.takes.contains(past));
        let (mut pasts, mut presents, mut updates) = (Vec::new(), Vec::new(), Vec::new());
        for (seed, _) in names.iter().enumerate() {
            let mut past = zeros(length(seed))?;
            fill(&mut past, context, heads, head_size, seed);
            pasts.push(past);
            if grows {
                presents.push(zeros(context + 1)?);
            }
        }
        for path in loaded.caches.iter().flat_map(|(_, paths)| paths) {
            for (name, _) in &path.updates {
                updates.push((name.clone(), zeros(1)?));
            }
        }
        let start = context as i64;
        let long = |name: &str, shape: &[usize], values: &[i64]| {
            Ok::<_, String>((
                name.to_owned(),
                Tensor::integers(ElementType::Int64, shape, values).map_err(|error| error.to_string())?,
            ))
        };
        let mut feeds = vec![long(TOKENS, &[1, 1], &[7])?, long(POSITIONS, &[1, 1], &[start])?];
        let mut starts = Vec::new();
        let mask: Vec<_> = (0..slots).map(|slot| i64::from(slot <= context)).collect();
        feeds.push(long(MASK, &[1, slots], &mask)?);
        if let Inputs::Static { write_indices, lengths, .. } = &loaded.inputs {
            starts.push(long(write_indices, &[1], &[start])?);
            feeds.push(long(write_indices, &[1], &[start])?);
            if let Some(lengths) = lengths {
                feeds.push(long(lengths, &[1], &[start + 1])?);
            }
        }
        feeds.retain(|(name, _)| loaded.takes.contains(name));
        Ok(Self { names, pasts, presents, updates, feeds, starts })
    }
}

/// Loads a model with the paths of all caches, as in a decode step.
fn caches(model: &Model, runtime: Runtime<'_>) -> Result<(Box<dyn Session>, Vec<CachePath>), String> {
    let paths = CachePath::from_model(model).map_err(|error| error.to_string())?;
    let paths = paths.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    Ok((runtime.load(&all(&paths), THREADS)?, paths))
}

/// Returns one model with the paths of all caches.
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
    /// The names of all pasts and presents.
    names: Vec<(String, String)>,
    pasts: Vec<Tensor>,
    /// The presents of growing caches. Their memory is allocated before, because allocation is not compared.
    presents: Vec<Tensor>,
    /// The new rows of caches that are timed alone.
    updates: Vec<(String, Tensor)>,
    /// The inputs of a whole step.
    feeds: Vec<(String, Tensor)>,
    /// The positions of caches that are timed alone.
    starts: Vec<(String, Tensor)>,
}

impl Bound {
    /// Runs the caches alone, and returns the time.
    fn caches(&mut self, loaded: &mut Loaded) -> Result<Duration, String> {
        let (session, _) = loaded.caches.as_mut().ok_or("its caches are not timed alone")?;
        let inputs = self.updates.iter().chain(&self.starts);
        let inputs = inputs.map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let step = join(inputs, &mut self.pasts, &mut self.presents, &self.names);
        Ok(session.run(step).map_err(|error| error.to_string())?.elapsed)
    }

    /// Runs the whole step, and returns the time and the logits, or the bytes of another output as numbers.
    fn step(&mut self, loaded: &mut Loaded) -> Result<(Duration, Vec<f32>), String> {
        let inputs = self.feeds.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut step = join(inputs, &mut self.pasts, &mut self.presents, &self.names);
        step.returned.push(&loaded.output);
        let ran = loaded.step.run(step).map_err(|error| format!("{}: {error}", loaded.name))?;
        let logits = ran.returned.first().map(Tensor::bytes).unwrap_or_default();
        let logits = logits.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        Ok((ran.elapsed, logits.collect()))
    }
}

/// Creates a step with these caches. Growing caches have separate presents. Static ones are written in place.
fn join<'a>(
    mut inputs: Vec<(&'a str, &'a Tensor)>,
    pasts: &'a mut [Tensor],
    presents: &'a mut [Tensor],
    names: &'a [(String, String)],
) -> Step<'a> {
    if presents.is_empty() {
        let shared = names.iter().zip(pasts);
        let shared = shared.map(|((past, present), cache)| InPlaceCache { past, present, cache });
        return Step { inputs, shared: shared.collect(), ..Step::default() };
    }
    inputs.extend(names.iter().zip(&*pasts).map(|((name, _), past)| (name.as_str(), past)));
    let outputs = names.iter().zip(presents).map(|((_, name), present)| (name.as_str(), present));
    Step { inputs, outputs: outputs.collect(), ..Step::default() }
}

/// Fills a cache with `context` tokens, or with the last ones of them if it is a ring with fewer slots. The values of
/// a token do not depend on the length of the tensor.
fn fill(past: &mut Tensor, context: usize, heads: usize, head_size: usize, seed: usize) {
    let row = head_size * size_of::<f32>();
    let length = past.bytes().len() / (heads * row);
    for (head, slots) in past.bytes_mut().chunks_exact_mut(length * row).enumerate() {
        for token in context.saturating_sub(length)..context {
            let bytes = &mut slots[token % length * row..][..row];
            for (at, value) in bytes.chunks_exact_mut(size_of::<f32>()).enumerate() {
                let word = (seed * heads + head) * 0x1_0001 + token * 0x101 + at * 7;
                let unit = (word as u32).wrapping_mul(0x9E37_79B9) as f32 / u32::MAX as f32;
                value.copy_from_slice(&(unit - 0.5).to_le_bytes());
            }
        }
    }
}
