//! The state that all parts of a rewrite share: the editor, the added inputs, and values computed from them.

mod bias;
mod ring;

use kvscatter::ElementType;

use super::attention::ScoresLayout;
use super::caches::{AXIS, RANK};
use super::probe::{Distance, Inputs};
use super::ring::Slots;
use super::rule::{Blocks, Rule, Window};

use super::probes::Padding;
use crate::decoder::{Decoder, InputRole};
use crate::edit::{Editor, NewNode};
use crate::fold::{signed, to_float};
use crate::{Dimension, OnnxError};

/// The names of the inputs that a caller of the converted decoder has to know.
#[derive(Debug)]
pub(super) struct StaticInputs {
    pub(super) write_indices: String,
    pub(super) nonpad_kv_seqlen: Option<String>,
    /// The mask of real tokens, unless nothing reads it.
    pub(super) attention_mask: Option<String>,
}

/// An editor, and the values that all caches and attention operations share. Each value is added to the graph
/// when it is first needed, as a [shared](Editor::shared) node.
pub(super) struct Rewriter<'e, 'p, 'm> {
    pub(super) editor: &'e mut Editor<'p>,
    decoder: &'e Decoder<'m>,
    inputs: &'e Inputs<'m>,
    slots: Slots<'e>,
    /// The past of the first linear cache, or `None` if all caches are rings.
    linear: Option<&'m str>,
    /// Where the decoder supports padding.
    padding: Padding,
    /// The batch dimension as the first cache declares it.
    pub(super) batch: Dimension<'m>,
    write_indices: String,
    nonpad_kv_seqlen: Option<String>,
}

/// The names of values with the places of slots and tokens.
struct Places {
    /// The place of each slot, `[slots]` or `[batch, 1, slots]`.
    slots: String,
    /// The place of each new token, `[batch, new tokens, 1]`.
    tokens: String,
    element: ElementType,
}

impl<'e, 'p, 'm> Rewriter<'e, 'p, 'm> {
    /// Adds the input `write_indices` to the graph.
    pub(super) fn new(
        editor: &'e mut Editor<'p>,
        decoder: &'e Decoder<'m>,
        inputs: &'e Inputs<'m>,
        slots: Slots<'e>,
        padding: Padding,
    ) -> Self {
        let batch = decoder.caches.first().and_then(|cache| cache.past_shape.first().copied());
        let batch = batch.unwrap_or(Dimension::Unknown);
        let write_indices = editor.add_input("write_indices", ElementType::Int64, &[batch]);
        Self {
            editor,
            decoder,
            inputs,
            slots,
            linear: slots.first_linear(decoder),
            padding,
            batch,
            write_indices,
            nonpad_kv_seqlen: None,
        }
    }

    /// Returns the names of the inputs, with a mask of real tokens.
    pub(super) fn into_inputs(self) -> StaticInputs {
        StaticInputs {
            write_indices: self.write_indices,
            nonpad_kv_seqlen: self.nonpad_kv_seqlen,
            attention_mask: self.decoder.input(InputRole::AttentionMask).map(|mask| mask.name.to_owned()),
        }
    }

    /// Adds a `TensorScatter` that writes an update into a past.
    pub(super) fn scatter(&mut self, past: &str, update: &str, present: &str) {
        let inputs = [past, update, &self.write_indices];
        #[expect(clippy::as_conversions, clippy::cast_possible_wrap, reason = "a constant")]
        let axis = AXIS as i64;
        let mode = if self.slots.rings.by_past.contains_key(past) { "circular" } else { "linear" };
        self.editor.add(
            NewNode::new("TensorScatter", &inputs).outputs(&[present]).int("axis", axis).string("mode", mode),
        );
    }

    /// Adds a scalar with the number of slots of a linear cache, which is read from the cache's shape. If all caches
    /// are rings, it is the number of tokens that a sample can have. Returns the name.
    pub(super) fn capacity(&mut self) -> Result<String, OnnxError> {
        match self.linear {
            Some(past) => self.editor.size(past, AXIS),
            None => self.editor.scalar_i64(signed(self.slots.max_seq)),
        }
    }

    /// Adds the slot of each new token, `write_indices[b] + i`, int64 `[batch, new tokens]`. Returns the
    /// name.
    pub(super) fn positions(&mut self) -> Result<String, OnnxError> {
        let new = match self.inputs.new_tokens() {
            Some(new) => self.editor.scalar_i64(signed(new))?,
            None => {
                let update = || self.decoder.caches.iter().find_map(|cache| Some((cache.update?, AXIS)));
                let (counted, axis) = self.inputs.counts_new_tokens().or_else(update).unwrap_or_default();
                self.editor.size(counted, axis)?
            }
        };
        let tokens = self.editor.range(&new)?;
        let past = self.past()?;
        self.shared("Add", &[&past, &tokens])
    }

