//! Checks by evaluation that the attention of a decoder reads its rings correctly.
//!
//! The decoder may come from any exporter. Its masks are evaluated for steps before and after the ring wraps, and
//! compared with the rule of [`kvscatter::visibility`]. The window is what the last token before the wrap sees. The
//! capacity is compared with [`kvscatter::ring`].
//!
//! All tokens of these steps are real, and all samples are at the same position. So a mask that treats padding
//! incorrectly is not detected.

use std::collections::BTreeMap;

use kvscatter::Mode;
use kvscatter::ring::{Feeding, Ring, least_capacity};
use kvscatter::visibility::Visibility;

use super::ring::RingSize;
use super::visibility::{HIDDEN, element_of};
use crate::decoder::{Cache, Decoder, Hazard, Input, InputRole, PrefixMask, WrongSlot};
use crate::fold::{Fold, MAX_VALUES, Value, Values};
use crate::{Dimension, ExternalData, Graph, Model, Node, NodeLabel, OnnxError};

/// The largest number of different masks that are evaluated. Decoders have one for each kind of layer.
const MAX_MASKS: usize = 16;

/// The largest number of elements of a mask that is evaluated for a long step.
const MAX_ELEMENTS: usize = 1 << 18;

/// The indices of the inputs of `Attention`.
const KEYS: usize = 1;
const VALUES: usize = 2;
const MASK: usize = 3;
const PAST_KEYS: usize = 4;
const NONPAD_KV_SEQLEN: usize = 6;
/// Its attributes that hide slots by their index.
const IS_CAUSAL: &str = "is_causal";
const LEFT_WINDOW: &str = "left_window_size";
const RIGHT_WINDOW: &str = "right_window_size";

/// The index of the input of `TensorScatter`.
const WRITE_INDICES: usize = 2;

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

/// A ring, and whether its attention reads it correctly.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedRing {
    /// The past of the ring. Keys and values of one attention are checked together, and listed separately.
    pub past: String,
    /// The attention that reads the ring, or another node if no attention does.
    pub reader: Option<NodeLabel>,
    /// The window, the largest step and the rewind for which the ring is sound. Without metadata of this project, the
    /// step is the largest one without a rewind.
    ///
    /// Otherwise it is what makes the results wrong, or the reason why the ring could not be checked.
    pub outcome: Result<RingSize, Hazard>,
}

/// Checks every ring of a decoder, once for each attention that reads it. Returns nothing for a decoder without rings.
///
/// `decoder` must have been found in the graph of `model`.
#[must_use]
pub fn check_rings(model: &Model, graph: &Graph<'_>, decoder: &Decoder<'_>) -> Vec<CheckedRing> {
    if decoder.rings().next().is_none() {
        return Vec::new();
    }
    let external = model.external_data().ok().flatten();
    let mut checker = Checker::new(graph, decoder, external.as_ref());
    checker.declared = RingSize::of_model(model).unwrap_or_default();
    decoder.rings().flat_map(|ring| checker.ring(ring)).collect()
}

/// The reason why a ring is not sound.
#[derive(Clone, Debug)]
enum Fault {
    TooSmall {
        window: usize,
        rows: usize,
        rewind: usize,
    },
    /// The metadata declares another window.
    Declared {
        window: usize,
        declared: usize,
    },
    Mask(WrongSlot),
    Unchecked(String),
}

/// The values and attributes that decide which slots of a ring an attention sees.
type Key<'m> = (usize, [Option<&'m str>; 3], [i64; 3]);

struct Checker<'a, 'm> {
    graph: &'a Graph<'m>,
    decoder: &'a Decoder<'m>,
    external: Option<&'a ExternalData>,
    /// The sizes of rings in the metadata.
    declared: Vec<RingSize>,
    /// The number of new tokens, if the model fixes it.
    fixed_new: Option<usize>,
    /// The number of tokens that a sample can have, because of other caches.
    most_tokens: usize,
    /// The capacity of the ring at each input of a node that reads one.
    capacities: BTreeMap<(usize, Option<usize>), Option<usize>>,
    /// Layers share masks, so each combination is evaluated once.
    seen: BTreeMap<Key<'m>, Result<RingSize, Fault>>,
}

/// A step in which every sample has `new` tokens from position `start` on.
#[derive(Clone, Copy, Debug)]
struct Step {
    start: usize,
    new: usize,
}

/// The slots of a ring that each new token of a step sees, in all heads.
struct Seen {
    rows: Vec<Vec<bool>>,
}

