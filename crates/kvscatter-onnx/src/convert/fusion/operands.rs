//! Finds the queries, caches, scale and cap of an attention operation by following its nodes backwards.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::KeptReason;
use super::sink::Sinks;
use crate::convert::caches::RANK;
use crate::convert::rule::Rule;
use crate::convert::sites::{Site, Sites};
use crate::decoder::Decoder;
use crate::edit::{Editor, NewNode};
use crate::fold::Fold;
use crate::{Graph, Node, OnnxError};

/// The maximum number of nodes that are followed in a row. It bounds the time for a hostile graph.
const MAX_STEPS: usize = 64;

/// The operands of the `Attention` node that an attention operation may become.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::convert) struct Operands {
    /// The queries before they are scaled, `[batch, heads, new tokens, head size]`.
    pub(in crate::convert) queries: String,
    /// The present with the keys.
    pub(in crate::convert) keys: String,
    /// The present with the values.
    pub(in crate::convert) values: String,
    /// The name of the result, `[batch, heads, new tokens, head size]`.
    pub(in crate::convert) output: String,
    /// Whether the result is `[batch * heads, new tokens, head size]` instead.
    pub(in crate::convert) is_merged: bool,
    /// The product of all factors of queries, keys and scores.
    pub(super) scale: f32,
    /// Which slots are hidden, and what is added to the scaled scores of the others.
    pub(in crate::convert) rule: Rule,
    /// The largest magnitude of a score, or 0 if there is no limit.
    pub(super) softcap: f32,
    /// The sinks that take a part of the weights.
    pub(super) sinks: Option<Sinks>,
    /// The type of the queries, keys and values.
    pub(in crate::convert) element: ElementType,
    /// The type of the result.
    pub(super) output_element: ElementType,
    /// The type of the scores when the softmax reads them.
    pub(super) softmax_element: ElementType,
}

impl Operands {
    /// Adds an `Attention` node of these operands and the nodes that follow it, except the last one. `lengths` is the
    /// number of slots in use of each sample. Returns the last node, which the caller adds.
    pub(in crate::convert) fn add_before_last(
        &self,
        editor: &mut Editor<'_>,
        attention: NewNode,
        lengths: &str,
    ) -> Result<NewNode, OnnxError> {
        let attention = self.attributes(attention);
        let last = match &self.sinks {
            None => attention,
            Some(sinks) => sinks.add_before_last(editor, attention, lengths, self.element)?,
        };
        Ok(match self.output_element {
            to if to == self.element => last,
            to => NewNode::cast(&editor.add(last.called("attention")), to),
        })
    }

    /// Sets the attributes of an `Attention` node.
    fn attributes(&self, attention: NewNode) -> NewNode {
        let mut attention = attention.float("scale", self.scale);
        if self.is_capped() {
            attention = attention.float("softcap", self.softcap);
        }
        if self.softmax_element != self.element {
            attention = attention.int("softmax_precision", i64::from(self.softmax_element.onnx_code()));
        }
        attention
    }

    pub(super) fn is_capped(&self) -> bool {
        self.softcap != 0.0
    }

    /// Returns `true` if a value contains the sinks.
    pub(super) fn is_sink(&self, value: &str) -> bool {
        self.sinks.as_ref().is_some_and(|sinks| sinks.value == value)
    }

    /// Returns `true` if a node computes the sinks.
    pub(super) fn makes_sinks(&self, node: &Node<'_>) -> bool {
        node.output(0).is_some_and(|output| self.is_sink(output))
    }

    /// Returns whether to make scores so large that their cap changes them, for each evaluation. Scores that
    /// are rounded to 16 bits are then too inexact to be compared.
    pub(super) fn amounts_of_capping(&self) -> &'static [bool] {
        let is_exact = matches!(self.element, ElementType::Float32 | ElementType::Float64);
        if self.is_capped() && is_exact { &[false, true] } else { &[false] }
    }
}

/// Follows the nodes of a converted graph backwards.
pub(super) struct Finder<'f, 'm, 's> {
    graph: &'f Graph<'m>,
    sites: &'f Sites<'s>,
    /// An evaluation of the graph on a small probe.
    fold: &'f mut Fold<'m>,
    /// Evaluations at other lengths. A number must be the same in all of them.
    others: Vec<Fold<'m>>,
    presents: BTreeSet<&'m str>,
    /// The scores with a bias that the conversion added and named.
    biased: BTreeSet<&'m str>,
    /// The rules of masked scores.
    rules: BTreeMap<&'s str, &'f Rule>,
}

