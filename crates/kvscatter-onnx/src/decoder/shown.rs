//! Evaluates which slots of its caches a decoder shows to the tokens of a step, to prove what an input means.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::cache::{Cache, CachePart};
use super::part;
use super::step::{Step, filled};
use crate::fold::{Budget, Fold, Value, Values, signed};
use crate::graph::DEFAULT_DOMAIN;
use crate::mask_elements::{HIDDEN, MaskEffect, last_sizes};
use crate::onnx_attention::{MASK, NONPAD_KV_SEQLEN};
use crate::passing::{self, OnScores};
use crate::{Graph, Node};

/// A step of a decoder, with the values of its inputs. What an input means is proven by changing its values.
pub(super) struct Trial<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    /// The work that all trials of the decoder may still do together.
    pub(super) budget: &'a Rc<Budget>,
    /// The masks that are computed from the tried input.
    pub(super) masks: Vec<SlotMask<'m>>,
    pub(super) step: Step,
    /// The values of all inputs.
    pub(super) feeds: Vec<(&'m str, Value)>,
}

/// A value that decides which slots a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotMask<'m> {
    value: &'m str,
    kind: SlotMaskKind<'m>,
}

/// How attention reads a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SlotMaskKind<'m> {
    /// Its booleans are `true` for visible slots, and its floats are added to the scores.
    Scores,
    /// Its integers are not 0 for visible slots.
    Slots,
    /// The scores are kept where it is `shows`. Elsewhere they become the filler.
    Condition { shows: bool, filler: &'m str },
    /// It is the number of slots in use, less a number.
    Length { less: i64 },
}

/// What a mask shows.
#[derive(Debug, PartialEq, Eq)]
enum Shown {
    /// Whether each slot is visible, `[heads of all samples, rows, columns]`. There is one row for each new token, or
    /// one for all of them. There is one column for each slot, unless the mask is that of a ring or the same for all
    /// slots.
    Slots { rows: usize, columns: usize, sees: Vec<bool> },
    /// The number of slots in use.
    Length(i64),
}

/// What a value has for each slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PerSlot {
    Score,
    Key,
}

impl Shown {
    /// Returns `true` for the mask of a cache that has another number of slots than the other caches.
    fn is_of_ring(&self, total: usize) -> bool {
        matches!(self, Self::Slots { columns, .. } if ![1, total].contains(columns))
    }
}

/// Finds the masks of all attention that reads these caches, by following the keys to the scores.
pub(super) fn masks<'m>(graph: &Graph<'m>, caches: &[Cache<'m>]) -> Vec<SlotMask<'m>> {
    let has_keys = |cache: &&Cache<'_>| cache.part != CachePart::Value;
    let mut per_slot: BTreeMap<&str, PerSlot> =
        caches.iter().filter(has_keys).map(|cache| (cache.written, PerSlot::Key)).collect();
    let writers: BTreeSet<usize> =
        caches.iter().filter_map(|cache| cache.writer).map(|node| node.index()).collect();
    let mut masks = Vec::new();
    for node in graph.nodes() {
        let kind = |slot| per_slot.get(node.input(slot)?).copied();
        if node.op_type().ends_with("Attention") {
            if writers.contains(&node.index()) || kind(1) == Some(PerSlot::Key) {
                masks.extend(of_attention(node));
            }
            continue;
        }
        let read = (0..node.proto().input.len()).filter_map(|slot| Some((kind(slot)?, slot)));
        let is_scores = |slot| part::is_product(node) && !passing::is_projection(graph, node, slot);
        // If a node reads both, its result is scores. The first scores are those that it masks.
        let result = match read.min() {
            Some((PerSlot::Score, slot)) => {
                masks.extend(mask_of_scores(node, slot));
                let keeps = matches!(OnScores::from_node(node), Some(OnScores::Keeps | OnScores::Masks));
                keeps.then_some(PerSlot::Score)
            }
            Some((PerSlot::Key, slot)) if !is_scores(slot) => {
                passing::leads_from_cache(graph, node, slot).then_some(PerSlot::Key)
            }
            Some(_) => Some(PerSlot::Score),
            None => None,
        };
        per_slot.extend(node.outputs().flat_map(|output| Some((output, result?))));
    }
    masks
}

/// Returns the masks that are computed from an input. Layers share masks, so each is returned once.
pub(super) fn reading<'m>(graph: &Graph<'m>, masks: &[SlotMask<'m>], input: &'m str) -> Vec<SlotMask<'m>> {
    let computed = graph.computed_from([input]);
    let read: BTreeSet<_> = masks.iter().filter(|mask| computed.contains(mask.value)).copied().collect();
    read.into_iter().collect()
}

