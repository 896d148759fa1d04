//! The steps of a batch. A step is checked, divided into runs of the model, and undone if a run fails.

use std::collections::BTreeSet;

use crate::blocks::InBlocks;
use crate::error::SessionError;
use crate::inputs::RunInputs;
use crate::interface::Purpose;
use crate::logits::Logits;
use crate::model_runs::{Limits, ModelRun, costs, model_runs};
use crate::opening::check_tokens;
use crate::runner::{LogitsTensor, Runner};
use crate::sample::Sample;
use crate::sample_store::SampleStore;
use crate::state_history;
use crate::tensor::check_value;

/// The maximum number of tokens of a sample in a run that repeats tokens.
const CHUNK_AGAIN: usize = 512;

/// The logits that a step keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepLogits {
    /// Those after every token.
    All,
    /// Those after the last token of each sample. The step is a prefill, which is not repeated after NaN.
    Last,
    /// None, because an earlier step has returned them.
    None,
}

/// A decoder that runs steps on the samples of a [`SampleStore`].
pub(crate) struct Steps {
    pub(crate) runner: Runner,
    inputs: RunInputs,
    /// A function that is called before every run. If it returns `true`, the step fails.
    pub(crate) interrupt: Option<Box<dyn FnMut() -> bool + Send>>,
    refuse_nan: bool,
    /// The bytes that the model wrote into the caches in the last step.
    pub(crate) written: u64,
    /// The bytes of caches that the engine copied in the last step.
    pub(crate) copied: u64,
}

impl Steps {
    pub(crate) fn new(runner: Runner, inputs: RunInputs, refuse_nan: bool) -> Self {
        Self { runner, inputs, interrupt: None, refuse_nan, written: 0, copied: 0 }
    }

    /// Feeds samples their next tokens, in runs of at most `chunk` tokens of each sample. Returns the logits that are
    /// to be kept.
    pub(crate) fn step(
        &mut self,
        store: &mut SampleStore,
        tokens: &[(Sample, &[i64])],
        chunk: usize,
        keep: KeepLogits,
    ) -> Result<Logits, SessionError> {
        self.check(store, tokens)?;
        (self.written, self.copied) = (0, 0);
        self.run_step(store, tokens, &[], chunk, keep)
    }

    /// Feeds samples their next tokens with the ids of their blocks. Each sample with blocks has its own runs.
    pub(crate) fn step_with_blocks(
        &mut self,
        store: &mut SampleStore,
        given: &[(Sample, &[i64], &[i64])],
    ) -> Result<Logits, SessionError> {
        let tokens: Vec<_> = given.iter().map(|&(sample, tokens, _)| (sample, tokens)).collect();
        self.check(store, &tokens)?;
        let in_blocks = InBlocks::checked(&self.runner.interface, given)?;
        for of in &in_blocks {
            // Tokens may run again without their ids.
            if store.begun(of.sample)?.is_some() {
                return Err(SessionError::Begun { sample: of.sample });
            }
            of.check_runs(&self.runs(store, &[(of.sample, of.ids.len())]))?;
        }
        (self.written, self.copied) = (0, 0);
        self.run_step(store, &tokens, &in_blocks, usize::MAX, KeepLogits::All)
    }

    /// Feeds samples tokens that the last steps fed them before they went back. The bytes written are added to those of
    /// the last step.
    pub(crate) fn step_again(
        &mut self,
        store: &mut SampleStore,
        tokens: &[(Sample, &[i64])],
    ) -> Result<(), SessionError> {
        self.check(store, tokens)?;
        self.run_step(store, tokens, &[], CHUNK_AGAIN, KeepLogits::None).map(drop)
    }

