//! Finds the sites where a decoder attends to its caches, by following each present node by node.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::probe::{Inputs, Probe};
use super::refusal::ConvertRefusal;
use super::rule::{Rule, Rules};
use crate::decoder::Decoder;
use crate::fold::{Fold, Value, lowest};
use crate::{Graph, Node, OnnxError};

/// The smallest factor by which masked scores may be multiplied. With this factor, a hidden score is still
/// far below every visible one.
const MIN_MASK_FACTOR: f64 = 1.0 / 32.0;

/// The maximum number of masks in a row that are followed. Exporters use three: a causal mask, one for
/// padding and one for a window.
const MAX_MASKS: usize = 16;

/// The masks of the scores of one attention operation, in the order in which they are applied. There is at
/// least one.
#[derive(Clone, Debug)]
pub(super) struct Site<'m> {
    /// The past of the cache with the keys.
    pub(super) past: &'m str,
    pub(super) masks: Vec<Mask<'m>>,
    /// Whether the scores of the slots are followed by the score of a sink, which no mask changes.
    pub(super) has_sink: bool,
    /// What the masks add together.
    pub(super) rules: Rules,
    /// The index of the mask that adds the bias of the rule.
    pub(super) biased: usize,
}

/// One node that masks scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask<'m> {
    pub(super) node: Node<'m>,
    pub(super) kind: MaskKind<'m>,
    /// The scores that it masks, `[batch, .., new tokens, slots]`.
    pub(super) scores: &'m str,
    /// The scores after this node.
    pub(super) output: &'m str,
    /// How the scores are laid out.
    pub(super) layout: Layout,
    /// The element type of the scores.
    pub(super) element: ElementType,
    /// Whether the scores after this node are multiplied by a factor below 1.
    is_scaled: bool,
}

/// How scores are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layout {
    /// `[batch, .., new tokens, slots]` of this rank.
    Separate { rank: usize },
    /// `[batch * heads, new tokens, slots]`.
    Merged { heads: usize },
}

/// How a node masks scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MaskKind<'m> {
    /// `scores + operand`, where the operand is 0 for a visible slot and very negative for a hidden one.
    Add { operand: &'m str },
    /// `condition ? scores : filler` if `visible_where`, and `condition ? filler : scores` otherwise.
    Where { condition: &'m str, filler: &'m str, visible_where: bool },
    /// `max(scores, floor)`, which keeps masked scores finite.
    Floor { floor: &'m str },
}

/// A node that adds zeros to scores, one for each slot. Exporters write such nodes for operators that
/// multiply, add and scale at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neutral<'m> {
    pub(super) node: Node<'m>,
    pub(super) scores: &'m str,
    /// The name of the value that contains the zeros.
    pub(super) operand: &'m str,
}

/// An `Attention` without pasts, whose keys and values are computed from caches that already have the new rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverConcat<'m> {
    pub(super) node: Node<'m>,
    /// The pasts of the caches of keys and values.
    pub(super) pasts: [&'m str; 2],
    /// Whether keys or values are multiplied by a number, which may differ between lengths.
    pub(super) is_scaled: bool,
}

/// The sites, and every value that contains one entry for each slot.
#[derive(Debug, Default)]
pub(super) struct Sites<'m> {
    pub(super) sites: Vec<Site<'m>>,
    pub(super) over_concat: Vec<OverConcat<'m>>,
    pub(super) neutral: Vec<Neutral<'m>>,
    states: BTreeMap<&'m str, State<'m>>,
}

/// The meaning of a value that contains one entry for each slot of the cache.
#[derive(Clone, Debug)]
enum State<'m> {
    /// Keys or values with their slots along this axis, which may be multiplied by a number.
    Cache { past: &'m str, axis: usize, is_scaled: bool },
    /// Scores of the keys of a cache with their slots along the last axis.
    Scores { past: &'m str, masks: Vec<Mask<'m>> },
    /// Masked scores with the slots along the last axis, and after them the score of a sink, which has no
    /// value. A softmax gives the sink a part of the weight.
    Sunk { past: &'m str, masks: Vec<Mask<'m>> },
    /// The softmax of scores, with the slots along the last axis.
    Weights,
    /// The softmax of scores and a sink.
    SunkWeights,
    /// Flags that are computed from weights.
    Flags,
}