    /// Adds the number of cached tokens of each sample, int64 `[batch, 1]`. Returns the name.
    pub(super) fn past(&mut self) -> Result<String, OnnxError> {
        let one = self.editor.ints(&[1])?;
        self.shared("Unsqueeze", &[&self.write_indices.clone(), &one])
    }

    /// Adds the visibility of slots for scores of this layout: bool `[batch, 1.., new tokens, slots]`, or
    /// `[batch * heads, new tokens, slots]`. Returns the name.
    pub(super) fn visible(&mut self, layout: ScoresLayout, rule: &Rule) -> Result<String, OnnxError> {
        match layout {
            ScoresLayout::Separate { rank } => self.visible_at_rank(rank, rule),
            ScoresLayout::Merged { heads } => {
                let visible = self.visible_at_rank(RANK, rule)?;
                let shape = self.editor.ints(&[1, signed(heads), 1, 1])?;
                let repeated = self.shared("Expand", &[&visible, &shape])?;
                let merged = self.editor.merge_heads(&repeated)?;
                self.editor.shared(merged)
            }
        }
    }

    fn visible_at_rank(&mut self, rank: usize, rule: &Rule) -> Result<String, OnnxError> {
        let visible = match (rule.blocks, rule.window) {
            (Some(blocks), window) => self.visible_with_blocks(blocks, window)?,
            (None, None) => self.visible_to_tokens()?,
            (None, Some(window)) => self.visible_in_window(window)?,
        };
        let heads: Vec<i64> = (1..).take(rank.saturating_sub(3)).collect();
        if heads.is_empty() {
            return Ok(visible);
        }
        let heads = self.editor.ints(&heads)?;
        self.shared("Unsqueeze", &[&visible, &heads])
    }

    /// Adds the nodes that compute the rule of visibility. They state the rule again, because a runtime evaluates
    /// them. A test of `masks.rs` compares them with the rule.
    fn visible_to_tokens(&mut self) -> Result<String, OnnxError> {
        let causal = self.causal()?;
        self.and_real(causal)
    }

    /// Adds the nodes that also hide what is before the window of a token.
    fn visible_in_window(&mut self, window: Window) -> Result<String, OnnxError> {
        let visible = self.visible_to_tokens()?;
        let near = self.near(window)?;
        self.shared("And", &[&visible, &near])
    }

    /// Adds the nodes that also show the tokens of a token's block.
    fn visible_with_blocks(&mut self, blocks: Blocks, window: Option<Window>) -> Result<String, OnnxError> {
        let (causal, block) = (self.causal()?, self.in_block()?);
        let near = window.map(|window| self.near(window)).transpose()?;
        let shown = match (near, blocks) {
            (None, _) => self.shared("Or", &[&causal, &block])?,
            (Some(near), Blocks::Whole) => {
                let causal = self.shared("And", &[&causal, &near])?;
                self.shared("Or", &[&causal, &block])?
            }
            (Some(near), Blocks::InWindow) => {
                let shown = self.shared("Or", &[&causal, &block])?;
                self.shared("And", &[&shown, &near])?
            }
        };
        self.and_real(shown)
    }

    /// Adds which slots are up to that of each token, `[batch, new tokens, slots]`.
    fn causal(&mut self) -> Result<String, OnnxError> {
        let (slots, positions) = (self.slots()?, self.positions_by_slot()?);
        self.shared("LessOrEqual", &[&slots, &positions])
    }

    /// Hides the slots without a real token.
    fn and_real(&mut self, shown: String) -> Result<String, OnnxError> {
        let Some(mask) = self.decoder.input(InputRole::AttentionMask).map(|mask| mask.name) else {
            return Ok(shown);
        };
        let real = self.editor.shared(NewNode::cast(mask, ElementType::Bool))?;
        let one = self.editor.ints(&[1])?;
        let real = self.shared("Unsqueeze", &[&real, &one])?;
        self.shared("And", &[&shown, &real])
    }