    fn run_step(
        &mut self,
        store: &mut SampleStore,
        tokens: &[(Sample, &[i64])],
        in_blocks: &[InBlocks<'_>],
        chunk: usize,
        keep: KeepLogits,
    ) -> Result<Logits, SessionError> {
        let mut suspects = BTreeSet::new();
        loop {
            let step = UnfinishedStep::begin(store, tokens);
            if let Some(logits) = self.run_all(step.store, tokens, in_blocks, (chunk, keep), &mut suspects)? {
                step.end(tokens);
                return Ok(logits);
            }
        }
    }

    /// Runs the model for a step. Returns `None` if the step must run again:
    ///
    /// - The model returns logits of the last column only, although it does not declare that, so padded samples have
    ///   none.
    /// - A run fed a sample several tokens, and the logits after one of them contain NaN. Engines may multiply rows of
    ///   later tokens by zero, so a NaN of a later token may have reached the rows and logits of the earlier ones. Such
    ///   samples are added to `suspects`, which get single tokens in runs after those of the other samples.
    ///
    /// A prefill is not repeated after NaN, because it keeps no logits of earlier tokens. A sample with blocks is not
    /// repeated either, because its tokens see later ones. No run ends within a block.
    fn run_all(
        &mut self,
        store: &mut SampleStore,
        tokens: &[(Sample, &[i64])],
        in_blocks: &[InBlocks<'_>],
        (chunk, keep): (usize, KeepLogits),
        suspects: &mut BTreeSet<usize>,
    ) -> Result<Option<Logits>, SessionError> {
        let before = store.batch().all_cached_tokens();
        let mut given: Vec<&[i64]> = vec![&[]; store.batch().size()];
        for (sample, tokens) in tokens {
            if let Some(given) = given.get_mut(sample.batch_index()) {
                *given = tokens;
            }
        }
        let mut cached = before.clone();
        let mut kept = Logits::none(tokens.iter().map(|(sample, tokens)| (*sample, tokens.len())));
        let token = |batch_index: usize, position: usize| {
            let before = before.get(batch_index).copied().unwrap_or_default();
            let tokens = given.get(batch_index);
            tokens.and_then(|tokens| tokens.get(position - before)).copied().unwrap_or_default()
        };
        let mut new_suspects = BTreeSet::new();
        let group_of = |index: usize| {
            let alone = in_blocks.iter().find(|of| of.sample.batch_index() == index);
            let text = if suspects.contains(&index) { Group::Suspects } else { Group::Others };
            alone.map_or(text, |of| Group::Alone(*of))
        };
        let alone = in_blocks.iter().map(|of| (Group::Alone(*of), usize::MAX));
        for (group, width) in [(Group::Others, chunk), (Group::Suspects, 1)].into_iter().chain(alone) {
            let counts = given.iter().enumerate();
            let counts = counts.map(|(index, given)| if group_of(index) == group { given.len() } else { 0 });
            let counts: Vec<usize> = counts.collect();
            let limits = self.limits(store, width);
            let runs = model_runs(&cached, store.batch().rings(), &counts, limits);
            if let Group::Alone(of) = group {
                // Padding of earlier runs may have left a ring with fewer rows.
                of.check_runs(&runs)?;
            }
            for run in runs {
                if self.interrupt.as_mut().is_some_and(|is_interrupted| is_interrupted()) {
                    return Err(SessionError::Interrupted);
                }
                let ids = |index| match group {
                    Group::Alone(of) => of.ids_in(&run, index, &before),
                    _ => &[],
                };
                let logits = self.run(store, &run, token, ids)?;
                if self.runner.interface.vocabulary.replace(logits.vocabulary) != Some(logits.vocabulary) {
                    self.check_known(tokens)?;
                }
                if logits.are_last_only() && !self.runner.interface.last_logits_only {
                    self.runner.interface.last_logits_only = true;
                    return Ok(None);
                }
                for (index, (batch_index, fed)) in run.fed().enumerate() {
                    let is_text = !matches!(group, Group::Alone(_));
                    let is_repeatable = keep != KeepLogits::Last && fed.tokens.len() > 1 && is_text;
                    if !is_repeatable && !self.refuse_nan {
                        continue;
                    }
                    let Some(nan) = logits.first_nan(index, fed.tokens.len()) else { continue };
                    if is_repeatable {
                        new_suspects.insert(batch_index);
                        continue;
                    }
                    let sample = tokens.iter().find(|(sample, _)| sample.batch_index() == batch_index);
                    if let (Some(&(sample, _)), Some(before), false) =
                        (sample, before.get(batch_index), new_suspects.contains(&batch_index))
                    {
                        let index = fed.tokens.start - before + nan;
                        return Err(SessionError::NanLogits { sample, index });
                    }
                }
                if keep != KeepLogits::None {
                    kept.take(&run, &before, &logits, keep == KeepLogits::Last);
                }
                for (batch_index, fed) in run.fed() {
                    cached.get_mut(batch_index).into_iter().for_each(|cached| *cached += fed.tokens.len());
                }
            }
        }
        let is_final = new_suspects.is_empty();
        suspects.append(&mut new_suspects);
        Ok(is_final.then_some(kept))
    }

    /// Returns the cost of a step that feeds each sample this many tokens, as [`costs`] counts it.
    pub(crate) fn costs(&self, store: &SampleStore, tokens: &[(Sample, usize)]) -> Vec<f64> {
        costs(&self.runs(store, tokens), self.runner.interface.has_quantised_weights)
    }

    /// Returns the runs of a step that feeds each sample this many tokens, in runs that all of them can share.
    fn runs(&self, store: &SampleStore, tokens: &[(Sample, usize)]) -> Vec<ModelRun> {
        let mut counts = vec![0; store.batch().size()];
        for (sample, tokens) in tokens {
            counts.get_mut(sample.batch_index()).into_iter().for_each(|count| *count = *tokens);
        }
        let cached = store.batch().all_cached_tokens();
        model_runs(&cached, store.batch().rings(), &counts, self.limits(store, usize::MAX))
    }

    /// Returns `true` if tokens run again when the sample keeps some of the tokens of a step.
    pub(crate) fn runs_again(&self) -> bool {
        !self.runner.interface.returns_all_states()
    }

    /// Returns the largest number of drafted tokens that one step can verify, and of which any number can be kept.
    pub(crate) fn most_drafted(&self) -> usize {
        let interface = &self.runner.interface;
        let has_all_logits = !interface.is_decode_only && !interface.last_logits_only;
        if !has_all_logits || self.refuse_nan {
            return 0;
        }
        let of_rings = interface.rings().map(|ring| ring.capacity.saturating_sub(ring.chunk));
        let of_states = interface.states.iter().any(|state| state.columns.is_some());
        let of_states = of_states.then_some(state_history::TOKENS);
        of_rings.chain(of_states).min().unwrap_or(usize::MAX).saturating_sub(1)
    }

    fn limits(&self, store: &SampleStore, width: usize) -> Limits {
        let interface = &self.runner.interface;
        Limits {
            capacity: store.batch().capacity(),
            width: if interface.is_decode_only { 1 } else { width },
            is_exact: interface.last_logits_only || interface.refuses_padding || !interface.states.is_empty(),
            is_whole: !self.runner.takes_some_samples(),
            writer: interface.writer(),
        }
    }

    fn run<'b>(
        &mut self,
        store: &mut SampleStore,
        run: &ModelRun,
        token: impl Fn(usize, usize) -> i64,
        ids: impl Fn(usize) -> &'b [i64],
    ) -> Result<LogitsTensor, SessionError> {
        let inputs = self.inputs.of_run(run, &self.runner.interface.feeds, token, ids)?;
        let (logits, traffic) = store.run(&mut self.runner, run, inputs)?;
        self.written += traffic.written;
        self.copied += traffic.copied;
        Ok(logits)
    }

    /// Checks everything about a step that can be checked before it runs.
    fn check(&self, store: &SampleStore, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        if given.is_empty() {
            return Err(SessionError::NoSamples);
        }
        store.check_lost()?;
        let mut seen = vec![false; store.batch().size()];
        for &(sample, tokens) in given {
            store.batch().check_room(sample, tokens.len())?;
            if tokens.is_empty() {
                return Err(SessionError::NoTokens { sample });
            }
            store.caches().encoder().check(sample)?;
            if seen.get_mut(sample.batch_index()).is_some_and(|seen| std::mem::replace(seen, true)) {
                return Err(SessionError::SampleTwice { sample });
            }
        }
        self.check_known(given)
    }

    /// Checks that the tokens are in the vocabulary, if its size is known, and that the inputs' types can
    /// represent them.
    fn check_known(&self, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        let interface = &self.runner.interface;
        let vocabulary = interface.vocabulary;
        for &(sample, tokens) in given {
            check_tokens(tokens, vocabulary, |index, token| SessionError::TokenUnknown {
                sample,
                index,
                token,
                vocabulary,
            })?;
            for feed in interface.feeds.iter().filter(|feed| feed.purpose == Purpose::Tokens) {
                tokens.iter().try_for_each(|token| check_value(feed.element, *token))?;
            }
        }
        Ok(())
    }
}

/// The samples that share runs of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group<'b> {
    Others,
    /// Samples that get single tokens.
    Suspects,
    /// One sample with blocks.
    Alone(InBlocks<'b>),
}

/// A step that has begun. If it does not end, every sample goes back to where it was before the step.
struct UnfinishedStep<'s> {
    store: &'s mut SampleStore,
}

impl<'s> UnfinishedStep<'s> {
    fn begin(store: &'s mut SampleStore, tokens: &[(Sample, &[i64])]) -> Self {
        store.begin_step(tokens);
        Self { store }
    }

    fn end(self, tokens: &[(Sample, &[i64])]) {
        self.store.end_step(tokens);
    }
}

impl Drop for UnfinishedStep<'_> {
    fn drop(&mut self) {
        self.store.undo_step();
    }
}
