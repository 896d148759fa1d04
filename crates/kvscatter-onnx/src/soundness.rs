//! Checks by evaluation that the attention of a decoder reads its rings correctly.
//!
//! The decoder may come from any exporter. Its masks are evaluated for steps before and after the ring wraps, and
//! compared with the rule of [`kvscatter::visibility`]. The window is what the last token before the wrap sees. The
//! capacity is compared with [`kvscatter::ring`].
//!
//! All tokens of these steps are real, and all samples are at the same position. So a mask that treats padding
//! incorrectly is not detected.

mod seen;

use std::collections::BTreeMap;
use std::rc::Rc;

use kvscatter::Mode;
use kvscatter::ring::{Feeding, Ring, least_capacity};
use kvscatter::visibility::Visibility;

use crate::convert::{RingSize, SlotLimits};
use crate::decoder::{Cache, Decoder, Hazard, PrefixMask, Step, WrongSlot};
use crate::fold::signed;
use crate::onnx_attention::{KEYS, MASK, NONPAD_KV_SEQLEN, PAST_KEYS, VALUES};
use crate::{ExternalData, Graph, Model, Node, NodeLabel};
use seen::{Evaluation, Reading};

/// The largest number of different masks that are evaluated. Decoders have one for each kind of layer.
const MAX_MASKS: usize = 16;

/// The largest number of elements of a mask that is evaluated for a long step.
const MAX_ELEMENTS: usize = 1 << 18;

/// The index of the input of `TensorScatter`.
const WRITE_INDICES: usize = 2;

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
    let external = model.shared_external_data().ok().flatten();
    let mut checker = Checker::new(graph, decoder, external.as_ref());
    checker.declared = RingSize::of_model(model).unwrap_or_default();
    let mut outcomes = ByMask::default();
    // The scales of a ring are read with its codes.
    let rings = decoder.rings().filter(|ring| !ring.is_scales());
    rings.flat_map(|ring| checker.ring(ring, &mut outcomes)).collect()
}

/// Returns the number of tokens that the last of `tokens` tokens sees in each attention over static caches. Returns
/// `None` if a cache is a ring, has fewer slots, or is read in a way that is not evaluated, and for a decoder with more
/// masks than any real one.
///
/// `decoder` must have been found in the graph of `model`.
pub(crate) fn seen_in_static(
    model: &Model,
    graph: &Graph<'_>,
    decoder: &Decoder<'_>,
    tokens: usize,
) -> Option<BTreeMap<usize, (NodeLabel, usize)>> {
    let external = model.shared_external_data().ok().flatten();
    let evaluation = Evaluation { graph, decoder, external: external.as_ref() };
    let new = decoder.fixed_tokens().unwrap_or(1);
    let step = Step { past: tokens.checked_sub(new)?, new };
    let (mut seen, mut by_mask) = (BTreeMap::new(), ByMask::default());
    for cache in &decoder.caches {
        let capacity = cache.fixed_capacity().filter(|&capacity| !cache.is_ring() && tokens <= capacity)?;
        let write_indices = cache.writer?.input(WRITE_INDICES)?;
        for reader in decoder.readers(cache) {
            if !reader.node.is("Attention")
                || reader.node.input(PAST_KEYS).is_some()
                || !is_small(new, capacity)
            {
                return None;
            }
            if reader.slot != Some(KEYS) {
                continue;
            }
            let by_last =
                |mask: &Reading<'_>| Some(seen_before(evaluation.seen(mask, step).ok()?.last()?, tokens));
            let by_last = by_mask.result(Reading::new(&reader.node, capacity, write_indices), by_last)??;
            seen.insert(reader.node.index(), (reader.node.label(), by_last));
        }
    }
    Some(seen)
}

/// Returns how many of the last slots in use a token sees without a gap.
fn seen_before(row: &[bool], total: usize) -> usize {
    row.iter().take(total).rev().take_while(|&&is_seen| is_seen).count()
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

/// The outcomes of checks, by mask.
type Outcomes<'m> = ByMask<'m, Result<RingSize, Fault>>;

struct Checker<'a, 'm> {
    decoder: &'a Decoder<'m>,
    evaluation: Evaluation<'a, 'm>,
    /// The sizes of rings in the metadata.
    declared: Vec<RingSize>,
    /// The number of new tokens, if the model fixes it.
    fixed_new: Option<usize>,
    /// The number of tokens that a sample can have, because of other caches.
    most_tokens: usize,
    /// The capacity of the ring at each input of a node that reads one.
    capacities: BTreeMap<(usize, Option<usize>), Option<usize>>,
}

/// The results of evaluating masks. Layers share masks, so each is evaluated once.
struct ByMask<'m, T>(BTreeMap<Reading<'m>, T>);

