//! What the walk finds: attention of separate nodes, its masks, and the nodes between.

use kvscatter::ElementType;

use crate::Node;
use crate::convert::rule::{CandidateRules, Rule};

/// What nodes in a row do to a value, in their order.
///
/// The number of nodes is limited, because every node copies what the nodes before it do.
#[derive(Clone, Debug)]
pub(in crate::convert) struct Chain<T> {
    links: Vec<T>,
    is_complete: bool,
}

/// Attention of separate nodes, up to its softmax.
#[derive(Clone, Debug)]
pub(in crate::convert) struct Site<'m> {
    pub(in crate::convert) scores: Scores<'m>,
    pub(in crate::convert) softmax: Node<'m>,
    /// What the masks add together.
    pub(in crate::convert) rules: CandidateRules,
}

/// Scores of the keys of a cache, with their slots along the last axis.
#[derive(Clone, Debug)]
pub(in crate::convert) struct Scores<'m> {
    pub(in crate::convert) keys: CacheRead<'m>,
    /// The product of queries and keys.
    pub(in crate::convert) product: Node<'m>,
    /// What follows the product, in order.
    pub(in crate::convert) forms: Chain<Form<'m>>,
    /// The masks among the forms, in order. The scores of a [`Site`] have at least one.
    pub(in crate::convert) masks: Vec<Mask<'m>>,
    /// The value with the score of a sink after those of the slots. No mask changes it.
    pub(in crate::convert) sink: Option<&'m str>,
}

/// What a node does to scores.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) enum Form<'m> {
    /// They are multiplied.
    Factor(Factor<'m>),
    /// They are limited by a hyperbolic tangent.
    Cap,
    /// They are masked. The number is the index of the mask.
    Mask(usize),
    /// The same number is added for all slots.
    Added,
}

/// The value by which a node multiplies or divides.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) struct Factor<'m> {
    pub(in crate::convert) value: &'m str,
    pub(in crate::convert) divides: bool,
}

/// Keys or values that are read from a cache.
#[derive(Clone, Debug)]
pub(in crate::convert) struct CacheRead<'m> {
    /// The past of the cache.
    pub(in crate::convert) past: &'m str,
    /// The axis of the slots.
    pub(super) axis: usize,
    pub(in crate::convert) factors: Chain<Factor<'m>>,
    /// Whether they are the whole cache. A cache may contain both keys and values, or latents.
    pub(in crate::convert) is_whole: bool,
}

/// The product of weights and values, where attention ends.
#[derive(Clone, Debug)]
pub(in crate::convert) struct WeightedSum<'m> {
    pub(in crate::convert) node: Node<'m>,
    /// The index of the site whose softmax gives the weights.
    pub(in crate::convert) site: usize,
    /// The factors of the weights.
    pub(in crate::convert) factors: Chain<Factor<'m>>,
    pub(in crate::convert) values: CacheRead<'m>,
}

/// One node that masks scores.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) struct Mask<'m> {
    pub(in crate::convert) node: Node<'m>,
    pub(in crate::convert) kind: MaskKind<'m>,
    /// The scores that it masks, `[batch, .., new tokens, slots]`.
    pub(in crate::convert) scores: &'m str,
    /// The scores after this node.
    pub(in crate::convert) output: &'m str,
    pub(in crate::convert) layout: ScoresLayout,
    /// The element type of the scores.
    pub(in crate::convert) element: ElementType,
    /// Whether the scores after this node are multiplied by a factor below 1.
    pub(super) is_scaled: bool,
}

/// How scores are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::convert) enum ScoresLayout {
    /// `[batch, .., new tokens, slots]` of this rank.
    Separate { rank: usize },
    /// `[batch * heads, new tokens, slots]`.
    Merged { heads: usize },
}

