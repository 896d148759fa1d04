//! The two kinds of decoders that can generate: those whose caches are written in place, with one sample for
//! each prompt, and those with growing caches.

use std::path::Path;

use kvscatter_onnx::decoder::Growth;

use crate::growing::Growing;
use crate::lookup::{Draft, paying};
use crate::opening::read;
use crate::{Engine, KvSession, MemoryReport, Sample, SessionError, SessionOptions, argmax};

pub(crate) enum Decoder {
    Static(Box<Static>),
    Growing(Box<Growing>),
}

/// A decoder whose caches are written in place, and the sample of each prompt.
pub(crate) struct Static {
    session: KvSession,
    /// The sample of a saved prompt, before the prompts are added.
    prefix: Option<Sample>,
    samples: Vec<Option<Sample>>,
    copied: u64,
}

impl Decoder {
    /// Loads a model with room for `prompts` prompts. If neither the model nor the options give a capacity,
    /// the caches have `slots` slots.
    pub(crate) fn open(
        engine: &dyn Engine,
        model: &Path,
        prompts: usize,
        slots: Option<usize>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let (file, interface) = read(model)?;
        if interface.is_copied() {
            if options.capacity.is_some() {
                return Err(SessionError::CapacityUseless);
            }
            let growing = Growing::of_interface(engine, &file, interface, prompts, options)?;
            return Ok(Self::Growing(Box::new(growing)));
        }
        // The model may fix a larger batch. The other indices then stay free.
        let batch = match interface.batch {
            Some(batch) if batch >= prompts => None,
            _ => Some(prompts),
        };
        let slots = if interface.capacity()?.is_none() { slots } else { None };
        let (batch, capacity) = (options.batch.or(batch), options.capacity.or(slots));
        let options = SessionOptions { batch, capacity, ..options };
        let session = KvSession::of_interface(engine, &file, interface, options)?;
        Ok(Self::Static(Box::new(Static { session, prefix: None, samples: Vec::new(), copied: 0 })))
    }

    pub(crate) fn memory(&self) -> Option<MemoryReport> {
        match self {
            Self::Static(of) => Some(of.session.memory()),
            Self::Growing(_) => None,
        }
    }

    pub(crate) fn growth(&self) -> Option<Growth> {
        match self {
            Self::Static(_) => None,
            Self::Growing(growing) => growing.interface().growth(),
        }
    }

    pub(crate) fn capacity(&self) -> Option<usize> {
        match self {
            Self::Static(of) => Some(of.session.capacity()),
            Self::Growing(_) => None,
        }
    }

    pub(crate) fn vocabulary(&self) -> Option<usize> {
        match self {
            Self::Static(of) => of.session.vocabulary(),
            Self::Growing(growing) => growing.interface().vocabulary,
        }
    }