impl<'a, 'm> Checker<'a, 'm> {
    fn new(graph: &'a Graph<'m>, decoder: &'a Decoder<'m>, external: Option<&'a ExternalData>) -> Self {
        let tokens = |input: &Input<'_>| match (input.role, input.value.shape.as_deref()) {
            (InputRole::TokenIds | InputRole::Embeddings | InputRole::PositionIds, Some([_, new, ..])) => {
                known(new)
            }
            _ => None,
        };
        let read = decoder.rings().flat_map(|ring| {
            let readers = decoder.ring_readers(ring).into_iter();
            readers.map(|reader| ((reader.node.index(), reader.slot), ring.fixed_capacity()))
        });
        let linear = |cache: &Cache<'_>| cache.fixed_capacity().filter(|_| !cache.is_ring());
        Self {
            graph,
            decoder,
            external,
            declared: Vec::new(),
            fixed_new: decoder.inputs.iter().find_map(tokens),
            most_tokens: decoder.caches.iter().filter_map(linear).min().unwrap_or(usize::MAX),
            capacities: read.collect(),
            seen: BTreeMap::new(),
        }
    }

    /// Checks one ring for each node that reads it.
    fn ring(&mut self, ring: &Cache<'m>) -> Vec<CheckedRing> {
        let past = ring.past.to_owned();
        let readers = self.decoder.ring_readers(ring);
        if readers.is_empty() {
            let hazard = Fault::Unchecked("no node reads it".to_owned()).hazard(ring, None);
            return vec![CheckedRing { past, reader: None, outcome: Err(hazard) }];
        }
        let checked = readers.into_iter().map(|reader| {
            let reads = reader.node.is("Attention") && matches!(reader.slot, Some(KEYS | VALUES));
            let outcome = match reads {
                true => self.attention(ring, &reader.node),
                false => {
                    Err(Fault::Unchecked("only Attention that reads it directly is evaluated".to_owned()))
                }
            };
            let outcome = outcome.map_err(|fault| fault.hazard(ring, Some(&reader.node)));
            CheckedRing { past: past.clone(), reader: Some(reader.node.label()), outcome }
        });
        checked.collect()
    }

    /// Checks one attention that reads a ring.
    fn attention(&mut self, ring: &Cache<'m>, attention: &Node<'m>) -> Result<RingSize, Fault> {
        let unchecked = |reason: &str| Fault::Unchecked(reason.to_owned());
        let capacity = ring.fixed_capacity().filter(|&capacity| capacity > 0);
        let capacity = capacity.ok_or_else(|| unchecked("the model leaves its capacity open"))?;
        let write_indices = ring.writer.as_ref().and_then(|writer| writer.input(WRITE_INDICES));
        let write_indices = write_indices.ok_or_else(|| unchecked("it is always written at position 0"))?;
        if ring.axis.checked_add(2) != Some(ring.known_shape.len()) {
            return Err(unchecked("its slots are not the keys of its attention"));
        }
        if attention.input(PAST_KEYS).is_some() {
            return Err(unchecked("its attention has a past beside it"));
        }
        let ring_at = |slot| self.capacities.get(&(attention.index(), Some(slot))).copied().flatten();
        if [KEYS, VALUES].map(ring_at) != [Some(capacity); 2] {
            return Err(unchecked("its keys and values are not in two rings of one size"));
        }
        let inputs = [attention.input(MASK), attention.input(NONPAD_KV_SEQLEN), Some(write_indices)];
        let attributes = [IS_CAUSAL, LEFT_WINDOW, RIGHT_WINDOW].map(|name| number(attention, name));
        let key = (capacity, inputs, attributes);
        if let Some(seen) = self.seen.get(&key) {
            return seen.clone();
        }
        if self.seen.len() >= MAX_MASKS {
            return Err(Fault::Unchecked(format!("the decoder has more than {MAX_MASKS} different masks")));
        }
        let outcome = self.masks(&Reading { key });
        self.seen.insert(key, outcome.clone());
        outcome
    }

    /// Finds the window of an attention, and checks steps of several sizes.
    fn masks(&self, reading: &Reading<'m>) -> Result<RingSize, Fault> {
        let capacity = reading.capacity();
        let window = self.window(reading)?;
        let declared = self.declared.iter().find(|ring| ring.capacity == capacity && ring.window == window);
        let same_capacity = || self.declared.iter().find(|ring| ring.capacity == capacity);
        if let (None, Some(other)) = (declared, same_capacity()) {
            return Err(Fault::Declared { window, declared: other.window });
        }
        let most = Ring::new(capacity, window).most_rows(0, window);
        let ring = declared.copied().unwrap_or(RingSize {
            capacity,
            window,
            chunk: self.fixed_new.unwrap_or(most),
            rewind: 0,
        });
        let sizes = match self.fixed_new {
            Some(new) => vec![new],
            None => vec![1, 2, 3, ring.chunk, most],
        };
        for new in sizes.into_iter().filter(|&new| new <= most && is_small(new, capacity)) {
            for start in starts(capacity, window, new) {
                self.step(reading, window, Step { start, new })?;
            }
        }
        match ring.is_sound() {
            true => Ok(ring),
            false => Err(Fault::TooSmall { window, rows: ring.chunk, rewind: ring.rewind }),
        }
    }

    /// Returns the number of tokens that the last token before the wrap sees.
    fn window(&self, reading: &Reading<'m>) -> Result<usize, Fault> {
        let new = self.fixed_new.unwrap_or(1);
        if !is_small(new, reading.capacity()) {
            return Err(Fault::Unchecked("its mask has too many elements".to_owned()));
        }
        let total = reading.capacity().min(self.most_tokens);
        let start = total.checked_sub(new);
        let start =
            start.ok_or_else(|| Fault::Unchecked(format!("a step of {new} tokens does not fit into it")))?;
        let step = Step { start, new };
        let seen = self.seen_in(reading, step)?;
        let last = seen.rows.last().map(Vec::as_slice).unwrap_or_default();
        match last.iter().take(total).rev().take_while(|&&is_seen| is_seen).count() {
            0 => Err(Fault::Mask(WrongSlot {
                position: total.saturating_sub(1),
                slot: total.saturating_sub(1),
                is_seen: false,
                tokens: new,
            })),
            window => Ok(window),
        }
    }

    /// Compares what the tokens of a step see with the rule of rings. Steps that other caches cannot take are skipped.
    fn step(&self, reading: &Reading<'m>, window: usize, step: Step) -> Result<(), Fault> {
        let total = step.start.saturating_add(step.new);
        if total > self.most_tokens {
            return Ok(());
        }
        let rule = Visibility::new(Mode::Circular, reading.capacity()).causal().window(window);
        let seen = self.seen_in(reading, step)?;
        for (position, row) in (step.start..total).zip(&seen.rows) {
            for (slot, &is_seen) in row.iter().enumerate() {
                if is_seen != rule.sees(to_i64(total), to_i64(position), slot) {
                    return Err(Fault::Mask(WrongSlot { position, slot, is_seen, tokens: step.new }));
                }
            }
        }
        Ok(())
    }

    /// Evaluates the slots that the tokens of a step see, with the first convention for the inputs that is possible.
    fn seen_in(&self, reading: &Reading<'m>, step: Step) -> Result<Seen, Fault> {
        let mut first = None;
        for convention in CONVENTIONS {
            match self.seen_by(reading, step, convention) {
                Ok(seen) => return Ok(seen),
                Err(fault) => _ = first.get_or_insert(fault),
            }
        }
        Err(first.unwrap_or_else(|| Fault::Unchecked(String::new())))
    }

    fn seen_by(&self, reading: &Reading<'m>, step: Step, convention: Convention) -> Result<Seen, Fault> {
        let (capacity, [mask, lengths, write_indices], _) = reading.key;
        let mut fold = Fold::new(self.graph, self.external);
        for input in &self.decoder.inputs {
            if let Some(value) = self.fed(input, step, capacity, convention) {
                fold.set(input.value.name, value)?;
            }
        }
        for written in ints(&mut fold, write_indices)?.unwrap_or_default() {
            let [written, start] = [written, to_i64(step.start)].map(|it| it.rem_euclid(to_i64(capacity)));
            if written != start {
                let Step { start: position, .. } = step;
                let reason = format!("position {position} is written to slot {written}, not to slot {start}");
                return Err(Fault::Unchecked(reason));
            }
        }
        let length = ints(&mut fold, lengths)?.and_then(|lengths| lengths.first().copied());
        if let Some(length) = length.filter(|&length| length > to_i64(capacity)) {
            return Err(Fault::Unchecked(format!(
                "nonpad_kv_seqlen is {length}, beyond its {capacity} slots"
            )));
        }
        let mask = mask.map(|mask| fold.value(mask).cloned()).transpose()?;
        reading.seen(step, length, mask.as_ref())
    }

    /// Returns the value of an input in a step, or `None` if it is not known what the input contains.
    fn fed(&self, input: &Input<'m>, step: Step, capacity: usize, convention: Convention) -> Option<Value> {
        let shape = input.value.shape.as_deref();
        let rank = shape.map_or(2, <[_]>::len);
        let total = step.start.saturating_add(step.new);
        let with = |shape: Vec<usize>, data| Value::new(input.value.element, shape, data).ok();
        let sized = |open: &[usize]| -> Vec<usize> {
            let declared = |axis: usize| shape.and_then(|shape| known(shape.get(axis)?));
            open.iter().enumerate().map(|(axis, &size)| declared(axis).unwrap_or(size)).collect()
        };
        // Larger inputs do not match their shape, and are not fed.
        let elements = |shape: &[usize]| shape.iter().copied().fold(1, usize::saturating_mul).min(MAX_VALUES);
        let each = |number: usize| {
            let shape = sized(&vec![1; shape.map_or(1, <[_]>::len)]);
            let elements = elements(&shape);
            with(shape, Some(Values::Ints(vec![to_i64(number); elements])))
        };
        match input.role {
            InputRole::WriteIndices => each(step.start),
            InputRole::NonpadKvSeqlen if convention.has_capped_lengths => each(total.min(capacity)),
            InputRole::NonpadKvSeqlen => each(total),
            InputRole::TokenIds => with(sized(&[1, step.new]), None),
            InputRole::Embeddings => with(sized(&[1, step.new, 1]), None),
            InputRole::PositionIds => {
                let mut open = vec![1; rank];
                *open.last_mut()? = step.new;
                let shape = sized(&open);
                let positions = (step.start..total).map(to_i64).cycle();
                with(shape.clone(), Some(Values::Ints(positions.take(elements(&shape)).collect())))
            }
            InputRole::AttentionMask if rank == 2 => {
                let slots = if convention.has_mask_of_slots { capacity } else { total };
                let shape = sized(&[1, slots]);
                let slots = shape.last().copied()?;
                let is_real = (0..slots).map(|slot| slot < total).cycle().take(elements(&shape));
                with(shape, Some(Values::flags(input.value.element, is_real)))
            }
            InputRole::Past(cache) => {
                let cache = self.decoder.caches.get(cache)?;
                let size = |(axis, dim): (usize, &Dimension<'_>)| match known(dim) {
                    None if axis == cache.axis => capacity,
                    size => size.unwrap_or(1),
                };
                with(cache.known_shape.iter().enumerate().map(size).collect(), None)
            }
            _ => None,
        }
    }
}

