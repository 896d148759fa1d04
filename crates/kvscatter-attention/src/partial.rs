//! The result of attention over a part of the positions.

use crate::kernel::LANES;
use crate::setup::{Blocking, Setup};

/// The result of attention over a part of the positions, for each row of a block.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    /// The largest score.
    pub(crate) most: Vec<f32>,
    /// The sum of the weights, which are relative to the largest score.
    pub(crate) weight: Vec<f32>,
    /// The weighted sum of the values, padded to a multiple of [`LANES`].
    pub(crate) sums: Vec<f32>,
}

impl Partial {
    /// Allocates the result of a block of a prepared call.
    pub(crate) fn of(setup: &Setup) -> Self {
        let Blocking { heads, rows, .. } = setup.blocking;
        Self::new(heads * rows, setup.sizes.value_size.next_multiple_of(LANES))
    }

    pub(crate) fn new(rows: usize, size: usize) -> Self {
        Self { most: vec![0.0; rows], weight: vec![0.0; rows], sums: vec![0.0; rows * size] }
    }

    pub(crate) fn clear(&mut self) {
        self.most.fill(f32::NEG_INFINITY);
        self.weight.fill(0.0);
        self.sums.fill(0.0);
    }

    /// Merges the result for later positions into this one.
    pub(crate) fn merge(&mut self, later: &Self) {
        let size = self.sums.len().checked_div(self.most.len()).unwrap_or(0);
        let totals = self.most.iter_mut().zip(&mut self.weight).zip(self.sums.chunks_exact_mut(size.max(1)));
        let parts = later.most.iter().zip(&later.weight).zip(later.sums.chunks_exact(size.max(1)));
        for (((most, weight), sums), ((&later_most, &later_weight), later_sums)) in totals.zip(parts) {
            if later_weight == 0.0 {
                continue; // the row sees nothing in the later part
            }
            if *weight == 0.0 {
                (*most, *weight) = (later_most, later_weight);
                sums.copy_from_slice(later_sums);
                continue;
            }
            let max = most.max(later_most);
            let (factor, later_factor) = (weight_of(*most, max), weight_of(later_most, max));
            *weight = *weight * factor + later_weight * later_factor;
            for (sum, later) in sums.iter_mut().zip(later_sums) {
                *sum = *sum * factor + later * later_factor;
            }
            *most = max;
        }
    }
}

/// Returns `exp(score - max)`. If both are negative infinity, every weight is NaN, which stays.
fn weight_of(score: f32, max: f32) -> f32 {
    if score == max { 1.0 } else { (score - max).exp() }
}
