//! Checks by evaluation that the masks of a decoder follow the conversion's rule: causal attention with
//! padding, and a bias that depends on the distance of slot and token.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::attention::{AttentionNode, MaskKind, ScoresLayout, Site, ZeroAddition};
use super::caches::RANK;
use super::limits::SlotLimits;
use super::probe::{Distance, Probe};
use super::refusal::ConvertRefusal;
use super::rule::{Added, Bias, CandidateRules, Rule, Window};
use crate::OnnxError;
use crate::fold::{Fold, Value, Values, int_to_float, round, signed};
use crate::mask_elements::{HIDDEN, MaskEffect, ScoreAt, element_of};

/// The largest number that masks together may add to all scores of a token. It rounds scores in float32 to multiples of
/// 1/512, and a larger one rounds more. ALiBi that is counted from the first token adds no more to texts of 32,768
/// tokens.
const MAX_BASE: f64 = 16_384.0;

/// The number of roundings that a bias is the result of. Exporters multiply, scale and cast it, and the slope is
/// rounded as well.
const ROUNDINGS: f64 = 4.0;

/// Attention whose masks are evaluated.
pub(super) trait Masked<'m> {
    /// Attention with equal keys has equal masks. Layers share masks, so each is evaluated once.
    type Key: Ord;

    fn key(&self) -> Self::Key;

    /// Returns the masks on a probe that was fed to the fold.
    fn masks(&self, probe: &Probe, fold: &mut Fold<'m>) -> Result<Masks, OnnxError>;

    fn rules(&mut self) -> &mut CandidateRules;

    /// Wraps an error with the node that masks, unless the error already names a node.
    fn error_within(&self, error: OnnxError) -> OnnxError;
}

/// Finds the rule of each attention on a probe, which must be the longest one.
///
/// [`check`] reports the error of a mask that has no rule. Errors then come in the order of the probes.
///
/// # Errors
/// Returns the errors of [`Fold::value`], for example if a table has no row for the last slot.
pub(super) fn find_rules<'a, 'm, A: Masked<'m> + 'a>(
    attention: impl Iterator<Item = &'a mut A>,
    probe: &Probe,
    fold: &mut Fold<'m>,
) -> Result<(), OnnxError> {
    let mut found: BTreeMap<A::Key, CandidateRules> = BTreeMap::new();
    for attention in attention {
        let key = attention.key();
        if !found.contains_key(&key) {
            match attention.masks(probe, fold).and_then(|masks| masks.rules(probe, fold)) {
                Ok(rules) => _ = found.insert(attention.key(), rules),
                Err(error) if error.cause::<ConvertRefusal>().is_some() => continue,
                Err(error) => return Err(attention.error_within(error)),
            }
        }
        if let Some(rules) = found.get(&key) {
            attention.rules().clone_from(rules);
        }
    }
    Ok(())
}

/// Checks that the masks of each attention follow one of its rules: they hide the same slots from real tokens, and add
/// the same bias to the others. The attention keeps the rules that they follow.
///
/// # Errors
/// * Returns [`ConvertRefusal::Visibility`] with the first token and slot that differ.
/// * Returns [`ConvertRefusal::Bias`] for a mask that adds another number.
/// * Returns the errors of [`Fold::value`].
pub(super) fn check<'a, 'm, A: Masked<'m> + 'a>(
    attention: impl Iterator<Item = &'a mut A>,
    probe: &Probe,
    fold: &mut Fold<'m>,
) -> Result<(), OnnxError> {
    let mut checked: BTreeMap<A::Key, CandidateRules> = BTreeMap::new();
    for attention in attention {
        let key = attention.key();
        if let Some(rules) = checked.get(&key) {
            attention.rules().clone_from(rules);
            continue;
        }
        let masks = attention.masks(probe, fold);
        let kept = masks.and_then(|masks| {
            let rules = attention.rules();
            let biased = rules.biased;
            rules.keep(|rule| masks.check(probe, Candidate { rule, biased }, fold))
        });
        kept.map_err(|error| attention.error_within(error))?;
        checked.insert(key, attention.rules().clone());
    }
    Ok(())
}