/// Returns `true` if the masks of a step have few enough elements.
fn is_small(new: usize, capacity: usize) -> bool {
    new > 0 && new.saturating_mul(capacity) <= MAX_ELEMENTS
}

/// An attention that reads a ring.
struct Reading<'m> {
    key: Key<'m>,
}

impl Reading<'_> {
    fn capacity(&self) -> usize {
        self.key.0
    }

    /// Returns the slots that the tokens of a step see. `length` is the number of slots in use, if the attention
    /// reads it.
    fn seen(&self, step: Step, length: Option<i64>, mask: Option<&Value>) -> Result<Seen, Fault> {
        let capacity = self.capacity();
        let mask = mask.map(|mask| RingMask::new(mask, step.new, capacity)).transpose()?;
        // Attention counts slots, as in a linear cache. Without a length, the first query is at slot 0.
        let (_, _, [is_causal, left, right]) = self.key;
        let rule = Visibility::new(Mode::Linear, capacity);
        let rule = if is_causal == 1 { rule.causal() } else { rule };
        let rule = usize::try_from(left).map_or(rule, |left| rule.left(left));
        let rule = usize::try_from(right).map_or(rule, |right| rule.right(right));
        let tokens = length.unwrap_or(to_i64(capacity));
        let first = length.map_or(0, |length| length.saturating_sub(to_i64(step.new)));
        let sees = |token: usize, slot: usize| {
            rule.sees(tokens, first.saturating_add(to_i64(token)), slot)
                && mask.as_ref().is_none_or(|mask| mask.shows(token, slot))
        };
        let row = |token| (0..capacity).map(|slot| sees(token, slot)).collect();
        Ok(Seen { rows: (0..step.new).map(row).collect() })
    }
}

