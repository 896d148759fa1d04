//! Replays the tokens of one sample alone: in fresh caches, at the same batch index and in runs of the same width.

use std::ops::Range;

use kvscatter_session::{
    CacheWriter, Feed, InPlaceCache, Interface, KvSession, Rows, Sample, SampleFeed, Session, Step, Tensor,
    by_name,
};

use super::faulty::{Run, Runs};
use crate::random::oracle::{Oracle, before_gap};

pub(crate) struct Replay {
    session: Box<dyn Session>,
    interface: Interface,
    rows: Vec<Rows>,
    batch: usize,
    capacity: usize,
    caches: Vec<Tensor>,
    /// The states before a run and after it.
    states: [Vec<Tensor>; 2],
    /// The runs of the session.
    runs: Runs,
}

/// The past of a sample.
#[derive(Clone, Default)]
pub(crate) struct Past {
    tokens: Vec<i64>,
    log: Vec<Logged>,
    /// The bits of the logits after each token.
    scores: Vec<Vec<u32>>,
    /// The number of runs of the log that have been replayed.
    replayed: usize,
    /// The sample's bytes in each cache and in each state after the replayed runs. They contain no padding.
    bytes: Vec<Vec<u8>>,
}

/// A run that fed tokens to a sample.
#[derive(Clone, Debug)]
struct Logged {
    width: usize,
    /// The batch indices that the run covered.
    samples: Range<usize>,
    batch_index: usize,
    /// The number of tokens before the run.
    start: usize,
    fed: Vec<i64>,
    /// How many of the tokens the sample still has.
    kept: usize,
}

impl Replay {
    /// Returns an oracle for a session whose engine records its runs. `alone` is the same model in the same engine.
    pub(crate) fn new(of: &KvSession, alone: Box<dyn Session>, runs: Runs) -> Self {
        let (session, interface) = (alone, of.interface().clone());
        let (batch, capacity) = (of.batch(), of.capacity());
        let zeros = |element, shape: Vec<usize>| session.zeros(element, &shape).unwrap();
        let ports = interface.caches.iter();
        let caches = ports.map(|port| zeros(port.element, port.shape(batch, capacity))).collect();
        let states = || interface.states.iter().map(|port| zeros(port.element, port.shape(batch))).collect();
        let states = [states(), states()];
        let rows = interface.caches.iter().map(|port| Rows::new(port, capacity)).collect();
        Self { session, interface, rows, batch, capacity, caches, states, runs }
    }

    /// Replays the runs of a sample that were not replayed yet. Logits that are known already must not change.
    fn replay(&mut self, past: &mut Past) {
        if past.replayed == 0 {
            let tensors = self.caches.iter().chain(&self.states[0]);
            past.bytes = tensors.map(|tensor| vec![0; tensor.len() / self.batch]).collect();
        }
        for run in past.log.iter().skip(past.replayed) {
            let scores = self.run(run, &mut past.bytes);
            for (position, scores) in (run.start..).zip(scores) {
                match past.scores.get(position) {
                    Some(known) => assert_eq!(*known, scores, "{run:?}, position {position}"),
                    None => past.scores.push(scores),
                }
            }
        }
        past.replayed = past.log.len();
    }

    /// Runs the model for one sample, and keeps the rows of its tokens. Returns the logits after these.
    fn run(&mut self, run: &Logged, bytes: &mut [Vec<u8>]) -> Vec<Vec<u32>> {
        let (cache_bytes, state_bytes) = bytes.split_at_mut(self.caches.len());
        let tensors = self.caches.iter_mut().chain(&mut self.states[0]);
        for (tensor, bytes) in tensors.zip(cache_bytes.iter().chain(state_bytes.iter())) {
            let of_sample = of_sample(tensor, run.batch_index);
            tensor.bytes_mut().fill(0);
            tensor.bytes_mut()[of_sample].copy_from_slice(bytes);
        }
        // Dropped tokens become padding. `GroupQueryAttention` takes padding only in a first run.
        let fed = match self.interface.writer() {
            CacheWriter::TensorScatter => run.kept,
            CacheWriter::GroupQueryAttention => run.fed.len(),
        };
        let sample = |batch_index| {
            let (start, fed) = if batch_index == run.batch_index { (run.start, fed) } else { (0, 0) };
            SampleFeed { start, padding: 0, tokens: start..start + fed, first_slot: 0 }
        };
        let feed = Feed { width: run.width, samples: run.samples.clone().map(sample).collect() };
        let token = |index, position| match run.samples.start + index == run.batch_index {
            true => run.fed[position - run.start],
            false => 0,
        };
        let inputs = feed.tensors(&self.interface, token, self.capacity).unwrap();
        let [states, next] = &mut self.states;
        let mut read = by_name(&inputs);
        let ports = &self.interface.states;
        let past = ports.iter().map(|port| port.past.as_str()).zip(&*states);
        let is_whole = run.samples.len() == self.batch;
        let mut of_batch = Vec::new();
        if is_whole { &mut read } else { &mut of_batch }.extend(past);
        let caches = self.interface.caches.iter().zip(&mut self.caches);
        // If tokens of the run were undone, the state after the kept ones is among the columns.
        let is_undone = run.kept < run.fed.len();
        let columns = ports.iter().filter(|_| is_undone).map(|port| port.columns.as_deref().unwrap());
        let step = Step {
            inputs: read,
            samples: (!is_whole).then(|| run.samples.clone()),
            of_batch,
            shared: caches
                .map(|(port, cache)| InPlaceCache { past: &port.past, present: &port.present, cache })
                .collect(),
            outputs: ports.iter().map(|port| port.present.as_str()).zip(&mut *next).collect(),
            returned: std::iter::once(self.interface.logits.as_str()).chain(columns).collect(),
        };
        let ran = self.session.run(step).unwrap();
        let kept = run.start..run.start + run.kept;
        for ((cache, rows), bytes) in self.caches.iter().zip(&self.rows).zip(cache_bytes) {
            let first = of_sample(cache, run.batch_index).start;
            for row in rows.runs(run.batch_index, kept.clone()) {
                bytes[row.start - first..row.end - first].copy_from_slice(&cache.bytes()[row]);
            }
        }
        for (index, (state, bytes)) in next.iter().zip(state_bytes).enumerate() {
            match ran.returned.get(index + 1) {
                Some(columns) => {
                    let first = run.batch_index - run.samples.start;
                    bytes.copy_from_slice(&state_after(run.kept, columns, first, state.shape()[2]));
                }
                None => bytes.copy_from_slice(&state.bytes()[of_sample(state, run.batch_index)]),
            }
        }
        let logits = &ran.returned[0];
        let &[_, width, vocabulary] = logits.shape() else { panic!("{logits:?}") };
        assert_eq!(width, run.width);
        let bits: Vec<u32> =
            logits.bytes().as_chunks().0.iter().map(|&chunk| u32::from_le_bytes(chunk)).collect();
        let first = (run.batch_index - run.samples.start) * width;
        let of_sample = bits.chunks(vocabulary).skip(first).take(run.kept);
        of_sample.map(<[u32]>::to_vec).collect()
    }
}