impl<T> Default for ByMask<'_, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'m, T: Clone> ByMask<'m, T> {
    /// Returns the result for a mask, or `None` if [`MAX_MASKS`] others were evaluated.
    fn result(&mut self, mask: Reading<'m>, evaluate: impl FnOnce(&Reading<'m>) -> T) -> Option<T> {
        if !self.0.contains_key(&mask) && self.0.len() >= MAX_MASKS {
            return None;
        }
        Some(self.0.entry(mask).or_insert_with_key(evaluate).clone())
    }
}

impl<'a, 'm> Checker<'a, 'm> {
    fn new(graph: &'a Graph<'m>, decoder: &'a Decoder<'m>, external: Option<&'a Rc<ExternalData>>) -> Self {
        let read = decoder.rings().flat_map(|ring| {
            let readers = decoder.readers(ring).into_iter();
            readers.map(|reader| ((reader.node.index(), reader.slot), ring.fixed_capacity()))
        });
        let linear = |cache: &Cache<'_>| cache.fixed_capacity().filter(|_| !cache.is_ring());
        Self {
            decoder,
            evaluation: Evaluation { graph, decoder, external },
            declared: Vec::new(),
            fixed_new: decoder.fixed_tokens(),
            most_tokens: decoder.caches.iter().filter_map(linear).min().unwrap_or(usize::MAX),
            capacities: read.collect(),
        }
    }

    /// Checks one ring for each node that reads it.
    fn ring(&self, ring: &Cache<'m>, outcomes: &mut Outcomes<'m>) -> Vec<CheckedRing> {
        let past = ring.past.to_owned();
        let readers = self.decoder.readers(ring);
        if readers.is_empty() {
            let hazard = Fault::Unchecked("no node reads it".to_owned()).hazard(ring, None);
            return vec![CheckedRing { past, reader: None, outcome: Err(hazard) }];
        }
        let checked = readers.into_iter().map(|reader| {
            let reads = reader.node.is("Attention") && matches!(reader.slot, Some(KEYS | VALUES));
            let outcome = match reads {
                true => self.attention(ring, &reader.node, outcomes),
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
    fn attention(
        &self,
        ring: &Cache<'m>,
        attention: &Node<'m>,
        outcomes: &mut Outcomes<'m>,
    ) -> Result<RingSize, Fault> {
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
        let reading = Reading::new(attention, capacity, write_indices);
        outcomes.result(reading, |mask| self.masks(mask)).unwrap_or_else(|| {
            Err(Fault::Unchecked(format!("the decoder has more than {MAX_MASKS} different masks")))
        })
    }

    /// Finds the window of an attention, and checks steps of several sizes.
    fn masks(&self, reading: &Reading<'m>) -> Result<RingSize, Fault> {
        let capacity = reading.capacity;
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
            for past in starts(capacity, window, new) {
                self.step(reading, window, Step { past, new })?;
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
        if !is_small(new, reading.capacity) {
            return Err(Fault::Unchecked("its mask has too many elements".to_owned()));
        }
        let total = reading.capacity.min(self.most_tokens);
        let past = total.checked_sub(new);
        let past =
            past.ok_or_else(|| Fault::Unchecked(format!("a step of {new} tokens does not fit into it")))?;
        let step = Step { past, new };
        let seen = self.evaluation.seen(reading, step).map_err(Fault::Unchecked)?;
        let last = seen.last().map(Vec::as_slice).unwrap_or_default();
        match seen_before(last, total) {
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
        let total = step.total();
        if total > self.most_tokens {
            return Ok(());
        }
        let rule = Visibility::new(Mode::Circular, reading.capacity).causal().window(window);
        let seen = self.evaluation.seen(reading, step).map_err(Fault::Unchecked)?;
        for (position, row) in (step.past..total).zip(&seen) {
            for (slot, &is_seen) in row.iter().enumerate() {
                if is_seen != rule.sees(signed(total), signed(position), slot) {
                    return Err(Fault::Mask(WrongSlot { position, slot, is_seen, tokens: step.new }));
                }
            }
        }
        Ok(())
    }
}

/// Returns `true` if the masks of a step have few enough elements.
fn is_small(new: usize, capacity: usize) -> bool {
    new > 0 && new.saturating_mul(capacity) <= MAX_ELEMENTS
}

impl<'m> Reading<'m> {
    fn new(attention: &Node<'m>, capacity: usize, write_indices: &'m str) -> Self {
        Self {
            capacity,
            mask: attention.input(MASK),
            lengths: attention.input(NONPAD_KV_SEQLEN),
            limits: SlotLimits::from_node(attention),
            write_indices,
        }
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

/// Returns how an attention hides slots by their index, or `None` if it does not.
fn by_index(attention: &Node<'_>) -> Option<PrefixMask> {
    let has_limit = SlotLimits::from_node(attention) != SlotLimits::default();
    match attention.input(MASK) {
        _ if attention.flag("is_causal") => Some(PrefixMask::IsCausal),
        _ if has_limit => Some(PrefixMask::Window),
        None if attention.input(NONPAD_KV_SEQLEN).is_some() => Some(PrefixMask::NonpadKvSeqlen),
        _ => None,
    }
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
