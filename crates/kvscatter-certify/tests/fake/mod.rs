//! A decoder without a graph, with an engine that can make one chosen fault.
//!
//! The engine has the inputs and outputs of exports in the test data, and computes the outputs with a few
//! lines of arithmetic. It lets `cargo test` check every fault without a runtime.

use std::ops::Range;
use std::time::Duration;

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Mode};
use kvscatter_onnx::ModelFile;
use kvscatter_session::{Engine, LoadOptions, Session, SessionError, Step, StepOutput, Tensor};

const HEADS: usize = 2;
const HEAD: usize = 16;
const ROW: usize = HEADS * HEAD;
const VOCABULARY: usize = 256;

/// A fault of a model whose caches are written in place. A model with growing caches is always right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Rows are written one slot too far.
    IndexOffByOne,
    /// The present is written to separate memory, and the shared memory is unchanged.
    Copied,
    /// Slot 0 of the second value cache is overwritten in every decode step.
    Clobbered,
    /// Rows of padding are NaN.
    NanInPadding,
    /// Rows of token 13 are NaN.
    NanToken,
    /// A query sees one slot less in steps that do not write from slot 0.
    LengthOffByOne,
    /// The first sample's write index is used for all samples.
    SharedIndex,
    /// Slots beyond the length have a small weight.
    SeesUnwritten,
    /// Past is written even if present is in separate memory.
    WritesPast,
    /// Writes into the last slot of a static cache fail with an error.
    RefusesLastSlot,
    /// `GroupQueryAttention` refuses samples that are padded on the right.
    RefusesPadding,
    /// Every step begins with states of zeros.
    StateLost,
    /// Every step returns the states that it read.
    StateNotUpdated,
    /// Every sample reads the state of the next one.
    StateOfNeighbour,
    /// An element of a state that no step reads becomes NaN.
    NanInState,
}

pub(crate) struct Fake(pub(crate) Fault);

struct FakeSession {
    kind: Kind,
    fault: Fault,
}

/// How the model writes its caches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Static,
    Growing,
    /// `GroupQueryAttention` writes them. It refuses what ONNX Runtime refuses.
    Operator,
}

impl Engine for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn device(&self) -> &'static str {
        "CPU"
    }

    fn load(&self, model: &ModelFile, _: LoadOptions) -> Result<Box<dyn Session>, SessionError> {
        let is_in = |folder: &str| model.path().components().any(|part| part.as_os_str() == folder);
        let kind = match (is_in("mobius-llama-static"), is_in("genai-llama-gqa")) {
            (true, _) => Kind::Static,
            (_, true) => Kind::Operator,
            _ => Kind::Growing,
        };
        let fault = if kind == Kind::Growing { Fault::None } else { self.0 };
        Ok(Box::new(FakeSession { kind, fault }))
    }
}

impl Session for FakeSession {
    fn takes_some_samples(&self) -> bool {
        true
    }