/// A mask that attention reads, of one sample.
struct RingMask<'v> {
    value: &'v Value,
    heads: usize,
    /// The number of slots that the mask covers. Attention hides the slots after them.
    columns: usize,
}

impl<'v> RingMask<'v> {
    fn new(value: &'v Value, new: usize, capacity: usize) -> Result<Self, Fault> {
        let unchecked = |reason: String| Err(Fault::Unchecked(reason));
        if !matches!(value.data, Some(Values::Bools(_) | Values::Floats(_))) {
            return unchecked("its mask depends on more than lengths and positions".to_owned());
        }
        let size = |from_last: usize| value.shape.iter().rev().nth(from_last).copied().unwrap_or(1);
        let (columns, rows) = (size(0), size(1));
        if columns > capacity || ![1, new].contains(&rows) {
            let shape = &value.shape;
            return unchecked(format!("its mask has shape {shape:?} in a step of {new} tokens"));
        }
        let columns = if columns == 1 { capacity } else { columns };
        Ok(Self { value, heads: size(2), columns })
    }

    /// Returns `true` if a slot is visible in a head. A slot that is not visible in all heads is hidden.
    fn shows(&self, token: usize, slot: usize) -> bool {
        let visible = |head: usize| {
            let at = element_of(&self.value.shape, &[self.heads], (0, head, token, slot))?;
            match &self.value.data {
                Some(Values::Bools(flags)) => flags.get(at).copied(),
                Some(Values::Floats(added)) => added.get(at).map(|&added| added > HIDDEN),
                _ => None,
            }
        };
        slot < self.columns && (0..self.heads).all(|head| visible(head) == Some(true))
    }
}

