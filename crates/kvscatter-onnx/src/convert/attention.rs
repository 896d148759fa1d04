//! Writes `Attention` nodes that read static caches, for nodes that have past inputs and for attention that
//! consists of separate nodes.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::caches::RANK;
use super::fusion::{KeptAttention, Operands};
use super::probe::Probe;
use super::refusal::ConvertRefusal;
use super::rewriter::Rewriter;
use super::rule::{Rule, Rules};
use super::sites::OverConcat;
use super::visibility::{Effect, Limits, Masks};
use super::whole::WholeCaches;
use crate::decoder::{Decoder, WriterStyle};
use crate::edit::NewNode;
use crate::fold::Fold;
use crate::{Node, OnnxError};

/// The indices of the operator's inputs.
const MASK: usize = 3;
const PASTS: [usize; 2] = [4, 5];
const NONPAD_KV_SEQLEN: usize = 6;
/// The index of the mask among the masks of a node.
const ONLY_MASK: usize = 0;
/// The index of the output with the products of queries and keys.
const PRODUCTS: usize = 3;

/// The `Attention` nodes that append to a cache, or read one.
#[derive(Debug, Default)]
pub(super) struct Attentions<'m> {
    nodes: Vec<Attention<'m>>,
    /// The nodes that keep reading a copy of a cache.
    pub(super) kept: Vec<KeptAttention>,
}

#[derive(Debug)]
struct Attention<'m> {
    node: Node<'m>,
    /// The past of the cache with the keys.
    past: &'m str,
    source: Source<'m>,
    limits: Limits,
    /// Whether queries, keys and values are `[batch, tokens, heads * head size]`.
    is_flat: bool,
    /// What the mask adds.
    rules: Rules,
    /// The type of the queries.
    element: ElementType,
}

