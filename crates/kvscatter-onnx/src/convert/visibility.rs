//! Checks by evaluation that the masks of a decoder follow the conversion's rule: causal attention with
//! padding, and a bias that is proportional to the distance of slot and token.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Mode};

use super::caches::RANK;
use super::probe::{Distance, Inputs, LAST, Probe, SAMPLES};
use super::refusal::ConvertRefusal;
use super::rule::{Bias, Rule, Rules, Window};
use super::sites::{Layout, MaskKind, Site, Sites};
use crate::decoder::HIDDEN;
use crate::fold::{Fold, MAX_VALUES, Value, Values, round};
use crate::{Node, OnnxError};

/// The largest number that masks together may add to all scores of a token. It rounds scores in float32 to multiples of
/// 1/512, and a larger one rounds more. ALiBi that is counted from the first token adds no more to texts of 32,768
/// tokens.
const MAX_BASE: f64 = 16_384.0;

/// The length of the longest prefill that is evaluated. Its masks have `LONG * LONG` elements.
const LONG: usize = 256;

/// The number of tokens by which the probe with padding around windows is longer than the longest window.
const BESIDE: usize = 8;

/// The number of roundings that a bias is the result of. Exporters multiply, scale and cast it, and the slope is
/// rounded as well.
const ROUNDINGS: f64 = 4.0;

/// Where an exported decoder supports padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Any token may be padding.
    Anywhere,
    /// Only the last tokens of a first run may be padding. `GroupQueryAttention` counts the real tokens of each
    /// sample, and takes the first ones for real.
    Right,
    /// No token may be padding, because the decoder has no attention mask.
    Nowhere,
}

/// Returns probes on which other rules give other masks than the rule.
///
/// * Prefill, chunks, and padding on the left, on the right and in between.
/// * Padding on both sides of where each window begins.
/// * A long prefill, the middle of the capacity, and the end of the capacity in chunks and by one token.
///   These find windows, thresholds and tables that end. The last probe is the longest.
///
/// A mask may have this many heads. Probes have fewer samples or tokens if its elements would not be computed.
pub(super) fn probes(
    inputs: &Inputs<'_>,
    max_seq: usize,
    padding: Padding,
    heads: usize,
    windows: &BTreeSet<usize>,
) -> Vec<Probe> {
    let batch = inputs.batch();
    let samples = batch.unwrap_or(SAMPLES);
    let new = |wanted: usize| inputs.new_tokens().unwrap_or(wanted);
    let last = new(1);
    let is_small = |batch: usize, new: usize, total: usize| {
        [batch, heads, new, total].into_iter().fold(1, usize::saturating_mul) <= MAX_VALUES
    };
    let probe = |past: usize, wanted: usize| {
        let total = |new: usize| past.saturating_add(new);
        let sizes_of = |samples| (1..=new(wanted)).rev().map(move |new| (samples, new));
        let sizes = sizes_of(samples).take(1).chain(sizes_of(batch.unwrap_or(1)));
        let size = sizes.into_iter().find(|&(batch, new)| is_small(batch, new, total(new)));
        let (batch, few) = size.unwrap_or((batch.unwrap_or(1), 1));
        Probe::new(batch, past, inputs.new_tokens().unwrap_or(few))
    };
    let ending = |total: usize, wanted: usize| {
        let probe = probe(total.saturating_sub(new(wanted)), wanted);
        Probe::new(probe.batch, total.saturating_sub(probe.new), probe.new)
    };
    let mut probes = vec![probe(0, 4), probe(6, 3)];
    match padding {
        Padding::Anywhere => {
            probes.extend(ending(9, 3).each_padded(&once([0..2, 0..0, 0..4, 0..0, 3..5, 1..2])));
            probes.extend(ending(5, 5).each_padded(&once([0..3, 0..1, 4..5])));
            // The fewest tokens with padding in between.
            probes.extend(ending(3, 3).each_padded(&once([1..2, 0..0, 0..1])));
            if let Some(&widest) = windows.last() {
                let probe = ending(max_seq.min(widest.saturating_add(BESIDE)), 3);
                probes.extend(probe.each_padded(&around_windows(probe.total(), windows)));
            }
        }
        Padding::Right => probes.extend(ending(5, 5).each_padded(&once([2..5, 4..5, 0..0]))),
        Padding::Nowhere => {}
    }
    probes.extend([
        probe(1, 1),
        probe(0, max_seq.min(LONG)),
        probe(max_seq / 2, 2),
        probe(max_seq.saturating_sub(LAST), LAST),
    ]);
    // A probe with more tokens than slots cannot occur.
    probes.retain(|probe| probe.total() <= max_seq);
    probes.push(Probe::new(batch.unwrap_or(1), max_seq.saturating_sub(last), last));
    probes
}