/// Checks that nodes which add zeros to scores in one step do so in another.
///
/// # Errors
/// Returns [`ConvertRefusal::NotNeutral`], wrapped with the node, and the errors of [`Fold::value`].
pub(super) fn check_neutral<'m>(neutral: &[ZeroAddition<'m>], fold: &mut Fold<'m>) -> Result<(), OnnxError> {
    for neutral in neutral {
        let added = fold.value(neutral.operand)?.as_floats().unwrap_or(&[f64::NAN]);
        if let Some(&added) = added.iter().find(|&&added| added != 0.0) {
            return Err(neutral.node.error(ConvertRefusal::NotNeutral { added }));
        }
    }
    Ok(())
}

impl<'m> Masked<'m> for Site<'m> {
    type Key = (bool, Vec<(ScoresLayout, MaskKind<'m>)>);

    fn key(&self) -> Self::Key {
        (self.has_sink(), self.masks().iter().map(|mask| (mask.layout, mask.kind)).collect())
    }

    fn masks(&self, probe: &Probe, fold: &mut Fold<'m>) -> Result<Masks, OnnxError> {
        Masks::of_site(self, probe, fold)
    }

    fn rules(&mut self) -> &mut CandidateRules {
        &mut self.rules
    }

    fn error_within(&self, error: OnnxError) -> OnnxError {
        match self.masks().last() {
            Some(last) => last.node.error_within(error),
            None => error,
        }
    }
}

impl<'m> Masked<'m> for AttentionNode<'m> {
    type Key = (Option<&'m str>, SlotLimits);

    fn key(&self) -> Self::Key {
        (self.mask(), self.limits)
    }

    fn masks(&self, _: &Probe, fold: &mut Fold<'m>) -> Result<Masks, OnnxError> {
        let mask = self.mask().map(|name| fold.value(name).cloned()).transpose()?;
        let mask = mask.map(|value| {
            let effect = MaskEffect::in_attention(value.element);
            MaskValue { value, effect, at: 0 }
        });
        Ok(Masks::new(mask.into_iter().collect(), RANK, self.limits, false))
    }

    fn rules(&mut self) -> &mut CandidateRules {
        &mut self.rules
    }

    fn error_within(&self, error: OnnxError) -> OnnxError {
        self.node.error_within(error)
    }
}

/// The masks of one attention operation on one probe.
pub(super) struct Masks {
    masks: Vec<MaskValue>,
    /// The sizes of the axes between the batch and the new tokens. An axis along which no mask differs has
    /// size 1.
    heads: Vec<usize>,
    /// The slots that the operation hides by itself.
    limits: SlotLimits,
    /// Whether the softmax has a score that no mask changes. What is added to all other scores then counts.
    has_sink: bool,
}

/// The elements of a mask.
#[derive(Debug)]
struct MaskValue {
    value: Value,
    effect: MaskEffect,
    /// The index of the mask in its attention operation.
    at: usize,
}

impl Masks {
    /// Creates the masks of scores of this rank.
    fn new(masks: Vec<MaskValue>, rank: usize, limits: SlotLimits, has_sink: bool) -> Self {
        let mut heads = vec![1; rank.saturating_sub(3)];
        for mask in &masks {
            let inner = mask.value.shape.iter().rev().skip(2);
            for (size, &of_mask) in heads.iter_mut().rev().zip(inner) {
                *size = of_mask.max(*size);
            }
        }
        Self { masks, heads, limits, has_sink }
    }

    fn of_site<'m>(site: &Site<'m>, probe: &Probe, fold: &mut Fold<'m>) -> Result<Self, OnnxError> {
        let mut masks = Vec::new();
        let mut ranks = Vec::new();
        for (at, mask) in site.masks().iter().enumerate() {
            ranks.push(match mask.layout {
                ScoresLayout::Separate { rank } => rank,
                ScoresLayout::Merged { .. } => RANK,
            });
            let (name, effect) = match mask.kind {
                MaskKind::Add { operand } => (operand, MaskEffect::Added),
                MaskKind::Where { condition, filler, visible_where } => {
                    hidden(fold.value(filler)?).map_err(|error| mask.node.error_within(error))?;
                    (condition, MaskEffect::Chosen { visible_where })
                }
                MaskKind::Floor { floor } => {
                    hidden(fold.value(floor)?).map_err(|error| mask.node.error_within(error))?;
                    continue;
                }
                MaskKind::Absent => continue,
            };
            let mut value = fold.value(name)?.clone();
            if value.data.is_none() {
                return Err(ConvertRefusal::MaskUnknown.into());
            }
            if let (ScoresLayout::Merged { .. }, &[rows, new, slots]) = (mask.layout, value.shape.as_slice())
            {
                value.shape = match rows.checked_div(probe.batch) {
                    Some(heads) if rows.is_multiple_of(probe.batch) => vec![probe.batch, heads, new, slots],
                    _ => vec![1, rows, new, slots],
                };
            }
            masks.push(MaskValue { value, effect, at });
        }
        // A mask that differs between heads has an axis between batch and tokens.
        Ok(Self::new(
            masks,
            ranks.into_iter().max().unwrap_or_default(),
            SlotLimits::default(),
            site.has_sink(),
        ))
    }

    fn heads(&self) -> usize {
        self.heads.iter().copied().fold(1, usize::saturating_mul)
    }

    /// Returns the rule that the masks follow for the last token of the first sample. The sample must have no padding.
    fn rules(&self, probe: &Probe, fold: &Fold<'_>) -> Result<CandidateRules, OnnxError> {
        let (mut biased, mut table) = (0, None);
        let mut rule = Rule::default();
        let Some(token) = probe.new.checked_sub(1) else {
            return Ok(CandidateRules::new(rule, table, biased));
        };
        let read = [self.heads(), self.masks.len(), probe.total()];
        fold.charge(read.into_iter().fold(1, usize::saturating_mul))?;
        for mask in &self.masks {
            let slopes = (0..self.heads()).map(|head| self.slope(mask, probe, head, token));
            let slopes = slopes.collect::<Result<Vec<_>, _>>()?;
            let is_linear = self.is_linear(mask, probe, &slopes)?;
            // `check` refuses the bias of a second mask.
            if rule.bias.is_some() || is_linear && slopes.iter().all(|&slope| slope == 0.0) {
                continue;
            }
            let bias = |added| Bias { heads: self.heads.clone(), added, distance: Distance::Slots };
            table = if is_linear { None } else { Some(bias(self.table(mask, probe)?)) };
            rule.bias = Some(bias(Added::Slopes(slopes)));
            biased = mask.at;
        }
        let row = Row { probe, sample: 0, token, distances: rule.distances(probe, 0, token) };
        let row = self.head_row(&row, 0)?;
        for seen in 0..probe.total() {
            let slot = probe.total().saturating_sub(seen).saturating_sub(1);
            if self.score(&row, Candidate { rule: &rule, biased }, slot)?.is_hidden {
                // A token that does not see itself is an error that `check` reports.
                rule.window = (seen > 0).then_some(Window { size: seen, distance: Distance::Slots });
                break;
            }
        }
        Ok(CandidateRules::new(rule, table, biased))
    }

    /// Returns what a head adds for each step of the distance.
    ///
    /// It is the difference of two neighbours, and of those with the smallest numbers, which are rounded least.
    fn slope(&self, mask: &MaskValue, probe: &Probe, head: usize, token: usize) -> Result<f64, OnnxError> {
        if mask.effect != MaskEffect::Added {
            return Ok(0.0);
        }
        let mut smallest = f64::INFINITY;
        let mut slope = 0.0;
        let mut before: Option<f64> = None;
        for slot in 0..probe.total() {
            let added = self.added(mask, ScoreAt { sample: 0, head, token, slot })?;
            if let Some(before) = before.replace(added)
                && before > HIDDEN
                && added > HIDDEN
                && before.abs().max(added.abs()) < smallest
            {
                smallest = before.abs().max(added.abs());
                slope = round(mask.value.element, added - before);
            }
        }
        Ok(slope)
    }

    /// Returns `true` if a mask adds to the visible slots of the last token what these slopes give, relative to the
    /// token's own slot.
    fn is_linear(&self, mask: &MaskValue, probe: &Probe, slopes: &[f64]) -> Result<bool, OnnxError> {
        let Some(token) = probe.new.checked_sub(1) else { return Ok(true) };
        let own = probe.slot_of(token);
        for (head, slope) in slopes.iter().enumerate() {
            let score = |slot| ScoreAt { sample: 0, head, token, slot };
            let base = self.added(mask, score(own))?;
            for slot in 0..probe.total() {
                let added = self.added(mask, score(slot))?;
                let linear = base
                    + slope * int_to_float(ElementType::Float64, signed(slot).saturating_sub(signed(own)));
                if added > HIDDEN && (added - linear).abs() > rounding(mask.value.element, added, base) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns what a mask adds at each distance from the last token of the first sample. Hidden slots get 0.
    fn table(&self, mask: &MaskValue, probe: &Probe) -> Result<Added, OnnxError> {
        let token = probe.new.saturating_sub(1);
        let distances = probe.slot_of(token).saturating_add(1);
        let mut numbers = Vec::new();
        for head in 0..self.heads() {
            for slot in (0..distances).rev() {
                let added = self.added(mask, ScoreAt { sample: 0, head, token, slot })?;
                numbers.push(if added > HIDDEN { added } else { 0.0 });
            }
        }
        Ok(Added::Table { numbers, distances })
    }

    /// Compares the rule with what is added to the score of every slot for every real token in every head.
    fn check(&self, probe: &Probe, candidate: Candidate<'_>, fold: &Fold<'_>) -> Result<(), OnnxError> {
        let rule = candidate.rule;
        let compared =
            [self.heads(), self.masks.len().saturating_add(1), probe.batch, probe.new, probe.total()];
        fold.charge(compared.into_iter().fold(1, usize::saturating_mul))?;
        let is_real = |sample, token| probe.is_real(sample, probe.past.saturating_add(token));
        for sample in 0..probe.batch {
            for token in (0..probe.new).filter(|&token| is_real(sample, token)) {
                let row = Row { probe, sample, token, distances: rule.distances(probe, sample, token) };
                let visible = rule.visible(probe, sample, token);
                let position = row.own();
                for head in 0..self.heads() {
                    let row = self.head_row(&row, head)?;
                    for (slot, &is_visible) in visible.iter().enumerate() {
                        let score = self.score(&row, candidate, slot)?;
                        if let Some((added, expected)) = score.other.filter(|_| !score.is_hidden) {
                            return Err(ConvertRefusal::Bias { head, position, slot, added, expected }.into());
                        }
                        let hidden = score.is_hidden;
                        if hidden == is_visible {
                            let padding = (0..position).filter(|&slot| !probe.is_real(sample, slot)).count();
                            let refusal = ConvertRefusal::Visibility { position, slot, hidden, padding };
                            return Err(refusal.into());
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the scores of a token in one head, with the base of each mask.
    fn head_row<'r>(&self, row: &'r Row<'r>, head: usize) -> Result<HeadRow<'r>, OnnxError> {
        let base = |mask| {
            let own = self.added(mask, row.score_at(head, row.own()))?;
            Ok::<_, OnnxError>(if own > HIDDEN && !self.has_sink { own } else { 0.0 })
        };
        let mut bases = self.masks.iter().map(base).collect::<Result<Vec<_>, _>>()?;
        if bases.iter().sum::<f64>() > MAX_BASE {
            bases.fill(0.0);
        }
        Ok(HeadRow { row, head, bases })
    }

    /// Returns what the masks together do to a score.
    fn score(&self, row: &HeadRow<'_>, candidate: Candidate<'_>, slot: usize) -> Result<Score, OnnxError> {
        let Candidate { rule, biased } = candidate;
        let &HeadRow { row, head, ref bases } = row;
        let is_hidden = self.limits.hides(row.probe.total(), row.own(), slot);
        let mut score = Score { is_hidden, other: None };
        for (mask, base) in self.masks.iter().zip(bases) {
            let absolute = self.added(mask, row.score_at(head, slot))?;
            let added = absolute - base;
            let (mut by_rule, mut tolerance) = (0.0, 0.0);
            if rule.bias.is_some() && mask.at == biased {
                // Without a base, the numbers are absolute.
                let own = if *base == 0.0 { 0.0 } else { rule.added(head, 0) };
                by_rule = rule.added(head, row.distances.get(slot).copied().unwrap_or_default()) - own;
                tolerance = rounding(mask.value.element, absolute, *base);
            }
            let difference = added - by_rule;
            if absolute.is_finite() && difference.abs() <= tolerance {
                continue;
            }
            if added <= HIDDEN || difference <= HIDDEN {
                score.is_hidden = true;
            } else {
                score.other.get_or_insert((added, by_rule));
            }
        }
        Ok(score)
    }

    /// Returns what a mask adds to a score. A slot that is not chosen gets minus infinity.
    fn added(&self, mask: &MaskValue, score: ScoreAt) -> Result<f64, OnnxError> {
        let place = element_of(&mask.value.shape, &self.heads, score);
        let elements = place.zip(mask.value.data.as_ref());
        let added = elements.and_then(|(at, elements)| mask.effect.added(elements, at));
        added.ok_or_else(|| ConvertRefusal::MaskUnknown.into())
    }
}

/// The scores of one token of a sample.
struct Row<'p> {
    probe: &'p Probe,
    sample: usize,
    token: usize,
    /// The distance of each slot from the token.
    distances: Vec<i64>,
}

impl Row<'_> {
    /// Returns the slot of the token.
    fn own(&self) -> usize {
        self.probe.slot_of(self.token)
    }

    fn score_at(&self, head: usize, slot: usize) -> ScoreAt {
        ScoreAt { sample: self.sample, head, token: self.token, slot }
    }
}

/// The scores of one token of a sample in one head.
struct HeadRow<'r> {
    row: &'r Row<'r>,
    head: usize,
    /// What each mask adds to the score of the token's own slot. Other numbers are compared with it, because a softmax
    /// ignores what is added to all scores of a token. It is 0 if the mask hides the slot, and if the masks together
    /// add more than [`MAX_BASE`].
    bases: Vec<f64>,
}

/// A rule that masks may follow, and the index of the mask that adds its bias.
#[derive(Clone, Copy)]
struct Candidate<'r> {
    rule: &'r Rule,
    biased: usize,
}

/// What masks do to a score.
struct Score {
    is_hidden: bool,
    /// The first number that is added instead of the bias, and the bias.
    other: Option<(f64, f64)>,
}

/// Returns by how much a bias of this type may differ from the rule.
fn rounding(element: ElementType, added: f64, base: f64) -> f64 {
    ROUNDINGS * unit_of(element) * (added.abs() + base.abs())
}

/// Returns the largest relative error of one rounding to a type.
fn unit_of(element: ElementType) -> f64 {
    match element {
        ElementType::Float16 => 1.0 / 2048.0,
        ElementType::BFloat16 => 1.0 / 256.0,
        // Exporters compute in float32, also if they cast to float64 at the end.
        _ => 1.0 / 16_777_216.0,
    }
}

/// Checks that a value is a single very negative number.
fn hidden(value: &Value) -> Result<(), OnnxError> {
    match &value.data {
        Some(Values::Floats(numbers)) => match numbers.as_slice() {
            [number] if *number <= HIDDEN => Ok(()),
            [number] => Err(ConvertRefusal::Filler { filler: *number, limit: HIDDEN }.into()),
            _ => Err(ConvertRefusal::MaskUnknown.into()),
        },
        _ => Err(ConvertRefusal::MaskUnknown.into()),
    }
}
