//! The samples of a batch with their caches and states, and the points that samples can go back to.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::batch::Batch;
use crate::caches::{CacheTraffic, Caches};
use crate::error::SessionError;
use crate::model_runs::ModelRun;
use crate::runner::{LogitsTensor, Runner};
use crate::sample::Sample;
use crate::state_history;
use crate::tensor::Tensor;
use crate::undo::Undo;

/// The samples of a batch, with their caches and states.
pub(crate) struct SampleStore {
    batch: Batch,
    caches: Caches,
    /// The point that [`begin`](Self::begin) set, by batch index.
    begun: Vec<Undo>,
    /// The point before the current step, by batch index.
    step: Vec<Undo>,
    /// The name of the input of the first state, which errors name.
    state: Option<String>,
}

impl SampleStore {
    /// Allocates the caches and states of an empty batch. The inputs from an encoder may take `limit` bytes.
    pub(crate) fn new(
        runner: &Runner,
        batch: usize,
        capacity: usize,
        limit: u64,
    ) -> Result<Self, SessionError> {
        let samples = Batch::new(batch, capacity, runner.interface.rings());
        let points = || (0..batch).map(|_| Undo::default()).collect();
        Ok(Self {
            caches: Caches::new(runner, batch, capacity, samples.rings(), limit)?,
            batch: samples,
            begun: points(),
            step: points(),
            state: runner.interface.states.first().map(|state| state.past.clone()),
        })
    }

    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    pub(crate) fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Returns the number of bytes allocated for rows and states with which samples go back.
    pub(crate) fn undo_bytes(&self) -> u64 {
        self.begun.iter().chain(&self.step).map(Undo::allocated).sum()
    }

    /// Checks that the engine has not lost a cache in an earlier run.
    pub(crate) fn check_lost(&self) -> Result<(), SessionError> {
        self.caches.check_lost()
    }

    // Samples.

    pub(crate) fn add(&mut self) -> Result<Sample, SessionError> {
        let sample = self.batch.add()?;
        self.caches.states_mut().clear(sample.batch_index());
        self.caches.encoder_mut().forget(sample.batch_index());
        Ok(sample)
    }