/// Returns the padding of samples that are padded in one place.
fn once<const SAMPLES: usize>(padding: [Range<usize>; SAMPLES]) -> [Vec<Range<usize>>; SAMPLES] {
    padding.map(|padding| vec![padding])
}

/// Returns the padding of samples with this many tokens, so that the last tokens have padding in their windows and on
/// both sides of where their windows begin. One sample is padded on the left.
fn around_windows(total: usize, windows: &BTreeSet<usize>) -> Vec<Vec<Range<usize>>> {
    let left = 0..total.saturating_sub(windows.last().copied().unwrap_or_default()) / 2;
    let within = total.saturating_sub(2)..total.saturating_sub(1);
    // The slots `first..end`, counted from the first slot of the last token's window.
    let around = |first: isize, end: isize| {
        let begins = windows.iter().filter_map(move |&window| total.checked_sub(window));
        begins.map(move |begin| begin.saturating_add_signed(first)..begin.saturating_add_signed(end))
    };
    vec![
        vec![within.clone()],
        around(-1, 0).collect(),
        around(0, 1).collect(),
        // Padding moves the beginning of a window of real tokens.
        around(-2, -1).chain([within.clone()]).collect(),
        around(-1, 1).chain([within]).collect(),
        vec![left],
    ]
}

/// Finds the rule of every site on a probe, which must be the longest one.
///
/// [`check_sites`] reports the error of a mask that has no rule. Errors then come in the order of the probes.
///
/// # Errors
/// Returns the errors of [`Fold::value`], for example if a table has no row for the last slot.
pub(super) fn find_rules<'m>(
    sites: &mut Sites<'m>,
    probe: &Probe,
    fold: &mut Fold<'m>,
) -> Result<(), OnnxError> {
    // Layers share masks, so each combination is evaluated once.
    let mut found: BTreeMap<_, (Rule, usize)> = BTreeMap::new();
    for site in &mut sites.sites {
        let key = site.key();
        let (rule, biased) = match found.get(&key) {
            Some(rule) => rule.clone(),
            None => {
                let rule = Masks::of_site(site, probe, fold).and_then(|masks| masks.rule(probe, fold));
                let rule = match rule {
                    Ok(rule) => rule,
                    Err(error) if error.cause::<ConvertRefusal>().is_some() => continue,
                    Err(error) => return Err(site.error_within(error)),
                };
                found.insert(key, rule.clone());
                rule
            }
        };
        (site.rules, site.biased) = (Rules::new(rule), biased);
    }
    Ok(())
}

/// Checks that the masks of every site follow one of its rules: they hide the same slots from real tokens, and add the
/// same bias to the others. The site keeps the rules that they follow.
///
/// # Errors
/// * Returns [`ConvertRefusal::Visibility`] with the first token and slot that differ.
/// * Returns [`ConvertRefusal::Bias`] for a mask that adds another number.
/// * Returns the errors of [`Fold::value`].
pub(super) fn check_sites<'m>(
    sites: &mut Sites<'m>,
    probe: &Probe,
    fold: &mut Fold<'m>,
) -> Result<(), OnnxError> {
    for neutral in &sites.neutral {
        let added = fold.value(neutral.operand)?.as_floats().unwrap_or(&[f64::NAN]);
        if let Some(&added) = added.iter().find(|&&added| added != 0.0) {
            return Err(neutral.node.error(ConvertRefusal::NotNeutral { added }));
        }
    }
    // Layers share masks, so each combination is compared once.
    let mut checked: BTreeMap<_, Rules> = BTreeMap::new();
    for site in &mut sites.sites {
        let key = site.key();
        if let Some(rules) = checked.get(&key) {
            site.rules = rules.clone();
            continue;
        }
        let masks = Masks::of_site(site, probe, fold);
        let kept =
            masks.and_then(|masks| site.rules.keep(|rule| masks.check(probe, rule, site.biased, fold)));
        kept.map_err(|error| site.error_within(error))?;
        checked.insert(key, site.rules.clone());
    }
    Ok(())
}

