//! Passes that change caches to the form that the conversion expects: past and present of one type, and the shape
//! `[batch, heads, length, head size]`.
//!
//! Both only add nodes that widen, transpose or reshape. The rest of the decoder reads and writes the
//! cache as before. A cache for which there is no such form stays as it is.

mod casts;
mod layout;

pub(super) use casts::unify_types;
pub(super) use layout::{answer, change_layouts};
