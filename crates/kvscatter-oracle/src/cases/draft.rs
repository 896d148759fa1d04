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

/// Changes a value within an expression.
pub(super) trait With: Sized {
    fn with<R>(mut self, change: impl FnOnce(&mut Self) -> R) -> Self {
        change(&mut self);
        self
    }
}

impl<T> With for T {}

/// Returns a type with one of these names. The generator passes every type, so one that an operator does not support
/// is replaced.
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
