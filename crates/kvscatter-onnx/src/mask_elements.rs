//! Elements of the masks of attention: where they are, and whether they show a slot.

use kvscatter::ElementType;

use crate::fold::Values;

/// The largest number that counts as hiding a slot when it is added to the slot's score. With this number,
/// the weight of the slot underflows in float32 for all scores that differ by much less than 1e4.
pub(crate) const HIDDEN: f64 = -1e4;

/// The place of a score: that of a slot for a new token, in one head of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreAt {
    pub(crate) sample: usize,
    /// The index in row-major order if there are several axes of heads.
    pub(crate) head: usize,
    pub(crate) token: usize,
    pub(crate) slot: usize,
}

/// The effect of the elements of a mask on scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskEffect {
    /// An element is added.
    Added,
    /// The score is kept if the element equals `visible_where`.
    Chosen { visible_where: bool },
    /// The score is kept if the element is not 0.
    Counted,
}

impl MaskEffect {
    /// Returns the effect of a mask that `Attention` reads.
    pub(crate) fn in_attention(element: ElementType) -> Self {
        match element {
            ElementType::Bool => Self::Chosen { visible_where: true },
            _ => Self::Added,
        }
    }

    /// Returns what an element adds to a score, which is minus infinity for a hidden slot. Returns `None` if there is
    /// no such element, or if it has another type.
    pub(crate) fn added(self, elements: &Values, at: usize) -> Option<f64> {
        let kept = |is_kept| if is_kept { 0.0 } else { f64::NEG_INFINITY };
        match (self, elements) {
            (Self::Added, Values::Floats(numbers)) => numbers.get(at).copied(),
            (Self::Chosen { visible_where }, Values::Bools(flags)) => {
                flags.get(at).map(|&flag| kept(flag == visible_where))
            }
            (Self::Counted, Values::Ints(numbers)) => numbers.get(at).map(|&number| kept(number != 0)),
            _ => None,
        }
    }

    /// Returns whether an element shows a slot, or `None` if it is not known.
    pub(crate) fn shows(self, elements: &Values, at: usize) -> Option<bool> {
        self.added(elements, at).map(|added| added > HIDDEN)
    }
}

/// Returns the sizes of the last three axes of a mask: heads, new tokens and slots. An axis that it does not have has
/// size 1.
pub(crate) fn last_sizes(shape: &[usize]) -> [usize; 3] {
    [2, 1, 0].map(|from_last| shape.iter().rev().nth(from_last).copied().unwrap_or(1))
}

/// Returns the index of the mask's element for a score, or `None` if the shapes do not broadcast. `heads` has
/// the sizes of the axes between the batch and the new tokens.
pub(crate) fn element_of(shape: &[usize], heads: &[usize], score: ScoreAt) -> Option<usize> {
    let ScoreAt { sample, head, token, slot } = score;
    let mut rest = head;
    let inner = heads.iter().rev().map(|&size| {
        let index = rest.checked_rem(size).unwrap_or_default();
        rest = rest.checked_div(size).unwrap_or_default();
        index
    });
    let indices = [slot, token].into_iter().chain(inner).chain([sample]);
    let mut step = 1_usize;
    let mut place = 0_usize;
    for (&size, index) in shape.iter().rev().zip(indices) {
        if size != 1 {
            if index >= size {
                return None;
            }
            place = place.checked_add(index.checked_mul(step)?)?;
        }
        step = step.checked_mul(size)?;
    }
    (shape.len() <= heads.len().saturating_add(3)).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::{HIDDEN, MaskEffect, ScoreAt, element_of, last_sizes};
    use crate::fold::Values;

    #[test]
    fn elements_broadcast_to_scores() {
        let score = ScoreAt { sample: 1, head: 5, token: 2, slot: 3 };
        // There are two axes of heads, of 2 and 3 heads.
        for (shape, place) in [
            (&[][..], Some(0)),
            (&[4], Some(3)),
            (&[3, 4], Some(11)),
            (&[1, 4], Some(3)),
            (&[3, 3, 4], Some(35)),
            (&[2, 2, 3, 3, 4], Some(143)),
            (&[2, 1, 1, 1, 1], Some(1)),
            (&[3], None),
            (&[2, 4], None),
            (&[1, 2, 2, 3, 3, 4], None),
        ] {
            assert_eq!(element_of(shape, &[2, 3], score), place, "{shape:?}");
        }
        assert_eq!(last_sizes(&[9, 4, 3, 2]), [4, 3, 2]);
        assert_eq!(last_sizes(&[2]), [1, 1, 2]);
    }

    #[test]
    fn each_effect_shows_or_hides() {
        let numbers = Values::Floats(vec![0.0, 5.0, HIDDEN, f64::NAN]);
        let flags = Values::Bools(vec![true, false]);
        let counts = Values::Ints(vec![2, 0]);
        let [chosen, other] = [true, false].map(|visible_where| MaskEffect::Chosen { visible_where });
        for (effect, elements, shows) in [
            (MaskEffect::Added, &numbers, &[Some(true), Some(true), Some(false), Some(false), None][..]),
            (chosen, &flags, &[Some(true), Some(false), None]),
            (other, &flags, &[Some(false), Some(true), None]),
            (MaskEffect::Counted, &counts, &[Some(true), Some(false), None]),
            (MaskEffect::Added, &flags, &[None]),
            (chosen, &counts, &[None]),
        ] {
            for (at, shown) in shows.iter().enumerate() {
                assert_eq!(effect.shows(elements, at), *shown, "{effect:?} {at}");
            }
        }
        assert_eq!(MaskEffect::Added.added(&numbers, 1), Some(5.0));
        assert_eq!(chosen.added(&flags, 1), Some(f64::NEG_INFINITY));
    }
}
