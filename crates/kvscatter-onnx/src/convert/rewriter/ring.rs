//! The nodes that compute what a query sees in a ring.
//!
//! They state the rule of [`kvscatter::ring`] again, because a runtime evaluates them. A test of `masks.rs`
//! compares them with the rule.

use kvscatter::ElementType;

use super::super::probes::Padding;
use super::super::ring::RingSize;
use super::Rewriter;
use crate::decoder::InputRole;
use crate::edit::NewNode;
use crate::fold::signed;
use crate::{Dimension, OnnxError};

impl<'m> Rewriter<'_, '_, 'm> {
    /// Returns the ring with this present, or `None` if the cache is linear.
    pub(in super::super) fn ring_of(&self, present: &str) -> Option<RingSize> {
        self.slots.rings.by_present.get(present).copied()
    }

    /// Adds the visibility of a ring's slots, bool `[batch, 1, new tokens, slots]`. Returns the name.
    ///
    /// A token at position `q` sees slot `s` if and only if `(q - s) mod C <= min(p, W - 1)`. `p` is its position among
    /// the real tokens of its sample.
    pub(in super::super) fn ring_mask(&mut self, ring: RingSize) -> Result<String, OnnxError> {
        let capacity = self.editor.scalar_i64(signed(ring.capacity))?;
        // `q + (C - s)` is positive, because engines disagree about the remainders of negative numbers.
        let slots = self.editor.range(&capacity)?;
        let slots = self.shared("Sub", &[&capacity, &slots])?;
        let positions = self.positions_by_slot()?;
        let ages = self.shared("Add", &[&positions, &slots])?;
        let ages = self.shared("Mod", &[&ages, &capacity])?;
        let oldest = self.editor.scalar_i64(signed(ring.window.saturating_sub(1)))?;
        let before = self.tokens_before()?;
        let oldest = self.shared("Min", &[&before, &oldest])?;
        let visible = self.shared("LessOrEqual", &[&ages, &oldest])?;
        let heads = self.editor.ints(&[1])?;
        self.shared("Unsqueeze", &[&visible, &heads])
    }

    /// Adds the number of a ring's slots in use after this step, int64 `[batch]`. Returns the name.
    pub(in super::super) fn ring_lengths(&mut self, ring: RingSize) -> Result<String, OnnxError> {
        let lengths = self.nonpad_kv_seqlen();
        let capacity = self.editor.scalar_i64(signed(ring.capacity))?;
        self.shared("Min", &[&lengths, &capacity])
    }

    /// Adds the number of real tokens before each new token, int64 `[batch, new tokens, 1]`. Returns the name.
    fn tokens_before(&mut self) -> Result<String, OnnxError> {
        let mask = self.decoder.input(InputRole::AttentionMask).map(|mask| mask.name);
        let Some(mask) = mask.filter(|_| self.padding == Padding::Anywhere) else {
            return self.positions_by_slot();
        };
        let two = self.editor.ints(&[2])?;
        if let Some((name, element)) = self.counted_positions() {
            let positions = match element {
                ElementType::Int64 => name.to_owned(),
                _ => self.editor.shared(NewNode::cast(name, ElementType::Int64))?,
            };
            return self.shared("Unsqueeze", &[&positions, &two]);
        }
        // The first real token in the mask shows how many tokens are padding.
        let real = self.editor.shared(NewNode::cast(mask, ElementType::Int32))?;
        let first = self.editor.shared(NewNode::new("ArgMax", &[&real]).int("axis", 1).int("keepdims", 1))?;
        let first = self.shared("Unsqueeze", &[&first, &two])?;
        let positions = self.positions_by_slot()?;
        self.shared("Sub", &[&positions, &first])
    }

    /// Returns the input with the positions of real tokens, if it takes the place of a mask of all tokens.
    ///
    /// A mask that linear caches read anyway shows the padding by itself. Positions must be those of each sample.
    fn counted_positions(&self) -> Option<(&'m str, ElementType)> {
        let positions = self.decoder.input(InputRole::PositionIds)?;
        let is_by_sample = match positions.shape.as_deref() {
            Some(&[Dimension::Known(samples), _]) => self.batch == Dimension::Known(samples),
            Some([_, _]) => true,
            _ => false,
        };
        (is_by_sample && self.linear.is_none()).then_some((positions.name, positions.element))
    }
}
