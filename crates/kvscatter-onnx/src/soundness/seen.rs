//! Evaluates which slots of a ring the tokens of a step see.

use std::rc::Rc;

use crate::convert::SlotLimits;
use crate::decoder::{Decoder, Input, InputRole, Step};
use crate::fold::{Fold, Value, Values, signed};
use crate::mask_elements::{MaskEffect, ScoreAt, element_of, last_sizes};
use crate::{ExternalData, Graph};

/// A decoder whose masks are evaluated.
pub(super) struct Evaluation<'a, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) external: Option<&'a Rc<ExternalData>>,
}

/// Everything that decides which slots of a ring an attention sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reading<'m> {
    pub(super) capacity: usize,
    pub(super) mask: Option<&'m str>,
    /// The value with the number of slots in use.
    pub(super) lengths: Option<&'m str>,
    /// What the attributes of the attention hide. They count slots, as in a linear cache.
    pub(super) limits: SlotLimits,
    /// The value with the positions at which rows are written.
    pub(super) write_indices: &'m str,
}

/// What a caller may feed where a declaration leaves it open.
#[derive(Clone, Copy, Debug)]
struct Convention {
    /// Whether lengths are at most the capacity.
    has_capped_lengths: bool,
    /// Whether a mask of real tokens has one element for each slot, and not for each token.
    has_mask_of_slots: bool,
}

/// The conventions in the order in which they are tried.
const CONVENTIONS: [Convention; 4] = [
    Convention { has_capped_lengths: false, has_mask_of_slots: false },
    Convention { has_capped_lengths: true, has_mask_of_slots: false },
    Convention { has_capped_lengths: false, has_mask_of_slots: true },
    Convention { has_capped_lengths: true, has_mask_of_slots: true },
];

/// Whether each new token of a step sees each slot of a ring, in all heads.
type Seen = Vec<Vec<bool>>;

impl<'m> Evaluation<'_, 'm> {
    /// Returns the slots that the tokens of a step see, with the first convention for the inputs that is possible.
    ///
    /// # Errors
    /// Returns the reason if they cannot be evaluated.
    pub(super) fn seen(&self, reading: &Reading<'m>, step: Step) -> Result<Seen, String> {
        let mut first = None;
        for convention in CONVENTIONS {
            match self.seen_by(reading, step, convention) {
                Ok(seen) => return Ok(seen),
                Err(reason) => _ = first.get_or_insert(reason),
            }
        }
        Err(first.unwrap_or_default())
    }

    fn seen_by(&self, reading: &Reading<'m>, step: Step, convention: Convention) -> Result<Seen, String> {
        let capacity = reading.capacity;
        let mut fold = Fold::new(self.graph, self.external);
        for input in &self.decoder.inputs {
            if let Some(value) = self.fed(input, step, capacity, convention) {
                fold.set(input.value.name, value).map_err(|error| error.to_string())?;
            }
        }
        for written in ints(&mut fold, reading.write_indices)? {
            let [written, start] = [written, signed(step.past)].map(|it| it.rem_euclid(signed(capacity)));
            if written != start {
                let position = step.past;
                return Err(format!("position {position} is written to slot {written}, not to slot {start}"));
            }
        }
        let lengths = reading.lengths.map(|lengths| ints(&mut fold, lengths)).transpose()?;
        let length = lengths.and_then(|lengths| lengths.first().copied());
        if let Some(length) = length.filter(|&length| length > signed(capacity)) {
            return Err(format!("nonpad_kv_seqlen is {length}, beyond its {capacity} slots"));
        }
        let mask = reading.mask.map(|mask| value(&mut fold, mask)).transpose()?;
        let mask = mask.as_ref().map(|mask| RingMask::new(mask, step.new, capacity)).transpose()?;
        Ok(reading.rows(step, length, mask.as_ref()))
    }

    /// Returns the value of an input in a step, or `None` if it is not known what the input contains.
    fn fed(&self, input: &Input<'m>, step: Step, capacity: usize, convention: Convention) -> Option<Value> {
        let shape = input.value.shape.as_deref();
        let rank = shape.map_or(2, <[_]>::len);
        let total = step.total();
        let sized = |open: &[usize]| -> Vec<usize> {
            let declared = |axis: usize| shape.and_then(|shape| shape.get(axis)?.size());
            open.iter().enumerate().map(|(axis, &size)| declared(axis).unwrap_or(size)).collect()
        };
        let unknown = |shape: Vec<usize>| Value::shaped(input.value.element, shape).ok();
        // An input that is too large is not fed.
        let numbers = |step: Step, open: &[usize]| {
            let (element, shape) = (input.value.element, sized(open));
            let values = step.inputs().values(input.role, element, &shape)?;
            Value::new(element, shape, Some(values)).ok()
        };
        let per_sample = vec![1; shape.map_or(1, <[_]>::len)];
        match input.role {
            InputRole::NonpadKvSeqlen if convention.has_capped_lengths => {
                numbers(Step { past: total.min(capacity), new: 0 }, &per_sample)
            }
            InputRole::WriteIndices | InputRole::NonpadKvSeqlen => numbers(step, &per_sample),
            InputRole::TokenIds => unknown(sized(&[1, step.new])),
            InputRole::Embeddings => unknown(sized(&[1, step.new, 1])),
            InputRole::PositionIds => {
                let mut open = vec![1; rank];
                *open.last_mut()? = step.new;
                numbers(step, &open)
            }
            InputRole::AttentionMask | InputRole::BlockIds if rank == 2 => {
                numbers(step, &[1, if convention.has_mask_of_slots { capacity } else { total }])
            }
            InputRole::Past(cache) => {
                // The capacity of a ring is known. Other caches do not decide what a ring shows.
                let dims = &self.decoder.caches.get(cache)?.known_shape;
                unknown(dims.iter().map(|dim| dim.size().unwrap_or(1)).collect())
            }
            _ => None,
        }
    }
}