/// Returns the mask of a node that reads scores at this input.
fn mask_of_scores<'m>(node: &Node<'m>, scores: usize) -> Option<SlotMask<'m>> {
    if OnScores::from_node(node) != Some(OnScores::Masks) {
        return None;
    }
    let first = node.input(0)?;
    Some(match scores {
        _ if node.is("Where") => {
            let shows = scores == 1;
            let filler = node.input(if shows { 2 } else { 1 })?;
            SlotMask { value: first, kind: SlotMaskKind::Condition { shows, filler } }
        }
        0 => SlotMask { value: node.input(1)?, kind: SlotMaskKind::Scores },
        _ => SlotMask { value: first, kind: SlotMaskKind::Scores },
    })
}

/// Returns the masks that a node of attention reads.
fn of_attention<'m>(node: &Node<'m>) -> Vec<SlotMask<'m>> {
    let slots: &[(usize, SlotMaskKind<'m>)] = match (node.domain(), node.op_type()) {
        (DEFAULT_DOMAIN, "Attention") => {
            &[(MASK, SlotMaskKind::Scores), (NONPAD_KV_SEQLEN, SlotMaskKind::Length { less: 0 })]
        }
        ("com.microsoft", "MultiHeadAttention") => &[(4, SlotMaskKind::Slots), (5, SlotMaskKind::Scores)],
        ("com.microsoft", "GroupQueryAttention") => {
            &[(5, SlotMaskKind::Length { less: 1 }), (10, SlotMaskKind::Scores)]
        }
        _ => &[],
    };
    slots.iter().filter_map(|&(slot, kind)| Some(SlotMask { value: node.input(slot)?, kind })).collect()
}

