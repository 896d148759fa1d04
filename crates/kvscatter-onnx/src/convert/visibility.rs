//! Checks by evaluation that the masks of a decoder follow the conversion's rule: causal attention with
//! padding.

use std::collections::{BTreeMap, BTreeSet};

use super::probe::{Inputs, LAST, Probe, SAMPLES};
use super::refusal::ConvertRefusal;
use super::sites::{MaskKind, Site, Sites};
use crate::OnnxError;
use crate::fold::{Fold, Value, Values};

/// The largest number that counts as hiding a slot when it is added to the slot's score. With this number,
/// the weight of the slot underflows in float32 for all scores that differ by much less than 1e4.
const HIDDEN: f64 = -1e4;

/// The length of the longest prefill that is evaluated. Its masks have `LONG * LONG` elements.
const LONG: usize = 256;

/// Where an exported decoder supports padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    /// Any token may be padding.
    Anywhere,
    /// Only the last tokens of a first run may be padding. `GroupQueryAttention` counts the real tokens of each
    /// sample, and takes the first ones for real.
    Right,
}

/// Returns probes on which other rules give other masks than the rule.
///
/// * Prefill, chunks, and padding on the left, on the right and in between.
/// * A long prefill, the middle of the capacity, and the end of the capacity in chunks and by one token.
///   These find windows, thresholds and tables that end. The last probe is the longest.
pub(super) fn probes(inputs: &Inputs<'_>, max_seq: usize, padding: Padding) -> Vec<Probe> {
    let batch = inputs.batch();
    let samples = batch.unwrap_or(SAMPLES);
    let new = |wanted: usize| inputs.new_tokens().unwrap_or(wanted);
    let last = new(1);
    let probe = |past: usize, wanted: usize| Probe::new(samples, past, new(wanted));
    let mut probes = vec![probe(0, 4), probe(6, 3)];
    probes.extend(match padding {
        Padding::Anywhere => vec![
            probe(6, 3).padded(&[0..2, 0..0, 0..4]),
            probe(6, 3).padded(&[0..0, 3..5, 1..2]),
            probe(0, 5).padded(&[0..3, 0..1, 4..5]),
        ],
        Padding::Right => vec![probe(0, 5).padded(&[2..5, 4..5, 0..0])],
    });
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

/// Finds the window of every site on a probe, which must be the longest one.
///
/// # Errors
/// Returns the errors of [`check_sites`].
pub(super) fn find_windows<'m>(
    sites: &mut Sites<'m>,
    probe: &Probe,
    fold: &mut Fold<'_, 'm>,
) -> Result<(), OnnxError> {
    // Layers share masks, so each combination is evaluated once.
    let mut found: BTreeMap<Vec<MaskKind<'_>>, Option<usize>> = BTreeMap::new();
    for site in &mut sites.sites {
        let kinds: Vec<_> = site.masks.iter().map(|mask| mask.kind).collect();
        site.window = match found.get(&kinds) {
            Some(&window) => window,
            None => {
                let masks = Masks::of_site(site, fold).map_err(|error| site.error_within(error))?;
                let window = masks.window(probe).map_err(|error| site.error_within(error))?;
                found.insert(kinds, window);
                window
            }
        };
    }
    Ok(())
}

/// Checks that the masks of every site hide the same slots from real tokens as the rule does.
///
/// # Errors
/// * Returns [`ConvertRefusal::Visibility`] with the first token and slot that differ.
/// * Returns [`ConvertRefusal::Bias`] for a mask that adds numbers other than 0 and very negative ones.
/// * Returns the errors of [`Fold::value`].
pub(super) fn check_sites<'m>(
    sites: &Sites<'m>,
    probe: &Probe,
    fold: &mut Fold<'_, 'm>,
) -> Result<(), OnnxError> {
    for neutral in &sites.neutral {
        let added = fold.value(neutral.operand)?.as_floats().unwrap_or(&[f64::NAN]);
        if let Some(&added) = added.iter().find(|&&added| added != 0.0) {
            return Err(neutral.node.error(ConvertRefusal::Bias { added }));
        }
    }
    // Layers share masks, so each combination is compared once.
    let mut seen = BTreeSet::new();
    for site in &sites.sites {
        let rank = site.masks.iter().map(|mask| mask.rank).max();
        if !seen.insert((rank, site.masks.iter().map(|mask| mask.kind).collect::<Vec<_>>())) {
            continue;
        }
        let masks = Masks::of_site(site, fold);
        let checked = masks.and_then(|masks| masks.check(probe, site.window, fold));
        checked.map_err(|error| site.error_within(error))?;
    }
    Ok(())
}