/// The nodes between the product of queries and keys and the softmax.
struct Scores<'m> {
    product: Node<'m>,
    rule: Rule,
    scale: f64,
    softcap: f64,
    /// The value with the scores of sinks.
    sinks: Option<&'m str>,
}

impl<'f, 'm, 's> Finder<'f, 'm, 's> {
    /// Creates a finder. The folds must have been fed, and the scores of the graph are those of `sites` by
    /// name.
    pub(super) fn new(
        graph: &'f Graph<'m>,
        decoder: &Decoder<'_>,
        sites: &'f Sites<'s>,
        fold: &'f mut Fold<'m>,
        others: Vec<Fold<'m>>,
    ) -> Self {
        let presents = decoder.caches.iter().filter_map(|cache| graph.name(cache.present)).collect();
        let adds_to_scores =
            |node: &&Node<'m>| node.is("Add") && node.reads().iter().any(|value| sites.has_slots(value));
        let biased = graph.nodes().iter().filter(adds_to_scores).filter_map(|node| node.output(0)).collect();
        let rule = |site: &'f Site<'s>| Some((site.masks.get(site.hiding())?.output, site.rule()));
        let rules = sites.sites.iter().filter_map(rule).collect();
        Self { graph, sites, fold, others, presents, biased, rules }
    }