impl Fault {
    fn hazard(self, ring: &Cache<'_>, reader: Option<&Node<'_>>) -> Hazard {
        let past = ring.past.to_owned();
        let capacity = ring.fixed_capacity().unwrap_or_default();
        let unchecked =
            |past, reason| Hazard::RingUnchecked { past, reader: reader.map(Node::label), reason };
        match self {
            Self::TooSmall { window, rows, rewind } => {
                let least = least_capacity(window, rows, rewind, Feeding::Idle);
                Hazard::RingTooSmall { past, capacity, window, rows, rewind, least }
            }
            Self::Declared { window, declared } => Hazard::RingDiffers { past, window, declared },
            Self::Mask(wrong) => match (reader, reader.and_then(by_index)) {
                (None, _) => unchecked(past, "no node reads it".to_owned()),
                (Some(node), Some(by)) => {
                    Hazard::CircularPrefixMask { past, attention: node.label(), by, wrong }
                }
                (Some(node), None) => Hazard::RingMask { past, attention: node.label(), wrong },
            },
            Self::Unchecked(reason) => unchecked(past, reason),
        }
    }
}

impl From<OnnxError> for Fault {
    fn from(error: OnnxError) -> Self {
        Self::Unchecked(format!("its mask cannot be evaluated: {error}"))
    }
}

/// Returns how an attention hides slots by their index, or `None` if it does not.
fn by_index(attention: &Node<'_>) -> Option<PrefixMask> {
    let has_window = [LEFT_WINDOW, RIGHT_WINDOW].iter().any(|name| number(attention, name) >= 0);
    match attention.input(MASK) {
        _ if number(attention, IS_CAUSAL) == 1 => Some(PrefixMask::IsCausal),
        _ if has_window => Some(PrefixMask::Window),
        None if attention.input(NONPAD_KV_SEQLEN).is_some() => Some(PrefixMask::NonpadKvSeqlen),
        _ => None,
    }
}

/// Returns an attribute of an attention. -1 means that there is no limit.
fn number(attention: &Node<'_>, name: &str) -> i64 {
    attention.attribute(name).and_then(|attribute| attribute.i).unwrap_or(-1)
}

/// Returns positions before the wrap, around it, and several rounds after it.
fn starts(capacity: usize, window: usize, new: usize) -> Vec<usize> {
    let round = |rounds: usize, more: usize| capacity.saturating_mul(rounds).saturating_add(more);
    vec![
        0,
        window,
        capacity.saturating_sub(new),
        capacity.saturating_sub(1),
        capacity,
        round(1, 1),
        round(1, window),
        round(2, 0).saturating_sub(1),
        round(5, 2),
    ]
}

/// Returns the elements of integers, or `None` if there is no value.
fn ints(fold: &mut Fold<'_, '_>, name: Option<&str>) -> Result<Option<Vec<i64>>, Fault> {
    let Some(name) = name else { return Ok(None) };
    let values = fold.value(name)?.as_ints().map(<[i64]>::to_vec);
    values
        .map(Some)
        .ok_or_else(|| Fault::Unchecked(format!("{name:?} depends on more than lengths and positions")))
}

fn known(dim: &Dimension<'_>) -> Option<usize> {
    match dim {
        Dimension::Known(size) => Some(*size),
        _ => None,
    }
}

fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