    pub(crate) fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.batch.remove(sample)?;
        self.caches.encoder_mut().forget(sample.batch_index());
        self.clear_point(sample);
        Ok(())
    }

    /// Gives a sample without tokens the outputs of an encoder. See
    /// [`KvSession::set_encoder_outputs`](crate::KvSession::set_encoder_outputs).
    pub(crate) fn set_encoder_outputs(
        &mut self,
        runner: &Runner,
        sample: Sample,
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), SessionError> {
        if self.begun(sample)?.is_some() {
            return Err(SessionError::Begun { sample });
        }
        match self.batch.cached_tokens(sample)? {
            0 => self.caches.encoder_mut().set(runner.session(), sample.batch_index(), outputs),
            tokens => Err(SessionError::EncoderChanged { sample, tokens }),
        }
    }

    /// Adds `copies` samples with the same past as `sample`.
    pub(crate) fn fork(&mut self, sample: Sample, copies: usize) -> Result<Vec<Sample>, SessionError> {
        self.batch.cached_tokens(sample)?;
        self.check_free(copies, 0)?;
        (0..copies).map(|_| self.copy(sample)).collect()
    }

    /// Replaces the samples of a beam search. See [`KvSession::reorder`](crate::KvSession::reorder).
    pub(crate) fn reorder(
        &mut self,
        samples: &[Sample],
        parents: &[usize],
    ) -> Result<Vec<Sample>, SessionError> {
        let mut seen = BTreeSet::new();
        for &sample in samples {
            self.batch.cached_tokens(sample)?;
            if !seen.insert(sample) {
                return Err(SessionError::SampleTwice { sample });
            }
        }
        let parent = |(index, parent): (usize, &usize)| {
            let sample = samples.get(*parent).copied();
            sample.ok_or(SessionError::NoSuchParent { index, parent: *parent, samples: samples.len() })
        };
        let parents = parents.iter().enumerate().map(parent).collect::<Result<Vec<_>, _>>()?;
        let kept: BTreeSet<_> = parents.iter().copied().collect();
        let dropped: Vec<_> = seen.difference(&kept).copied().collect();
        self.check_free(parents.len() - kept.len(), dropped.len())?;
        for sample in dropped {
            self.remove(sample)?;
        }
        let mut unused = kept;
        let child = |parent| if unused.remove(&parent) { Ok(parent) } else { self.copy(parent) };
        parents.into_iter().map(child).collect()
    }

    /// Checks that `needed` batch indices are free, or become free when `removed` samples are removed.
    fn check_free(&self, needed: usize, removed: usize) -> Result<(), SessionError> {
        self.check_lost()?;
        let free = self.batch.free() + removed;
        if needed > free {
            return Err(SessionError::NoRoom { needed, free, batch: self.batch.size() });
        }
        Ok(())
    }

    fn copy(&mut self, from: Sample) -> Result<Sample, SessionError> {
        let tokens = self.batch.tokens(from)?.to_vec();
        let to = self.batch.add()?;
        let (from, index) = (from.batch_index(), to.batch_index());
        self.caches.copy_sample(from, index, tokens.len(), self.batch.rings());
        for ring in self.batch.rings_mut() {
            ring.set_high(index, ring.limit(from, tokens.len()));
        }
        self.batch.extend(to, &tokens);
        Ok(to)
    }

    // Points.

    /// Sets a point that a sample can go back to.
    pub(crate) fn begin(&mut self, sample: Sample) -> Result<(), SessionError> {
        let tokens = self.batch.cached_tokens(sample)?;
        if self.begun(sample)?.is_some() {
            return Err(SessionError::Begun { sample });
        }
        if let Some(undo) = self.begun.get_mut(sample.batch_index()) {
            undo.set(sample.batch_index(), tokens, self.batch.rings(), &self.caches);
        }
        Ok(())
    }

    /// Returns the number of cached tokens at the point of a sample, or `None` without a point.
    pub(crate) fn begun(&self, sample: Sample) -> Result<Option<usize>, SessionError> {
        self.batch.cached_tokens(sample)?;
        Ok(self.begun.get(sample.batch_index()).and_then(Undo::tokens))
    }

    /// Removes the point of a sample, and keeps everything since then.
    pub(crate) fn commit(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.point(sample)?;
        self.clear_point(sample);
        Ok(())
    }

    /// Returns a sample to its point.
    pub(crate) fn rollback(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.return_to_point(sample)?;
        self.clear_point(sample);
        Ok(())
    }

    /// Returns a sample to its point, which stays.
    pub(crate) fn return_to_point(&mut self, sample: Sample) -> Result<(), SessionError> {
        let tokens = self.point(sample)?;
        self.shorten(sample, tokens);
        Ok(())
    }

    pub(crate) fn truncate(&mut self, sample: Sample, to: usize) -> Result<(), SessionError> {
        self.check_truncation(sample, to)?;
        self.shorten(sample, to);
        Ok(())
    }

    /// Checks that a sample can go back to `to` tokens.
    pub(crate) fn check_truncation(&self, sample: Sample, to: usize) -> Result<(), SessionError> {
        let begun = self.begun.get(sample.batch_index());
        let cached = self.batch.cached_tokens(sample)?;
        let point = begun.and_then(Undo::tokens);
        if let Some(begun) = point.filter(|begun| to < *begun) {
            return Err(SessionError::TruncateBegun { sample, to, begun });
        }
        self.batch.check_truncation(sample, to, |ring| {
            begun.is_some_and(|begun| begun.reaches(sample.batch_index(), to, ring))
        })?;
        let keeps_state = to == 0 || to == cached || begun.is_some_and(|begun| begun.has_states(to));
        match &self.state {
            Some(state) if !keeps_state => {
                Err(SessionError::TruncateState { sample, to, cached, input: state.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of cached tokens at the point of a sample.
    pub(crate) fn point(&self, sample: Sample) -> Result<usize, SessionError> {
        self.begun(sample)?.ok_or(SessionError::NotBegun { sample })
    }

    fn clear_point(&mut self, sample: Sample) {
        if let Some(undo) = self.begun.get_mut(sample.batch_index()) {
            undo.clear();
        }
    }

    /// Makes a sample shorter. [`check_truncation`](Self::check_truncation) must have passed.
    fn shorten(&mut self, sample: Sample, to: usize) {
        self.batch.shorten(sample, to);
        if let Some(begun) = self.begun.get_mut(sample.batch_index()) {
            begun.restore(sample.batch_index(), to, self.batch.rings_mut(), &mut self.caches);
        }
    }

    // Steps.

    /// Sets the point to which [`undo_step`](Self::undo_step) returns these samples.
    pub(crate) fn begin_step(&mut self, given: &[(Sample, &[i64])]) {
        for (sample, _) in given {
            let index = sample.batch_index();
            let tokens = self.batch.cached_tokens(*sample);
            if let (Some(undo), Ok(tokens)) = (self.step.get_mut(index), tokens) {
                undo.set(index, tokens, self.batch.rings(), &self.caches);
            }
        }
    }

    /// Runs the model. Copies the rows that are lost and that a sample may need again.
    pub(crate) fn run(
        &mut self,
        runner: &mut Runner,
        run: &ModelRun,
        inputs: &[(String, Tensor)],
    ) -> Result<(LogitsTensor, CacheTraffic), SessionError> {
        let points = self.begun.iter_mut().zip(&mut self.step).skip(run.samples.start);
        for ((batch_index, sample), (begun, step)) in run.fed().zip(points) {
            let end = sample.start + run.feed.width;
            for undo in [begun, step] {
                undo.copy_rows(batch_index, end, self.batch.rings(), &self.caches)?;
            }
        }
        self.caches.zero_stale(run, self.batch.rings());
        self.batch.record(run);
        self.caches.hold(&run.overwritten);
        let points = self.begun.iter_mut().zip(&self.step).skip(run.samples.start);
        let mut begun: Vec<_> =
            run.fed().zip(points).filter(|(_, (begun, _))| begun.tokens().is_some()).collect();
        let returns_columns = !begun.is_empty() && run.feed.width <= state_history::TOKENS;
        self.caches.states_mut().return_columns(returns_columns);
        let ran = self.caches.run(runner, run, inputs);
        self.caches.release();
        let ran = ran?;
        for ((batch_index, sample), (begun, step)) in &mut begun {
            let step = step.tokens().unwrap_or_default();
            begun.keep_states(*batch_index, step, sample.tokens.clone(), &self.caches)?;
        }
        self.caches.states_mut().return_columns(false);
        Ok(ran)
    }

    /// Keeps the step: the samples have their new tokens.
    pub(crate) fn end_step(&mut self, given: &[(Sample, &[i64])]) {
        for (sample, tokens) in given {
            self.batch.extend(*sample, tokens);
            if let Some(begun) = self.begun.get_mut(sample.batch_index()) {
                begun.drop_old_states();
            }
        }
        self.step.iter_mut().for_each(Undo::clear);
    }

    /// Returns all samples to where they were before a step that has not ended.
    pub(crate) fn undo_step(&mut self) {
        self.caches.release();
        for (batch_index, undo) in self.step.iter_mut().enumerate() {
            if let Some(tokens) = undo.tokens() {
                undo.restore(batch_index, tokens, self.batch.rings_mut(), &mut self.caches);
                if let Some(begun) = self.begun.get_mut(batch_index) {
                    begun.forget_states(tokens);
                }
            }
            undo.clear();
        }
    }

    // Saved samples.

    /// Returns the positions of the rows that a sample needs in each cache.
    pub(crate) fn needed(&self, sample: Sample) -> Result<Vec<Range<usize>>, SessionError> {
        let tokens = self.batch.cached_tokens(sample)?;
        Ok(self.caches.needed(sample.batch_index(), tokens, self.batch.rings()))
    }

    /// Returns the bytes of a cache, and the ranges of a sample's rows at these positions, in order.
    pub(crate) fn rows_mut(
        &mut self,
        cache: usize,
        sample: Sample,
        positions: Range<usize>,
    ) -> (&mut [u8], Vec<Range<usize>>) {
        self.caches.record(sample.batch_index(), positions.end);
        self.caches.rows_mut(cache, sample.batch_index(), positions)
    }

    /// Returns the bytes of a state, and the range of a sample.
    pub(crate) fn state_mut(&mut self, state: usize, sample: Sample) -> Option<(&mut [u8], Range<usize>)> {
        self.caches.states_mut().sample_bytes_mut(state, sample.batch_index())
    }

    /// Gives a new sample the tokens whose rows were read. Sets all rows to zero except those at `positions` of each
    /// cache. `rings` contains the first position of each ring.
    pub(crate) fn keep_read(
        &mut self,
        sample: Sample,
        tokens: &[i64],
        positions: &[Range<usize>],
        rings: &[usize],
    ) {
        self.caches.clean(sample.batch_index(), tokens.len(), positions);
        for (ring, first) in self.batch.rings_mut().iter_mut().zip(rings) {
            ring.set_high(sample.batch_index(), first + ring.capacity());
        }
        self.batch.extend(sample, tokens);
    }
}