    fn run(&mut self, mut step: Step<'_>) -> Result<StepOutput, SessionError> {
        let int64s = |name: &str| -> Vec<i64> {
            let (_, tensor) = step.inputs.iter().find(|(input, _)| *input == name).unwrap();
            assert_eq!(tensor.element(), ElementType::Int64);
            tensor.bytes().as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
        };
        let tokens = int64s("input_ids");
        let batch = step.inputs.iter().find(|(name, _)| *name == "input_ids").unwrap().1.shape()[0];
        let width = tokens.len() / batch;
        let names = names(self.kind == Kind::Static);
        let samples = step.samples.clone().unwrap_or(0..batch);
        let mut caches: Vec<Cache> = names
            .iter()
            .map(|(past, _)| {
                let shared = step.shared.iter().find(|shared| shared.past == *past);
                let apart = step.inputs.iter().find(|(name, _)| name == past);
                let tensor =
                    shared.map(|shared| &*shared.cache).or(apart.map(|(_, tensor)| *tensor)).unwrap();
                Cache { first: samples.start, ..Cache::read(tensor) }
            })
            .collect();
        let refused =
            |message: &str| SessionError::Run { engine: "fake 1".to_owned(), message: message.to_owned() };
        let starts: Vec<usize> = match self.kind {
            Kind::Static => int64s("write_indices").iter().map(|&index| index.try_into().unwrap()).collect(),
            Kind::Growing => vec![caches[0].slots; batch],
            Kind::Operator => {
                let mask = int64s("attention_mask");
                let total = mask.len() / batch;
                if batch > 1 && width > 1 && width != total {
                    return Err(refused("several tokens in mid-cache take a batch of 1"));
                }
                let lengths = mask.chunks(total).map(|mask| mask.iter().sum::<i64>() as usize);
                if self.fault == Fault::RefusesPadding && lengths.clone().any(|length| length < width) {
                    return Err(refused("samples are padded"));
                }
                lengths.map(|length| if width == total { 0 } else { length - width }).collect()
            }
        };
        let end = starts.iter().map(|start| start + width).max().unwrap();
        match self.kind {
            Kind::Static => {
                let lengths = int64s("nonpad_kv_seqlen");
                assert!(lengths.iter().zip(&starts).all(|(&length, start)| length as usize == start + width));
            }
            Kind::Growing => caches.iter_mut().for_each(|cache| cache.grow(width)),
            Kind::Operator => {
                caches.iter_mut().for_each(|cache| cache.grow(end.saturating_sub(cache.slots)));
            }
        }
        if self.fault == Fault::RefusesLastSlot && end == caches[0].slots && self.kind == Kind::Static {
            return Err(refused("no"));
        }
        let positions = match self.kind {
            Kind::Operator => {
                starts.iter().flat_map(|&start| (start..start + width).map(|at| at as i64)).collect()
            }
            _ => int64s("position_ids"),
        };
        for (index, cache) in caches.iter_mut().enumerate() {
            for sample in 0..batch {
                for column in 0..width {
                    let at = sample * width + column;
                    self.write(
                        cache,
                        index,
                        sample,
                        starts[sample],
                        column,
                        [tokens[at], positions[at]],
                        starts[0],
                    );
                }
                if self.fault == Fault::Clobbered && index == 3 && width == 1 && starts[sample] > 0 {
                    cache.row(sample, 0).fill(0.25);
                }
            }
        }
        let mixed = self.mix(&mut step, &tokens, samples.clone());
        let ids = ids_of_blocks(&step, samples.start);
        let logits = self.logits(&mut caches, &mixed, &starts, width, &ids);
        self.hand_over(&mut step, &names, &caches);
        let present_at = step.shared.iter().map(|shared| {
            let (part, _) = shared.cache.part(&samples).unwrap();
            shared.cache.address() + part.start + if self.fault == Fault::Copied { 1 << 20 } else { 0 }
        });
        Ok(StepOutput {
            present_at: present_at.collect(),
            returned: vec![logits],
            elapsed: Duration::from_micros(1),
        })
    }
}

impl FakeSession {
    #[expect(clippy::too_many_arguments, reason = "one row, and everything that a fault may confuse")]
    fn write(
        &self,
        cache: &mut Cache,
        index: usize,
        sample: usize,
        start: usize,
        column: usize,
        [token, position]: [i64; 2],
        first_start: usize,
    ) {
        let start = match self.fault {
            Fault::IndexOffByOne => start + 1,
            Fault::SharedIndex => first_start,
            _ => start,
        };
        let slot = (start + column).min(cache.slots - 1);
        let is_padding = column > 0 && position == 0;
        let is_nan = (self.fault == Fault::NanInPadding && is_padding)
            || (self.fault == Fault::NanToken && token == 13);
        let row = cache.row(sample, slot);
        for (element, value) in row.iter_mut().enumerate() {
            let phase = token as f32 * 0.37 + position as f32 * 1.7 + (index * ROW + element) as f32 * 0.61;
            *value = if is_nan { f32::NAN } else { phase.sin() };
        }
    }

