//! The ways in which a static cache is used, as lists of steps.

use std::ops::Range;

use kvscatter_onnx::convert::RingSize;
use kvscatter_session::{CacheWriter, Feed, SampleFeed};

use crate::certificate::{Check, Fill, Phase};

/// A scenario: one way to use a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// What the scenario does, as one sentence.
    pub(crate) description: String,
    /// The sequence that each sample of the batch runs, as an index.
    pub(crate) sequences: Vec<usize>,
    /// Whether every step feeds the same as the reference: the same tokens, no padding, and no other sequence
    /// in the batch.
    pub(crate) is_as_reference: bool,
    /// What the caches contain at first, once for each run.
    pub(crate) fills: &'static [Fill],
    pub(crate) steps: Vec<(Phase, Feed)>,
}

/// The sizes from which the scenarios are generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScenarioSetting {
    /// The number of tokens of each sample's prompt.
    pub(crate) prompts: Vec<usize>,
    /// The number of tokens after the prompt.
    pub(crate) steps: usize,
    pub(crate) capacity: usize,
    /// The maximum number of tokens of one sample in a step of a chunked prefill.
    pub(crate) chunk: usize,
    /// The maximum number of tokens of one sample in a step that only fills the cache.
    pub(crate) filler: usize,
    /// Whether the number of samples in a batch must be the number of prompts.
    pub(crate) is_batch_fixed: bool,
    /// Whether the model can mask padding on the left, and takes positions that do not count the padding.
    pub(crate) can_pad_left: bool,
    /// Whether every step must have one token.
    pub(crate) is_decode_only: bool,
    pub(crate) writer: CacheWriter,
    /// Whether the writer refuses samples that are padded on the right.
    pub(crate) refuses_padding: bool,
    /// Whether the model has states beside its caches. They depend on every row that is fed, so each sample gets
    /// tokens in all rows of a step or in none.
    pub(crate) has_states: bool,
    /// The sizes of the rings, each once.
    pub(crate) rings: Vec<RingSize>,
    /// Whether some caches are linear, so that they are full after `capacity` tokens.
    pub(crate) has_linear: bool,
}

impl Scenario {
    /// Creates a scenario whose steps do not feed the same as the reference.
    pub(super) fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        sequences: Vec<usize>,
        steps: Vec<(Phase, Feed)>,
    ) -> Self {
        let (name, description) = (name.into(), description.into());
        Self {
            name,
            description,
            sequences,
            is_as_reference: false,
            fills: &[Fill::Zeros, Fill::Canaries],
            steps,
        }
    }

    /// Returns `true` if a sample begins with padding. No query of that padding sees a slot that contains a
    /// token.
    pub(crate) fn has_left_padding(&self) -> bool {
        self.steps.iter().any(|(_, feed)| feed.samples.iter().any(|sample| sample.padding > 0))
    }
}

impl ScenarioSetting {
    /// Returns the index of the sequence that fills a cache. It comes after the sequences of the prompts.
    pub(crate) fn filling(&self) -> usize {
        self.prompts.len()
    }

    /// Returns the number of tokens at the end of the filling sequence whose logits are compared.
    pub(crate) fn tail(&self) -> usize {
        self.steps.clamp(1, 8).min(self.capacity)
    }

    pub(crate) fn scenarios(&self) -> Vec<Scenario> {
        let mut scenarios = vec![self.chunked()];
        if !self.is_decode_only {
            scenarios.insert(0, self.prefill());
        }
        let can_chunk = self.can_chunk(self.prompts.len());
        if self.is_decode_only || self.refuses_padding || (self.has_states && !can_chunk) {
            scenarios.push(self.staggered());
        } else {
            if can_chunk {
                scenarios.push(self.ragged(
                    "ragged chunks",
                    self.as_given(),
                    self.widths(self.prompts.len()),
                ));
            }
            for (name, order) in self.orders() {
                scenarios.push(self.ragged(&name, order, vec![1]));
            }
            if self.can_pad_left {
                scenarios.push(self.left_padded());
            }
        }
        scenarios.push(self.full());
        scenarios.extend(self.around_rings());
        scenarios
    }

    /// Returns the largest number of rows that a step may write into every ring.
    pub(crate) fn most_rows(&self) -> usize {
        self.rings.iter().map(|ring| ring.chunk).min().unwrap_or(usize::MAX)
    }

