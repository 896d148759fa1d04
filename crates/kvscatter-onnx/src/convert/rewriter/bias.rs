//! The nodes that compute a bias by distance.
//!
//! They state the rule again, because a runtime evaluates them. A test of `masks.rs` compares them with the
//! rule.

use kvscatter::ElementType;

use super::super::attention::ScoresLayout;
use super::super::caches::RANK;
use super::super::probe::Distance;
use super::super::refusal::ConvertRefusal;
use super::super::rule::{Bias, Rule};
use super::{Places, Rewriter};
use crate::OnnxError;
use crate::edit::NewNode;
use crate::fold::lowest;

impl Rewriter<'_, '_, '_> {
    /// Adds the mask of an `Attention` node: the visibility of slots if the rule has no bias, and otherwise the bias
    /// of this type with its lowest number for hidden slots. Returns the name.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::ScoresType`] if no bias can be created for the type.
    pub(in super::super) fn mask(&mut self, rule: &Rule, element: ElementType) -> Result<String, OnnxError> {
        let visible = self.visible(ScoresLayout::Separate { rank: RANK }, rule.window)?;
        let Some(bias) = &rule.bias else { return Ok(visible) };
        let bias = self.bias(bias, ScoresLayout::Separate { rank: RANK }, element)?;
        let lowest = lowest(element).ok_or(ConvertRefusal::ScoresType { element })?;
        let lowest = self.editor.float(element, lowest)?;
        self.shared("Where", &[&visible, &bias, &lowest])
    }

    /// Adds the bias for scores of this layout, `[batch, heads.., new tokens, slots]` or
    /// `[batch * heads, new tokens, slots]`. Returns the name.
    ///
    /// The bias is a product of slope and distance. The nearest slots, whose differences count most, get the
    /// smallest numbers, which are rounded least.
    pub(in super::super) fn bias(
        &mut self,
        bias: &Bias,
        layout: ScoresLayout,
        element: ElementType,
    ) -> Result<String, OnnxError> {
        let distances = self.distances(bias.distance)?;
        let distances = self.editor.shared(NewNode::cast(&distances, element))?;
        let axes: Vec<_> = (1_i64..).take(bias.heads.len()).collect();
        let by_head = match *axes {
            [] => distances,
            _ => {
                let axes = self.editor.ints(&axes)?;
                self.shared("Unsqueeze", &[&distances, &axes])?
            }
        };
        let shape = bias.heads.iter().copied().chain([1, 1]).collect();
        let slopes = self.editor.floats(element, shape, &bias.slopes)?;
        let bias = self.shared("Mul", &[&by_head, &slopes])?;
        match layout {
            ScoresLayout::Separate { .. } => Ok(bias),
            ScoresLayout::Merged { .. } => {
                let merged = self.editor.merge_heads(&bias)?;
                self.editor.shared(merged)
            }
        }
    }

    /// Adds the distance of each slot from each new token, `[batch, new tokens, slots]`, as int64, or as float32 if
    /// real tokens are counted. Returns the name.
    fn distances(&mut self, distance: Distance) -> Result<String, OnnxError> {
        let Places { slots, tokens, .. } = self.places(distance)?;
        self.shared("Sub", &[&slots, &tokens])
    }
}
