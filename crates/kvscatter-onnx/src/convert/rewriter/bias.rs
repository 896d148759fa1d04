//! The nodes that compute a bias by distance.
//!
//! They state the rule again, because a runtime evaluates them. A test of `masks.rs` compares them with the
//! rule.

use kvscatter::ElementType;

use super::super::attention::ScoresLayout;
use super::super::caches::RANK;
use super::super::probe::Distance;
use super::super::refusal::ConvertRefusal;
use super::super::rule::{Added, Bias, Rule};
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
        let visible = self.visible(ScoresLayout::Separate { rank: RANK }, rule)?;
        let Some(bias) = &rule.bias else { return Ok(visible) };
        let bias = self.bias(bias, ScoresLayout::Separate { rank: RANK }, element)?;
        let lowest = lowest(element).ok_or(ConvertRefusal::ScoresType { element })?;
        let lowest = self.editor.float(element, lowest)?;
        self.shared("Where", &[&visible, &bias, &lowest])
    }

    /// Adds the bias for scores of this layout, `[batch, heads.., new tokens, slots]` or
    /// `[batch * heads, new tokens, slots]`. Returns the name.
    ///
    /// With slopes, the bias is a product of slope and distance. The nearest slots, whose differences count most, get
    /// the smallest numbers, which are rounded least.
    pub(in super::super) fn bias(
        &mut self,
        bias: &Bias,
        layout: ScoresLayout,
        element: ElementType,
    ) -> Result<String, OnnxError> {
        let distances = self.distances(bias.distance)?;
        let bias = match &bias.added {
            Added::Slopes(slopes) => self.by_slopes(&bias.heads, slopes, &distances, element)?,
            Added::Table { numbers, distances: most } => {
                let distances = match bias.distance {
                    Distance::Slots => distances,
                    Distance::Tokens => self.editor.shared(NewNode::cast(&distances, ElementType::Int64))?,
                };
                let shape = std::iter::once(*most).chain(bias.heads.iter().copied()).collect();
                let heads = numbers.len().checked_div(*most).unwrap_or_default();
                let by_distance = (0..*most).flat_map(|distance| {
                    let of_heads = numbers.iter().skip(distance).step_by((*most).max(1));
                    of_heads.take(heads).copied()
                });
                let table = self.editor.floats(element, shape, &by_distance.collect::<Vec<_>>())?;
                self.by_table(&table, bias.heads.len(), &distances)?
            }
        };
        match layout {
            ScoresLayout::Separate { .. } => Ok(bias),
            ScoresLayout::Merged { .. } => {
                let merged = self.editor.merge_heads(&bias)?;
                self.editor.shared(merged)
            }
        }
    }

    fn by_slopes(
        &mut self,
        heads: &[usize],
        slopes: &[f64],
        distances: &str,
        element: ElementType,
    ) -> Result<String, OnnxError> {
        let distances = self.editor.shared(NewNode::cast(distances, element))?;
        let axes: Vec<_> = (1_i64..).take(heads.len()).collect();
        let by_head = match *axes {
            [] => distances,
            _ => {
                let axes = self.editor.ints(&axes)?;
                self.shared("Unsqueeze", &[&distances, &axes])?
            }
        };
        let shape = heads.iter().copied().chain([1, 1]).collect();
        let slopes = self.editor.floats(element, shape, slopes)?;
        self.shared("Mul", &[&by_head, &slopes])
    }

    /// Picks the numbers of all distances, `[batch, new tokens, slots]`, from a table, `[distances, heads..]`, whose
    /// heads have this many axes. Slots after a token get the number of the token's slot.
    fn by_table(&mut self, table: &str, axes: usize, distances: &str) -> Result<String, OnnxError> {
        let steps = self.shared("Neg", &[distances])?;
        let own = self.editor.scalar_i64(0)?;
        let steps = self.shared("Max", &[&steps, &own])?;
        // Rows of a table are picked faster than single numbers.
        let picked = self.shared("Gather", &[table, &steps])?;
        let heads = (3..).take(axes);
        let order: Vec<_> = [0].into_iter().chain(heads).chain([1, 2]).collect();
        match axes {
            0 => Ok(picked),
            _ => self.editor.shared(NewNode::new("Transpose", &[&picked]).ints("perm", &order)),
        }
    }

    /// Adds the distance of each slot from each new token, `[batch, new tokens, slots]`, as int64, or as float32 if
    /// real tokens are counted. Returns the name.
    fn distances(&mut self, distance: Distance) -> Result<String, OnnxError> {
        let Places { slots, tokens, .. } = self.places(distance)?;
        self.shared("Sub", &[&slots, &tokens])
    }
}