    /// Adds which slots have the id of each token's slot, and one of at least 0, `[batch, new tokens, slots]`.
    fn in_block(&mut self) -> Result<String, OnnxError> {
        let input = self.decoder.input(InputRole::BlockIds).map(|ids| (ids.name, ids.element));
        let (ids, element) = input.unwrap_or(("", ElementType::Int64));
        let ids = match element {
            ElementType::Int64 => ids.to_owned(),
            _ => self.editor.shared(NewNode::cast(ids, ElementType::Int64))?,
        };
        let positions = self.positions()?;
        let own = NewNode::new("GatherElements", &[&ids, &positions]).int("axis", 1);
        let own = self.editor.shared(own)?;
        let (second, last) = (self.editor.ints(&[1])?, self.editor.ints(&[2])?);
        let own = self.shared("Unsqueeze", &[&own, &last])?;
        let of_slots = self.shared("Unsqueeze", &[&ids, &second])?;
        let is_same = self.shared("Equal", &[&own, &of_slots])?;
        let least = self.editor.scalar_i64(0)?;
        let is_block = self.shared("GreaterOrEqual", &[&own, &least])?;
        self.shared("And", &[&is_same, &is_block])
    }

    /// Adds which slots are not before the window of each token.
    fn near(&mut self, window: Window) -> Result<String, OnnxError> {
        let Places { slots, tokens, element } = self.places(window.distance)?;
        let size = match element {
            ElementType::Int64 => self.editor.scalar_i64(signed(window.size))?,
            element => self.editor.float(element, to_float(window.size))?,
        };
        let before = self.shared("Sub", &[&tokens, &size])?;
        self.shared("Greater", &[&slots, &before])
    }

    /// Adds the places whose differences are distances.
    fn places(&mut self, distance: Distance) -> Result<Places, OnnxError> {
        let mask = self.decoder.input(InputRole::AttentionMask).map(|mask| mask.name);
        let (Distance::Tokens, Some(mask)) = (distance, mask) else {
            let (slots, tokens) = (self.slots()?, self.positions_by_slot()?);
            return Ok(Places { slots, tokens, element: ElementType::Int64 });
        };
        let real = self.editor.shared(NewNode::cast(mask, ElementType::Bool))?;
        // Counts are exact in float32, and tract sums no integers of this kind.
        let element = ElementType::Float32;
        let real = self.editor.shared(NewNode::cast(&real, element))?;
        let one = self.editor.scalar_i64(1)?;
        let counts = self.shared("CumSum", &[&real, &one])?;
        let positions = self.positions()?;
        let own = NewNode::new("GatherElements", &[&counts, &positions]).int("axis", 1);
        let own = self.editor.shared(own)?;
        let (second, last) = (self.editor.ints(&[1])?, self.editor.ints(&[2])?);
        let slots = self.shared("Unsqueeze", &[&counts, &second])?;
        Ok(Places { slots, tokens: self.shared("Unsqueeze", &[&own, &last])?, element })
    }

    /// Adds the numbers of all slots, int64 `[slots]`. Returns the name.
    fn slots(&mut self) -> Result<String, OnnxError> {
        let capacity = self.capacity()?;
        self.editor.range(&capacity)
    }

    /// Adds the slot of each new token, to be compared with all slots, int64 `[batch, new tokens, 1]`. Returns
    /// the name.
    fn positions_by_slot(&mut self) -> Result<String, OnnxError> {
        let positions = self.positions()?;
        let two = self.editor.ints(&[2])?;
        self.shared("Unsqueeze", &[&positions, &two])
    }

    /// Returns the name of the input with the number of slots in use after this step, and adds it if
    /// necessary.
    pub(super) fn nonpad_kv_seqlen(&mut self) -> String {
        if let Some(name) = &self.nonpad_kv_seqlen {
            return name.clone();
        }
        let name = self.editor.add_input("nonpad_kv_seqlen", ElementType::Int64, &[self.batch]);
        self.nonpad_kv_seqlen.insert(name).clone()
    }

    fn shared(&mut self, op_type: &str, inputs: &[&str]) -> Result<String, OnnxError> {
        self.editor.shared(NewNode::new(op_type, inputs))
    }
}

/// Creates an `Attention` of queries to keys and values with a mask and the number of slots in use.
///
/// The mask decides which slots each token sees, so the node is not causal. Runtimes disagree on where a
/// causal mask begins if there are more keys than queries.
pub(super) fn over_caches([queries, keys, values]: [&str; 3], mask: &str, nonpad_kv_seqlen: &str) -> NewNode {
    NewNode::new("Attention", &[queries, keys, values, mask, "", "", nonpad_kv_seqlen])
}
