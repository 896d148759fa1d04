//! Finds the operands of the `Attention` node that separate nodes may become.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::fused::{CacheNames, FusedAttention};
use super::sink::Sinks;
use crate::convert::attention::{AttentionSites, CacheRead, Factor, Form, Site, WeightedSum};
use crate::convert::caches::RANK;
use crate::convert::exported::Lane;
use crate::convert::kept::{KeptForm, KeptReason};
use crate::convert::rule::Rule;
use crate::decoder::{Cache, Decoder};
use crate::fold::Fold;
use crate::{Graph, Node};

/// The maximum number of nodes that are followed in a row. It bounds the time for a hostile graph.
const MAX_STEPS: usize = 64;

/// Finds the operands of attention operations.
pub(super) struct OperandFinder<'f, 'm> {
    graph: &'f Graph<'m>,
    sites: &'f AttentionSites<'m>,
    caches: BTreeMap<&'m str, &'f Cache<'m>>,
    /// An evaluation of a small step.
    fold: &'f mut Fold<'m>,
    /// Evaluations at all lengths. A number must be the same in all of them.
    lanes: &'f mut [Lane<'m>],
}

impl<'f, 'm> OperandFinder<'f, 'm> {
    pub(super) fn new(
        graph: &'f Graph<'m>,
        decoder: &'f Decoder<'m>,
        sites: &'f AttentionSites<'m>,
        fold: &'f mut Fold<'m>,
        lanes: &'f mut [Lane<'m>],
    ) -> Self {
        let caches = decoder.caches.iter().map(|cache| (cache.past, cache)).collect();
        Self { graph, sites, caches, fold, lanes }
    }

    /// Returns the node that the attention operation with this end may become.
    ///
    /// # Errors
    /// Returns the reason why the operation cannot become one node.
    pub(super) fn fused(&mut self, end: &WeightedSum<'m>) -> Result<FusedAttention<'m>, KeptReason> {
        let (Some(site), Some(factors)) = (self.sites.sites.get(end.site), end.factors.links()) else {
            return Err(KeptForm::NoSoftmax.into());
        };
        if self.product(factors)? != 1.0 {
            return Err(KeptForm::ScaledWeights.into());
        }
        let scores = self.scores(site)?;
        let (values, value_factor) = self.cache(&end.values)?;
        let (keys, key_factor) = self.cache(&site.scores.keys)?;
        if value_factor != 1.0 {
            return Err(KeptForm::ScaledValues.into());
        }
        let element = self.fold.value(keys.written)?.element;
        let product = site.scores.product;
        let (queries, query_factor) = self.queries(product.input(0).unwrap_or_default(), element)?;
        for cache in [keys, values] {
            let [queries, cache] = [self.element(queries)?, self.element(cache.written)?];
            if queries != cache {
                return Err(KeptReason::Types { queries, cache });
            }
        }
        let (output, is_merged) = self.output(&end.node)?;
        let sinks = site.scores.sink.map(|sinks| self.sinks(sinks)).transpose()?;
        // `Attention` returns its scores in the type of the queries.
        if sinks.is_some() && self.element(product.output(0).unwrap_or_default())? != element {
            return Err(KeptForm::SinkType.into());
        }
        if sinks.is_some() && scores.softcap != 0.0 {
            return Err(KeptForm::CapAndSink.into());
        }
        let scale = single(scores.scale * key_factor * query_factor);
        // `Attention` multiplies queries and keys by the root of the scale.
        if !scale.is_finite() || scale <= 0.0 {
            return Err(KeptForm::Scale.into());
        }
        Ok(FusedAttention {
            queries,
            caches: [keys, values],
            output,
            is_merged,
            scale,
            rule: scores.rule,
            // The hyperbolic tangent is odd, so the sign of the cap goes to the scale alone.
            softcap: single(scores.softcap.abs()),
            sinks,
            element,
            output_element: self.element(output)?,
            softmax_element: self.element(site.softmax.output(0).unwrap_or_default())?,
        })
    }

    /// Returns the rule, the scale and the cap of scores, from the softmax back to the product of queries and keys.
    fn scores(&mut self, site: &Site<'m>) -> Result<ScoreFactors, KeptReason> {
        let Rule { window, blocks, bias } = site.rule().clone();
        let (mut scale, mut softcap) = (1.0, 0.0);
        let mut rule = Rule { window, blocks, bias: None };
        for form in site.scores.forms.links().ok_or(KeptForm::NoProduct)?.iter().rev() {
            match *form {
                Form::Factor(factor) => scale *= self.factor(factor)?,
                Form::Cap if softcap == 0.0 => softcap = scale,
                Form::Cap => return Err(KeptForm::TwoCaps.into()),
                Form::Mask(mask) if mask == site.rules.biased => match &bias {
                    Some(bias) if matches!(*bias.heads, [_]) => rule.bias = Some(bias.scaled(scale)),
                    Some(_) => return Err(KeptForm::BiasHeads.into()),
                    None => {}
                },
                Form::Mask(_) => {}
                Form::Added => return Err(KeptForm::AddedToScores.into()),
            }
        }
        Ok(ScoreFactors { rule, scale, softcap })
    }

    /// Returns the sinks of a value, which must be the same at every length and position.
    fn sinks(&mut self, value: &'m str) -> Result<Sinks<'m>, KeptReason> {
        let sinks = Sinks::read(self.fold, value)?;
        for lane in &mut *self.lanes {
            if Sinks::read(&mut lane.fold, value)? != sinks {
                return Err(KeptForm::SinkByPosition.into());
            }
        }
        Ok(sinks)
    }

    /// Returns the cache of keys or values, and the product of all factors.
    fn cache(&mut self, read: &CacheRead<'m>) -> Result<(CacheNames<'m>, f64), KeptReason> {
        let cache = self.caches.get(read.past).filter(|_| read.is_whole);
        let (Some(cache), Some(factors)) = (cache, read.factors.links()) else {
            return Err(KeptForm::PartOfCache.into());
        };
        let names = CacheNames { written: cache.written, present: cache.present };
        Ok((names, self.product(factors)?))
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
        Err(KeptForm::QueriesShape.into())
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

    fn product(&mut self, factors: &[Factor<'m>]) -> Result<f64, KeptReason> {
        factors.iter().rev().try_fold(1.0, |product, factor| Ok(product * self.factor(*factor)?))
    }

    /// Returns the number by which a node multiplies.
    fn factor(&mut self, Factor { value, divides }: Factor<'m>) -> Result<f64, KeptReason> {
        let number = self.number(value)?.ok_or_else(|| KeptReason::Factor { value: value.to_owned() })?;
        Ok(if divides { number.recip() } else { number })
    }

    /// Returns the number that all elements of a value are at every length, or `None` if they differ or are
    /// not known. A factor may change far into a text, as that of Llama 4's queries does.
    fn number(&mut self, value: &str) -> Result<Option<f64>, KeptReason> {
        let Some(number) = single_number(self.fold, value)? else { return Ok(None) };
        for lane in &mut *self.lanes {
            if single_number(&mut lane.fold, value)? != Some(number) {
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
            _ => Err(KeptForm::ResultShape.into()),
        }
    }

    fn element(&mut self, value: &str) -> Result<ElementType, KeptReason> {
        Ok(self.fold.value(value)?.element)
    }
}

/// What is done to the product of queries and keys.
struct ScoreFactors {
    rule: Rule,
    scale: f64,
    softcap: f64,
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