/// The masks of one attention operation on one probe.
pub(super) struct Masks {
    masks: Vec<MaskValue>,
    /// The sizes of the axes between the batch and the new tokens. An axis along which no mask differs has
    /// size 1.
    heads: Vec<usize>,
    /// The slots that the operation hides by itself.
    limits: Limits,
    /// Whether the softmax has a score that no mask changes. What is added to all other scores then counts.
    has_sink: bool,
}

/// The elements of a mask.
#[derive(Debug)]
pub(super) struct MaskValue {
    value: Value,
    effect: Effect,
    /// The index of the mask in its attention operation.
    at: usize,
}

/// How far before and after its own slot a token of an `Attention` node sees, without a mask. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Limits {
    left: Option<usize>,
    right: Option<usize>,
}

impl Limits {
    /// The attributes that set the limits.
    pub(super) const ATTRIBUTES: [&str; 3] = ["is_causal", "left_window_size", "right_window_size"];

    /// Reads the attributes of an `Attention` node. Operator set 25 added the sizes of windows, where -1 is no limit.
    pub(super) fn from_node(node: &Node<'_>) -> Self {
        let [causal, left, right] = Self::ATTRIBUTES;
        let size = |name| usize::try_from(node.attribute(name)?.i?).ok();
        Self { left: size(left), right: if node.flag(causal) { Some(0) } else { size(right) } }
    }

    /// Returns the rule of the limits in a cache of this many slots, in which they count slots.
    pub(super) fn of_slots(self, capacity: usize) -> Visibility {
        let rule = Visibility::new(Mode::Linear, capacity);
        let rule = self.left.map_or(rule, |left| rule.left(left));
        self.right.map_or(rule, |right| rule.right(right))
    }

    fn hides(self, own: usize, slot: usize) -> bool {
        let is_beyond = |limit: Option<usize>, distance: usize| limit.is_some_and(|limit| distance > limit);
        is_beyond(self.left, own.saturating_sub(slot)) || is_beyond(self.right, slot.saturating_sub(own))
    }
}

impl Masks {
    /// Creates the masks of an `Attention` node.
    pub(super) fn of_node(mask: Option<(Value, Effect)>, rank: usize, limits: Limits) -> Self {
        let masks = mask.into_iter().map(|(value, effect)| MaskValue { value, effect, at: 0 }).collect();
        Self::new(masks, rank, limits, false)
    }

    /// Creates the masks of scores of this rank.
    fn new(masks: Vec<MaskValue>, rank: usize, limits: Limits, has_sink: bool) -> Self {
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
        for (at, mask) in site.masks.iter().enumerate() {
            ranks.push(match mask.layout {
                Layout::Separate { rank } => rank,
                Layout::Merged { .. } => RANK,
            });
            let (name, effect) = match mask.kind {
                MaskKind::Add { operand } => (operand, Effect::Added),
                MaskKind::Where { condition, filler, visible_where } => {
                    hidden(fold.value(filler)?).map_err(|error| mask.node.error_within(error))?;
                    (condition, Effect::Chosen { visible_where })
                }
                MaskKind::Floor { floor } => {
                    hidden(fold.value(floor)?).map_err(|error| mask.node.error_within(error))?;
                    continue;
                }
            };
            let mut value = fold.value(name)?.clone();
            if value.data.is_none() {
                return Err(ConvertRefusal::MaskUnknown.into());
            }
            if let (Layout::Merged { .. }, &[rows, new, slots]) = (mask.layout, value.shape.as_slice()) {
                value.shape = match rows.checked_div(probe.batch) {
                    Some(heads) if rows.is_multiple_of(probe.batch) => vec![probe.batch, heads, new, slots],
                    _ => vec![1, rows, new, slots],
                };
            }
            masks.push(MaskValue { value, effect, at });
        }
        // A mask that differs between heads has an axis between batch and tokens.
        Ok(Self::new(masks, ranks.into_iter().max().unwrap_or_default(), Limits::default(), site.has_sink))
    }

