//! The texts of a generation, and what its caller sees of them after each step.

use crate::generate_options::GenerateOptions;
use crate::lookup::{Draft, Lookup};
use crate::sampling::Chooser;

/// The reason why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Its last token is one of [`GenerateOptions::eos`].
    Eos,
    /// It has [`GenerateOptions::max_new_tokens`] new tokens.
    Length,
    /// The cache is full.
    Full,
    /// The caller ended it.
    Stopped,
}

impl End {
    /// Returns the stable name of the reason, such as `eos`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Full => "full",
            Self::Stopped => "stopped",
        }
    }
}

/// What a generation reports while it runs.
#[derive(Debug)]
pub enum Event<'g> {
    /// A part of the prompts is computed next. The first such event is the first of the generation.
    Prefill {
        /// The number of tokens of all prompts that are in the caches, reused ones included.
        done: usize,
        /// The number of tokens of all prompts.
        total: usize,
    },
    /// The prompts or a later step gave samples new tokens.
    Tokens(NewTokens<'g>),
}

/// The progress of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of tokens generated so far for each sample that has not ended. With
    /// [drafts](crate::Generator::draft), this is the smallest of their numbers. If all samples have ended, it is the
    /// largest number of all.
    pub tokens: usize,
    /// The number of samples that have not ended.
    pub samples: usize,
}

/// The new tokens of each sample. The caller can end samples.
pub struct NewTokens<'g> {
    pub(crate) texts: &'g mut [Text],
}

impl NewTokens<'_> {
    /// Returns the new tokens of the sample of a prompt. There are none if it ended earlier, and there may be several
    /// with [drafts](crate::Generator::draft).
    #[must_use]
    pub fn tokens(&self, prompt: usize) -> &[i64] {
        self.texts.get(prompt).and_then(|text| text.tokens.get(text.before..)).unwrap_or_default()
    }

    /// Returns the reason why the sample of a prompt has ended, or `None` if it has not.
    #[must_use]
    pub fn end(&self, prompt: usize) -> Option<End> {
        self.texts.get(prompt)?.end
    }

    /// Ends the sample of a prompt after the first `keep` of its new tokens, with [`End::Stopped`]. Does nothing if the
    /// sample has no new tokens.
    pub fn stop(&mut self, prompt: usize, keep: usize) {
        if let Some(text) = self.texts.get_mut(prompt).filter(|text| text.before < text.tokens.len()) {
            text.tokens.truncate(text.before.saturating_add(keep));
            text.end = Some(End::Stopped);
        }
    }

    /// Returns the progress of the generation.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let running = self.texts.iter().filter(|text| text.end.is_none()).map(|text| text.tokens.len());
        let all = self.texts.iter().map(|text| text.tokens.len());
        let tokens = running.clone().min().or_else(|| all.max()).unwrap_or_default();
        Progress { tokens, samples: running.count() }
    }
}

impl std::fmt::Debug for NewTokens<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries((0..self.texts.len()).map(|prompt| self.tokens(prompt))).finish()
    }
}

/// The new tokens of one sample, and how the next ones are chosen.
pub(crate) struct Text {
    pub(crate) tokens: Vec<i64>,
    /// The number of tokens before the last step.
    before: usize,
    /// The maximum number of tokens.
    most: usize,
    /// Why it ends with this number.
    end_at_most: End,
    pub(crate) end: Option<End>,
    chooser: Chooser,
    /// The whole text, if the generation drafts.
    lookup: Option<Lookup>,
}

impl Text {
    /// Creates the text after a prompt. `room` is the number of new tokens that the cache has room for, and `equal` the
    /// number of equal prompts before it.
    pub(crate) fn new(options: &GenerateOptions, prompt: &[i64], room: usize, equal: usize) -> Self {
        let limit = options.max_new_tokens.filter(|limit| *limit <= room);
        let (most, end_at_most) = limit.map_or((room, End::Full), |limit| (limit, End::Length));
        let end = (most == 0).then_some(end_at_most);
        let chooser = Chooser::new(options, prompt, equal);
        Self { tokens: Vec::new(), before: 0, most, end_at_most, end, chooser, lookup: None }
    }

    /// Chooses the next token, or returns `None` if no logit is a number above -inf.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Option<i64> {
        self.chooser.choose(logits)
    }

    /// Prepares drafts for a text with this prompt.
    pub(crate) fn look_up(&mut self, prompt: &[i64]) {
        self.lookup = Some(Lookup::new([prompt, &self.tokens].concat()));
    }

    /// Returns a draft of up to `most` tokens, which may be empty, or `None` if the text has ended.
    pub(crate) fn draft(&self, most: usize, eos: &[i64]) -> Option<Draft> {
        if self.end.is_some() {
            return None;
        }
        // The model chooses one more token than those that it accepts.
        let most = most.min(self.most.saturating_sub(self.tokens.len().saturating_add(1)));
        Some(self.lookup.as_ref().map(|lookup| lookup.draft(most).before(eos)).unwrap_or_default())
    }

    /// Adds the tokens of a step, of which only the last may end the text. `draft` is what was drafted for the step.
    pub(crate) fn extend(&mut self, draft: &Draft, chosen: &[i64], eos: &[i64]) {
        self.before = self.tokens.len();
        self.tokens.extend(chosen);
        if let Some(lookup) = &mut self.lookup {
            lookup.extend(draft, chosen);
        }
        if chosen.last().is_some_and(|last| eos.contains(last)) {
            self.end = Some(End::Eos);
        } else if self.tokens.len() >= self.most {
            self.end = self.end.or(Some(self.end_at_most));
        }
    }
}
