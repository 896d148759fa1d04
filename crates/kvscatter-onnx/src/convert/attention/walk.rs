//! Follows every cache through the nodes that read it, to the end of each attention operation.

use std::collections::{BTreeMap, BTreeSet};

use super::site::{
    AttentionOverCaches, CacheRead, Chain, Factor, Form, Mask, Scores, ScoresLayout, Site, WeightedSum,
    ZeroAddition,
};
use super::whole::WholeCaches;
use crate::convert::probe::{ENCODER_LENGTH, Inputs, Probe, UNUSUAL_SAMPLES};
use crate::convert::refusal::ConvertRefusal;
use crate::decoder::Decoder;
use crate::fold::{Fold, lowest};
use crate::passing::OnScores;
use crate::{Graph, Node, OnnxError};

/// What the walk finds, and every value that contains one entry for each slot.
#[derive(Debug, Default)]
pub(in crate::convert) struct AttentionSites<'m> {
    pub(in crate::convert) sites: Vec<Site<'m>>,
    pub(in crate::convert) ends: Vec<WeightedSum<'m>>,
    pub(in crate::convert) over_concat: Vec<AttentionOverCaches<'m>>,
    pub(in crate::convert) neutral: Vec<ZeroAddition<'m>>,
    /// The idioms by name, each with the number of its nodes.
    pub(in crate::convert) idioms: BTreeMap<&'static str, usize>,
    states: BTreeMap<&'m str, State<'m>>,
}