/// How a node masks scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::convert) enum MaskKind<'m> {
    /// `scores + operand`, where the operand is 0 for a visible slot and very negative for a hidden one.
    Add { operand: &'m str },
    /// `condition ? scores : filler` if `visible_where`, and `condition ? filler : scores` otherwise.
    Where { condition: &'m str, filler: &'m str, visible_where: bool },
    /// `max(scores, floor)`, which keeps masked scores finite.
    Floor { floor: &'m str },
    /// Nothing, as for the only new token of each step, which sees all tokens. The node is the softmax, and the scores
    /// after the mask are those before it.
    Absent,
}

impl<'m> Mask<'m> {
    /// Returns the value that chooses the slots, or `None` if the node only keeps scores finite.
    pub(in crate::convert) fn value(&self) -> Option<&'m str> {
        match self.kind {
            MaskKind::Add { operand } => Some(operand),
            MaskKind::Where { condition, .. } => Some(condition),
            MaskKind::Floor { .. } | MaskKind::Absent => None,
        }
    }
}

/// A node that adds zeros to scores, one for each slot. Exporters write such nodes for operators that
/// multiply, add and scale at once.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) struct ZeroAddition<'m> {
    pub(in crate::convert) node: Node<'m>,
    pub(in crate::convert) scores: &'m str,
    /// The name of the value that contains the zeros.
    pub(in crate::convert) operand: &'m str,
}

/// An `Attention` without pasts, whose keys and values are computed from caches that already have the new rows.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) struct AttentionOverCaches<'m> {
    pub(in crate::convert) node: Node<'m>,
    /// The pasts of the caches of keys and values.
    pub(in crate::convert) pasts: [&'m str; 2],
    /// Whether keys or values are multiplied by a number, which may differ between lengths.
    pub(in crate::convert) is_scaled: bool,
}

impl<'m> Site<'m> {
    pub(super) fn new(scores: Scores<'m>, softmax: Node<'m>) -> Self {
        Self { scores, softmax, rules: CandidateRules::default() }
    }

    /// Returns the past of the cache with the keys.
    pub(in crate::convert) fn past(&self) -> &'m str {
        self.scores.keys.past
    }

    pub(in crate::convert) fn masks(&self) -> &[Mask<'m>] {
        &self.scores.masks
    }

    pub(in crate::convert) fn has_sink(&self) -> bool {
        self.scores.sink.is_some()
    }

    /// Returns what the masks add together.
    pub(in crate::convert) fn rule(&self) -> &Rule {
        self.rules.rule()
    }

    /// Returns the index of the mask whose place the visibility takes. A bias comes first, because hidden scores
    /// must stay finite.
    pub(in crate::convert) fn hiding(&self) -> usize {
        if self.rule().bias.is_some() { self.masks().len().saturating_sub(1) } else { 0 }
    }
}

impl<'m> Scores<'m> {
    pub(super) fn new(keys: CacheRead<'m>, product: Node<'m>) -> Self {
        Self { keys, product, forms: Chain::default(), masks: Vec::new(), sink: None }
    }

    /// Returns the scores after one more form.
    pub(super) fn with(&self, form: Form<'m>) -> Self {
        let mut scores = self.clone();
        scores.forms.push(form);
        scores
    }
}

impl<T> Chain<T> {
    /// The maximum number of nodes.
    const MOST: usize = 64;

    /// Adds a node. Too many nodes make the chain incomplete.
    pub(super) fn push(&mut self, link: T) {
        self.is_complete &= self.links.len() < Self::MOST;
        if self.is_complete {
            self.links.push(link);
        }
    }

    /// Returns what the nodes do, or `None` if there are too many.
    pub(in crate::convert) fn links(&self) -> Option<&[T]> {
        self.is_complete.then_some(self.links.as_slice())
    }
}

impl<T> Default for Chain<T> {
    fn default() -> Self {
        Self { links: Vec::new(), is_complete: true }
    }
}

impl<'m> CacheRead<'m> {
    /// Returns a whole cache with its slots along this axis.
    pub(super) fn new(past: &'m str, axis: usize) -> Self {
        Self { past, axis, factors: Chain::default(), is_whole: true }
    }

    /// Returns what is a part of this, or is computed from it.
    pub(super) fn part(&self) -> Self {
        Self { is_whole: false, ..self.clone() }
    }
}
