//! The caches of a session and the rows of one sample in all of them.
//!
//! A run may overwrite rows of samples without tokens. They are copied before it and written back after it.

use std::ops::Range;

use kvscatter_onnx::convert::RingSize;

use crate::encoder::EncoderInputs;
use crate::error::SessionError;
use crate::memory_report::bytes;
use crate::model_runs::ModelRun;
use crate::ring_track::RingTrack;
use crate::rows::Rows;
use crate::runner::{LogitsTensor, Runner};
use crate::states::States;
use crate::tensor::Tensor;

/// The caches of a batch, `[batch, …, capacity, …]`, and its states.
pub(crate) struct Caches {
    tensors: Vec<Tensor>,
    /// The names of the past inputs.
    names: Vec<String>,
    states: States,
    encoder: EncoderInputs,
    rows: Vec<Rows>,
    /// For each cache, the index of its size in the list of rings, or `None` for a linear cache.
    ring_of: Vec<Option<usize>>,
    /// For each batch index, one more than the furthest position that may have been written since its rows were last
    /// set to zero.
    written: Vec<usize>,
    held: Held,
}

/// The rows of samples that the current run overwrites with padding.
#[derive(Default)]
struct Held {
    /// The positions of the rows, by batch index.
    positions: Vec<(usize, Range<usize>)>,
    bytes: Vec<u8>,
}

/// The bytes that a run wrote to the caches and that the engine copied.
pub(crate) struct CacheTraffic {
    pub(crate) written: u64,
    pub(crate) copied: u64,
}

impl Caches {
    /// Allocates caches and states of zeros. The inputs from an encoder may take `limit` bytes.
    pub(crate) fn new(
        runner: &Runner,
        batch: usize,
        capacity: usize,
        rings: &[RingTrack],
        limit: u64,
    ) -> Result<Self, SessionError> {
        let ports = || runner.interface.caches.iter();
        let ring = |of: RingSize| rings.iter().position(|ring| ring.size() == of);
        Ok(Self {
            tensors: runner.caches(batch, capacity)?,
            names: ports().map(|cache| cache.past.clone()).collect(),
            states: States::new(runner.session(), &runner.interface, batch)?,
            encoder: EncoderInputs::new(&runner.interface, batch, limit),
            rows: ports().map(|cache| Rows::new(cache, capacity)).collect(),
            ring_of: ports().map(|cache| cache.ring.and_then(ring)).collect(),
            written: vec![0; batch],
            held: Held::default(),
        })
    }

    /// Sets the rows to zero that come after the cached tokens of each sample that gets tokens.
    ///
    /// These rows contain padding, truncated tokens, or tokens of an earlier sample with the same batch
    /// index. Attention masks them, but an engine may still multiply them by zero, and 0 × NaN is NaN.
    pub(crate) fn zero_stale(&mut self, run: &ModelRun, rings: &[RingTrack]) {
        for (batch_index, sample) in run.fed() {
            if !sample.tokens.is_empty() {
                self.zero_from(batch_index, sample.start, rings);
            }
        }
    }

    /// Runs a step with the tensors `inputs`.
    pub(crate) fn run(
        &mut self,
        runner: &mut Runner,
        run: &ModelRun,
        inputs: &[(String, Tensor)],
    ) -> Result<(LogitsTensor, CacheTraffic), SessionError> {
        let width = run.feed.width;
        // This is recorded before the run, because a run that fails may have written rows.
        for (batch_index, sample) in run.fed() {
            self.record(batch_index, sample.start + width);
        }
        let part = |cache: &Tensor| {
            let bytes = cache.part(&run.samples).map(|(bytes, _)| bytes).unwrap_or_default();
            (cache.address() + bytes.start, bytes.len())
        };
        let parts: Vec<_> = self.tensors.iter().map(part).collect();
        let some = (run.samples.len() < self.written.len()).then(|| run.samples.clone());
        let (caches, states, of_encoder) = (&mut self.tensors, &mut self.states, self.encoder.tensors());
        let (logits, present_at) =
            runner.some_in_place(inputs, of_encoder, caches, states, &run.feed, some)?;
        let moved = parts.iter().zip(present_at).filter(|((at, _), present)| at != present);
        let rows = run.samples.len() * width;
        let wrote = CacheTraffic {
            written: self.rows.iter().map(|of| bytes(of.row() * rows)).sum(),
            copied: moved.map(|((_, len), _)| bytes(*len)).sum(),
        };
        Ok((logits, wrote))
    }

