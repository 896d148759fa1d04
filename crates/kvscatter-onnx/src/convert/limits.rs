//! What the attributes of an `Attention` node hide.

use kvscatter::Mode;
use kvscatter::visibility::Visibility;

use crate::Node;
use crate::fold::signed;

/// How far before and after its own slot a token of an `Attention` node sees, without a mask. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotLimits {
    left: Option<usize>,
    right: Option<usize>,
}

impl SlotLimits {
    /// The attributes that set the limits.
    pub(crate) const ATTRIBUTES: [&str; 3] = ["is_causal", "left_window_size", "right_window_size"];

    /// Reads the attributes of an `Attention` node. Operator set 25 added the sizes of windows, where -1 is no limit.
    pub(crate) fn from_node(node: &Node<'_>) -> Self {
        let [causal, left, right] = Self::ATTRIBUTES;
        let size = |name| usize::try_from(node.attribute(name)?.i?).ok();
        Self { left: size(left), right: if node.flag(causal) { Some(0) } else { size(right) } }
    }

    /// Returns the rule of the limits in a cache of this many slots, in which they count slots.
    pub(crate) fn of_slots(self, capacity: usize) -> Visibility {
        let rule = Visibility::new(Mode::Linear, capacity);
        let rule = self.left.map_or(rule, |left| rule.left(left));
        self.right.map_or(rule, |right| rule.right(right))
    }

    /// Returns `true` if a token does not see a slot among this many tokens.
    pub(crate) fn hides(self, tokens: usize, own: usize, slot: usize) -> bool {
        let [length, own] = [tokens, own].map(signed);
        !self.of_slots(tokens).sees(length, own, slot)
    }
}
