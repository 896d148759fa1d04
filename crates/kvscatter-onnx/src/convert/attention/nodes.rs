//! `Attention` nodes that append to caches or read them.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::site::AttentionOverCaches;
use super::whole::WholeCaches;
use crate::convert::kept::KeptAttention;
use crate::convert::limits::SlotLimits;
use crate::convert::refusal::ConvertRefusal;
use crate::convert::rule::{CandidateRules, Rule};
use crate::decoder::{Decoder, WriterStyle};
use crate::fold::Fold;
use crate::onnx_attention::{
    KEYS, MASK, NONPAD_KV_SEQLEN, PAST_KEYS, PAST_VALUES, PRESENT_KEYS, PRESENT_VALUES, QUERIES, SCORES,
    VALUES,
};
use crate::{Node, OnnxError};

/// The `Attention` nodes that append to a cache, or read one.
#[derive(Debug, Default)]
pub(in crate::convert) struct Attentions<'m> {
    pub(in crate::convert) nodes: Vec<AttentionNode<'m>>,
    /// The nodes that keep reading a copy of a cache.
    pub(in crate::convert) kept: Vec<KeptAttention>,
}

/// An `Attention` node over a cache.
#[derive(Debug)]
pub(in crate::convert) struct AttentionNode<'m> {
    pub(in crate::convert) node: Node<'m>,
    /// The past of the cache with the keys.
    pub(in crate::convert) past: &'m str,
    pub(in crate::convert) source: OperandSource<'m>,
    pub(in crate::convert) limits: SlotLimits,
    /// Whether queries, keys and values are `[batch, tokens, heads * head size]`.
    pub(in crate::convert) is_flat: bool,
    /// What the mask adds.
    pub(in crate::convert) rules: CandidateRules,
    /// The type of the queries.
    pub(in crate::convert) element: ElementType,
}