/// The origin of the keys and the values of a node, in this order.
#[derive(Clone, Copy, Debug)]
enum Source<'m> {
    /// It appends new rows to its pasts and returns these presents.
    Appended([&'m str; 2]),
    /// Its keys and values are these presents, or repeat their heads.
    Presents([&'m str; 2]),
    /// Its keys and values are computed from presents in another way.
    Computed([&'m str; 2]),
}

impl<'m> Attentions<'m> {
    /// Finds the nodes that append, each once. The inputs must have been fed to the fold.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::AttentionForm`] if a node has an unsupported input or output, and the errors
    /// of [`Fold::shape`].
    pub(super) fn find(decoder: &Decoder<'m>, fold: &mut Fold<'m>) -> Result<Self, OnnxError> {
        let mut attentions: Vec<Attention<'m>> = Vec::new();
        let pasts: BTreeMap<_, _> = decoder.caches.iter().map(|cache| (cache.written, cache.past)).collect();
        let mut seen = BTreeSet::new();
        for cache in decoder.caches.iter().filter(|cache| matches!(cache.style, WriterStyle::AttentionPast)) {
            let Some(node) = cache.writer else { continue };
            if !seen.insert(node.index()) {
                continue;
            }
            let presents = [1, 2].map(|slot| node.output(slot).unwrap_or_default());
            check_form(
                &node,
                &[
                    (node.input(NONPAD_KV_SEQLEN).is_some(), "nonpad_kv_seqlen beside a past"),
                    (node.output(PRODUCTS).is_some(), "the output qk_matmul_output"),
                    (presents.contains(&""), "a past without both presents"),
                ],
            )?;
            let past = pasts.get(presents[0]).copied().unwrap_or(cache.past);
            attentions.push(Attention::new(node, past, Source::Appended(presents), fold)?);
        }
        Ok(Self { nodes: attentions, kept: Vec::new() })
    }

    /// Adds the nodes that read caches to which other nodes append.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::AttentionForm`] if a node has an unsupported input, output or attribute, and the
    /// errors of [`Fold::shape`].
    pub(super) fn find_readers(
        &mut self,
        decoder: &Decoder<'m>,
        over_concat: &[OverConcat<'m>],
        fold: &mut Fold<'m>,
        whole: &mut WholeCaches<'m>,
    ) -> Result<(), OnnxError> {
        let caches: BTreeMap<_, _> = decoder.caches.iter().map(|cache| (cache.past, cache)).collect();
        for attention in over_concat {
            let OverConcat { node, pasts, .. } = attention;
            check_form(
                node,
                &[
                    (node.input(PASTS[0]).or(node.input(PASTS[1])).is_some(), "a past beside another cache"),
                    (node.input(NONPAD_KV_SEQLEN).is_some(), "nonpad_kv_seqlen beside a growing cache"),
                    (
                        (1..=PRODUCTS).any(|slot| node.output(slot).is_some()),
                        "a second output without a past",
                    ),
                    // Such limits count from slot 0, so a token of a later step would not see itself.
                    (Limits::from_node(node) != Limits::default(), "is_causal or a window without a past"),
                ],
            )?;
            let [Some(keys), Some(values)] = pasts.map(|past| caches.get(past).copied()) else { continue };
            let source = match whole.check(attention, [keys, values]) {
                Ok(()) => Source::Presents([keys.present, values.present]),
                Err(reason) => {
                    let output = node.output(0).unwrap_or_default().to_owned();
                    self.kept.push(KeptAttention { output, reason });
                    Source::Computed([(1, keys), (2, values)].map(|(slot, cache)| {
                        let read = node.input(slot).unwrap_or_default();
                        if read == cache.written { cache.present } else { read }
                    }))
                }
            };
            self.nodes.push(Attention::new(*node, keys.past, source, fold)?);
        }
        Ok(())
    }

    /// Returns the rule of each node.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.nodes.iter().map(|attention| attention.rules.rule())
    }

    /// Returns the rule of each node, with the past of the cache that has its keys.
    pub(super) fn by_past(&self) -> impl Iterator<Item = (&'m str, &Rule)> {
        self.nodes.iter().map(|attention| (attention.past, attention.rules.rule()))
    }

    /// Returns the presents with keys and values that each node reads after the conversion, and its rule. A node that
    /// reads values that are computed from presents is left out.
    pub(super) fn readers(&self) -> impl Iterator<Item = ([&'m str; 2], &Rule)> {
        self.nodes.iter().filter_map(|attention| match attention.source {
            Source::Appended(presents) | Source::Presents(presents) => {
                Some((presents, attention.rules.rule()))
            }
            Source::Computed(_) => None,
        })
    }

    pub(super) fn rules_mut(&mut self) -> impl Iterator<Item = &mut Rules> {
        self.nodes.iter_mut().map(|attention| &mut attention.rules)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Finds the rule of each node on a probe, which must be the longest one. [`check`](Self::check) reports the
    /// error of a mask that has no rule.
    ///
    /// # Errors
    /// Returns the errors of [`Fold::value`].
    pub(super) fn find_rules(&mut self, probe: &Probe, fold: &mut Fold<'m>) -> Result<(), OnnxError> {
        let mut found: BTreeMap<_, Rule> = BTreeMap::new();
        for attention in &mut self.nodes {
            let mask = (attention.node.input(MASK), attention.limits);
            let rule = match found.get(&mask) {
                Some(rule) => rule.clone(),
                None => {
                    let rule = attention.masks(fold).and_then(|masks| masks.rule(probe, fold));
                    let rule = match rule {
                        Ok((rule, _)) => rule,
                        Err(error) if error.cause::<ConvertRefusal>().is_some() => continue,
                        Err(error) => return Err(attention.node.error_within(error)),
                    };
                    found.insert(mask, rule.clone());
                    rule
                }
            };
            attention.rules = Rules::new(rule);
        }
        Ok(())
    }

    /// Checks that the mask of each node follows a rule for all real tokens, and keeps the rules that it follows.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::Visibility`], [`ConvertRefusal::Bias`] or an error of the evaluation.
    pub(super) fn check(&mut self, probe: &Probe, fold: &mut Fold<'m>) -> Result<(), OnnxError> {
        // Layers share their masks, so each mask is compared once.
        let mut checked: BTreeMap<_, Rules> = BTreeMap::new();
        for attention in &mut self.nodes {
            let mask = (attention.node.input(MASK), attention.limits);
            if let Some(rules) = checked.get(&mask) {
                attention.rules = rules.clone();
                continue;
            }
            let kept = attention
                .masks(fold)
                .and_then(|masks| attention.rules.keep(|rule| masks.check(probe, rule, ONLY_MASK, fold)));
            kept.map_err(|error| attention.node.error_within(error))?;
            checked.insert(mask, attention.rules.clone());
        }
        Ok(())
    }

    /// Adds one `TensorScatter` for keys and one for values before each node, which then reads the static
    /// cache.
    pub(super) fn rewrite(&self, rewriter: &mut Rewriter<'_, '_, '_>) -> Result<(), OnnxError> {
        self.nodes.iter().try_for_each(|attention| attention.rewrite(rewriter))
    }
}

/// Replaces attention that consists of separate nodes by one node.
pub(super) fn fuse(rewriter: &mut Rewriter<'_, '_, '_>, operands: &Operands) -> Result<(), OnnxError> {
    if let Some(last) = rewriter.editor.producer(&operands.output) {
        rewriter.editor.remove_node(last);
    }
    let caches = [&operands.queries, &operands.keys, &operands.values].map(String::as_str);
    let (new, lengths) = static_attention(rewriter, caches, &operands.rule, operands.element)?;
    let last = operands.add_before_last(rewriter.editor, new, &lengths)?;
    let last = match operands.is_merged {
        false => last,
        true => {
            let by_head = rewriter.editor.add(last.called("attention"));
            rewriter.merged(&by_head)?
        }
    };
    rewriter.editor.add(last.outputs(&[&operands.output]));
    Ok(())
}

/// Creates an `Attention` of queries to static caches, `[batch, heads, tokens or slots, head size]` each. Returns the
/// node, and the name of the value with the number of slots in use.
fn static_attention(
    rewriter: &mut Rewriter<'_, '_, '_>,
    operands: [&str; 3],
    rule: &Rule,
    element: ElementType,
) -> Result<(NewNode, String), OnnxError> {
    let [_, keys, _] = operands;
    let (mask, lengths) = match rewriter.ring_of(keys) {
        None => (rewriter.mask(rule, element)?, rewriter.nonpad_kv_seqlen()),
        Some(ring) => (rewriter.ring_mask(ring)?, rewriter.ring_lengths(ring)?),
    };
    Ok((over_caches(operands, &mask, &lengths), lengths))
}

/// Creates an `Attention` of queries to keys and values with a mask and the number of slots in use.
///
/// The mask decides which slots each token sees, so the node is not causal. Runtimes disagree on where a
/// causal mask begins if there are more keys than queries.
pub(super) fn over_caches([queries, keys, values]: [&str; 3], mask: &str, nonpad_kv_seqlen: &str) -> NewNode {
    NewNode::new("Attention", &[queries, keys, values, mask, "", "", nonpad_kv_seqlen])
}

/// Returns an error for the first of these unsupported forms that a node has.
fn check_form(node: &Node<'_>, forms: &[(bool, &'static str)]) -> Result<(), OnnxError> {
    match forms.iter().find(|(is_there, _)| *is_there) {
        Some((_, what)) => Err(node.error(ConvertRefusal::AttentionForm { what })),
        None => Ok(()),
    }
}

impl<'m> Attention<'m> {
    fn new(
        node: Node<'m>,
        past: &'m str,
        source: Source<'m>,
        fold: &mut Fold<'m>,
    ) -> Result<Self, OnnxError> {
        let mut ranks = Vec::new();
        for slot in 0..3 {
            ranks.push(fold.shape(node.input(slot).unwrap_or_default())?.len());
        }
        let element = fold.value(node.input(0).unwrap_or_default())?.element;
        let is_flat = match *ranks {
            [3, 3, 3] => true,
            [4, 4, 4] => false,
            _ => {
                let what = "queries, keys and values of different ranks";
                return Err(node.error(ConvertRefusal::AttentionForm { what }));
            }
        };
        let (limits, rules) = (Limits::from_node(&node), Rules::default());
        Ok(Self { node, past, source, limits, is_flat, rules, element })
    }

    fn masks(&self, fold: &mut Fold<'m>) -> Result<Masks, OnnxError> {
        let mask = self.node.input(MASK).map(|name| fold.value(name).cloned()).transpose()?;
        let effect = match mask.as_ref().map(|mask| mask.element) {
            Some(ElementType::Bool) => Effect::Chosen { visible_where: true },
            _ => Effect::Added,
        };
        Ok(Masks::of_node(mask.map(|mask| (mask, effect)), RANK, self.limits))
    }

    fn rewrite(&self, rewriter: &mut Rewriter<'_, '_, '_>) -> Result<(), OnnxError> {
        let node = &self.node;
        let input = |slot| node.input(slot).unwrap_or_default();
        let heads = |name| node.attribute(name).and_then(|attribute| attribute.i).unwrap_or_default();
        let (of_queries, of_keys) = (heads("q_num_heads"), heads("kv_num_heads"));
        rewriter.editor.remove_node(node.index());
        if let Source::Appended(presents) = self.source {
            for ((slot, past), present) in [(1, PASTS[0]), (2, PASTS[1])].into_iter().zip(presents) {
                let update = self.by_head(rewriter, input(slot), of_keys)?;
                rewriter.scatter(input(past), &update, present);
            }
        }
        let output = node.output(0).unwrap_or_default();
        let mut dropped = Limits::ATTRIBUTES.to_vec();
        let (Source::Appended(operands) | Source::Presents(operands) | Source::Computed(operands)) =
            self.source;
        let is_flat = self.is_flat && !matches!(self.source, Source::Computed(_));
        let mut queries = input(0).to_owned();
        if is_flat {
            queries = self.by_head(rewriter, &queries, of_queries)?;
            dropped.extend(["q_num_heads", "kv_num_heads"]);
        }
        let kept = node.proto().attribute.iter();
        let kept = kept.filter(|it| it.name.as_deref().is_none_or(|name| !dropped.contains(&name)));
        let [keys, values] = operands;
        let (new, _) = static_attention(rewriter, [&queries, keys, values], self.rules.rule(), self.element)?;
        let new = new.attributes(kept.cloned());
        if !is_flat {
            rewriter.editor.add(new.outputs(&[output]));
            return Ok(());
        }
        let by_head = rewriter.editor.add(new.called("attention"));
        let by_token =
            rewriter.editor.add(NewNode::new("Transpose", &[&by_head]).ints("perm", &[0, 2, 1, 3]));
        let flat = rewriter.editor.ints(&[0, 0, -1])?;
        rewriter.editor.node_with_outputs("Reshape", &[&by_token, &flat], &[output]);
        Ok(())
    }

    /// Returns the value as `[batch, heads, tokens, head size]`.
    fn by_head(
        &self,
        rewriter: &mut Rewriter<'_, '_, '_>,
        value: &str,
        heads: i64,
    ) -> Result<String, OnnxError> {
        if !self.is_flat {
            return Ok(value.to_owned());
        }
        let shape = rewriter.editor.ints(&[0, 0, heads, -1])?;
        let split = rewriter.editor.node("Reshape", &[value, &shape]);
        Ok(rewriter.editor.add(NewNode::new("Transpose", &[&split]).ints("perm", &[0, 2, 1, 3])))
    }
}