    /// Updates the state of each sample by its tokens, and returns the state after each token. It is zero in models
    /// without states.
    fn mix(&self, step: &mut Step<'_>, tokens: &[i64], samples: Range<usize>) -> Vec<f32> {
        let mut pasts = step.inputs.iter().chain(&step.of_batch);
        let Some((_, past)) = pasts.find(|(name, _)| *name == "past.conv") else {
            return vec![0.0; tokens.len()];
        };
        let (_, present) = step.outputs.iter_mut().find(|(name, _)| *name == "present.conv").unwrap();
        let (batch, width) = (samples.len(), tokens.len() / samples.len());
        let of_sample = past.len() / past.shape()[0];
        let mut mixed = Vec::with_capacity(tokens.len());
        for (index, tokens) in tokens.chunks(width).enumerate() {
            let read = if self.fault == Fault::StateOfNeighbour { (index + 1) % batch } else { index };
            let [read, write] = [read, index].map(|index| (samples.start + index) * of_sample);
            let before = f32::from_le_bytes(*past.bytes()[read..].first_chunk().unwrap());
            let mut state = if self.fault == Fault::StateLost { 0.0 } else { before };
            for token in tokens {
                state = 0.5 * state + (*token as f32 * 0.37 + 1.0).sin();
                mixed.push(state);
            }
            let after = if self.fault == Fault::StateNotUpdated { before } else { state };
            let unread = if self.fault == Fault::NanInState { f32::NAN } else { 0.0 };
            let bytes = [after, unread].map(f32::to_le_bytes).concat();
            present.bytes_mut()[write..write + 8].copy_from_slice(&bytes);
        }
        mixed
    }

    /// Multiplies every slot by a weight, as attention does. Slots that are not visible have weight zero. A token also
    /// sees the slots that have its id of a block.
    fn logits(
        &self,
        caches: &mut [Cache],
        mixed: &[f32],
        starts: &[usize],
        width: usize,
        ids: &[Vec<i64>],
    ) -> Tensor {
        let batch = starts.len();
        let mut logits = Tensor::zeros(ElementType::Float32, &[batch, width, VOCABULARY]).unwrap();
        let mut values = Vec::with_capacity(batch * width * VOCABULARY);
        for (sample, &start) in starts.iter().enumerate() {
            for column in 0..width {
                let mut seen = [mixed[sample * width + column]; ROW];
                let hidden = usize::from(self.fault == Fault::LengthOffByOne && start > 0);
                let [tokens, query] = [start + width, start + column - hidden].map(|number| number as i64);
                for cache in caches.iter_mut() {
                    let rule = Visibility::new(Mode::Linear, cache.slots).causal();
                    for slot in 0..cache.slots {
                        let is_block = ids.get(sample).is_some_and(|ids| {
                            let id = ids[start + column];
                            id >= 0 && ids[slot] == id
                        });
                        let is_visible = rule.sees(tokens, query, slot) || is_block;
                        let weight = match (is_visible, self.fault) {
                            (true, _) => 1.0,
                            (false, Fault::SeesUnwritten) => 0.1,
                            (false, _) => 0.0,
                        };
                        let row = cache.row(sample, slot);
                        seen.iter_mut().zip(row).for_each(|(seen, value)| *seen += weight * *value);
                    }
                }
                values.extend((0..VOCABULARY).map(|entry| (seen[entry % ROW] * (1.0 + entry as f32)).sin()));
            }
        }
        logits
            .bytes_mut()
            .copy_from_slice(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
        logits
    }

    fn hand_over(&self, step: &mut Step<'_>, names: &[(String, String)], caches: &[Cache]) {
        for ((past, present), cache) in names.iter().zip(caches) {
            if let Some(shared) = step.shared.iter_mut().find(|shared| shared.past == *past) {
                assert_eq!(shared.present, present);
                if self.fault != Fault::Copied {
                    cache.store(shared.cache);
                }
            }
            if let Some((_, tensor)) = step.outputs.iter_mut().find(|(name, _)| name == present) {
                cache.store(tensor);
            }
        }
        if self.fault == Fault::WritesPast && step.shared.is_empty() {
            // An engine must not write its inputs, and the borrow allows only reading. This fake changes the
            // presents instead, so that they differ from the rows that are written in place.
            for (_, tensor) in &mut step.outputs {
                tensor.bytes_mut()[..4].copy_from_slice(&9.0_f32.to_le_bytes());
            }
        }
    }
}

/// Returns the ids of the blocks of each sample from this one on, or nothing if the model has no input for them.
fn ids_of_blocks(step: &Step<'_>, first: usize) -> Vec<Vec<i64>> {
    let mut inputs = step.inputs.iter().chain(&step.of_batch);
    let Some((_, ids)) = inputs.find(|(name, _)| *name == "block_sequence_ids") else { return Vec::new() };
    let numbers: Vec<_> = ids.bytes().as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect();
    numbers.chunks(ids.shape()[1]).skip(first).map(<[i64]>::to_vec).collect()
}

fn names(is_static: bool) -> Vec<(String, String)> {
    let kinds = |layer: usize| ["key", "value"].map(|kind| (layer, kind));
    let name = |(layer, kind): (usize, &str)| match is_static {
        true => (format!("{kind}_cache.{layer}"), format!("updated_{kind}_cache.{layer}")),
        false => (format!("past_key_values.{layer}.{kind}"), format!("present.{layer}.{kind}")),
    };
    [kinds(0), kinds(1)].concat().into_iter().map(name).collect()
}

/// A cache as rows, in one of two layouts: `[batch, slots, heads × size]` or `[batch, heads, slots, size]`.
struct Cache {
    batch: usize,
    slots: usize,
    rows: Vec<[f32; ROW]>,
    /// The batch index of the first sample of the run.
    first: usize,
}

impl Cache {
    fn read(tensor: &Tensor) -> Self {
        let (batch, slots) = sizes(tensor);
        let mut cache = Self { batch, slots, rows: vec![[0.0; ROW]; batch * slots], first: 0 };
        let values: Vec<f32> =
            tensor.bytes().as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect();
        cache.each(tensor.shape().len(), |value, at| *value = values[at]);
        cache
    }