    /// Returns the claim that names the scenarios that the model's operator or its states do not take, or `None` if the
    /// model takes all of them.
    pub(crate) fn left_out(&self) -> Option<Check> {
        const ID: &str = "every-scenario-is-taken";
        const CLAIM: &str =
            "The model takes padding on both sides, and chunks of several samples after their first tokens.";
        let by_operator = self.writer == CacheWriter::GroupQueryAttention;
        if !by_operator && !self.has_states {
            return None;
        }
        let causes = [
            (self.is_decode_only, "steps of one token"),
            (by_operator, "GroupQueryAttention"),
            (self.has_states, "states, which depend on every row that is fed"),
        ];
        let left_out = [
            (true, "prompts padded on the left"),
            (!self.can_chunk(self.prompts.len()), "chunks of several samples in mid-cache"),
            (self.refuses_padding || self.has_states, "prompts padded on the right"),
            (self.has_states && self.rewind() > 0, "samples that go back"),
        ];
        let given = |all: &[(bool, &'static str)]| -> Vec<&str> {
            all.iter().filter(|(is_given, _)| *is_given).map(|(_, text)| *text).collect()
        };
        let (causes, left_out) = (given(&causes).join(" and "), given(&left_out).join(", "));
        let evidence = format!("because of {causes}, these were not run: {left_out}");
        Some(Check::not_applicable(ID, CLAIM, evidence))
    }

    /// Returns `true` if a step in mid-cache may have several tokens of each of `batch` samples.
    fn can_chunk(&self, batch: usize) -> bool {
        !self.is_decode_only && (batch == 1 || self.writer == CacheWriter::TensorScatter)
    }

    /// Returns the number of tokens in a step that only fills the cache.
    pub(crate) fn filler(&self) -> usize {
        if self.can_chunk(self.smallest_batch()) { self.filler.max(1) } else { 1 }
    }

    /// Returns one scenario for each sequence alone, fed as the reference was: the whole prompt, then token
    /// by token.
    pub(crate) fn alone(&self) -> Vec<Scenario> {
        let batch = self.smallest_batch();
        let alone = |(sample, &prompt): (usize, &usize)| {
            let width = if self.is_decode_only { 1 } else { prompt.min(self.most_rows()) };
            let mut steps = self.chunks(vec![0; batch], prompt, &[width]);
            steps.extend(self.chunks(vec![prompt; batch], self.steps, &[1]));
            if let Some((phase, _)) = steps.first_mut().filter(|_| !self.is_decode_only) {
                *phase = Phase::Prefill;
            }
            let description = format!("{prompt} tokens of one sequence at once, then one by one");
            let sequences = vec![sample; batch];
            let scenario = Scenario::new(format!("sample {sample} alone"), description, sequences, steps);
            Scenario { is_as_reference: true, ..scenario }
        };
        self.prompts.iter().enumerate().map(alone).collect()
    }

    /// Returns the number of samples in the smallest batch that the model takes.
    pub(super) fn smallest_batch(&self) -> usize {
        if self.is_batch_fixed { self.prompts.len() } else { 1 }
    }

    /// Returns the number of tokens that all sequences have at least.
    fn common(&self) -> usize {
        self.prompts.iter().min().copied().unwrap_or_default() + self.steps
    }

    pub(super) fn longest(&self) -> usize {
        self.prompts.iter().max().copied().unwrap_or_default()
    }

    fn as_given(&self) -> Vec<usize> {
        (0..self.prompts.len()).collect()
    }

    /// Returns the sizes of chunks of `batch` samples, which are used in turn.
    fn widths(&self, batch: usize) -> Vec<usize> {
        if !self.can_chunk(batch) {
            return vec![1];
        }
        let chunk = self.chunk.max(1);
        vec![chunk, 1, chunk.div_ceil(2), chunk.saturating_sub(1).max(1), 2.min(chunk)]
    }

    /// Returns different orders of the samples. A fault may affect only the first sample.
    fn orders(&self) -> Vec<(String, Vec<usize>)> {
        let mut ascending = self.as_given();
        ascending.sort_by_key(|&sample| self.prompts.get(sample));
        let descending: Vec<usize> = ascending.iter().rev().copied().collect();
        let mut orders = vec![("ragged decode".to_owned(), self.as_given())];
        for (name, order) in [("short sample first", ascending), ("short sample last", descending)] {
            if self.prompts.iter().any(|prompt| *prompt != self.longest())
                && !orders.iter().any(|(_, other)| *other == order)
            {
                orders.push((format!("ragged decode, {name}"), order));
            }
        }
        orders
    }

    fn prefill(&self) -> Scenario {
        let batch = self.prompts.len();
        let prompt = self.longest().min(self.common());
        let mut steps = self.chunks(vec![0; batch], prompt, &[prompt.min(self.most_rows())]);
        steps.iter_mut().for_each(|(phase, _)| *phase = Phase::Prefill);
        for written in prompt..self.common() {
            steps.push((Phase::Decode, Feed::next(&vec![written; batch], 1)));
        }
        let description = format!("{prompt} tokens of every sample at once, then one by one");
        Scenario::new("prefill", description, self.as_given(), steps)
    }

    fn chunked(&self) -> Scenario {
        let all = self.prompts.len();
        let batch = if self.can_chunk(all) || self.is_decode_only { all } else { self.smallest_batch() };
        let of = if batch == all { "every" } else { "one" };
        let (name, description) = if self.can_chunk(batch) {
            ("chunked prefill", format!("{of} sample in chunks of 1 to {} tokens", self.chunk.max(1)))
        } else {
            ("decode", "every sample token by token, all at the same slot".to_owned())
        };
        let steps = self.chunks(vec![0; batch], self.common(), &self.widths(batch));
        Scenario::new(name, description, (0..batch).collect(), steps)
    }

    /// Returns steps that write `tokens` more tokens of every sample, in chunks of `widths` tokens in turn.
    pub(super) fn chunks(
        &self,
        mut written: Vec<usize>,
        tokens: usize,
        widths: &[usize],
    ) -> Vec<(Phase, Feed)> {
        let mut steps = Vec::new();
        let mut left = tokens;
        for &width in widths.iter().cycle() {
            let width = width.min(left);
            if width == 0 {
                break;
            }
            let phase = if width == 1 { Phase::Decode } else { Phase::Chunk };
            steps.push((phase, Feed::next(&written, width)));
            written.iter_mut().for_each(|written| *written += width);
            left -= width;
        }
        steps
    }

    /// Returns the steps of padded prompts of `width` tokens. It is one step unless the rings take fewer tokens, or the
    /// model has states. A step then ends with the next prompt, so that no prompt is padded. `samples` returns the
    /// samples of a step from its columns.
    fn prompt_steps(
        &self,
        width: usize,
        samples: impl Fn(Range<usize>) -> Vec<SampleFeed>,
    ) -> Vec<(Phase, Feed)> {
        let most = self.most_rows().min(width).max(1);
        let mut steps = Vec::new();
        let mut start = 0;
        while start < width {
            let next = self.prompts.iter().copied().filter(|end| self.has_states && *end > start).min();
            let columns = start..next.unwrap_or(width).min(start + most);
            start = columns.end;
            steps.push((Phase::Prefill, Feed { width: columns.len(), samples: samples(columns) }));
        }
        steps
    }

    /// Pads the prompts on the right to the length of the longest one. Each sample then continues in its next
    /// slot and overwrites the padding. In models with states, only samples without tokens are padded.
    fn ragged(&self, name: &str, order: Vec<usize>, widths: Vec<usize>) -> Scenario {
        let prompts: Vec<usize> =
            order.iter().filter_map(|&sample| self.prompts.get(sample).copied()).collect();
        let mut steps = self.prompt_steps(self.longest(), |columns| {
            let sample = |&prompt: &usize| {
                let start = columns.start.min(prompt);
                let tokens = start..columns.end.min(prompt);
                SampleFeed { start, padding: 0, tokens, first_slot: 0 }
            };
            prompts.iter().map(sample).collect()
        });
        steps.extend(self.chunks(prompts.clone(), self.steps, &widths));
        let then = if widths == [1] { "one by one" } else { "in chunks" };
        let padded = if self.has_states {
            "in steps that have only tokens or only padding for a sample"
        } else {
            "padded on the right"
        };
        let description = format!(
            "prompts of {} tokens, {padded}, then every sample {then} at its own slot, over its padding",
            listed(&prompts)
        );
        Scenario::new(name, description, order, steps)
    }

    /// Lets samples begin in different steps, for models that take one token at a time or no padding. Every step
    /// feeds all samples, so a waiting sample writes its first token again.
    fn staggered(&self) -> Scenario {
        let mut written: Vec<usize> = vec![0; self.prompts.len()];
        let mut steps = Vec::new();
        let longest = self.longest();
        for step in 0..longest + self.steps {
            let samples = written.iter_mut().zip(&self.prompts).map(|(written, prompt)| {
                let waits = step < longest - prompt;
                let at = if waits { 0 } else { *written };
                if !waits {
                    *written += 1;
                }
                SampleFeed { start: at, padding: 0, tokens: at..at + 1, first_slot: 0 }
            });
            let samples = samples.collect();
            steps.push((Phase::Decode, Feed { width: 1, samples }));
        }
        let description = "every sample token by token at its own slot, where short samples repeat their first token \
                           until they start";
        Scenario::new("ragged decode", description, self.as_given(), steps)
    }

    fn left_padded(&self) -> Scenario {
        let width = self.longest();
        let samples = |columns: Range<usize>| {
            let sample = |&prompt: &usize| {
                let first_slot = width - prompt;
                let position = |column: usize| column.saturating_sub(first_slot);
                SampleFeed {
                    start: columns.start,
                    padding: first_slot.saturating_sub(columns.start).min(columns.len()),
                    tokens: position(columns.start)..position(columns.end),
                    first_slot,
                }
            };
            self.prompts.iter().map(sample).collect()
        };
        let mut steps = self.prompt_steps(width, samples);
        for slot in width..width + self.steps {
            steps.push((Phase::Decode, Feed { width: 1, samples: samples(slot..slot + 1) }));
        }
        let description = "prompts padded on the left, masked, then every sample at the same slot";
        Scenario::new("left-padded", description, self.as_given(), steps)
    }

    fn full(&self) -> Scenario {
        let batch = self.smallest_batch();
        let body = self.capacity - self.tail();
        let mut steps = self.chunks(vec![0; batch], body, &[self.filler()]);
        steps.extend(self.chunks(vec![body; batch], self.tail(), &[1]));
        let (name, what) = match self.has_linear {
            true => ("to the last slot", "fill the cache"),
            false => ("many tokens", "go around the rings"),
        };
        let description = format!("{} tokens, which {what}", self.capacity);
        let scenario = Scenario::new(name, description, vec![self.filling(); batch], steps);
        Scenario { is_as_reference: true, ..scenario }
    }
}

/// Returns numbers of tokens as a list.
pub(super) fn listed(lengths: &[usize]) -> String {
    lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use kvscatter_session::CacheWriter;

    use super::ScenarioSetting;

    #[test]
    fn scenarios_that_are_left_out_have_their_causes() {
        let by_operator = CacheWriter::GroupQueryAttention;
        let states = "states, which depend on every row that is fed";
        let padding = "prompts padded on the left, prompts padded on the right";
        let chunks =
            "prompts padded on the left, chunks of several samples in mid-cache, prompts padded on the right";
        for (writer, is_decode_only, causes, left_out) in [
            (CacheWriter::TensorScatter, false, states.to_owned(), padding),
            (CacheWriter::TensorScatter, true, format!("steps of one token and {states}"), chunks),
            (by_operator, false, format!("GroupQueryAttention and {states}"), chunks),
            (by_operator, true, format!("steps of one token and GroupQueryAttention and {states}"), chunks),
        ] {
            let setting = ScenarioSetting {
                prompts: vec![7, 3],
                steps: 4,
                capacity: 16,
                chunk: 4,
                filler: 4,
                is_batch_fixed: false,
                can_pad_left: false,
                is_decode_only,
                writer,
                refuses_padding: false,
                has_states: true,
                rings: Vec::new(),
                has_linear: true,
            };
            let evidence = format!("because of {causes}, these were not run: {left_out}");
            assert_eq!(setting.left_out().unwrap().evidence, evidence);
            let without_states = ScenarioSetting { has_states: false, ..setting };
            assert_eq!(without_states.left_out().is_some(), writer == by_operator);
        }
    }
}