    fn heads(&self) -> usize {
        self.heads.iter().copied().fold(1, usize::saturating_mul)
    }

    /// Returns the rule that the masks follow for the last token of the first sample, and the index of the mask
    /// that adds the bias. The sample must have no padding.
    pub(super) fn rule(&self, probe: &Probe, fold: &Fold<'_>) -> Result<(Rule, usize), OnnxError> {
        let mut biased = 0;
        let mut rule = Rule::default();
        let Some(token) = probe.new.checked_sub(1) else { return Ok((rule, biased)) };
        let read = [self.heads(), self.masks.len(), probe.total()];
        fold.charge(read.into_iter().fold(1, usize::saturating_mul))?;
        for mask in &self.masks {
            let slopes = (0..self.heads()).map(|head| self.slope(mask, probe, head, token));
            let slopes = slopes.collect::<Result<Vec<_>, _>>()?;
            // `check` refuses the bias of a second mask.
            if rule.bias.is_some() || slopes.iter().all(|&slope| slope == 0.0) {
                continue;
            }
            rule.bias = Some(Bias { heads: self.heads.clone(), slopes, distance: Distance::Slots });
            biased = mask.at;
        }
        let row = Row { probe, sample: 0, token, distances: rule.distances(probe, 0, token) };
        let bases = self.bases(&row, 0)?;
        for seen in 0..probe.total() {
            let slot = probe.total().saturating_sub(seen).saturating_sub(1);
            if self.score(&row, &bases, (&rule, biased), (0, slot))?.is_hidden {
                // A token that does not see itself is an error that `check` reports.
                rule.window = (seen > 0).then_some(Window { size: seen, distance: Distance::Slots });
                break;
            }
        }
        Ok((rule, biased))
    }