    fn store(&self, tensor: &mut Tensor) {
        let rank = tensor.shape().len();
        assert_eq!(sizes(tensor), (self.batch, self.slots));
        let mut copy = Self { rows: self.rows.clone(), ..*self };
        let bytes = tensor.bytes_mut();
        copy.each(rank, |value, at| bytes[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes()));
    }

    fn grow(&mut self, width: usize) {
        let mut rows = Vec::new();
        for sample in 0..self.batch {
            rows.extend(&self.rows[sample * self.slots..(sample + 1) * self.slots]);
            rows.extend(vec![[0.0; ROW]; width]);
        }
        self.slots += width;
        self.rows = rows;
    }

    fn row(&mut self, sample: usize, slot: usize) -> &mut [f32; ROW] {
        &mut self.rows[(self.first + sample) * self.slots + slot]
    }

    /// Visits every element, with its index in a tensor of this rank.
    fn each(&mut self, rank: usize, mut visit: impl FnMut(&mut f32, usize)) {
        let slots = self.slots;
        for (index, row) in self.rows.iter_mut().enumerate() {
            let (sample, slot) = (index / slots, index % slots);
            for (element, value) in row.iter_mut().enumerate() {
                let (head, inner) = (element / HEAD, element % HEAD);
                let at = match rank {
                    3 => index * ROW + element,
                    _ => ((sample * HEADS + head) * slots + slot) * HEAD + inner,
                };
                visit(value, at);
            }
        }
    }
}

/// Returns the batch and the number of slots.
fn sizes(tensor: &Tensor) -> (usize, usize) {
    match *tensor.shape() {
        [batch, slots, ROW] | [batch, HEADS, slots, HEAD] => (batch, slots),
        ref other => panic!("{other:?} is no cache"),
    }
}