/// Returns the state of a sample after `tokens` tokens of a run, which is `size` of the run's columns.
fn state_after(tokens: usize, columns: &Tensor, index: usize, size: usize) -> Vec<u8> {
    let element = columns.element().bits().unwrap() / 8;
    let channels = columns.bytes()[of_sample(columns, index)].chunks(columns.shape()[2] * element);
    channels.flat_map(|row| row[tokens * element..][..size * element].to_vec()).collect()
}

/// Returns the runs that fed these tokens to a sample, or `None` if these runs do not feed all of them.
fn logged(runs: &[Run], sample: Sample, mut start: usize, tokens: &[i64]) -> Option<Vec<Logged>> {
    let (mut left, mut log) = (tokens, Vec::new());
    for run in runs {
        // Tokens of the tests are above 0, and a sample without tokens is padded with token 0.
        let batch_index = sample.batch_index();
        if left.is_empty() || !run.samples.contains(&batch_index) {
            continue;
        }
        let index = batch_index - run.samples.start;
        if run.first[index] == 0 {
            continue;
        }
        let (fed, rest) = left.split_at(run.width.min(left.len()));
        let first_slot = run.write_indices.as_ref().map(|all| all[index] as usize);
        if fed[0] != run.first[index] || first_slot.is_some_and(|slot| slot != start) {
            return None;
        }
        let (width, samples, kept) = (run.width, run.samples.clone(), fed.len());
        log.push(Logged { width, samples, batch_index, start, fed: fed.to_vec(), kept });
        start += kept;
        left = rest;
    }
    left.is_empty().then_some(log)
}

/// Returns the bytes of one sample in a cache or a state.
fn of_sample(tensor: &Tensor, batch_index: usize) -> Range<usize> {
    let len = tensor.len() / tensor.shape()[0];
    batch_index * len..(batch_index + 1) * len
}

impl Oracle for Replay {
    type Past = Past;

    fn start(&mut self) {
        self.runs.clear();
    }

    fn extend(&mut self, past: &mut Past, _: &Interface, sample: Sample, tokens: &[i64]) {
        let runs = self.runs.all();
        let start = past.tokens.len();
        // After NaN, a session runs a step again. The last runs that feed all tokens count.
        let fed = (0..runs.len()).rev().find_map(|first| logged(&runs[first..], sample, start, tokens));
        past.log.extend(fed.unwrap_or_else(|| panic!("{tokens:?} were never fed: {runs:?}")));
        past.tokens.extend(tokens);
        self.replay(past);
    }

    fn truncate(&mut self, past: &mut Past, to: usize) {
        if to == past.tokens.len() {
            return;
        }
        past.tokens.truncate(to);
        past.scores.truncate(to);
        past.log.retain(|run| run.start < to);
        if let Some(last) = past.log.last_mut() {
            last.kept = last.kept.min(to - last.start);
        }
        past.replayed = 0;
    }

    fn accept(
        &mut self,
        past: &mut Past,
        interface: &Interface,
        sample: Sample,
        begun: usize,
        rows: &[usize],
    ) {
        let runs = self.runs.all();
        let tokens: Vec<i64> = rows.iter().map(|row| past.tokens[begun + row]).collect();
        // The tokens before the first gap stay, or all of them have run again.
        let have_run = |from: &usize| {
            (0..=runs.len()).any(|run| logged(&runs[run..], sample, begun + from, &tokens[*from..]).is_some())
        };
        let from = [0, before_gap(rows)].into_iter().find(have_run);
        let from = from.unwrap_or_else(|| panic!("{tokens:?} were never fed: {runs:?}"));
        self.truncate(past, begun + from);
        if from < tokens.len() {
            self.extend(past, interface, sample, &tokens[from..]);
        }
    }

    fn tokens<'p>(&self, past: &'p Past) -> &'p [i64] {
        &past.tokens
    }

    fn scores(&self, past: &Past, position: usize, logits: &[f32]) -> bool {
        logits.iter().map(|logit| logit.to_bits()).eq(past.scores[position].iter().copied())
    }
}