    /// Checks that the engine has not lost a cache in an earlier run.
    pub(crate) fn check_lost(&self) -> Result<(), SessionError> {
        let mut caches = self.tensors.iter().zip(&self.names);
        match caches.find(|(cache, _)| cache.bytes().len() != cache.len()) {
            Some((_, name)) => Err(SessionError::CacheLost { cache: name.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn tensor(&self, cache: usize) -> Option<&Tensor> {
        self.tensors.get(cache)
    }

    pub(crate) fn encoder(&self) -> &EncoderInputs {
        &self.encoder
    }

    pub(crate) fn encoder_mut(&mut self) -> &mut EncoderInputs {
        &mut self.encoder
    }

    pub(crate) fn states(&self) -> &States {
        &self.states
    }

    pub(crate) fn states_mut(&mut self) -> &mut States {
        &mut self.states
    }

    /// Copies rows of samples that the next run overwrites with padding. The positions are listed by batch index.
    pub(crate) fn hold(&mut self, positions: &[(usize, Range<usize>)]) {
        let held = &mut self.held;
        held.positions.clear();
        held.positions.extend_from_slice(positions);
        held.bytes.clear();
        for (cache, rows) in self.tensors.iter().zip(&self.rows) {
            let runs = positions.iter().flat_map(|(index, of)| rows.runs(*index, of.clone()));
            copy(cache, runs, &mut held.bytes);
        }
    }

    /// Writes back the rows that [`hold`](Self::hold) copied.
    pub(crate) fn release(&mut self) {
        let held = &mut self.held;
        let mut bytes = held.bytes.as_slice();
        for (cache, rows) in self.tensors.iter_mut().zip(&self.rows) {
            let runs = held.positions.iter().flat_map(|(index, of)| rows.runs(*index, of.clone()));
            bytes = restore(cache, runs, bytes);
        }
        held.positions.clear();
    }

    /// Returns the number of bytes that a row has in all rings of one size.
    pub(crate) fn ring_row(&self, ring: usize) -> usize {
        self.of_ring(ring).map(|(_, rows)| rows.row()).sum()
    }

    /// Appends the row of a position in all rings of one size to `bytes`.
    pub(crate) fn copy_ring_row(
        &self,
        ring: usize,
        batch_index: usize,
        position: usize,
        bytes: &mut Vec<u8>,
    ) {
        for (cache, rows) in self.of_ring(ring) {
            copy(cache, rows.runs(batch_index, position..position + 1), bytes);
        }
    }

    /// Writes back a row that [`copy_ring_row`](Self::copy_ring_row) appended.
    pub(crate) fn restore_ring_row(
        &mut self,
        ring: usize,
        batch_index: usize,
        position: usize,
        mut bytes: &[u8],
    ) {
        let caches = self.tensors.iter_mut().zip(&self.rows).zip(&self.ring_of);
        for ((cache, rows), _) in caches.filter(|(_, of)| **of == Some(ring)) {
            bytes = restore(cache, rows.runs(batch_index, position..position + 1), bytes);
        }
    }

    /// Returns the positions of the rows that a sample of `tokens` tokens needs in each cache.
    pub(crate) fn needed(&self, batch_index: usize, tokens: usize, rings: &[RingTrack]) -> Vec<Range<usize>> {
        let needed = |ring: &Option<usize>| match ring.and_then(|ring| rings.get(ring)) {
            Some(ring) => ring.needed(batch_index, tokens),
            None => 0..tokens,
        };
        self.ring_of.iter().map(needed).collect()
    }

    /// Returns the index of a cache's size in the list of rings, or `None` for a linear cache.
    pub(crate) fn ring(&self, cache: usize) -> Option<usize> {
        self.ring_of.get(cache).copied().flatten()
    }

    /// Calls a function with the rows of a sample at these positions, in order.
    pub(crate) fn visit_rows<E>(
        &self,
        cache: usize,
        batch_index: usize,
        positions: Range<usize>,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Some(cache), Some(rows)) = (self.tensors.get(cache), self.rows.get(cache)) else {
            return Ok(());
        };
        let mut runs = rows.runs(batch_index, positions);
        runs.try_for_each(|run| visit(cache.bytes().get(run).unwrap_or_default()))
    }

    /// Returns the bytes of a cache, and the ranges of a sample's rows at these positions, in order.
    pub(crate) fn rows_mut(
        &mut self,
        cache: usize,
        batch_index: usize,
        positions: Range<usize>,
    ) -> (&mut [u8], Vec<Range<usize>>) {
        match (self.tensors.get_mut(cache), self.rows.get(cache)) {
            (Some(cache), Some(rows)) => (cache.bytes_mut(), rows.runs(batch_index, positions).collect()),
            _ => (&mut [], Vec::new()),
        }
    }

    /// Records that positions before `end` of a batch index may be written.
    pub(crate) fn record(&mut self, batch_index: usize, end: usize) {
        if let Some(written) = self.written.get_mut(batch_index) {
            *written = end.max(*written);
        }
    }

    /// Copies the rows, states and inputs from an encoder that a sample of `tokens` tokens needs to another batch
    /// index.
    pub(crate) fn copy_sample(&mut self, from: usize, to: usize, tokens: usize, rings: &[RingTrack]) {
        let positions = self.needed(from, tokens, rings);
        for ((cache, rows), positions) in self.tensors.iter_mut().zip(&self.rows).zip(&positions) {
            let positions = positions.clone();
            let runs = rows.runs(from, positions.clone()).zip(rows.runs(to, positions));
            runs.for_each(|(from, to)| cache.bytes_mut().copy_within(from, to.start));
        }
        self.states.copy(from, to);
        self.encoder.copy_sample(from, to);
        self.clean(to, tokens, &positions);
    }

    /// Sets all rows of a batch index to zero except those at the positions `kept` of each cache. The sample there has
    /// `tokens` tokens.
    pub(crate) fn clean(&mut self, batch_index: usize, tokens: usize, kept: &[Range<usize>]) {
        let Some(written) = self.written.get_mut(batch_index) else { return };
        let written = std::mem::replace(written, tokens);
        if written == 0 {
            return;
        }
        let caches = self.tensors.iter_mut().zip(&self.rows).zip(&self.ring_of);
        for (((cache, rows), ring), kept) in caches.zip(kept) {
            let end = match ring {
                Some(_) => kept.start + rows.capacity(),
                None => written,
            };
            zero(cache, rows, batch_index, tokens..end);
        }
    }

    fn of_ring(&self, ring: usize) -> impl Iterator<Item = (&Tensor, &Rows)> {
        let caches = self.tensors.iter().zip(&self.rows).zip(&self.ring_of);
        caches.filter(move |(_, of)| **of == Some(ring)).map(|(cache, _)| cache)
    }

    /// Sets the written rows of a batch index to zero, beginning at a position.
    fn zero_from(&mut self, batch_index: usize, from: usize, rings: &[RingTrack]) {
        let Some(written) = self.written.get_mut(batch_index).filter(|written| **written > from) else {
            return;
        };
        let written = std::mem::replace(written, from);
        for ((cache, rows), ring) in self.tensors.iter_mut().zip(&self.rows).zip(&self.ring_of) {
            let ring = ring.and_then(|ring| rings.get(ring));
            // In a ring, positions beyond the furthest one of this sample are older rows that the sample may need.
            let end = ring.filter(|_| from > 0).map_or(written, |ring| ring.high(batch_index).min(written));
            zero(cache, rows, batch_index, from..end);
        }
    }
}

/// Appends runs of a cache to `bytes`.
fn copy(cache: &Tensor, runs: impl Iterator<Item = Range<usize>>, bytes: &mut Vec<u8>) {
    runs.for_each(|run| bytes.extend_from_slice(cache.bytes().get(run).unwrap_or_default()));
}

/// Writes the first bytes to runs of a cache, and returns the others.
fn restore<'b>(
    cache: &mut Tensor,
    runs: impl Iterator<Item = Range<usize>>,
    mut bytes: &'b [u8],
) -> &'b [u8] {
    for run in runs {
        let Some((first, rest)) = bytes.split_at_checked(run.len()) else { return &[] };
        if let Some(target) = cache.bytes_mut().get_mut(run) {
            target.copy_from_slice(first);
        }
        bytes = rest;
    }
    bytes
}

fn zero(cache: &mut Tensor, rows: &Rows, batch_index: usize, positions: Range<usize>) {
    for run in rows.runs(batch_index, positions) {
        if let Some(stale) = cache.bytes_mut().get_mut(run) {
            stale.fill(0);
        }
    }
}