/// The origin of the keys and the values of a node, in this order.
#[derive(Clone, Copy, Debug)]
pub(in crate::convert) enum OperandSource<'m> {
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
    pub(in crate::convert) fn find(decoder: &Decoder<'m>, fold: &mut Fold<'m>) -> Result<Self, OnnxError> {
        let mut attentions: Vec<AttentionNode<'m>> = Vec::new();
        let pasts: BTreeMap<_, _> = decoder.caches.iter().map(|cache| (cache.written, cache.past)).collect();
        let mut seen = BTreeSet::new();
        for cache in decoder.caches.iter().filter(|cache| matches!(cache.style, WriterStyle::AttentionPast)) {
            let Some(node) = cache.writer else { continue };
            if !seen.insert(node.index()) {
                continue;
            }
            let presents = [PRESENT_KEYS, PRESENT_VALUES].map(|slot| node.output(slot).unwrap_or_default());
            check_form(
                &node,
                &[
                    (node.input(NONPAD_KV_SEQLEN).is_some(), "nonpad_kv_seqlen beside a past"),
                    (node.output(SCORES).is_some(), "the output qk_matmul_output"),
                    (presents.contains(&""), "a past without both presents"),
                ],
            )?;
            let past = pasts.get(presents[0]).copied().unwrap_or(cache.past);
            attentions.push(AttentionNode::new(node, past, OperandSource::Appended(presents), fold)?);
        }
        Ok(Self { nodes: attentions, kept: Vec::new() })
    }

    /// Adds the nodes that read caches to which other nodes append.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::AttentionForm`] if a node has an unsupported input, output or attribute, and the
    /// errors of [`Fold::shape`].
    pub(in crate::convert) fn find_readers(
        &mut self,
        decoder: &Decoder<'m>,
        over_concat: &[AttentionOverCaches<'m>],
        fold: &mut Fold<'m>,
        whole: &mut WholeCaches<'m>,
    ) -> Result<(), OnnxError> {
        let caches: BTreeMap<_, _> = decoder.caches.iter().map(|cache| (cache.past, cache)).collect();
        for attention in over_concat {
            let AttentionOverCaches { node, pasts, .. } = attention;
            check_form(
                node,
                &[
                    (
                        node.input(PAST_KEYS).or(node.input(PAST_VALUES)).is_some(),
                        "a past beside another cache",
                    ),
                    (node.input(NONPAD_KV_SEQLEN).is_some(), "nonpad_kv_seqlen beside a growing cache"),
                    (
                        (PRESENT_KEYS..=SCORES).any(|slot| node.output(slot).is_some()),
                        "a second output without a past",
                    ),
                    // Such limits count from slot 0, so a token of a later step would not see itself.
                    (
                        SlotLimits::from_node(node) != SlotLimits::default(),
                        "is_causal or a window without a past",
                    ),
                ],
            )?;
            let [Some(keys), Some(values)] = pasts.map(|past| caches.get(past).copied()) else { continue };
            let source = match whole.check(attention, [keys, values]) {
                Ok(()) => OperandSource::Presents([keys.present, values.present]),
                Err(reason) => {
                    let output = node.output(0).unwrap_or_default().to_owned();
                    self.kept.push(KeptAttention { output, reason });
                    OperandSource::Computed([(KEYS, keys), (VALUES, values)].map(|(slot, cache)| {
                        let read = node.input(slot).unwrap_or_default();
                        if read == cache.written { cache.present } else { read }
                    }))
                }
            };
            self.nodes.push(AttentionNode::new(*node, keys.past, source, fold)?);
        }
        Ok(())
    }

    /// Returns the rule of each node.
    pub(in crate::convert) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.nodes.iter().map(|attention| attention.rules.rule())
    }

    /// Returns the rule of each node, with the past of the cache that has its keys.
    pub(in crate::convert) fn by_past(&self) -> impl Iterator<Item = (&'m str, &Rule)> {
        self.nodes.iter().map(|attention| (attention.past, attention.rules.rule()))
    }

    /// Returns the presents with keys and values that each node reads after the conversion, and its rule. A node that
    /// reads values that are computed from presents is left out.
    pub(in crate::convert) fn readers(&self) -> impl Iterator<Item = ([&'m str; 2], &Rule)> {
        self.nodes.iter().filter_map(|attention| match attention.source {
            OperandSource::Appended(presents) | OperandSource::Presents(presents) => {
                Some((presents, attention.rules.rule()))
            }
            OperandSource::Computed(_) => None,
        })
    }

    pub(in crate::convert) fn rules_mut(&mut self) -> impl Iterator<Item = &mut CandidateRules> {
        self.nodes.iter_mut().map(|attention| &mut attention.rules)
    }

    pub(in crate::convert) fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// Returns an error for the first of these unsupported forms that a node has.
fn check_form(node: &Node<'_>, forms: &[(bool, &'static str)]) -> Result<(), OnnxError> {
    match forms.iter().find(|(is_there, _)| *is_there) {
        Some((_, what)) => Err(node.error(ConvertRefusal::AttentionForm { what })),
        None => Ok(()),
    }
}

impl<'m> AttentionNode<'m> {
    fn new(
        node: Node<'m>,
        past: &'m str,
        source: OperandSource<'m>,
        fold: &mut Fold<'m>,
    ) -> Result<Self, OnnxError> {
        let mut ranks = Vec::new();
        for slot in [QUERIES, KEYS, VALUES] {
            ranks.push(fold.shape(node.input(slot).unwrap_or_default())?.len());
        }
        let element = fold.value(node.input(QUERIES).unwrap_or_default())?.element;
        let is_flat = match *ranks {
            [3, 3, 3] => true,
            [4, 4, 4] => false,
            _ => {
                let what = "queries, keys and values of different ranks";
                return Err(node.error(ConvertRefusal::AttentionForm { what }));
            }
        };
        let (limits, rules) = (SlotLimits::from_node(&node), CandidateRules::default());
        Ok(Self { node, past, source, limits, is_flat, rules, element })
    }

    /// Returns the name of the mask.
    pub(in crate::convert) fn mask(&self) -> Option<&'m str> {
        self.node.input(MASK)
    }
}
