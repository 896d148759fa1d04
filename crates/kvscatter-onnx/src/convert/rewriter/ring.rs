//! The nodes that compute what a query sees in a ring.
//!
//! They state the rule of [`kvscatter::ring`] again, because a runtime evaluates them. A test in `visibility.rs`
//! compares them with the rule.

use kvscatter::ElementType;

use super::super::caches::RANK;
use super::super::ring::RingSize;
use super::super::visibility::Padding;
use super::Rewriter;
use crate::OnnxError;
use crate::decoder::InputRole;
use crate::edit::NewNode;

impl Rewriter<'_, '_, '_> {
    /// Returns the ring with this present, or `None` if the cache is linear.
    pub(in super::super) fn ring_of(&self, present: &str) -> Option<RingSize> {
        let cache = self.decoder.caches.iter().find(|cache| cache.present == present)?;
        self.rings.of(cache.past)
    }

    /// Adds the visibility of a ring's slots, bool `[batch, 1, new tokens, slots]`. Returns the name.
    ///
    /// A token at position `q` sees slot `s` if and only if `(q - s) mod C <= min(p, W - 1)`. `p` is its position among
    /// the real tokens of its sample.
    pub(in super::super) fn ring_mask(&mut self, ring: RingSize) -> Result<String, OnnxError> {
        let int = |size: usize| i64::try_from(size).unwrap_or(i64::MAX);
        let capacity = self.editor.scalar_i64(int(ring.capacity))?;
        // `q + (C - s)` is positive, because engines disagree about the remainders of negative numbers.
        let slots = self.editor.range(&capacity)?;
        let slots = self.node("Sub", &[&capacity, &slots])?;
        let positions = self.positions_by_slot()?;
        let ages = self.node("Add", &[&positions, &slots])?;
        let ages = self.node("Mod", &[&ages, &capacity])?;
        let oldest = self.editor.scalar_i64(int(ring.window.saturating_sub(1)))?;
        let before = self.tokens_before()?;
        let oldest = self.node("Min", &[&before, &oldest])?;
        let visible = self.node("LessOrEqual", &[&ages, &oldest])?;
        let heads: Vec<i64> = (1..).take(RANK - 3).collect();
        let heads = self.editor.ints(&heads)?;
        self.node("Unsqueeze", &[&visible, &heads])
    }

    /// Adds the number of a ring's slots in use after this step, int64 `[batch]`. Returns the name.
    pub(in super::super) fn ring_lengths(&mut self, ring: RingSize) -> Result<String, OnnxError> {
        let lengths = self.nonpad_kv_seqlen();
        let capacity = self.editor.scalar_i64(i64::try_from(ring.capacity).unwrap_or(i64::MAX))?;
        self.node("Min", &[&lengths, &capacity])
    }

    /// Adds the number of real tokens before each new token, int64 `[batch, new tokens, 1]`. Returns the name.
    fn tokens_before(&mut self) -> Result<String, OnnxError> {
        let mask = self.decoder.input(InputRole::AttentionMask).map(|mask| mask.name);
        let Some(mask) = mask.filter(|_| self.padding == Padding::Anywhere) else {
            return self.positions_by_slot();
        };
        let two = self.editor.ints(&[2])?;
        if let Some(positions) = self.decoder.input(InputRole::PositionIds) {
            let positions = (positions.name, positions.element);
            let positions = match positions {
                (name, ElementType::Int64) => name.to_owned(),
                (name, _) => self.editor.shared(NewNode::cast(name, ElementType::Int64))?,
            };
            return self.node("Unsqueeze", &[&positions, &two]);
        }
        // Without positions, the first real token in the mask shows how many tokens are padding.
        let real = self.editor.shared(NewNode::cast(mask, ElementType::Int32))?;
        let first = self.editor.shared(NewNode::new("ArgMax", &[&real]).int("axis", 1).int("keepdims", 1))?;
        let first = self.node("Unsqueeze", &[&first, &two])?;
        let positions = self.positions_by_slot()?;
        self.node("Sub", &[&positions, &first])
    }
}
