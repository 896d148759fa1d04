//! Drafts of cases, which the themes of all three operators generate.

use super::{Call, Element, Random};

/// The parts of a case that a theme chooses. The rest of a [`Case`](super::Case) follows from them.
pub(super) struct Draft {
    pub(super) call: Call,
    pub(super) elements: [&'static Element; 2],
    pub(super) cache_shape: Vec<usize>,
    pub(super) update_shape: Vec<usize>,
}

/// One adversarial idea: its name, and a function that generates a call for an element type.
pub(super) type Theme = (&'static str, fn(&mut Random, &'static Element) -> Draft);

impl Draft {
    /// Adds the same number of rows to every sample, and at least as many slots to the cache.
    pub(super) fn stretched(mut self, r: &mut Random) -> Self {
        let rows = r.below(20);
        let slots = rows + r.below(20);
        let narrow = rows as i32;
        match &mut self.call {
            Call::TensorScatter { operator, .. } => {
                let axis = operator.axis.rem_euclid(self.cache_shape.len() as i64) as usize;
                self.cache_shape[axis] += slots;
                self.update_shape[axis] += rows;
                return self;
            }
            Call::KvCacheUpdate { update_lengths: None, .. } => self.update_shape[2] += rows,
            Call::KvCacheUpdate { update_lengths: Some(lengths), .. } => {
                self.update_shape[0] += rows * (lengths.len() - 1);
                (0..).zip(lengths).for_each(|(sample, length)| *length += sample * narrow);
            }
            Call::KvCacheOperation { token_offset, seq_len, .. } => {
                let is_packed = self.update_shape.len() == 2;
                let (dimension, samples) = if is_packed { (0, seq_len.len()) } else { (1, 1) };
                self.update_shape[dimension] += rows * samples;
                seq_len.iter_mut().for_each(|length| *length += narrow);
                token_offset.iter_mut().for_each(|end| *end = end.saturating_add(narrow));
            }
        }
        self.cache_shape[2] += slots;
        self
    }
}

/// Changes a value within an expression.
pub(super) trait With: Sized {
    fn with<R>(mut self, change: impl FnOnce(&mut Self) -> R) -> Self {
        change(&mut self);
        self
    }
}

impl<T> With for T {}

/// Returns a type with one of these names. The generator passes every type, so one that an operator does not
/// support is replaced.
pub(super) fn supported(element: &Element, names: &[&str]) -> &'static Element {
    let supported: Vec<_> = Element::all().iter().filter(|other| names.contains(&other.name)).collect();
    supported[element.name.len() % supported.len()]
}

/// Returns a type with another name.
pub(super) fn unsupported(r: &mut Random, names: &[&str]) -> &'static Element {
    let others: Vec<_> = Element::all().iter().filter(|other| !names.contains(&other.name)).collect();
    r.pick(&others)
}

/// Adds a dimension, or removes the last one.
pub(super) fn change_rank(r: &mut Random, shape: &mut Vec<usize>) {
    if r.below(2) == 0 {
        shape.push(1);
    } else {
        shape.pop();
    }
}