impl<'m> Trial<'_, 'm> {
    /// Returns `true` if an input contains the mask of real tokens: other numbers than 0 show a slot as far as the
    /// other rules do, 0 hides it from all tokens, and lengths count the ones.
    pub(super) fn marks_real_tokens(&self, input: &str) -> bool {
        let total = self.step.total();
        let shown = |number: &dyn Fn(usize) -> i64| {
            self.shown(input, &(0..total).map(number).collect::<Vec<_>>()).filter(|shown| !shown.is_empty())
        };
        let Some(all) = shown(&|_| 1) else { return false };
        // The numbers of documents, or of kinds of tokens, differ between real tokens.
        let Some(mixed) = shown(&|slot| if slot % 2 == 0 { 1 } else { 2 }) else { return false };
        let is_same = |(ones, mixed)| matches!(ones, &Shown::Length(_)) || ones == mixed;
        if !all.iter().zip(&mixed).all(is_same) {
            return false;
        }
        let mut is_read = false;
        // The last one is a new token, whose number must not hide other slots from it.
        for padding in [0, total / 2, self.step.past] {
            let Some(padded) = shown(&|slot| i64::from(slot != padding)) else { return false };
            let is_hidden = |(before, after): (&Shown, &Shown)| match (before, after) {
                (&Shown::Slots { columns, sees: ref before, .. }, Shown::Slots { sees: after, .. }) => {
                    let column = padding.checked_rem(columns).filter(|_| columns > 1);
                    let is_right = |((before, after), at): ((&bool, &bool), usize)| match Some(at) == column {
                        false => before == after,
                        true if columns == total => !after,
                        // The slot of a ring may have another token.
                        true => before >= after,
                    };
                    before.len() == after.len()
                        && before.iter().zip(after).zip((0..columns).cycle()).all(is_right)
                }
                (Shown::Length(before), Shown::Length(after)) => {
                    *before == signed(total) && *after == before.saturating_sub(1)
                }
                _ => false,
            };
            if !all.iter().zip(&padded).all(is_hidden) {
                return false;
            }
            is_read |= padded != all;
        }
        is_read
    }

    /// Returns `true` if an input contains, for each token, the index of the last slot that the token sees.
    pub(super) fn limits_slots(&self, input: &str) -> bool {
        let (new, total) = (self.step.new, self.step.total());
        let early: Vec<_> = (0..new).collect();
        let late = early.iter().map(|token| total.saturating_sub(token.saturating_add(1))).collect();
        [early, late].into_iter().all(|positions: Vec<usize>| {
            let numbers: Vec<_> = positions.iter().copied().map(signed).collect();
            let shown = self.shown(input, &numbers).unwrap_or_default();
            let mut shown = shown.iter().filter(|shown| !shown.is_of_ring(total)).peekable();
            let last = |row: &[bool]| row.iter().rposition(|&sees| sees);
            let is_limit = |shown: &Shown| match shown {
                Shown::Slots { rows, columns, sees } => {
                    let places = positions.iter().copied().map(Some).cycle();
                    (*rows, *columns) == (new, total)
                        && sees.chunks(total.max(1)).map(last).zip(places).all(|(last, place)| last == place)
                }
                Shown::Length(_) => false,
            };
            shown.peek().is_some() && shown.all(is_limit)
        })
    }

    /// Returns `true` if each number of a value is the number that an input contains.
    pub(super) fn passes_on(&self, input: &str, value: &str) -> bool {
        [1, 2].into_iter().all(|number| {
            let fold = self.fold(input, &[number]);
            let ints = fold.and_then(|mut fold| fold.known(value).ok()??.as_ints().map(<[i64]>::to_vec));
            ints.is_some_and(|ints| !ints.is_empty() && ints.iter().all(|&it| it == number))
        })
    }

    /// Returns what each mask shows if each sample of an input has these numbers, or `None` if a mask is not known.
    fn shown(&self, input: &str, numbers: &[i64]) -> Option<Vec<Shown>> {
        let mut fold = self.fold(input, numbers)?;
        self.masks.iter().map(|mask| mask.shown(self.step, &mut fold)).collect()
    }

    fn fold(&self, input: &str, numbers: &[i64]) -> Option<Fold<'m>> {
        let mut fold = Fold::within(self.budget, self.graph);
        for (name, value) in &self.feeds {
            let mut value = value.clone();
            if *name == input {
                let numbers = numbers.iter().copied().cycle().take(value.len());
                value.data = Some(filled(value.element, numbers));
            }
            fold.set(name, value).ok()?;
        }
        Some(fold)
    }
}

impl<'m> SlotMask<'m> {
    pub(super) fn value(&self) -> &'m str {
        self.value
    }

    fn shown(&self, step: Step, fold: &mut Fold<'_>) -> Option<Shown> {
        if let SlotMaskKind::Condition { filler, .. } = self.kind {
            let filler = fold.known(filler).ok()??.as_floats()?;
            if filler.iter().any(|&number| number > HIDDEN) {
                return None;
            }
        }
        let Value { element, shape, data } = fold.known(self.value).ok()??;
        let elements = data.as_ref()?;
        let effect = match self.kind {
            SlotMaskKind::Length { less } => {
                let Values::Ints(lengths) = elements else { return None };
                let length = lengths.first().filter(|first| lengths.iter().all(|length| length == *first))?;
                return Some(Shown::Length(length.saturating_add(less)));
            }
            SlotMaskKind::Scores => MaskEffect::in_attention(*element),
            SlotMaskKind::Condition { shows, .. } => MaskEffect::Chosen { visible_where: shows },
            SlotMaskKind::Slots => MaskEffect::Counted,
        };
        let sees = (0..elements.len()).map(|at| effect.shows(elements, at));
        let sees = sees.collect::<Option<Vec<_>>>()?;
        let [_, rows, columns] = last_sizes(shape);
        if ![1, step.new].contains(&rows) {
            return None;
        }
        // The masks of all attention are compared at once.
        fold.charge(sees.len().saturating_mul(size_of::<f64>())).ok()?;
        Some(Shown::Slots { rows, columns, sees })
    }
}