    /// Returns the number of prompts that fit.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Self::Static(of) => of.session.batch(),
            Self::Growing(growing) => growing.batch(),
        }
    }

    /// Loads a saved prompt, which all prompts continue.
    pub(crate) fn load(&mut self, path: &Path) -> Result<(), SessionError> {
        let Self::Static(of) = self else { return Err(SessionError::SavedUseless) };
        of.prefix = Some(of.session.load(path)?);
        Ok(())
    }

    /// Saves the sample of the first prompt.
    pub(crate) fn save(&mut self, path: &Path) -> Result<(), SessionError> {
        match self {
            Self::Static(of) => {
                of.samples.first().copied().flatten().map_or(Ok(()), |sample| of.session.save(sample, path))
            }
            Self::Growing(_) => Err(SessionError::SavedUseless),
        }
    }

    /// Adds a sample for each prompt.
    pub(crate) fn start(&mut self, prompts: usize) -> Result<(), SessionError> {
        if let Self::Static(of) = self {
            let first = of.prefix.take().map_or_else(|| of.session.add(), Ok)?;
            let others = of.session.fork(first, prompts.saturating_sub(1))?;
            of.samples = std::iter::once(first).chain(others).map(Some).collect();
        }
        Ok(())
    }

    /// Removes the samples whose prompts have ended.
    pub(crate) fn end_all_but(&mut self, is_active: &[bool]) -> Result<(), SessionError> {
        let Self::Static(of) = self else { return Ok(()) };
        for (sample, _) in of.samples.iter_mut().zip(is_active).filter(|(_, is_active)| !**is_active) {
            sample.take().map_or(Ok(()), |sample| of.session.remove(sample))?;
        }
        Ok(())
    }

    /// Feeds the prompts that have not ended, and chooses the next token of each.
    pub(crate) fn step(
        &mut self,
        feeds: &[Option<&[i64]>],
        chunk: usize,
    ) -> Result<Vec<Option<i64>>, SessionError> {
        match self {
            Self::Static(of) => of.step(feeds, chunk),
            Self::Growing(growing) => {
                let logits = growing.feed(feeds, chunk)?;
                let choose = |(prompt, feed): (usize, &Option<&[i64]>)| {
                    feed.map(|_| choose(prompt, logits.last(prompt).as_deref())).transpose()
                };
                feeds.iter().enumerate().map(choose).collect()
            }
        }
    }

    /// Returns the largest number of drafted tokens that [`verify`](Self::verify) takes.
    pub(crate) fn most_drafted(&self) -> usize {
        match self {
            Self::Static(of) => of.session.most_drafted(),
            Self::Growing(_) => 0,
        }
    }

    /// Returns the cached tokens of the sample of each prompt.
    pub(crate) fn texts(&self) -> Result<Vec<Vec<i64>>, SessionError> {
        let Self::Static(of) = self else { return Ok(Vec::new()) };
        let text = |sample: &Option<Sample>| match sample {
            Some(sample) => of.session.tokens(*sample).map(<[i64]>::to_vec),
            None => Ok(Vec::new()),
        };
        of.samples.iter().map(text).collect()
    }

    /// Returns how many tokens of each draft a step should verify. Prompts without a draft get no token.
    pub(crate) fn paying(&self, drafts: &[Option<Draft>]) -> Vec<usize> {
        let Self::Static(of) = self else { return vec![0; drafts.len()] };
        let samples = || of.samples.iter().zip(drafts).map(|(sample, draft)| (*sample).zip(draft.as_ref()));
        paying(drafts, |lengths| {
            let counts = samples().zip(lengths);
            let counts = counts.filter_map(|(of, length)| Some((of?.0, length.saturating_add(1))));
            of.session.costs(&counts.collect::<Vec<_>>())
        })
    }

    /// Runs the last token and the draft of each prompt that has not ended. Returns the accepted tokens of each draft,
    /// followed by the token that the model chooses after them. Undoes the tokens that were not accepted.
    ///
    /// Returns `None` and undoes all if the run shows that the model returns logits for the last token only.
    pub(crate) fn verify(
        &mut self,
        feeds: &[Option<Vec<i64>>],
    ) -> Result<Option<Vec<Vec<i64>>>, SessionError> {
        let Self::Static(of) = self else { return Ok(None) };
        let samples: Vec<_> =
            of.samples.iter().zip(feeds).map(|(sample, feed)| (*sample).zip(feed.as_deref())).collect();
        let given: Vec<(Sample, &[i64])> = samples.iter().flatten().copied().collect();
        for (sample, _) in &given {
            of.session.begin(*sample)?;
        }
        let logits = of.session.step(&given)?;
        of.copied += of.session.bytes_copied();
        if of.session.most_drafted() == 0 {
            given.iter().try_for_each(|(sample, _)| of.session.rollback(*sample))?;
            return Ok(None);
        }
        let mut all = Vec::new();
        for (prompt, sample) in samples.into_iter().enumerate() {
            let mut chosen = Vec::new();
            if let Some((sample, fed)) = sample {
                for index in 0..fed.len() {
                    let token = choose(prompt, logits.after(sample, index))?;
                    chosen.push(token);
                    if fed.get(index + 1) != Some(&token) {
                        break;
                    }
                }
                of.session.accept(sample, chosen.len())?;
            }
            all.push(chosen);
        }
        Ok(Some(all))
    }

    /// Returns the bytes that the last step wrote into the caches.
    pub(crate) fn written(&self) -> u64 {
        match self {
            Self::Static(of) => of.session.bytes_written(),
            Self::Growing(growing) => growing.written(),
        }
    }

    /// Returns the bytes of static caches that the engine has copied in all steps.
    pub(crate) fn copied(&self) -> u64 {
        match self {
            Self::Static(of) => of.copied,
            Self::Growing(_) => 0,
        }
    }
}

impl Static {
    fn step(&mut self, feeds: &[Option<&[i64]>], chunk: usize) -> Result<Vec<Option<i64>>, SessionError> {
        let samples = self.samples.iter().zip(feeds);
        let given: Vec<(Sample, &[i64])> =
            samples.filter_map(|(sample, feed)| (*sample).zip(*feed)).collect();
        let logits = self.session.prefill(&given, chunk)?;
        self.copied += self.session.bytes_copied();
        let choose = |(prompt, sample): (usize, &Option<Sample>)| {
            sample.map(|sample| choose(prompt, logits.last(sample))).transpose()
        };
        self.samples.iter().enumerate().map(choose).collect()
    }
}

fn choose(prompt: usize, logits: Option<&[f32]>) -> Result<i64, SessionError> {
    let logits = logits.filter(|logits| logits.iter().any(|logit| !logit.is_nan()));
    let best = argmax(logits.ok_or(SessionError::NotANumber { prompt })?);
    Ok(i64::try_from(best).unwrap_or(i64::MAX))
}
