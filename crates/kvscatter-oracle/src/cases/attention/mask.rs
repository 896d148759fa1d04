use super::super::Random;
use crate::attention::{Array, Float, Mask};
use crate::size;

/// How the entries of a mask are chosen.
#[derive(Clone, Copy)]
pub(super) enum Entries {
    /// A boolean mask that hides this percentage.
    Bool(usize),
    /// A float mask of ordinary numbers.
    Ordinary,
    /// A float mask of ordinary numbers that hides this percentage with minus infinity.
    Infinite(usize),
    /// A float mask of zeros that hides this percentage with the lowest value, and a few with minus infinity.
    Lowest(usize),
    /// A float mask of zeros that hides this percentage with -10000 or with -1e9 where that is representable.
    Large(usize),
}

/// The shape and the entries of a mask.
pub(super) struct MaskPlan {
    /// The number of dimensions, from 1 to 4.
    pub(super) rank: usize,
    /// Which dimensions of `[B, q_heads, S]` are 1.
    pub(super) repeated: [bool; 3],
    pub(super) missing: usize,
    pub(super) entries: Entries,
    /// The percentage of rows that hide every slot in the manner of the entries.
    pub(super) hidden_rows: usize,
}

impl MaskPlan {
    /// Returns a plan of any rank and any repeated dimensions, without missing columns.
    pub(super) fn any(r: &mut Random, entries: Entries) -> Self {
        let repeated = [r.below(2) == 0, r.below(2) == 0, r.below(2) == 0];
        Self { rank: r.between(1, 4), repeated, missing: 0, entries, hidden_rows: 0 }
    }

    /// Returns the mask for scores of this shape.
    pub(super) fn mask(&self, r: &mut Random, element: Float, full: [usize; 4]) -> Mask {
        let mut shape = full;
        for (dimension, repeated) in shape.iter_mut().zip(self.repeated) {
            *dimension = if repeated { 1 } else { *dimension };
        }
        shape[3] -= self.missing.min(shape[3]);
        let shape = &shape[4 - self.rank..];
        let columns = shape[self.rank - 1];
        let rows = size(&shape[..self.rank - 1]);
        let hidden: Vec<_> = (0..rows)
            .flat_map(|_| {
                let percentage = if r.below(100) < self.hidden_rows { 100 } else { self.percentage() };
                r.many(columns, |r| r.below(100) < percentage)
            })
            .collect();
        if let Entries::Bool(_) = self.entries {
            return Mask::Bool(Array::new(hidden.into_iter().map(|hidden| !hidden).collect(), shape));
        }
        let entries = hidden.into_iter().map(|hidden| self.entry(r, element, hidden)).collect();
        Mask::Float(Array::new(entries, shape))
    }

    fn percentage(&self) -> usize {
        match self.entries {
            Entries::Ordinary => 0,
            Entries::Bool(percentage)
            | Entries::Infinite(percentage)
            | Entries::Lowest(percentage)
            | Entries::Large(percentage) => percentage,
        }
    }

    fn entry(&self, r: &mut Random, element: Float, hidden: bool) -> f64 {
        match (self.entries, hidden) {
            (Entries::Lowest(_), true) if r.below(10) == 0 => f64::NEG_INFINITY,
            (Entries::Lowest(_), true) => element.lowest(),
            (Entries::Large(_), true) if element == Float::F16 => -10000.0,
            (Entries::Large(_), true) => element.round(-1e9),
            (Entries::Lowest(_) | Entries::Large(_), false) => 0.0,
            (_, true) => f64::NEG_INFINITY,
            (_, false) => element.round(r.below(4096) as f64 / 512.0 - 4.0),
        }
    }
}
