//! The rule of what attention adds to the score of each slot.

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Mode};

use super::probe::{Distance, Probe};
use crate::OnnxError;
use crate::fold::{int_to_float, signed};

/// What attention adds to the score of each slot. The score of a hidden slot does not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rule {
    /// The window, or `None` if a token sees all real tokens before it.
    pub(super) window: Option<Window>,
    /// How tokens of a block see each other, or `None` if blocks make no difference.
    pub(super) blocks: Option<Blocks>,
    /// What is added to the scores of visible slots, or `None` if nothing is.
    pub(super) bias: Option<Bias>,
}

/// A window of the last slots or the last real tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The number of slots or real tokens that a token sees, itself included.
    pub(super) size: usize,
    pub(super) distance: Distance,
}

/// The tokens of its block that a token sees. Tokens after it are among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    /// All of them.
    Whole,
    /// Those that are not before the window.
    InWindow,
}

/// A bias that depends on the head and on the distance of a slot from the token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bias {
    /// The sizes of the axes between the batch and the new tokens.
    pub(super) heads: Vec<usize>,
    pub(super) added: Added,
    pub(super) distance: Distance,
}

/// What heads add to the scores of visible slots, in row-major order of [`Bias::heads`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Added {
    /// One number of each head for each step of the distance, as in `ALiBi`.
    ///
    /// A softmax ignores a number that is added to all slots of a token. So it does not matter where an exporter
    /// begins to count.
    Slopes(Vec<f64>),
    /// The numbers of each head for the distances from 0 on, `[heads, distances]`, as T5 has them by buckets.
    Table { numbers: Vec<f64>, distances: usize },
}

/// The rules that an attention operation may follow, at least one. They differ in what counts as distance, slots or
/// real tokens, which only padding between two tokens shows, and in whether the bias is a table.
#[derive(Clone, Debug, Default)]
pub(super) struct CandidateRules {
    first: Rule,
    others: Vec<Rule>,
    /// The index of the mask that adds the bias.
    pub(super) biased: usize,
}

/// The window of attention that reads a cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheWindow {
    /// The past of the cache with the keys.
    pub past: String,
    /// The number of tokens that a token sees, itself included, or `None` if it sees all.
    pub window: Option<usize>,
}

impl Rule {
    /// Returns the distance of each slot from a new token, or `None` for a hidden slot.
    pub(super) fn row(&self, probe: &Probe, sample: usize, token: usize) -> Vec<Option<i64>> {
        let visible = self.visible(probe, sample, token).into_iter();
        let distances = self.distances(probe, sample, token);
        visible.zip(distances).map(|(visible, distance)| visible.then_some(distance)).collect()
    }

    /// Returns which slots a new token sees: those of real tokens, up to its own and within its window, and those of
    /// its block.
    pub(super) fn visible(&self, probe: &Probe, sample: usize, token: usize) -> Vec<bool> {
        let causal = Visibility::new(Mode::Linear, probe.total()).causal();
        let rule = self.window.map_or(causal, |window| causal.window(window.size));
        let places = probe.places(sample, self.window.map_or(Distance::Slots, |window| window.distance));
        let tokens = signed(probe.total());
        let own = probe.slot_of(token);
        let Some(seen) = places.get(own).map(|&own| rule.positions(tokens, own)) else { return Vec::new() };
        let shows_block = |slot, place: i64| {
            let reaches = match self.blocks {
                None => false,
                Some(Blocks::Whole) => true,
                Some(Blocks::InWindow) => place >= seen.start,
            };
            reaches && probe.share_block(sample, [own, slot])
        };
        let is_seen = |slot, place| seen.contains(&place) || shows_block(slot, place);
        let slots = places.iter().enumerate();
        slots.map(|(slot, &place)| is_seen(slot, place) && probe.is_real(sample, slot)).collect()
    }

    /// Returns the distance of each slot from a new token, for visible and hidden slots. Slots before the token have
    /// negative distances.
    pub(super) fn distances(&self, probe: &Probe, sample: usize, token: usize) -> Vec<i64> {
        let distance = self.bias.as_ref().map_or(Distance::Slots, |bias| bias.distance);
        let places = probe.places(sample, distance);
        let own = places.get(probe.slot_of(token)).copied().unwrap_or_default();
        places.into_iter().map(|place| place.saturating_sub(own)).collect()
    }