    /// Returns the nodes that multiply weights with values, which end an attention operation each.
    pub(super) fn ends(&self) -> Vec<Node<'m>> {
        let ends = |node: &&Node<'m>| {
            node.is("MatMul")
                && [0, 1].iter().all(|&slot| node.input(slot).is_some_and(|it| self.has_slots(it)))
        };
        self.graph.nodes().iter().filter(ends).copied().collect()
    }

    /// Returns the operands of the attention operation that ends at a node.
    ///
    /// # Errors
    /// Returns the reason why the operation cannot become one node.
    pub(super) fn operands(&mut self, last: &Node<'m>) -> Result<Operands, KeptReason> {
        let softmax = self.softmax(last.input(0).unwrap_or_default())?;
        let scores = self.scores(softmax.input(0).unwrap_or_default())?;
        let (values, value_factor) = self.cache(last.input(1).unwrap_or_default())?;
        let (keys, key_factor) = self.cache(scores.product.input(1).unwrap_or_default())?;
        if value_factor != 1.0 {
            return Err(KeptReason::Form { what: "the values are scaled" });
        }
        let element = self.fold.value(keys)?.element;
        let (queries, query_factor) = self.queries(scores.product.input(0).unwrap_or_default(), element)?;
        for (value, cache) in [(queries, keys), (queries, values)] {
            let (queries, cache) = (self.fold.value(value)?.element, self.fold.value(cache)?.element);
            if queries != cache {
                return Err(KeptReason::Types { queries, cache });
            }
        }
        let (output, is_merged) = self.output(last)?;
        let product = self.fold.value(scores.product.output(0).unwrap_or_default())?.element;
        let sinks = scores.sinks.map(|sinks| self.sinks(sinks)).transpose()?;
        // `Attention` returns its scores in the type of the queries.
        if sinks.is_some() && product != element {
            return Err(KeptReason::Form {
                what: "it has a sink, and its scores have another type than its caches",
            });
        }
        if sinks.is_some() && scores.softcap != 0.0 {
            return Err(KeptReason::Form { what: "its scores have both a cap and a sink" });
        }
        let scale = single(scores.scale * key_factor * query_factor);
        // `Attention` multiplies queries and keys by the root of the scale.
        if !scale.is_finite() || scale <= 0.0 {
            return Err(KeptReason::Form { what: "the scale is not a positive number" });
        }
        Ok(Operands {
            queries: queries.to_owned(),
            keys: keys.to_owned(),
            values: values.to_owned(),
            output: output.to_owned(),
            is_merged,
            scale,
            rule: scores.rule,
            // The hyperbolic tangent is odd, so the sign of the cap goes to the scale alone.
            softcap: single(scores.softcap.abs()),
            sinks,
            element,
            output_element: self.fold.value(output)?.element,
            softmax_element: self.fold.value(softmax.output(0).unwrap_or_default())?.element,
        })
    }

    /// Follows weights back to their softmax.
    fn softmax(&mut self, mut value: &'m str) -> Result<Node<'m>, KeptReason> {
        for _ in 0..MAX_STEPS {
            let Some((node, _)) = self.graph.producer(value) else { break };
            if node.is("Softmax") {
                return Ok(node);
            }
            if (node.is("Mul") || node.is("Div"))
                && self.factor(&node, value_of(&node, |it| self.has_slots(it)))? != 1.0
            {
                return Err(KeptReason::Form { what: "the weights are scaled" });
            }
            let Some(before) = self.passed(&node) else { break };
            value = before;
        }
        Err(KeptReason::Form { what: "the weights do not come from one softmax" })
    }

    /// Follows masked scores back to the product of queries and keys.
    fn scores(&mut self, mut value: &'m str) -> Result<Scores<'m>, KeptReason> {
        let (mut scale, mut softcap) = (1.0, 0.0);
        let mut rule = Rule::default();
        let (mut bias, mut sinks) = (None, None);
        for _ in 0..MAX_STEPS {
            let Some((node, _)) = self.graph.producer(value) else { break };
            if let Some(masked) = self.rules.get(value) {
                rule.window = masked.window;
                bias = masked.bias.as_ref();
            }
            match node.op_type() {
                "MatMul" => return Ok(Scores { product: node, rule, scale, softcap, sinks }),
                "Mul" | "Div" => scale *= self.factor(&node, value_of(&node, |it| self.has_slots(it)))?,
                "Tanh" if softcap == 0.0 => softcap = scale,
                "Tanh" => return Err(KeptReason::Form { what: "the scores have two caps" }),
                "Add" => match bias.take() {
                    Some(bias) if matches!(*bias.heads, [_]) => rule.bias = Some(bias.scaled(scale)),
                    Some(_) => return Err(KeptReason::Form { what: "a bias has no single axis of heads" }),
                    None => return Err(KeptReason::Form { what: "something is added to the scores" }),
                },
                "Concat" => sinks = node.input(1),
                _ => {}
            }
            let Some(before) = self.passed(&node) else { break };
            value = before;
        }
        Err(KeptReason::Form { what: "the scores are not one product of queries and keys" })
    }

    /// Returns the sinks of a value, which must be the same at every length and position.
    fn sinks(&mut self, value: &str) -> Result<Sinks, KeptReason> {
        let sinks = Sinks::read(self.fold, value)?;
        for other in &mut self.others {
            if Sinks::read(other, value)? != sinks {
                return Err(KeptReason::Form { what: "a sink depends on the position" });
            }
        }
        Ok(sinks)
    }

    /// Follows keys or values back to their cache. Returns the present and the product of all factors.
    fn cache(&mut self, mut value: &'m str) -> Result<(&'m str, f64), KeptReason> {
        let mut product = 1.0;
        for _ in 0..MAX_STEPS {
            if let Some(present) = self.presents.get(value) {
                return Ok((present, product));
            }
            // A part of a cache that has keys and values is not a whole cache.
            let Some((node, _)) = self.graph.producer(value).filter(|(node, _)| !node.is("Split")) else {
                break;
            };
            if node.is("Mul") || node.is("Div") {
                product *= self.factor(&node, value_of(&node, |it| self.has_slots(it)))?;
            }
            let Some(before) = self.passed(&node) else { break };
            value = before;
        }
        Err(KeptReason::Form { what: "keys or values are not a whole cache" })
    }

    /// Follows queries back to where they have the rank and the type of a cache and are not scaled. Returns
    /// them and the product of all factors.
    fn queries(&mut self, mut value: &'m str, element: ElementType) -> Result<(&'m str, f64), KeptReason> {
        let mut product = 1.0;
        for _ in 0..MAX_STEPS {
            let Some((node, _)) = self.graph.producer(value) else { break };
            let known = self.fold.value(value)?;
            let is_moved = node.is("Reshape") && known.rank() != RANK;
            let is_cast = node.is("Cast") && known.element != element;
            value = match node.op_type() {
                "Mul" | "Div" => match self.scaled(&node)? {
                    Some((scaled, factor)) => {
                        product *= factor;
                        scaled
                    }
                    None => break,
                },
                _ if is_moved || is_cast => node.input(0).unwrap_or_default(),
                _ => break,
            };
        }
        if self.fold.shape(value)?.len() == RANK {
            return Ok((value, product));
        }
        Err(KeptReason::Form { what: "the queries are not [batch, heads, new tokens, head size]" })
    }

    /// Returns the value that a node multiplies by one number, and that number. Returns `None` if the node
    /// multiplies by something else.
    fn scaled(&mut self, node: &Node<'m>) -> Result<Option<(&'m str, f64)>, KeptReason> {
        let [left, right] = [0, 1].map(|slot| node.input(slot).unwrap_or_default());
        if let Some(number) = self.number(right)? {
            let factor = if node.is("Div") { number.recip() } else { number };
            return Ok(Some((left, factor)));
        }
        let number = if node.is("Mul") { self.number(left)? } else { None };
        Ok(number.map(|number| (right, number)))
    }

    /// Returns the number by which a node multiplies the value at one of its inputs.
    fn factor(&mut self, node: &Node<'m>, slot: usize) -> Result<f64, KeptReason> {
        let other = node.input(usize::from(slot == 0)).unwrap_or_default();
        let number = self.number(other)?.ok_or_else(|| KeptReason::Factor { value: other.to_owned() })?;
        Ok(if node.is("Div") { number.recip() } else { number })
    }

    /// Returns the number that all elements of a value are at every length, or `None` if they differ or are
    /// not known. A factor may change far into a text, as that of Llama 4's queries does.
    fn number(&mut self, value: &str) -> Result<Option<f64>, KeptReason> {
        let Some(number) = single_number(self.fold, value)? else { return Ok(None) };
        for other in &mut self.others {
            if single_number(other, value)? != Some(number) {
                return Ok(None);
            }
        }
        Ok(Some(number))
    }

    /// Returns the result with the rank of a cache, or a result of rank 3 in which batch and heads are merged.
    fn output(&mut self, last: &Node<'m>) -> Result<(&'m str, bool), KeptReason> {
        let output = last.output(0).unwrap_or_default();
        let rank = self.fold.shape(output)?.len();
        if rank == RANK {
            return Ok((output, false));
        }
        let mut uses = self.graph.uses(output);
        let reshaped = match (uses.next(), uses.next()) {
            (Some((reshape, _)), None) if reshape.is("Reshape") => reshape.output(0),
            _ => None,
        };
        match reshaped {
            Some(output) if self.fold.shape(output)?.len() == RANK => Ok((output, false)),
            _ if rank.saturating_add(1) == RANK => Ok((output, true)),
            _ => Err(KeptReason::Form { what: "the result is not [batch, heads, new tokens, head size]" }),
        }
    }

    /// Returns the value with one entry for each slot that a node passes on.
    fn passed(&self, node: &Node<'m>) -> Option<&'m str> {
        node.input(value_of(node, |value| self.has_slots(value))).filter(|value| self.has_slots(value))
    }

    fn has_slots(&self, value: &str) -> bool {
        self.presents.contains(value) || self.sites.has_slots(value) || self.biased.contains(value)
    }
}

/// Returns the index of the input that a node passes on. The condition of a `Where` is not passed on.
fn value_of(node: &Node<'_>, has_slots: impl Fn(&str) -> bool) -> usize {
    let first = usize::from(node.is("Where"));
    let inputs = first..node.proto().input.len();
    inputs.into_iter().find(|&slot| node.input(slot).is_some_and(&has_slots)).unwrap_or_default()
}

/// Returns the number that all elements of a value are. It is finite and not 0.
fn single_number(fold: &mut Fold<'_>, value: &str) -> Result<Option<f64>, KeptReason> {
    let floats = fold.known(value)?.and_then(|value| value.as_floats());
    let Some((&first, rest)) = floats.and_then(<[f64]>::split_first) else { return Ok(None) };
    let is_single = first.is_finite() && first != 0.0 && rest.iter().all(|it| *it == first);
    let compared = rest.len();
    fold.charge(compared)?;
    Ok(is_single.then_some(first))
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "an attribute is a float32")]
fn single(value: f64) -> f32 {
    value as f32
}