/// The meaning of a value that contains one entry for each slot of the cache.
#[derive(Clone, Debug)]
pub(in crate::convert) enum State<'m> {
    /// Keys or values.
    Cache(CacheRead<'m>),
    Scores(Scores<'m>),
    /// Masked scores, and after them the score of a sink, which has no value. A softmax gives the sink a part of the
    /// weight.
    WithSink(Scores<'m>),
    /// The softmax of the scores of this site, with the slots along the last axis, times factors.
    Weights {
        site: usize,
        factors: Chain<Factor<'m>>,
    },
    /// The softmax of scores and a sink.
    WeightsWithSink {
        site: usize,
    },
    /// Flags that are computed from weights.
    Flags,
}

/// What a node with an idiom leads to.
pub(in crate::convert) enum Next<'m> {
    /// Its first output has one entry for each slot.
    State(State<'m>),
    /// Each of its outputs has one entry for each slot.
    States(State<'m>),
    /// Its output has no entry for each slot, so the walk ends.
    WeightedSum,
}

/// What a node leads to, or `None` if it does something else.
pub(in crate::convert) type NextOrNone<'m> = Result<Option<Next<'m>>, OnnxError>;

/// One thing that a node may do to a value with one entry for each slot.
pub(in crate::convert) struct Idiom {
    pub(super) name: &'static str,
    /// The operators of the default domain that may do it.
    pub(super) operators: &'static [&'static str],
    /// Returns what a node of one of the operators leads to, or `None` if it does something else.
    pub(super) next: for<'m> fn(&mut Walk<'_, 'm>, &Reading<'_, 'm>) -> NextOrNone<'m>,
}

/// A node that reads a value with one entry for each slot, and the states of its inputs.
pub(in crate::convert) struct Reading<'n, 'm> {
    pub(super) node: &'n Node<'m>,
    pub(super) states: Vec<Option<State<'m>>>,
}

/// A walk from all presents at once, in the order of the nodes.
pub(in crate::convert) struct Walk<'w, 'm> {
    pub(super) graph: &'w Graph<'m>,
    pub(super) fold: &'w mut Fold<'m>,
    pub(super) probe: &'w Probe,
    idioms: &'static [Idiom],
    /// Why the first idiom that nearly fits the current node does not fit.
    declined: Option<&'static str>,
    pub(super) sites: AttentionSites<'m>,
}

impl<'m> AttentionSites<'m> {
    /// Follows every cache to the end of each attention operation that reads it. The fold must have been fed with a
    /// [`shape_probe`]. If several idioms fit a node, the first one counts.
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::Reader`] if a node reads a value with one entry for each slot in an
    ///   unknown way.
    /// * Returns [`ConvertRefusal::Unmasked`], [`ConvertRefusal::ScoresShape`] or [`ConvertRefusal::Output`]
    ///   for an attention operation that cannot be converted.
    pub(in crate::convert) fn find(
        graph: &Graph<'m>,
        decoder: &Decoder<'m>,
        probe: &Probe,
        fold: &mut Fold<'m>,
        idioms: &'static [Idiom],
    ) -> Result<Self, OnnxError> {
        let caches = &decoder.caches;
        let mut walk = Walk { graph, fold, probe, idioms, declined: None, sites: Self::default() };
        for cache in caches {
            walk.sites.states.insert(cache.written, State::Cache(CacheRead::new(cache.past, cache.axis)));
        }
        for node in graph.nodes() {
            walk.visit(node).map_err(|error| node.error_within(error))?;
        }
        let presents: BTreeSet<_> = caches.iter().map(|cache| cache.present).collect();
        let mut outputs = graph.output_names();
        match outputs.find(|&name| walk.sites.states.contains_key(name) && !presents.contains(name)) {
            Some(name) => Err(ConvertRefusal::Output { name: name.to_owned() }.into()),
            None => Ok(walk.sites),
        }
    }

    /// Returns the sites with all heads of all samples in one axis, each with the mask that shows it.
    pub(in crate::convert) fn merged(&self) -> impl Iterator<Item = (&Site<'m>, &Mask<'m>)> {
        let is_merged = |mask: &&Mask<'m>| matches!(mask.layout, ScoresLayout::Merged { .. });
        self.sites.iter().filter_map(move |site| Some((site, site.masks().iter().find(is_merged)?)))
    }

    /// Checks that merged heads of one sample follow each other, because the new masks are in this order.
    ///
    /// # Errors
    /// Returns the errors of [`WholeCaches::check_order`], wrapped with the node that masks.
    pub(in crate::convert) fn check_order(
        &self,
        decoder: &Decoder<'m>,
        whole: &mut WholeCaches<'m>,
    ) -> Result<(), OnnxError> {
        for (site, mask) in self.merged() {
            let keys = site.scores.product.input(1).unwrap_or_default();
            if let Some(cache) = decoder.caches.iter().find(|cache| cache.past == site.past()) {
                whole.check_order(cache, keys).map_err(|error| mask.node.error_within(error))?;
            }
        }
        Ok(())
    }

    /// Returns `true` if a value has one entry for each slot.
    pub(in crate::convert) fn has_slots(&self, value: &str) -> bool {
        self.states.contains_key(value)
    }
}

/// Returns a probe whose number of tokens identifies the axis of the slots. It has at most `most` tokens, and
/// no dimension of a cache has that size.
pub(in crate::convert) fn shape_probe(decoder: &Decoder<'_>, inputs: &Inputs<'_>, most: usize) -> Probe {
    // The number of new tokens is no usual number of heads either.
    let probe = inputs.probe(UNUSUAL_SAMPLES, 0, 17.min(most.div_ceil(2)));
    let dims = decoder.caches.iter().flat_map(|cache| &cache.past_shape);
    let sizes: BTreeSet<_> =
        dims.filter_map(|dim| dim.size()).chain([probe.batch, probe.new, ENCODER_LENGTH]).collect();
    let is_size = |total: &usize| sizes.contains(total);
    // Odd numbers are tried, because sizes are rarely odd.
    let total =
        (probe.new..=most).rev().filter(|total| !total.is_multiple_of(2)).find(|total| !is_size(total));
    probe.ending(total.unwrap_or(most))
}

impl<'m> Reading<'_, 'm> {
    /// Returns the name of an input.
    pub(super) fn input(&self, slot: usize) -> &'m str {
        self.node.input(slot).unwrap_or_default()
    }

    /// Returns the name of the first output.
    pub(super) fn output(&self) -> &'m str {
        self.node.output(0).unwrap_or_default()
    }

    pub(super) fn state(&self, slot: usize) -> Option<&State<'m>> {
        self.states.get(slot).and_then(Option::as_ref)
    }

    /// Returns the state of an input if no other input has one.
    pub(super) fn only(&self, slot: usize) -> Option<&State<'m>> {
        self.slot_of_only().filter(|only| *only == slot).and_then(|slot| self.state(slot))
    }

    /// Returns the only input that has a state, and its index.
    pub(super) fn slot_of_only(&self) -> Option<usize> {
        let mut slots = self.states.iter().enumerate().filter(|(_, state)| state.is_some());
        let (slot, _) = slots.next()?;
        slots.next().is_none().then_some(slot)
    }

    /// Returns the other one of the first two inputs.
    pub(super) fn other(&self, slot: usize) -> &'m str {
        self.input(usize::from(slot == 0))
    }
}

impl<'m> Walk<'_, 'm> {
    fn visit(&mut self, node: &Node<'m>) -> Result<(), OnnxError> {
        let inputs = || node.proto().input.iter();
        let has_slots = inputs().any(|name| self.sites.states.contains_key(name.as_str()));
        if !has_slots || node.reads_shape() {
            return Ok(());
        }
        self.declined = None;
        let states = inputs().map(|name| self.sites.states.get(name.as_str()).cloned()).collect();
        match self.next(&Reading { node, states })? {
            Some(Next::State(state)) => {
                self.sites.states.extend(node.output(0).map(|output| (output, state)));
            }
            Some(Next::States(state)) => {
                self.sites.states.extend(node.outputs().map(|output| (output, state.clone())));
            }
            Some(Next::WeightedSum) => {}
            None => {
                let first = inputs().find(|name| self.sites.has_slots(name)).cloned();
                let value = first.unwrap_or_default();
                return Err(ConvertRefusal::Reader { value, reason: self.declined }.into());
            }
        }
        Ok(())
    }

    /// Returns the result of a node, or `None` if it has no idiom.
    fn next(&mut self, reading: &Reading<'_, 'm>) -> NextOrNone<'m> {
        // `is` returns true only for operators of the default domain.
        if reading.output().is_empty() || !reading.node.is(reading.node.op_type()) {
            return Ok(None);
        }
        // A decoder follows scores by this table, to prove the roles of inputs.
        let reads_scores = reading.states.iter().flatten().any(State::is_scores);
        if reads_scores && OnScores::from_node(reading.node).is_none() {
            return Ok(None);
        }
        for idiom in self.idioms.iter().filter(|idiom| idiom.operators.contains(&reading.node.op_type())) {
            if let Some(next) = (idiom.next)(self, reading)? {
                let count = self.sites.idioms.entry(idiom.name).or_default();
                *count = count.saturating_add(1);
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    /// Records why an idiom does not fit a node that it is meant for, for the message. Returns `None`.
    pub(super) fn decline(&mut self, reason: &'static str) -> NextOrNone<'m> {
        self.declined.get_or_insert(reason);
        Ok(None)
    }

    /// Returns the state of the output of a node that moves elements, with the axis on which its slots now are.
    pub(super) fn moved(&mut self, node: &Node<'m>, state: State<'m>) -> NextOrNone<'m> {
        let total = self.probe.total();
        let shape = self.fold.shape(node.output(0).unwrap_or_default())?;
        let mut axes = shape.iter().enumerate().filter(|&(_, &size)| size == total).map(|(axis, _)| axis);
        let (Some(axis), None) = (axes.next(), axes.next()) else {
            return self.decline("this node does not keep the slots in one axis");
        };
        let is_last = axis.saturating_add(1) == shape.len();
        match state {
            State::Cache(cache) => Ok(Some(Next::State(State::Cache(CacheRead { axis, ..cache })))),
            state if is_last => Ok(Some(Next::State(state))),
            _ => self.decline("this node moves the slots from the last axis of scores"),
        }
    }

    /// Returns `true` if hidden scores are still finite after a cast.
    pub(super) fn keeps_hidden(&mut self, cast: &Node<'m>, masks: &[Mask<'m>]) -> Result<bool, OnnxError> {
        let to = self.fold.value(cast.output(0).unwrap_or_default())?.element;
        let hidden = lowest(to);
        let is_finite =
            |mask: &Mask<'_>| hidden.zip(lowest(mask.element)).is_some_and(|(to, from)| to <= from);
        Ok(masks.iter().all(is_finite))
    }

    /// Returns `true` if a value has one number for each row of scores.
    pub(super) fn is_per_row(&mut self, value: &str) -> Result<bool, OnnxError> {
        Ok(self.fold.shape(value)?.last() == Some(&1))
    }

    pub(super) fn is_over_last(&mut self, softmax: &Node<'m>) -> Result<bool, OnnxError> {
        let axis = softmax.attribute("axis").and_then(|axis| axis.i).unwrap_or(-1);
        let last = self.rank(softmax.output(0).unwrap_or_default())?.saturating_sub(1);
        Ok(axis == -1 || usize::try_from(axis).is_ok_and(|axis| axis == last))
    }

    /// Returns the layout of scores, or `None` if it is not known.
    pub(super) fn layout(&mut self, scores: &str) -> Result<Option<ScoresLayout>, OnnxError> {
        let (batch, new, total) = (self.probe.batch, self.probe.new, self.probe.total());
        Ok(match *self.fold.shape(scores)? {
            [rows, .., at_new, at_slots] if (at_new, at_slots) != (new, total) || rows == 0 => None,
            ref shape @ [rows, _, .., _] if rows == batch && shape.len() >= 3 => {
                Some(ScoresLayout::Separate { rank: shape.len() })
            }
            [rows, _, _] if rows.is_multiple_of(batch) => {
                Some(ScoresLayout::Merged { heads: rows.checked_div(batch).unwrap_or(1) })
            }
            _ => None,
        })
    }

    /// Returns `true` if a value that is not computed from a cache has a dimension with the size of the
    /// slots.
    pub(super) fn spans_slots(&mut self, value: &str) -> Result<bool, OnnxError> {
        Ok(self.fold.shape(value)?.contains(&self.probe.total()))
    }

    pub(super) fn rank(&mut self, value: &str) -> Result<usize, OnnxError> {
        Ok(self.fold.shape(value)?.len())
    }
}

impl<'m> State<'m> {
    fn is_scores(&self) -> bool {
        matches!(self, Self::Scores(_) | Self::WithSink(_))
    }

    /// Returns the state after a factor, or `None` for scores and weights that no factor may follow.
    pub(super) fn times(&self, factor: Factor<'m>) -> Option<Self> {
        let mut state = self.clone();
        match &mut state {
            Self::Cache(CacheRead { factors, .. }) | Self::Weights { factors, .. } => factors.push(factor),
            Self::Scores(scores) => scores.forms.push(Form::Factor(factor)),
            Self::WithSink(_) | Self::WeightsWithSink { .. } | Self::Flags => return None,
        }
        Some(state)
    }
}