/// The result of a node that reads a value with one entry for each slot.
enum Next<'m> {
    /// A value with one entry for each slot.
    State(State<'m>),
    /// A value that is summed over the slots, where the walk ends.
    End,
    /// The result of a node that is not part of a known form of attention.
    Unknown,
}

/// A walk from all presents at once, in the order of the nodes.
struct Walk<'w, 'm> {
    fold: &'w mut Fold<'m>,
    probe: &'w Probe,
    sites: Sites<'m>,
}

impl<'m> Sites<'m> {
    /// Follows every cache to the end of each attention operation that reads it. The fold must have been fed with a
    /// [`shape_probe`].
    ///
    /// # Errors
    /// * Returns [`ConvertRefusal::Reader`] if a node reads a value with one entry for each slot in an
    ///   unknown way.
    /// * Returns [`ConvertRefusal::Unmasked`], [`ConvertRefusal::ScoresShape`] or [`ConvertRefusal::Output`]
    ///   for an attention operation that cannot be converted.
    pub(super) fn find(
        graph: &Graph<'m>,
        decoder: &Decoder<'m>,
        probe: &Probe,
        fold: &mut Fold<'m>,
    ) -> Result<Self, OnnxError> {
        let caches = &decoder.caches;
        let mut walk = Walk { fold, probe, sites: Self::default() };
        for cache in caches {
            let state = State::Cache { past: cache.past, axis: cache.axis, is_scaled: false };
            walk.sites.states.insert(cache.written, state);
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

    /// Returns `true` if a value has one entry for each slot.
    pub(super) fn has_slots(&self, value: &str) -> bool {
        self.states.contains_key(value)
    }
}

/// Returns a probe whose number of tokens identifies the axis of the slots. It has at most `most` tokens, and
/// no dimension of a cache has that size.
pub(super) fn shape_probe(decoder: &Decoder<'_>, inputs: &Inputs<'_>, most: usize) -> Probe {
    // Neither number is a usual number of heads, so each identifies its axis.
    let (batch, new) =
        (inputs.batch().unwrap_or(11), inputs.new_tokens().unwrap_or(17.min(most.div_ceil(2))));
    let dims = decoder.caches.iter().flat_map(|cache| &cache.past_shape);
    let sizes: BTreeSet<_> = dims.filter_map(|dim| dim.size()).chain([batch, new]).collect();
    let is_size = |total: &usize| sizes.contains(total);
    // Odd numbers are tried, because sizes are rarely odd.
    let total = (new..=most).rev().filter(|total| !total.is_multiple_of(2)).find(|total| !is_size(total));
    Probe::new(batch, total.unwrap_or(most).saturating_sub(new), new)
}

impl<'m> Site<'m> {
    fn new(past: &'m str, masks: &[Mask<'m>], has_sink: bool) -> Self {
        Self { past, masks: masks.to_vec(), has_sink, rules: Rules::default(), biased: 0 }
    }

    /// Returns what the masks add together.
    pub(super) fn rule(&self) -> &Rule {
        self.rules.rule()
    }

    /// Returns a key that is equal for sites with equal masks.
    pub(super) fn key(&self) -> (bool, Vec<(Layout, MaskKind<'m>)>) {
        (self.has_sink, self.masks.iter().map(|mask| (mask.layout, mask.kind)).collect())
    }

    /// Returns the index of the mask whose place the visibility takes. A bias comes first, because hidden scores
    /// must stay finite.
    pub(super) fn hiding(&self) -> usize {
        if self.rule().bias.is_some() { self.masks.len().saturating_sub(1) } else { 0 }
    }

    /// Wraps an error with the last masking node, unless the error already names a node.
    pub(super) fn error_within(&self, error: OnnxError) -> OnnxError {
        match self.masks.last() {
            Some(last) => last.node.error_within(error),
            None => error,
        }
    }
}

impl<'m> Walk<'_, 'm> {
    fn visit(&mut self, node: &Node<'m>) -> Result<(), OnnxError> {
        let states: Vec<_> =
            node.proto().input.iter().map(|name| self.sites.states.get(name.as_str())).collect();
        if states.iter().all(Option::is_none) || node.is("Shape") || node.is("Size") {
            return Ok(());
        }
        let states: Vec<_> = states.into_iter().map(Option::<&State<'m>>::cloned).collect();
        let names = [0, 1, 2].map(|slot| node.input(slot).unwrap_or_default());
        match self.next(node, names, &states)? {
            Next::State(state) => {
                let parts = if node.is("Split") { node.proto().output.len() } else { 1 };
                let outputs = (0..parts).filter_map(|slot| node.output(slot));
                self.sites.states.extend(outputs.map(|output| (output, state.clone())));
                Ok(())
            }
            Next::End => Ok(()),
            Next::Unknown => {
                let value = names.into_iter().find(|name| self.sites.states.contains_key(name));
                Err(ConvertRefusal::Reader { value: value.unwrap_or_default().to_owned() }.into())
            }
        }
    }

    /// Returns the result of a node whose first inputs are in these states.
    fn next(
        &mut self,
        node: &Node<'m>,
        [a, b, c]: [&'m str; 3],
        states: &[Option<State<'m>>],
    ) -> Result<Next<'m>, OnnxError> {
        use State::{Cache, Flags, Scores, Sunk, SunkWeights, Weights};
        // `is` returns true only for operators of the default domain.
        if node.output(0).is_none() || !node.is(node.op_type()) {
            return Ok(Next::Unknown);
        }
        Ok(match (node.op_type(), states) {
            ("Cast", [Some(Scores { masks, .. })]) if !self.keeps_hidden(node, masks)? => Next::Unknown,
            ("Reshape" | "Flatten", [Some(Cache { axis, .. }), ..]) if self.is_regrouped(node, *axis)? => {
                Next::Unknown
            }
            (
                "Identity" | "Cast" | "Dropout" | "Transpose" | "Unsqueeze" | "Squeeze" | "Expand"
                | "Reshape" | "Flatten" | "Tile",
                [Some(state @ (Cache { .. } | Scores { .. } | Weights | Flags)), rest @ ..],
            ) if rest.iter().all(Option::is_none) => self.moved(node, state)?,
            ("Split", [Some(state @ Cache { axis, .. }), rest @ ..]) if rest.iter().all(Option::is_none) => {
                self.parts(node, state, *axis)?
            }
            ("Mul" | "Div", [Some(state), None]) if !self.spans_slots(b)? => self.scaled(node, state, b)?,
            ("Mul", [None, Some(state)]) if !self.spans_slots(a)? => self.scaled(node, state, a)?,
            ("Tanh", [Some(state @ Scores { masks, .. })]) if masks.is_empty() => self.moved(node, state)?,
            ("MatMul", [None, Some(Cache { past, axis, .. })]) if self.rank(b)? == axis.saturating_add(1) => {
                Next::State(Scores { past, masks: Vec::new() })
            }
            ("MatMul", [Some(Weights), Some(Cache { axis, .. })])
                if self.rank(b)? == axis.saturating_add(2) =>
            {
                Next::End
            }
            ("Attention", [None, Some(keys @ Cache { .. }), Some(values @ Cache { .. }), rest @ ..])
                if rest.iter().all(Option::is_none) =>
            {
                self.find_over_concat(node, [(b, keys), (c, values)])?
            }
            ("Add", [Some(Scores { past, masks }), None]) => self.added(node, (past, masks), a, b)?,
            ("Add", [None, Some(Scores { past, masks })]) => self.added(node, (past, masks), b, a)?,
            ("Where", [None, Some(Scores { past, masks }), None]) => {
                let kind = MaskKind::Where { condition: a, filler: c, visible_where: true };
                self.masked(node, (past, masks), b, kind)?
            }
            ("Where", [None, None, Some(Scores { past, masks })]) => {
                let kind = MaskKind::Where { condition: a, filler: b, visible_where: false };
                self.masked(node, (past, masks), c, kind)?
            }
            ("Max", [Some(Scores { past, masks }), None]) if !masks.is_empty() => {
                self.masked(node, (past, masks), a, MaskKind::Floor { floor: b })?
            }
            ("Max", [None, Some(Scores { past, masks })]) if !masks.is_empty() => {
                self.masked(node, (past, masks), b, MaskKind::Floor { floor: a })?
            }
            ("Softmax", [Some(Scores { past, masks })]) if self.is_over_last(node)? => {
                self.attended(node, past, masks)?
            }
            ("Concat", [Some(Scores { past, masks }), None])
                if !masks.is_empty() && self.has_sink(node, b)? =>
            {
                Next::State(Sunk { past, masks: masks.clone() })
            }
            // A softmax does not change if a number is subtracted from all scores of a row.
            ("ReduceMax", [Some(Sunk { .. }), None])
                if self.is_per_row(node.output(0).unwrap_or_default())? =>
            {
                Next::End
            }
            ("Sub", [Some(state @ Sunk { .. }), None]) if self.is_per_row(b)? => Next::State(state.clone()),
            ("Cast", [Some(state @ Sunk { masks, .. })]) if self.keeps_hidden(node, masks)? => {
                Next::State(state.clone())
            }
            ("Softmax", [Some(Sunk { past, masks })]) if self.is_over_last(node)? => {
                self.sites.sites.push(Site::new(past, masks, true));
                Next::State(SunkWeights)
            }
            ("Cast", [Some(SunkWeights)]) => Next::State(SunkWeights),
            ("Slice", [Some(SunkWeights), ..]) if self.drops_sink(node)? => Next::State(Weights),
            ("IsNaN", [Some(Weights)]) | ("Not", [Some(Flags)]) => Next::State(Flags),
            ("Where", [Some(Flags), None, Some(Weights)] | [Some(Flags), Some(Weights), None]) => {
                Next::State(Weights)
            }
            _ => Next::Unknown,
        })
    }

    /// Returns the state of a value after its elements have moved.
    fn moved(&mut self, node: &Node<'m>, state: &State<'m>) -> Result<Next<'m>, OnnxError> {
        let total = self.probe.total();
        let shape = self.fold.shape(node.output(0).unwrap_or_default())?;
        let mut axes = shape.iter().enumerate().filter(|&(_, &size)| size == total).map(|(axis, _)| axis);
        let (Some(axis), None) = (axes.next(), axes.next()) else { return Ok(Next::Unknown) };
        let is_last = axis.saturating_add(1) == shape.len();
        Ok(match state {
            State::Cache { past, is_scaled, .. } => {
                Next::State(State::Cache { past, axis, is_scaled: *is_scaled })
            }
            _ if is_last => Next::State(state.clone()),
            _ => Next::Unknown,
        })
    }

    /// Returns the state of keys and values that one cache contains.
    fn parts(&mut self, split: &Node<'m>, state: &State<'m>, axis: usize) -> Result<Next<'m>, OnnxError> {
        for output in split.proto().output.iter().filter(|output| !output.is_empty()) {
            if self.fold.shape(output)?.get(axis) != Some(&self.probe.total()) {
                return Ok(Next::Unknown);
            }
        }
        Ok(Next::State(state.clone()))
    }

    /// Returns `true` if a reshape changes what follows the axis of the slots.
    ///
    /// If the number of elements after that axis changes, the slots do not keep their order.
    fn is_regrouped(&mut self, node: &Node<'m>, axis: usize) -> Result<bool, OnnxError> {
        let total = self.probe.total();
        let elements_after =
            |shape: &[usize], axis: usize| shape.iter().skip(axis).skip(1).product::<usize>();
        let before = elements_after(self.fold.shape(node.input(0).unwrap_or_default())?, axis);
        let shape = self.fold.shape(node.output(0).unwrap_or_default())?;
        let moved = shape.iter().position(|&size| size == total);
        Ok(moved.is_none_or(|axis| elements_after(shape, axis) != before))
    }

    /// Returns `true` if hidden scores are still finite after a cast.
    fn keeps_hidden(&mut self, cast: &Node<'m>, masks: &[Mask<'m>]) -> Result<bool, OnnxError> {
        let to = self.fold.value(cast.output(0).unwrap_or_default())?.element;
        let hidden = lowest(to);
        let is_finite =
            |mask: &Mask<'_>| hidden.zip(lowest(mask.element)).is_some_and(|(to, from)| to <= from);
        Ok(masks.iter().all(is_finite))
    }

