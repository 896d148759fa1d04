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