/// The masks of one attention operation on one probe.
pub(super) struct Masks {
    masks: Vec<(Value, Effect)>,
    /// The sizes of the axes between the batch and the new tokens. An axis along which no mask differs has
    /// size 1.
    heads: Vec<usize>,
    /// Whether the operation also hides the slots after each token.
    is_causal: bool,
}

impl Masks {
    /// Creates the masks of scores of this rank.
    pub(super) fn new(masks: Vec<(Value, Effect)>, rank: usize, is_causal: bool) -> Self {
        let mut heads = vec![1; rank.saturating_sub(3)];
        for (mask, _) in &masks {
            let inner = mask.shape.iter().rev().skip(2);
            for (size, &of_mask) in heads.iter_mut().rev().zip(inner) {
                *size = of_mask.max(*size);
            }
        }
        Self { masks, heads, is_causal }
    }

    fn of_site<'m>(site: &Site<'m>, fold: &mut Fold<'_, 'm>) -> Result<Self, OnnxError> {
        let mut masks = Vec::new();
        for mask in &site.masks {
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
            let value = fold.value(name)?.clone();
            if value.data.is_none() {
                return Err(ConvertRefusal::MaskUnknown.into());
            }
            masks.push((value, effect));
        }
        // A mask that differs between heads has an axis between batch and tokens.
        let rank = site.masks.iter().map(|mask| mask.rank).max().unwrap_or_default();
        Ok(Self::new(masks, rank, false))
    }

    /// Returns the number of slots that the last token of the first sample sees, or `None` if it sees all.
    pub(super) fn window(&self, probe: &Probe) -> Result<Option<usize>, OnnxError> {
        let Some(token) = probe.new.checked_sub(1) else { return Ok(None) };
        let mut at = vec![0; self.heads.len().saturating_add(3)];
        for seen in 0..probe.total() {
            let slot = probe.total().saturating_sub(seen).saturating_sub(1);
            place(&mut at, &self.heads, (0, 0, token, slot));
            if !self.is_visible(probe, &at)? {
                // A token that does not see itself is an error that `check` reports.
                return Ok((seen > 0).then_some(seen));
            }
        }
        Ok(None)
    }

    /// Compares the rule with the visibility of every slot to every real token in every head.
    pub(super) fn check(
        &self,
        probe: &Probe,
        window: Option<usize>,
        fold: &Fold<'_, '_>,
    ) -> Result<(), OnnxError> {
        let heads = self.heads.iter().copied().fold(1, usize::saturating_mul);
        let compared = [heads, self.masks.len().max(1), probe.batch, probe.new, probe.total()];
        fold.charge(compared.into_iter().fold(1, usize::saturating_mul))?;
        let mut at = vec![0; self.heads.len().saturating_add(3)];
        let is_real = |sample, token| probe.is_real(sample, probe.past.saturating_add(token));
        for sample in 0..probe.batch {
            for token in (0..probe.new).filter(|&token| is_real(sample, token)) {
                for slot in 0..probe.total() {
                    let expected = probe.is_visible(sample, token, slot, window);
                    for head in 0..heads {
                        place(&mut at, &self.heads, (sample, head, token, slot));
                        if self.is_visible(probe, &at)? != expected {
                            let position = probe.past.saturating_add(token);
                            return Err(
                                ConvertRefusal::Visibility { position, slot, hidden: expected }.into()
                            );
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns `true` if all masks make a score visible.
    fn is_visible(&self, probe: &Probe, at: &[usize]) -> Result<bool, OnnxError> {
        let &[.., token, slot] = at else { return Ok(false) };
        let mut visible = !self.is_causal || probe.is_causal(token, slot, None);
        for (mask, effect) in &self.masks {
            visible &= effect.is_visible(mask, at)?;
        }
        Ok(visible)
    }
}

/// The effect of one element of a mask on a score.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effect {
    /// The element is added.
    Added,
    /// The score is kept if the element equals `visible_where`.
    Chosen { visible_where: bool },
}

impl Effect {
    /// Returns `true` if an element of a mask makes its score visible.
    fn is_visible(self, mask: &Value, score: &[usize]) -> Result<bool, OnnxError> {
        let at = element_of(&mask.shape, score);
        match (self, &mask.data, at) {
            (Self::Chosen { visible_where }, Some(Values::Bools(flags)), Some(at)) if at < flags.len() => {
                Ok(flags.get(at) == Some(&visible_where))
            }
            (Self::Added, Some(Values::Floats(numbers)), Some(at)) => match numbers.get(at) {
                Some(&0.0) => Ok(true),
                Some(&added) if added <= HIDDEN => Ok(false),
                Some(&added) => Err(ConvertRefusal::Bias { added }.into()),
                None => Err(ConvertRefusal::MaskUnknown.into()),
            },
            _ => Err(ConvertRefusal::MaskUnknown.into()),
        }
    }
}

/// Sets the index of a score.
fn place(at: &mut [usize], heads: &[usize], (sample, head, token, slot): (usize, usize, usize, usize)) {
    let [first, inner @ .., second_last, last] = at else { return };
    (*first, *second_last, *last) = (sample, token, slot);
    let mut rest = head;
    for (index, &size) in inner.iter_mut().zip(heads).rev() {
        *index = rest.checked_rem(size).unwrap_or_default();
        rest = rest.checked_div(size).unwrap_or_default();
    }
}

/// Returns the index of the mask's element for a score, or `None` if the shapes do not broadcast.
fn element_of(shape: &[usize], score: &[usize]) -> Option<usize> {
    let axes = shape.iter().rev().zip(score.iter().rev());
    let mut step = 1_usize;
    let mut place = 0_usize;
    for (&size, &index) in axes {
        if size != 1 {
            if index >= size {
                return None;
            }
            place = place.checked_add(index.checked_mul(step)?)?;
        }
        step = step.checked_mul(size)?;
    }
    (shape.len() <= score.len()).then_some(place)
}

/// Checks that a value is a single very negative number.
fn hidden(value: &Value) -> Result<(), OnnxError> {
    match &value.data {
        Some(Values::Floats(numbers)) => match numbers.as_slice() {
            [number] if *number <= HIDDEN => Ok(()),
            [number] => Err(ConvertRefusal::Bias { added: *number }.into()),
            _ => Err(ConvertRefusal::MaskUnknown.into()),
        },
        _ => Err(ConvertRefusal::MaskUnknown.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kvscatter::Mode;
    use kvscatter::visibility::Visibility;

    use super::{Inputs, Probe, SAMPLES};
    use crate::convert::convert;
    use crate::decoder::Decoder;
    use crate::fold::{Fold, Values};
    use crate::{Graph, Model};

    /// The nodes that a conversion writes state the rule a second time, because a runtime evaluates them.
    #[test]
    fn the_mask_of_a_converted_decoder_is_the_rule() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/mobius-llama-dynamic"));
        let model = Model::load(&folder.join("model.onnx")).unwrap();
        let (graph, mut compared) = (model.graph().unwrap(), 0);
        let decoder = Decoder::of(&graph).unwrap();
        let inputs = Inputs::of(&decoder).unwrap();
        for capacity in 1..=6 {
            let converted = convert(&model, capacity).unwrap();
            let graph = converted.model.graph().unwrap();
            for (past, new) in
                (0..capacity).flat_map(|past| (1..=capacity - past).map(move |new| (past, new)))
            {
                for padding in 0..=past + new {
                    let probe = Probe::new(SAMPLES, past, new).padded(&[0..padding, padding..padding + 1]);
                    assert_eq!(mask(&graph, &inputs, &probe, capacity), rule(&probe, capacity), "{probe:?}");
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, 252);
    }

    /// Returns the elements of the mask that the attention of a converted decoder reads.
    fn mask(graph: &Graph<'_>, inputs: &Inputs<'_>, probe: &Probe, capacity: usize) -> Vec<bool> {
        let attention = graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
        let mut fold = Fold::new(graph, None);
        probe.feed_static(&Decoder::of(graph).unwrap(), inputs, capacity, &mut fold).unwrap();
        let mask = fold.value(attention.input(3).unwrap()).unwrap();
        assert_eq!(mask.shape, [SAMPLES, 1, probe.new, capacity]);
        match &mask.data {
            Some(Values::Bools(mask)) => mask.clone(),
            other => panic!("{other:?}"),
        }
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
