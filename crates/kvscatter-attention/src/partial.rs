//! The results of attention over one chunk and over several, for each row of a block.
//!
//! Each result is the largest score, the sum of the weights and the weighted sum of the values.

use crate::aligned::{Aligned, padded};
use crate::setup::{Blocking, Setup};

/// The result of one chunk, in float32.
#[derive(Debug)]
pub(crate) struct Partial {
    /// The largest score.
    pub(crate) most: Vec<f32>,
    /// The sum of the weights, which are relative to the largest score. It is 0 for a row that sees nothing.
    pub(crate) weight: Vec<f32>,
    /// The weighted sum of the values, [`padded`].
    pub(crate) sums: Aligned,
}

/// The result of all chunks so far, in float64, so that its error does not grow with the number of chunks.
#[derive(Debug)]
pub(crate) struct Total {
    most: Vec<f32>,
    weight: Vec<f64>,
    sums: Vec<f64>,
}

impl Partial {
    /// Allocates the result of a block of a prepared call.
    pub(crate) fn new(setup: &Setup) -> Self {
        let [rows, size] = dimensions(setup);
        Self { most: vec![0.0; rows], weight: vec![0.0; rows], sums: Aligned::zeros(rows * size) }
    }
}

impl Total {
    /// Allocates the result of a block of a prepared call.
    pub(crate) fn new(setup: &Setup) -> Self {
        let [rows, size] = dimensions(setup);
        Self { most: vec![0.0; rows], weight: vec![0.0; rows], sums: vec![0.0; rows * size] }
    }

    /// Removes the results of all chunks.
    pub(crate) fn clear(&mut self) {
        self.most.fill(f32::NEG_INFINITY);
        self.weight.fill(0.0);
        self.sums.fill(0.0);
    }

    /// Adds the result of a chunk. Chunks must be added in the order of their positions.
    pub(crate) fn add(&mut self, partial: &Partial) {
        let size = self.row_size();
        let totals = self.most.iter_mut().zip(&mut self.weight).zip(self.sums.chunks_exact_mut(size));
        let added = partial.most.iter().zip(&partial.weight).zip(partial.sums.chunks_exact(size));
        for (((most, weight), sums), ((&added_most, &added_weight), added_sums)) in totals.zip(added) {
            if added_weight == 0.0 {
                continue;
            }
            let max = most.max(added_most);
            let (factor, added_factor) = (weight_of(*most, max), weight_of(added_most, max));
            // A weight that is NaN stays so, and makes the row NaN.
            *weight = *weight * factor + f64::from(added_weight) * added_factor;
            for (sum, added) in sums.iter_mut().zip(added_sums) {
                *sum = scaled(*sum, factor) + scaled(f64::from(*added), added_factor);
            }
            *most = max;
        }
    }

    /// Adds a sink to each row: its weight, and no value. A row that sees nothing stays so.
    pub(crate) fn add_sinks(&mut self, sinks: impl Iterator<Item = f32>) {
        for ((most, weight), sink) in self.most.iter().zip(&mut self.weight).zip(sinks) {
            if *weight != 0.0 {
                *weight += (f64::from(sink) - f64::from(*most)).exp();
            }
        }
    }

    /// Returns the number of sums of a row, or 1 if there are none, because no chunk of a list is empty.
    fn row_size(&self) -> usize {
        self.sums.len().checked_div(self.most.len()).unwrap_or(0).max(1)
    }

    /// Returns the weighted means of each row, or zeros for a row that sees nothing.
    pub(crate) fn means(&self) -> impl Iterator<Item = impl Iterator<Item = f32>> {
        let size = self.row_size();
        self.weight.iter().zip(self.sums.chunks_exact(size)).map(|(&weight, sums)| {
            let factor = if weight == 0.0 { 0.0 } else { 1.0 / weight };
            sums.iter().map(move |sum| (sum * factor) as f32)
        })
    }
}

/// Returns the number of rows of a block and the number of sums of a row.
fn dimensions(setup: &Setup) -> [usize; 2] {
    let Blocking { heads, rows, .. } = setup.blocking;
    [heads * rows, padded(setup.sizes.value_size)]
}

/// Returns `exp(score - max)`, and 0 below the smallest normal float32, like the kernels.
fn weight_of(score: f32, max: f32) -> f64 {
    // The difference of two infinities would be NaN.
    let weight = if score == max { 1.0 } else { (f64::from(score) - f64::from(max)).exp() };
    if weight < f64::from(f32::MIN_POSITIVE) { 0.0 } else { weight }
}

/// Returns a weighted sum. A sum of weight 0 has no influence, even if it is NaN or infinite.
fn scaled(sum: f64, weight: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { sum * weight }
}
