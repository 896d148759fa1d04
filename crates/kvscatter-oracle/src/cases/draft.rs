//! What the themes of all three operators make up.

use super::{Call, Element, Random};

/// What a theme makes up; the rest of a [`Case`](super::Case) follows from it.
pub(super) struct Draft {
    pub(super) call: Call,
    pub(super) elements: [&'static Element; 2],
    pub(super) cache_shape: Vec<usize>,
    pub(super) update_shape: Vec<usize>,
}

/// One adversarial idea: its name, and how to make a call up for a given element type.
pub(super) type Theme = (&'static str, fn(&mut Random, &'static Element) -> Draft);
