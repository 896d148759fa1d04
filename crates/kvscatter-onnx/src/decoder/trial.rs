//! Makes up a small step of a decoder, in which the meaning of one input is tried.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::cache::Cache;
use super::roles::{Input, InputRole};
use super::shown::{self, SlotMask, Trial};
use super::state::State;
use super::step::{Step, StepInputs};
use crate::fold::{Budget, MAX_VALUES, Value};
use crate::{Dimension, Graph, ValueInfo};

/// The number of new tokens if the model leaves it open.
const NEW: usize = 3;

/// The number of cached tokens if the model leaves it open.
const PAST: usize = 4;

/// The maximum number of trials for one decoder, because each of them walks through the graph.
pub(super) const MAX_TRIALS: usize = 16;

/// The things that the second dimension of the tried input counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    New,
    Total,
    Nothing,
}

/// A decoder whose inputs are tried.
pub(super) struct TrialSetup<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) caches: &'a [Cache<'m>],
    pub(super) states: &'a [State<'m>],
    pub(super) logits: Option<&'a ValueInfo<'m>>,
    /// All masks of the caches.
    pub(super) masks: &'a [SlotMask<'m>],
    /// The number of trials that are left. Each of them walks through the graph.
    pub(super) left: Cell<usize>,
    /// The work that all trials may still do together.
    pub(super) budget: Rc<Budget>,
}

/// The sizes of a step.
struct Sizes<'m> {
    step: Step,
    symbols: BTreeMap<&'m str, usize>,
}

impl<'m> TrialSetup<'_, 'm> {
    /// Returns a step after which static caches are full. Returns `None` if no more trials are left, if no mask
    /// can prove what the tried input means, if the step or its values would be too large, if an input does not declare
    /// its rank, or if the tried input does not have one row for each sample.
    pub(super) fn trial<'t>(
        &'t self,
        inputs: &[Input<'m>],
        tried: &Input<'m>,
        counts: Counts,
    ) -> Option<Trial<'t, 'm>> {
        self.left.set(self.left.get().checked_sub(1)?);
        let masks = shown::reading(self.graph, self.masks, tried.value.name);
        // Masks prove what inputs of tokens and slots mean. The file may claim any size for the inputs of a step.
        if masks.is_empty() && counts != Counts::Nothing {
            return None;
        }
        let counts = |input: &Input<'_>| match input.role {
            InputRole::TokenIds | InputRole::Embeddings | InputRole::PositionIds => Counts::New,
            InputRole::AttentionMask | InputRole::BlockIds => Counts::Total,
            _ if input.value.name == tried.value.name => counts,
            _ => Counts::Nothing,
        };
        let sizes = self.sizes(inputs, counts);
        // The sizes come from an untrusted file.
        if sizes.step.new.saturating_mul(sizes.step.total()) > MAX_VALUES {
            return None;
        }
        if let Some(Dimension::Symbolic(symbol)) = tried.value.shape.as_ref()?.first()
            && sizes.symbols.contains_key(symbol)
        {
            return None;
        }
        // Only inputs with numbers take memory.
        let elements_left = Cell::new(MAX_VALUES);
        let tokens = StepInputs { marks_unused: true, ..sizes.step.inputs() };
        let feed = |input: &Input<'m>| {
            let open = self.open(input.role, sizes.step, counts(input));
            let shape = self.dims(input)?.iter().enumerate().map(|(axis, dim)| {
                let by_symbol = match *dim {
                    Dimension::Known(size) => return size,
                    Dimension::Symbolic(symbol) => sizes.symbols.get(symbol).copied(),
                    Dimension::Unknown => None,
                };
                by_symbol.or(open.filter(|(open, _)| *open == axis).map(|(_, size)| size)).unwrap_or(1)
            });
            let (element, shape) = (input.value.element, shape.collect::<Vec<_>>());
            let numbers = tokens.values(input.role, element, &shape);
            let value = Value::new(element, shape, numbers).ok()?;
            if value.data.is_some() || input.value.name == tried.value.name {
                elements_left.set(elements_left.get().checked_sub(value.len())?);
            }
            Some((input.value.name, value))
        };
        let feeds = inputs.iter().map(feed).collect::<Option<_>>()?;
        Some(Trial { graph: self.graph, budget: &self.budget, masks, step: sizes.step, feeds })
    }

    fn dims<'i>(&'i self, input: &'i Input<'m>) -> Option<&'i [Dimension<'m>]> {
        match input.role {
            InputRole::Past(cache) => Some(&self.caches.get(cache)?.known_shape),
            InputRole::State(state) => Some(&self.states.get(state)?.shape),
            _ => input.value.shape.as_deref(),
        }
    }

    /// Returns the axis of an input that counts tokens or slots, and its size.
    fn open(&self, role: InputRole, step: Step, counts: Counts) -> Option<(usize, usize)> {
        match (role, counts) {
            (InputRole::Past(cache), _) => {
                let cache = self.caches.get(cache)?;
                Some((cache.axis, if cache.is_static() { step.total() } else { step.past }))
            }
            (_, Counts::New) => Some((1, step.new)),
            (_, Counts::Total) => Some((1, step.total())),
            (_, Counts::Nothing) => None,
        }
    }

    fn sizes(&self, inputs: &[Input<'m>], counts: impl Fn(&Input<'_>) -> Counts) -> Sizes<'m> {
        let second = |value: &ValueInfo<'m>| value.shape.as_ref()?.get(1).copied();
        let counted = |what: Counts| {
            let inputs = inputs.iter().filter(|input| counts(input) == what);
            inputs.filter_map(|input| second(&input.value)).collect::<Vec<_>>()
        };
        let (mut pasts, mut totals, mut news) = (Vec::new(), counted(Counts::Total), counted(Counts::New));
        for cache in self.caches {
            let slots = if cache.is_static() { &mut totals } else { &mut pasts };
            slots.push(cache.capacity());
            totals.extend(cache.present_info.shape.as_ref().and_then(|shape| shape.get(cache.axis)));
        }
        let known = |dims: &[Dimension<'_>]| dims.iter().find_map(|dim| dim.size());
        let total = known(&totals);
        let new = known(&news).unwrap_or(NEW).min(total.unwrap_or(usize::MAX));
        let past = known(&pasts).or(total.map(|total| total.saturating_sub(new))).unwrap_or(PAST);
        let step = Step { past, new };
        // The logits may be those of the last token only.
        news.extend(self.logits.and_then(second));
        let mut symbols = BTreeMap::new();
        for (dims, size) in [(pasts, past), (totals, step.total()), (news, new)] {
            for dim in dims {
                if let Dimension::Symbolic(symbol) = dim {
                    symbols.entry(symbol).or_insert(size);
                }
            }
        }
        Sizes { step, symbols }
    }
}
