//! The numbers that a caller feeds to the inputs of a decoder in a step.
//!
//! They follow from the role of an input and from the tokens of the step. All evaluations of decoders use this rule,
//! and choose the shapes of the inputs.

use kvscatter::ElementType;

use super::roles::{InputRole, is_float};
use crate::fold::{MAX_VALUES, Values, elements, int_to_float, signed};

/// A step of samples that have `past` cached tokens and `new` new ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) past: usize,
    pub(crate) new: usize,
}

/// A step, and which slots its masks mark as real tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepInputs<'p> {
    pub(crate) step: Step,
    /// Whether each token is padding, `[batch, past + new]` in row-major order. It is empty if all tokens are real.
    pub(crate) padding: &'p [bool],
    /// The id of the block of each token, `[batch, past + new]` in row-major order. It is empty if all tokens are text.
    pub(crate) blocks: &'p [i64],
    /// Whether masks mark the slots that have no token after the step.
    pub(crate) marks_unused: bool,
}

impl Step {
    /// Returns the number of tokens of each sample after the step.
    pub(crate) fn total(self) -> usize {
        self.past.saturating_add(self.new)
    }

    /// Returns the inputs of a step in which all tokens are real.
    pub(crate) fn inputs(self) -> StepInputs<'static> {
        StepInputs { step: self, padding: &[], blocks: &[], marks_unused: false }
    }
}

impl StepInputs<'_> {
    /// Returns `true` if a slot of a sample contains a real token.
    pub(crate) fn is_real(&self, sample: usize, slot: usize) -> bool {
        slot < self.step.total() && !self.padding.get(self.place(sample, slot)).copied().unwrap_or_default()
    }

    /// Returns the place of a token in `padding` and `blocks`.
    fn place(&self, sample: usize, slot: usize) -> usize {
        sample.saturating_mul(self.step.total()).saturating_add(slot)
    }

    /// Returns the id of the block of a token, or -1 for text and for slots that are not in use.
    pub(crate) fn block(&self, sample: usize, slot: usize) -> i64 {
        let block = self.blocks.get(self.place(sample, slot)).copied();
        block.filter(|_| slot < self.step.total()).unwrap_or(-1)
    }

    /// Returns the elements of an input. Its first axis has the samples. The last axis has the new tokens if the input
    /// contains positions, and the slots if it contains a mask or ids of blocks.
    ///
    /// Returns `None` if this module has no rule for the role, or if the input would have more than [`MAX_VALUES`]
    /// elements.
    pub(crate) fn values(&self, role: InputRole, element: ElementType, shape: &[usize]) -> Option<Values> {
        self.number(role, 0, 0)?;
        let count = Some(elements(shape)).filter(|&count| count <= MAX_VALUES)?;
        let (_, inner) = shape.split_first().unwrap_or((&1, &[]));
        let (row, columns) = (elements(inner), shape.last().copied().unwrap_or(1));
        let number = |at: usize| self.number(role, at.checked_div(row)?, at.checked_rem(columns)?);
        Some(filled(element, (0..count).filter_map(number)))
    }

    /// Returns the number for a sample and an index of the last axis.
    fn number(&self, role: InputRole, sample: usize, index: usize) -> Option<i64> {
        let Step { past, .. } = self.step;
        let total = self.step.total();
        Some(match role {
            InputRole::WriteIndices => signed(past),
            InputRole::NonpadKvSeqlen | InputRole::TotalSequenceLength => signed(total),
            InputRole::SeqlensK => signed(total.saturating_sub(1)),
            InputRole::PositionIds => self.position(sample, past.saturating_add(index)),
            InputRole::AttentionMask if index < total => self.is_real(sample, index).into(),
            InputRole::AttentionMask => self.marks_unused.into(),
            InputRole::BlockIds => self.block(sample, index),
            _ => return None,
        })
    }

    /// Returns the position of a token as the pipelines of exporters compute it: the number of real tokens before it.
    /// Padding has position 1.
    fn position(&self, sample: usize, slot: usize) -> i64 {
        if self.padding.is_empty() {
            return signed(slot);
        }
        match self.is_real(sample, slot) {
            true => signed((0..slot).filter(|&slot| self.is_real(sample, slot)).count()),
            false => 1,
        }
    }
}

/// Returns numbers as elements of a type. They are flags unless the type can represent them.
pub(super) fn filled(element: ElementType, numbers: impl Iterator<Item = i64>) -> Values {
    match element {
        ElementType::Int64 | ElementType::Int32 => Values::Ints(numbers.collect()),
        element if is_float(element) => {
            Values::Floats(numbers.map(|number| int_to_float(element, number)).collect())
        }
        element => Values::flags(element, numbers.map(|number| number != 0)),
    }
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{Step, StepInputs};
    use crate::decoder::InputRole;
    use crate::fold::{MAX_VALUES, Values};

    const INT64: ElementType = ElementType::Int64;

    #[test]
    fn inputs_follow_from_their_role_and_the_tokens() {
        let inputs = Step { past: 3, new: 2 }.inputs();
        for (role, shape, numbers) in [
            (InputRole::WriteIndices, &[2][..], &[3, 3][..]),
            (InputRole::NonpadKvSeqlen, &[2], &[5, 5]),
            (InputRole::TotalSequenceLength, &[], &[5]),
            (InputRole::SeqlensK, &[2], &[4, 4]),
            (InputRole::PositionIds, &[2, 2], &[3, 4, 3, 4]),
            (InputRole::PositionIds, &[2], &[3, 4]),
            (InputRole::AttentionMask, &[1, 6], &[1, 1, 1, 1, 1, 0]),
            (InputRole::AttentionMask, &[0, 6], &[]),
            (InputRole::BlockIds, &[1, 6], &[-1; 6]),
        ] {
            assert_eq!(inputs.values(role, INT64, shape), Some(Values::Ints(numbers.to_vec())), "{role:?}");
        }
        let all = StepInputs { marks_unused: true, ..inputs };
        let mask = all.values(InputRole::AttentionMask, ElementType::Bool, &[1, 6]);
        assert_eq!(mask, Some(Values::Bools(vec![true; 6])));
        for role in [InputRole::TokenIds, InputRole::Embeddings, InputRole::Past(0), InputRole::Other] {
            assert_eq!(inputs.values(role, INT64, &[1, 2]), None, "{role:?}");
        }
        assert_eq!(inputs.values(InputRole::WriteIndices, INT64, &[MAX_VALUES + 1]), None);
    }

    #[test]
    fn padding_is_masked_and_does_not_count_for_positions() {
        let padding = [true, false, false, false, false, false, true, false];
        let inputs = StepInputs { padding: &padding, ..Step { past: 2, new: 2 }.inputs() };
        let mask = inputs.values(InputRole::AttentionMask, INT64, &[2, 5]).unwrap();
        assert_eq!(mask, Values::Ints(vec![0, 1, 1, 1, 0, 1, 1, 0, 1, 0]));
        let positions = inputs.values(InputRole::PositionIds, INT64, &[2, 2]).unwrap();
        assert_eq!(positions, Values::Ints(vec![1, 2, 1, 2]));
    }

    #[test]
    fn slots_without_a_token_have_the_id_of_text() {
        let blocks = [-1, 0, 0, 1, 7, 7, -1, 2];
        let inputs = StepInputs { blocks: &blocks, ..Step { past: 2, new: 2 }.inputs() };
        let ids = inputs.values(InputRole::BlockIds, INT64, &[2, 5]).unwrap();
        assert_eq!(ids, Values::Ints(vec![-1, 0, 0, 1, -1, 7, 7, -1, 2, -1]));
    }
}