impl Reading<'_> {
    /// Returns the slots that the tokens of a step see. `length` is the number of slots in use, if the attention
    /// reads it.
    fn rows(&self, step: Step, length: Option<i64>, mask: Option<&RingMask<'_>>) -> Seen {
        // Without a length, the first query is at slot 0.
        let rule = self.limits.of_slots(self.capacity);
        let tokens = length.unwrap_or(signed(self.capacity));
        let first = length.map_or(0, |length| length.saturating_sub(signed(step.new)));
        let sees = |token: usize, slot: usize| {
            rule.sees(tokens, first.saturating_add(signed(token)), slot)
                && mask.is_none_or(|mask| mask.shows(token, slot))
        };
        let row = |token| (0..self.capacity).map(|slot| sees(token, slot)).collect();
        (0..step.new).map(row).collect()
    }
}

/// A mask that attention reads, of one sample.
struct RingMask<'v> {
    shape: &'v [usize],
    elements: &'v Values,
    effect: MaskEffect,
    heads: usize,
    /// The number of slots that the mask covers. Attention hides the slots after them.
    columns: usize,
}

impl<'v> RingMask<'v> {
    fn new(value: &'v Value, new: usize, capacity: usize) -> Result<Self, String> {
        let Some(elements @ (Values::Bools(_) | Values::Floats(_))) = &value.data else {
            return Err("its mask depends on more than lengths and positions".to_owned());
        };
        let [heads, rows, columns] = last_sizes(&value.shape);
        if columns > capacity || ![1, new].contains(&rows) {
            let shape = &value.shape;
            return Err(format!("its mask has shape {shape:?} in a step of {new} tokens"));
        }
        let columns = if columns == 1 { capacity } else { columns };
        let (shape, effect) = (&value.shape, MaskEffect::in_attention(value.element));
        Ok(Self { shape, elements, effect, heads, columns })
    }

    /// Returns `true` if a slot is visible in a head. A slot that is not visible in all heads is hidden.
    fn shows(&self, token: usize, slot: usize) -> bool {
        let visible = |head: usize| {
            let score = ScoreAt { sample: 0, head, token, slot };
            self.effect.shows(self.elements, element_of(self.shape, &[self.heads], score)?)
        };
        slot < self.columns && (0..self.heads).all(|head| visible(head) == Some(true))
    }
}

/// Returns the elements of integers.
fn ints(fold: &mut Fold<'_>, name: &str) -> Result<Vec<i64>, String> {
    let values = value(fold, name)?.as_ints().map(<[i64]>::to_vec);
    values.ok_or_else(|| format!("{name:?} depends on more than lengths and positions"))
}

fn value(fold: &mut Fold<'_>, name: &str) -> Result<Value, String> {
    fold.value(name).cloned().map_err(|error| format!("its mask cannot be evaluated: {error}"))
}