    /// Returns `true` if a node appends one column to scores.
    fn has_sink(&mut self, concat: &Node<'m>, sink: &str) -> Result<bool, OnnxError> {
        let total = self.probe.total().saturating_add(1);
        let has_column = self.fold.shape(sink)?.last() == Some(&1);
        Ok(has_column && self.fold.shape(concat.output(0).unwrap_or_default())?.last() == Some(&total))
    }

    /// Returns `true` if a value has one number for each row of scores.
    fn is_per_row(&mut self, value: &str) -> Result<bool, OnnxError> {
        Ok(self.fold.shape(value)?.last() == Some(&1))
    }

    /// Returns `true` if a `Slice` keeps the weights of all slots and drops that of the sink.
    fn drops_sink(&mut self, slice: &Node<'m>) -> Result<bool, OnnxError> {
        let ints = |fold: &mut Fold<'m>, slot: usize| match slice.input(slot) {
            None => Ok(None),
            Some(name) => Ok::<_, OnnxError>(fold.value(name)?.as_ints().map(<[i64]>::to_vec)),
        };
        let (starts, steps) = (ints(self.fold, 1)?, ints(self.fold, 4)?);
        let is_first = starts.is_some_and(|starts| starts.iter().all(|&start| start == 0));
        let is_dense = steps.is_none_or(|steps| steps.iter().all(|&step| step == 1));
        let [before, after] = [slice.input(0), slice.output(0)].map(Option::unwrap_or_default);
        let mut expected = self.fold.shape(before)?.to_vec();
        expected.last_mut().into_iter().for_each(|last| *last = self.probe.total());
        Ok(is_first && is_dense && self.fold.shape(after)? == expected)
    }

    fn is_over_last(&mut self, softmax: &Node<'m>) -> Result<bool, OnnxError> {
        let axis = softmax.attribute("axis").and_then(|axis| axis.i).unwrap_or(-1);
        let last = self.rank(softmax.output(0).unwrap_or_default())?.saturating_sub(1);
        Ok(axis == -1 || usize::try_from(axis).is_ok_and(|axis| axis == last))
    }

    /// Returns the state of scores after multiplication or division.
    ///
    /// A factor after a mask must be at most 1, so that hidden scores stay finite. It must not be too small, and at
    /// most one may differ from 1, so that hidden scores stay hidden.
    fn scaled(&mut self, node: &Node<'m>, state: &State<'m>, by: &'m str) -> Result<Next<'m>, OnnxError> {
        match state {
            State::Flags | State::Sunk { .. } | State::SunkWeights => Ok(Next::Unknown),
            State::Scores { past, masks } if !masks.is_empty() => {
                let factor = |by: f64| if node.is("Div") { by.recip() } else { by };
                let by = self.fold.value(by)?.as_floats().unwrap_or(&[f64::NAN]);
                let is_one = by.iter().all(|&by| factor(by) == 1.0);
                let is_allowed = by.iter().all(|&by| (MIN_MASK_FACTOR..=1.0).contains(&factor(by)))
                    && (is_one || masks.iter().all(|mask| !mask.is_scaled));
                if !is_allowed {
                    return Ok(Next::Unknown);
                }
                let scaled = |mask: &Mask<'m>| Mask { is_scaled: mask.is_scaled || !is_one, ..*mask };
                self.moved(node, &State::Scores { past, masks: masks.iter().map(scaled).collect() })
            }
            State::Cache { past, axis, .. } => {
                self.moved(node, &State::Cache { past, axis: *axis, is_scaled: true })
            }
            _ => self.moved(node, state),
        }
    }

    /// Ends the walk at an `Attention` that reads keys and values. In rank 3 and 4, slots are the axis before the last.
    fn find_over_concat(
        &mut self,
        node: &Node<'m>,
        operands: [(&'m str, &State<'m>); 2],
    ) -> Result<Next<'m>, OnnxError> {
        let mut attention = OverConcat { node: *node, pasts: [""; 2], is_scaled: false };
        for (found, (value, state)) in attention.pasts.iter_mut().zip(operands) {
            match state {
                State::Cache { past, axis, is_scaled } if axis.saturating_add(2) == self.rank(value)? => {
                    *found = past;
                    attention.is_scaled |= is_scaled;
                }
                _ => return Ok(Next::Unknown),
            }
        }
        self.sites.over_concat.push(attention);
        Ok(Next::End)
    }

    /// Returns the state of scores to which an operand is added.
    fn added(
        &mut self,
        node: &Node<'m>,
        (past, masks): (&'m str, &[Mask<'m>]),
        scores: &'m str,
        operand: &'m str,
    ) -> Result<Next<'m>, OnnxError> {
        let state = State::Scores { past, masks: masks.to_vec() };
        if !self.spans_slots(operand)? {
            return if masks.is_empty() { self.moved(node, &state) } else { Ok(Next::Unknown) };
        }
        let is_zero = self
            .fold
            .value(operand)?
            .as_floats()
            .is_some_and(|added| added.iter().all(|&added| added == 0.0));
        if is_zero && !matches!(self.layout(scores)?, Some(Layout::Separate { .. })) {
            self.sites.neutral.push(Neutral { node: *node, scores, operand });
            return Ok(Next::State(state));
        }
        self.masked(node, (past, masks), scores, MaskKind::Add { operand })
    }

    /// Returns the state of scores after a softmax. Their masks become those of one attention operation.
    fn attended(
        &mut self,
        softmax: &Node<'m>,
        past: &'m str,
        masks: &[Mask<'m>],
    ) -> Result<Next<'m>, OnnxError> {
        if masks.is_empty() {
            return Err(ConvertRefusal::Unmasked.into());
        }
        self.sites.sites.push(Site::new(past, masks, false));
        let shape = self.fold.shape(softmax.output(0).unwrap_or_default())?;
        let is_over_slots = shape.last() == Some(&self.probe.total());
        Ok(if is_over_slots { Next::State(State::Weights) } else { Next::Unknown })
    }

    /// Returns the state of scores after one more mask.
    fn masked(
        &mut self,
        node: &Node<'m>,
        (past, masks): (&'m str, &[Mask<'m>]),
        scores: &'m str,
        kind: MaskKind<'m>,
    ) -> Result<Next<'m>, OnnxError> {
        if masks.len() >= MAX_MASKS {
            return Ok(Next::Unknown);
        }
        let Some(layout) = self.layout(scores)? else {
            return Err(ConvertRefusal::ScoresShape { rank: self.rank(scores)? }.into());
        };
        let Value { element, .. } = *self.fold.value(scores)?;
        let output = node.output(0).unwrap_or_default();
        let mask = Mask { node: *node, kind, scores, output, layout, element, is_scaled: false };
        Ok(Next::State(State::Scores { past, masks: masks.iter().copied().chain([mask]).collect() }))
    }

    /// Returns the layout of scores, or `None` if it is not known.
    fn layout(&mut self, scores: &str) -> Result<Option<Layout>, OnnxError> {
        let (batch, new, total) = (self.probe.batch, self.probe.new, self.probe.total());
        Ok(match *self.fold.shape(scores)? {
            [rows, .., at_new, at_slots] if (at_new, at_slots) != (new, total) || rows == 0 => None,
            ref shape @ [rows, _, .., _] if rows == batch && shape.len() >= 3 => {
                Some(Layout::Separate { rank: shape.len() })
            }
            [rows, _, _] if rows.is_multiple_of(batch) => {
                Some(Layout::Merged { heads: rows.checked_div(batch).unwrap_or(1) })
            }
            _ => None,
        })
    }

    /// Returns `true` if a value that is not computed from a cache has a dimension with the size of the
    /// slots.
    fn spans_slots(&mut self, value: &str) -> Result<bool, OnnxError> {
        Ok(self.fold.shape(value)?.contains(&self.probe.total()))
    }

    fn rank(&mut self, value: &str) -> Result<usize, OnnxError> {
        Ok(self.fold.shape(value)?.len())
    }
}
