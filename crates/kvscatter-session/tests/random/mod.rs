//! Random histories of a session, for any engine and any way to know the right logits.

pub(crate) mod faults;
pub(crate) mod world;