    /// Returns what a head adds for each step of the distance.
    ///
    /// It is the difference of two neighbours, and of those with the smallest numbers, which are rounded least.
    fn slope(&self, mask: &MaskValue, probe: &Probe, head: usize, token: usize) -> Result<f64, OnnxError> {
        if !matches!(mask.effect, Effect::Added) {
            return Ok(0.0);
        }
        let mut smallest = f64::INFINITY;
        let mut slope = 0.0;
        let mut before: Option<f64> = None;
        for slot in 0..probe.total() {
            let added = self.added(mask, (0, head, token, slot))?;
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

    /// Compares the rule with what is added to the score of every slot for every real token in every head.
    pub(super) fn check(
        &self,
        probe: &Probe,
        rule: &Rule,
        biased: usize,
        fold: &Fold<'_>,
    ) -> Result<(), OnnxError> {
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
                    let bases = self.bases(&row, head)?;
                    for (slot, &is_visible) in visible.iter().enumerate() {
                        let score = self.score(&row, &bases, (rule, biased), (head, slot))?;
                        if let Some((added, linear)) = score.other.filter(|_| !score.is_hidden) {
                            return Err(ConvertRefusal::Bias { head, position, slot, added, linear }.into());
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

    /// Returns what each mask adds to the score of the token's own slot, or 0 if that hides the slot. If the masks add
    /// more than [`MAX_BASE`] together, all are 0. Numbers are compared with them, because a softmax ignores what is
    /// added to all scores of a token.
    fn bases(&self, row: &Row<'_>, head: usize) -> Result<Vec<f64>, OnnxError> {
        let base = |mask| {
            let own = self.added(mask, (row.sample, head, row.token, row.own()))?;
            Ok::<_, OnnxError>(if own > HIDDEN && !self.has_sink { own } else { 0.0 })
        };
        let mut bases = self.masks.iter().map(base).collect::<Result<Vec<_>, _>>()?;
        if bases.iter().sum::<f64>() > MAX_BASE {
            bases.fill(0.0);
        }
        Ok(bases)
    }

    /// Returns what the masks together do to a score.
    fn score(
        &self,
        row: &Row<'_>,
        bases: &[f64],
        (rule, biased): (&Rule, usize),
        (head, slot): (usize, usize),
    ) -> Result<Score, OnnxError> {
        let is_hidden = self.limits.hides(row.own(), slot);
        let mut score = Score { is_hidden, other: None };
        for (mask, base) in self.masks.iter().zip(bases) {
            let absolute = self.added(mask, (row.sample, head, row.token, slot))?;
            let added = absolute - base;
            let (mut linear, mut tolerance) = (0.0, 0.0);
            if rule.bias.is_some() && mask.at == biased {
                linear = rule.slope(head) * row.distances.get(slot).copied().unwrap_or_default();
                tolerance = ROUNDINGS * unit_of(mask.value.element) * (absolute.abs() + base.abs());
            }
            let difference = added - linear;
            if absolute.is_finite() && difference.abs() <= tolerance {
                continue;
            }
            if added <= HIDDEN || difference <= HIDDEN {
                score.is_hidden = true;
            } else {
                score.other.get_or_insert((added, linear));
            }
        }
        Ok(score)
    }

    /// Returns what a mask adds to a score. A slot that is not chosen gets minus infinity.
    fn added(
        &self,
        mask: &MaskValue,
        (sample, head, token, slot): (usize, usize, usize, usize),
    ) -> Result<f64, OnnxError> {
        let at = element_of(&mask.value.shape, &self.heads, (sample, head, token, slot));
        let added = match (mask.effect, &mask.value.data, at) {
            (Effect::Chosen { visible_where }, Some(Values::Bools(flags)), Some(at)) => {
                flags.get(at).map(|&flag| if flag == visible_where { 0.0 } else { f64::NEG_INFINITY })
            }
            (Effect::Added, Some(Values::Floats(numbers)), Some(at)) => numbers.get(at).copied(),
            _ => None,
        };
        added.ok_or_else(|| ConvertRefusal::MaskUnknown.into())
    }
}

/// The scores of one token of a sample.
struct Row<'p> {
    probe: &'p Probe,
    sample: usize,
    token: usize,
    /// The distance of each slot from the token.
    distances: Vec<f64>,
}

impl Row<'_> {
    /// Returns the slot of the token.
    fn own(&self) -> usize {
        self.probe.slot_of(self.token)
    }
}

/// What masks do to a score.
struct Score {
    is_hidden: bool,
    /// The first number that is added instead of the bias, and the bias.
    other: Option<(f64, f64)>,
}

/// The effect of one element of a mask on a score.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// The element is added.
    Added,
    /// The score is kept if the element equals `visible_where`.
    Chosen { visible_where: bool },
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

/// Returns the index of the mask's element for a score, or `None` if the shapes do not broadcast. `heads` has
/// the sizes of the axes between the batch and the new tokens.
pub(super) fn element_of(
    shape: &[usize],
    heads: &[usize],
    (sample, head, token, slot): (usize, usize, usize, usize),
) -> Option<usize> {
    let mut rest = head;
    let inner = heads.iter().rev().map(|&size| {
        let index = rest.checked_rem(size).unwrap_or_default();
        rest = rest.checked_div(size).unwrap_or_default();
        index
    });
    let score = [slot, token].into_iter().chain(inner).chain([sample]);
    let mut step = 1_usize;
    let mut place = 0_usize;
    for (&size, index) in shape.iter().rev().zip(score) {
        if size != 1 {
            if index >= size {
                return None;
            }
            place = place.checked_add(index.checked_mul(step)?)?;
        }
        step = step.checked_mul(size)?;
    }
    (shape.len() <= heads.len().saturating_add(3)).then_some(place)
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

#[cfg(test)]
mod tests {
    use kvscatter::{ElementType, Mode};

    use super::{Bias, Distance, Inputs, Probe, Rule, SAMPLES, Visibility};
    use crate::convert::ring::{Rings, Slots};
    use crate::convert::{ConvertOptions, WindowedCaches, convert};
    use crate::decoder::Decoder;
    use crate::fold::{Fold, Value, lowest};
    use crate::support::{Nodes, first, graph_mut, insert, load, maker, reroute};
    use crate::{Graph, Model};

    /// The nodes that a conversion writes state the rule a second time, because a runtime evaluates them.
    #[test]
    fn the_mask_of_a_converted_decoder_is_the_rule() {
        let model = load("mobius-llama-dynamic");
        let compared = for_each_step(&model, 1, |probe, capacity, mask| {
            assert_eq!(mask.shape, [SAMPLES, 1, probe.new, capacity]);
            assert_eq!(mask.as_bools(), Some(rule(probe, capacity).as_slice()), "{probe:?}");
        });
        assert_eq!(compared, 252);
    }

    /// A window keeps its meaning with padding anywhere, whether it counts slots or real tokens.
    #[test]
    fn a_converted_window_shows_real_tokens_what_the_exported_one_does() {
        let (max_seq, mut compared) = (24, 0);
        let counts = [Distance::Slots, Distance::Tokens].into_iter();
        for (distance, size) in counts.flat_map(|distance| [2, 3, 12, 20].map(move |size| (distance, size))) {
            let exported = with_window(size, distance);
            let options = ConvertOptions::new(max_seq).windowed(WindowedCaches::Mask);
            let converted =
                convert(&exported, options).unwrap_or_else(|it| panic!("{size} {distance:?}: {it}"));
            assert!(converted.windows.iter().all(|it| it.window == Some(size)), "{:?}", converted.windows);
            let [before, after] = [&exported, &converted.model].map(|model| model.graph().unwrap());
            let inputs = Inputs::from_decoder(&Decoder::from_graph(&before).unwrap()).unwrap();
            for holes in (0..max_seq).collect::<Vec<_>>().chunks(SAMPLES) {
                let holes: Vec<_> = holes.iter().map(|&first| first..first + 1 + size % 3).collect();
                let probe = Probe::new(SAMPLES, max_seq / 2, max_seq / 2).padded(&holes);
                let mut fold = Fold::new(&before, None);
                probe.feed(&inputs, &mut fold).unwrap();
                let before = fold.value(mask_of(&before)).unwrap();
                let after = mask(&after, &inputs, &probe, Slots::linear(max_seq));
                assert_eq!(before.shape, after.shape);
                let rows =
                    before.as_bools().unwrap().chunks(max_seq).zip(after.as_bools().unwrap().chunks(max_seq));
                for (row, (before, after)) in rows.enumerate() {
                    let (sample, own) = (row / probe.new, probe.past + row % probe.new);
                    if probe.is_real(sample, own) {
                        assert_eq!(before[..=own], after[..=own], "{distance:?} {size} {probe:?}");
                        assert!(after[own + 1..].iter().all(|is_seen| !is_seen));
                        compared += 1;
                    }
                }
            }
        }
        assert_eq!(compared, 2112);
    }

    /// Returns a decoder whose mask has a window of slots or of real tokens. Its attention is causal.
    fn with_window(size: usize, distance: Distance) -> Model {
        let mut model = load("mobius-llama-dynamic");
        let mask = mask_of(&model.graph().unwrap()).to_owned();
        let counted = match distance {
            Distance::Tokens => "attention_mask",
            Distance::Slots => "Cast(Equal(attention_mask, attention_mask)) {to=int64}",
        };
        let graph = graph_mut(&mut model);
        reroute(graph, &mask, "with_window");
        let place = maker(graph, &mask);
        let nodes = format!(
            "counts = CumSum({counted}, 1)
            own = Slice(counts, Neg(Shape(input_ids) {{start=1}}), [{}], [1])
            near = Less(Sub(Unsqueeze(own, [2]), Unsqueeze(counts, [1])), {size})
            with_window = And({mask}, Unsqueeze(near, [1]))",
            i64::MAX
        );
        insert(&mut model, place.saturating_add(1), Nodes::parse(&nodes));
        model
    }

    /// The nodes that compute what a query sees in a ring state the rule a second time as well. Without positions, the
    /// mask of real tokens shows the padding.
    #[test]
    fn the_mask_of_a_ring_is_the_rule() {
        let model = load("decoders/optimum-0.1-mistral-window");
        let (max_seq, chunk, rewind) = (24, 3, 2);
        let rings = WindowedCaches::Ring { chunk: Some(chunk), rewind };
        let mut compared = 0;
        for model in [without_positions(&model), model] {
            let inputs = model.graph().unwrap();
            let inputs = Inputs::from_decoder(&Decoder::from_graph(&inputs).unwrap()).unwrap();
            let converted = convert(&model, ConvertOptions::new(max_seq).windowed(rings)).unwrap();
            let (ring, caches) = converted.rings.first_key_value().unwrap();
            assert_eq!((ring.capacity, ring.window, *caches), (3 + chunk + rewind, 4, 4));
            let rule = Visibility::new(Mode::Circular, ring.capacity).causal().window(ring.window);
            let mut rings = Rings::default();
            for cache in &Decoder::from_graph(&model.graph().unwrap()).unwrap().caches {
                rings.insert(cache.past, *ring);
            }
            let graph = converted.model.graph().unwrap();
            for (past, new) in (0..max_seq - chunk).flat_map(|past| (1..=chunk).map(move |new| (past, new))) {
                let padding = [0, past.min(1), past.min(9)];
                let probe = Probe::new(SAMPLES, past, new).padded(&padding.map(|padding| 0..padding));
                let mask = mask(&graph, &inputs, &probe, Slots { max_seq, rings: &rings });
                assert_eq!(mask.shape, [SAMPLES, 1, new, ring.capacity]);
                let mut expected = Vec::new();
                for (padding, query) in
                    padding.iter().flat_map(|padding| (past..past + new).map(move |q| (padding, q)))
                {
                    let [tokens, query, padding] =
                        [past + new, query, *padding].map(|it| i64::try_from(it).unwrap());
                    let seen = rule.positions(tokens, query);
                    let slots = rule.slots(seen.start.max(padding)..seen.end);
                    expected.extend(
                        (0..ring.capacity).map(|slot| slots.iter().any(|slots| slots.contains(&slot))),
                    );
                    compared += 1;
                }
                assert_eq!(mask.as_bools(), Some(expected.as_slice()), "{probe:?}");
            }
        }
        assert_eq!(compared, 2 * 21 * SAMPLES * (1 + 2 + 3));
    }

    /// Returns the decoder without an input for positions. It then counts real tokens.
    fn without_positions(model: &Model) -> Model {
        let mut model = model.clone();
        let nodes = format!(
            "counts = CumSum(attention_mask, 1)
            positions = Sub(Slice(counts, Neg(Shape(input_ids) {{start=1}}), [{}], [1]), 1)",
            i64::MAX
        );
        let graph = graph_mut(&mut model);
        reroute(graph, "position_ids", "positions");
        graph.input.retain(|input| input.name.as_deref() != Some("position_ids"));
        insert(&mut model, 0, Nodes::parse(&nodes));
        model
    }

    /// The nodes that compute a bias state its rule a second time as well.
    #[test]
    fn the_bias_of_a_converted_decoder_is_the_rule() {
        for distance in [Distance::Tokens, Distance::Slots] {
            let slopes = [0.125, 0.03125, 0.007_812_5, 0.001_953_125].to_vec();
            let bias = Some(Bias { heads: vec![4], slopes, distance });
            let rule = Rule { window: None, bias };
            let compared = for_each_step(&falcon(distance), 3, |probe, capacity, mask| {
                let mut expected = Vec::new();
                for (sample, head, token) in places(probe, 4) {
                    let mut row = rule.row(probe, sample, token);
                    row.resize(capacity, None);
                    let hidden = lowest(ElementType::Float32).unwrap();
                    expected.extend(row.into_iter().map(|it| it.map_or(hidden, |it| it * rule.slope(head))));
                }
                assert_eq!(mask.shape, [SAMPLES, 4, probe.new, capacity]);
                assert_eq!(mask.as_floats(), Some(expected.as_slice()), "{distance:?} {probe:?}");
            });
            assert_eq!(compared, 242);
        }
    }

    /// Returns a decoder with `ALiBi`. As exported, it counts real tokens.
    fn falcon(distance: Distance) -> Model {
        let mut model = load("decoders/optimum-1.18-falcon");
        if distance == Distance::Slots {
            let graph = graph_mut(&mut model);
            let sum = first(graph, "CumSum");
            for name in graph.node.iter_mut().skip(sum).take(5).flat_map(|node| &mut node.input) {
                if name == "attention_mask" {
                    "ones".clone_into(name);
                }
            }
            let ones = "ones = Cast(Equal(attention_mask, attention_mask)) {to=int64}";
            insert(&mut model, 0, Nodes::parse(ones));
        }
        model
    }

    fn places(probe: &Probe, heads: usize) -> Vec<(usize, usize, usize)> {
        let mut places = Vec::new();
        for sample in 0..probe.batch {
            for head in 0..heads {
                places.extend((0..probe.new).map(|token| (sample, head, token)));
            }
        }
        places
    }

    /// Converts a decoder to small caches and calls a function with every step, the number of slots, and the mask
    /// that attention reads. Returns the number of steps.
    #[expect(clippy::arithmetic_side_effects, reason = "the numbers are small")]
    fn for_each_step(model: &Model, least: usize, check: impl Fn(&Probe, usize, &Value)) -> usize {
        let graph = model.graph().unwrap();
        let inputs = Inputs::from_decoder(&Decoder::from_graph(&graph).unwrap()).unwrap();
        let mut compared = 0;
        for capacity in least..=6 {
            let converted = convert(model, capacity).unwrap();
            let graph = converted.model.graph().unwrap();
            for (past, new) in
                (0..capacity).flat_map(|past| (1..=capacity - past).map(move |new| (past, new)))
            {
                for padding in 0..=past + new {
                    let probe = Probe::new(SAMPLES, past, new).padded(&[0..padding, padding..padding + 1]);
                    check(&probe, capacity, &mask(&graph, &inputs, &probe, Slots::linear(capacity)));
                    compared += 1;
                }
            }
        }
        compared
    }

    /// Returns the mask that the attention of a converted decoder reads.
    fn mask(graph: &Graph<'_>, inputs: &Inputs<'_>, probe: &Probe, slots: Slots<'_>) -> Value {
        let mut fold = Fold::new(graph, None);
        probe.feed_static(graph, "write_indices", inputs, slots, false, &mut fold).unwrap();
        fold.value(mask_of(graph)).unwrap().clone()
    }

    /// Returns the name of the mask of the first attention.
    fn mask_of<'m>(graph: &Graph<'m>) -> &'m str {
        graph.nodes().iter().find(|node| node.is("Attention")).unwrap().input(3).unwrap()
    }

    /// Returns the mask by the rule and by which tokens are real.
    fn rule(probe: &Probe, capacity: usize) -> Vec<bool> {
        let rule = Visibility::new(Mode::Linear, capacity).causal();
        let [past, total] = [probe.past, probe.total()].map(|tokens| i64::try_from(tokens).unwrap());
        let mut mask = Vec::new();
        for sample in 0..SAMPLES {
            for query in past..total {
                let is_visible = |slot| rule.sees(total, query, slot) && probe.is_real(sample, slot);
                mask.extend((0..capacity).map(is_visible));
            }
        }
        mask
    }
}
