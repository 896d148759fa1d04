//! The rule of what attention adds to the score of each slot.

use super::probe::{Distance, Probe};

/// What attention adds to the score of each slot. The score of a hidden slot does not count.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rule {
    /// The number of slots that a token sees, itself included, or `None` if it sees all.
    pub(super) window: Option<usize>,
    /// What is added to the scores of visible slots, or `None` if nothing is.
    pub(super) bias: Option<Bias>,
}

/// A bias that is proportional to the distance of a slot from the token, as in `ALiBi`.
///
/// A softmax ignores a number that is added to all slots of a token. So it does not matter where an exporter
/// begins to count.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bias {
    /// The sizes of the axes between the batch and the new tokens.
    pub(super) heads: Vec<usize>,
    /// What each head adds for a slot for each step of its distance, in row-major order of `heads`.
    pub(super) slopes: Vec<f64>,
    pub(super) distance: Distance,
}

/// The window of attention that reads a cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheWindow {
    /// The past of the cache with the keys.
    pub past: String,
    /// The number of tokens that a token sees, itself included, or `None` if it sees all.
    pub window: Option<usize>,
}

impl Rule {
    /// Returns the distance of each slot from a new token, or `None` for a hidden slot.
    pub(super) fn row(&self, probe: &Probe, sample: usize, token: usize) -> Vec<Option<f64>> {
        let slots = self.distances(probe, sample, token).into_iter().enumerate();
        let visible = |slot| probe.is_visible(sample, token, slot, self.window);
        slots.map(|(slot, distance)| visible(slot).then_some(distance)).collect()
    }

    /// Returns the distance of each slot from a new token, for visible and hidden slots.
    pub(super) fn distances(&self, probe: &Probe, sample: usize, token: usize) -> Vec<f64> {
        let distance = self.bias.as_ref().map_or(Distance::Slots, |bias| bias.distance);
        probe.distances(sample, token, distance)
    }

    /// Returns what one head adds for each step of the distance. All heads share it if there is one slope.
    pub(super) fn slope(&self, head: usize) -> f64 {
        let slopes = self.bias.as_ref().map(|bias| bias.slopes.as_slice()).unwrap_or_default();
        match slopes {
            [slope] => *slope,
            slopes => slopes.get(head).copied().unwrap_or_default(),
        }
    }
}

impl Bias {
    /// Returns the bias after it is multiplied by a number.
    pub(super) fn scaled(&self, by: f64) -> Self {
        Self { slopes: self.slopes.iter().map(|slope| slope * by).collect(), ..self.clone() }
    }
}
