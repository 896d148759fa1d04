//! The steps in which both decoders are evaluated.

use kvscatter::ElementType;

use super::write::Write;
use crate::convert::equivalence::Sample;
use crate::convert::probe::{Inputs, Probe, SAMPLES, UNUSUAL_SAMPLES};
use crate::decoder::{self, Decoder, InputRole, source_of_slots};
use crate::fold::{Fold, Value, signed};
use crate::{Dimension, Graph, OnnxError, ValueInfo};

/// The input from which the slots of new rows are computed.
pub(super) struct Positions<'m> {
    pub(super) name: &'m str,
    pub(super) element: ElementType,
    /// The number of positions if the input has one for each new token, or `None` if it has only the first one.
    pub(super) count: Option<Dimension<'m>>,
    /// Whether all samples have these positions. Otherwise the input has the first position of each sample.
    pub(super) are_shared: bool,
}

/// A decoder with the sizes that its inputs share.
pub(super) struct ScatteredDecoder<'m> {
    inputs: Inputs<'m>,
    pub(super) positions: Positions<'m>,
    pub(super) batch_dim: Dimension<'m>,
    /// The input with the tokens, or with their embeddings.
    pub(super) tokens: &'m str,
    capacity: usize,
}

/// A step, and the slot of the first new token of each sample.
pub(super) struct Step {
    probe: Probe,
    starts: Vec<usize>,
}

impl<'m> Positions<'m> {
    /// Finds the only input from whose elements the indices are computed.
    fn find(graph: &Graph<'m>, decoder: &Decoder<'m>, index: &'m str) -> Option<Self> {
        let only = source_of_slots(graph, index)?;
        let input = decoder.inputs.iter().find(|input| input.value.name == only)?;
        let ValueInfo { name, element, ref shape } = input.value;
        let count = match shape.as_deref()? {
            [] => None,
            &[count] => Some(count),
            _ => return None,
        };
        let is_integer = matches!(element, ElementType::Int64 | ElementType::Int32);
        let are_shared = input.role == InputRole::SharedPositions;
        is_integer.then_some(Self { name, element, count, are_shared })
    }
}

impl<'m> ScatteredDecoder<'m> {
    /// Determines the sizes, and the input from which all slots are computed.
    pub(super) fn new(
        graph: &Graph<'m>,
        decoder: &Decoder<'m>,
        write: &Write<'m>,
        capacity: usize,
    ) -> Result<Self, OnnxError> {
        let positions = Positions::find(graph, decoder, write.index)
            .ok_or_else(|| write.refused("its indices are not computed from one input of positions"))?;
        let inputs = Inputs::checked(decoder, capacity)?;
        if inputs.batch() == Some(0) || inputs.new_tokens() == Some(0) {
            return Err(write.refused("a step has no rows"));
        }
        let batch = decoder.caches.first().and_then(|cache| cache.past_shape.first().copied());
        let batch_dim = batch.unwrap_or(Dimension::Unknown);
        Ok(Self {
            inputs,
            positions,
            batch_dim,
            tokens: tokens(decoder).map_or("", |tokens| tokens.name),
            capacity,
        })
    }

    /// Returns the number of samples.
    pub(super) fn batch(&self) -> usize {
        self.inputs.batch().unwrap_or(UNUSUAL_SAMPLES)
    }

    /// Returns steps that begin at the first slot, in the middle, and so that the last slot is written.
    pub(super) fn steps(&self) -> Vec<Step> {
        let batch = self.batch().max(1);
        let news = self.inputs.new_tokens().map_or_else(|| vec![2.min(self.capacity), 1], |new| vec![new]);
        let mut steps = Vec::new();
        for new in news {
            let last = self.capacity.saturating_sub(new);
            let mut starts = [last, 0, last.div_ceil(2)].into_iter().cycle();
            // In the last place, so that the mask has an element for each slot.
            let probe = Probe::new(batch, last, new).padded(&[2..4, 0..1, 3..6]);
            let probe = self.inputs.with_blocks(probe);
            for _ in 0..SAMPLES.div_ceil(batch) {
                steps.push(Step { probe: probe.clone(), starts: starts.by_ref().take(batch).collect() });
            }
        }
        steps
    }

    /// Returns the samples of a step that are compared, and the slot of the first new token of each.
    pub(super) fn samples(&self, step: &Step) -> impl Iterator<Item = (Sample, usize)> {
        let (batch, starts) = (self.batch(), step.starts.clone());
        let samples = starts.into_iter().take(SAMPLES).enumerate();
        samples.map(move |(index, start)| (Sample { index, batch }, start))
    }

    /// Feeds the exported decoder, all samples of which begin at one position.
    pub(super) fn feed_exported(
        &self,
        step: &Step,
        start: usize,
        fold: &mut Fold<'m>,
    ) -> Result<(), OnnxError> {
        let Positions { name, element, count, are_shared } = self.positions;
        let Probe { batch, new, .. } = step.probe;
        let (role, shape) = match count {
            None => (InputRole::WriteIndices, Vec::new()),
            Some(_) if !are_shared => (InputRole::WriteIndices, vec![batch]),
            Some(count) => (InputRole::PositionIds, vec![count.size().unwrap_or(new)]),
        };
        let data = decoder::Step { past: start, new }.inputs().values(role, element, &shape);
        step.probe.feed(&self.inputs, fold)?;
        fold.set(name, Value { element, shape, data })
    }

    /// Feeds the new decoder, which has this input for the first position of each sample.
    pub(super) fn feed_raised(&self, step: &Step, input: &str, fold: &mut Fold<'m>) -> Result<(), OnnxError> {
        let starts = Value::ints(step.starts.iter().copied().map(signed).collect())?;
        let Positions { element, are_shared, .. } = self.positions;
        step.probe.feed(&self.inputs, fold)?;
        fold.set(input, if are_shared { starts } else { Value { element, ..starts } })
    }
}

/// Returns the input with the tokens, or with their embeddings.
fn tokens<'d, 'm>(decoder: &'d Decoder<'m>) -> Option<&'d ValueInfo<'m>> {
    decoder.inputs.iter().find(|input| input.role.is_tokens()).map(|input| &input.value)
}