    /// Returns what one head adds to the score of a visible slot at this distance.
    pub(super) fn added(&self, head: usize, distance: i64) -> f64 {
        self.bias.as_ref().map_or(0.0, |bias| bias.added.at(head, distance))
    }

    /// Returns the number of heads that add different numbers.
    pub(super) fn biased_heads(&self) -> usize {
        self.bias.as_ref().map_or(1, |bias| bias.added.heads())
    }
}

impl CandidateRules {
    /// Creates the rules of a decoder in which no padding shows what counts. Slots then count. The bias may be a table
    /// instead.
    pub(super) fn new(rule: Rule, table: Option<Bias>, biased: usize) -> Self {
        let with_table = table.map(|table| Rule { bias: Some(table), ..rule.clone() });
        Self { first: rule, others: with_table.into_iter().collect(), biased }
    }

    /// Returns the rule to convert. Slots count unless a check has shown that real tokens do.
    pub(super) fn rule(&self) -> &Rule {
        &self.first
    }

    /// Adds the rules in which real tokens count: for the window, for the bias, or for both.
    pub(super) fn add_token_counting(&mut self) {
        let distance = Distance::Tokens;
        let mut rules: Vec<Rule> = Vec::new();
        for Rule { window, blocks, bias } in std::iter::once(&self.first).chain(&self.others) {
            let windows = [*window, window.map(|window| Window { distance, ..window })];
            let biases = [bias.clone(), bias.clone().map(|bias| Bias { distance, ..bias })];
            for (window, bias) in
                windows.iter().flat_map(|window| biases.iter().map(move |bias| (window, bias)))
            {
                let rule = Rule { window: *window, blocks: *blocks, bias: bias.clone() };
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        self.others = rules.into_iter().skip(1).collect();
    }

    /// Adds the rules in which tokens of a block see each other. A rule with a bias stays alone.
    pub(super) fn add_blocks(&mut self) {
        let rules = std::iter::once(&self.first).chain(&self.others).filter(|rule| rule.bias.is_none());
        let in_blocks = |rule: &Rule| {
            let reaches = [Some(Blocks::Whole), rule.window.map(|_| Blocks::InWindow)];
            let rule = rule.clone();
            reaches.into_iter().flatten().map(move |blocks| Rule { blocks: Some(blocks), ..rule.clone() })
        };
        let added: Vec<_> = rules.flat_map(in_blocks).collect();
        self.others.extend(added);
    }

    /// Keeps the rules that a check accepts.
    ///
    /// # Errors
    /// Returns the error about the first rule if the check accepts none.
    pub(super) fn keep(&mut self, check: impl Fn(&Rule) -> Result<(), OnnxError>) -> Result<(), OnnxError> {
        self.others.retain(|rule| check(rule).is_ok());
        check(&self.first).or_else(|error| {
            let mut others = std::mem::take(&mut self.others).into_iter();
            self.first = others.next().ok_or(error)?;
            self.others = others.collect();
            Ok(())
        })
    }
}

impl Bias {
    /// Returns the bias after it is multiplied by a number.
    pub(super) fn scaled(&self, by: f64) -> Self {
        let scaled = |numbers: &[f64]| numbers.iter().map(|number| number * by).collect();
        let added = match &self.added {
            Added::Slopes(slopes) => Added::Slopes(scaled(slopes)),
            Added::Table { numbers, distances } => {
                Added::Table { numbers: scaled(numbers), distances: *distances }
            }
        };
        Self { added, ..self.clone() }
    }
}

impl Added {
    fn heads(&self) -> usize {
        match self {
            Self::Slopes(slopes) => slopes.len(),
            Self::Table { numbers, distances } => numbers.len().checked_div(*distances).unwrap_or_default(),
        }
    }

    /// Returns what one head adds at this distance. All heads add the same if there are numbers of one head only. A
    /// table has no numbers for slots after the token, which are hidden.
    fn at(&self, head: usize, distance: i64) -> f64 {
        let head = if self.heads() == 1 { 0 } else { head };
        match self {
            Self::Slopes(slopes) => {
                let slope = slopes.get(head).copied().unwrap_or_default();
                slope * int_to_float(ElementType::Float64, distance)
            }
            Self::Table { numbers, distances } => {
                let distance = usize::try_from(distance.saturating_neg()).ok();
                let distance = distance.filter(|distance| distance < distances);
                let index = distance.and_then(|distance| head.checked_mul(*distances)?.checked_add(distance));
                index.and_then(|index| numbers.get(index)).copied().unwrap_or_default()
            }
        }
    }
}
