//! What speaks for a certificate, by kind: what the graph says, what is seen in memory, what takes how long.

mod check_builder;
pub(crate) mod logits;
mod memory;
pub(crate) mod observed;
pub(crate) mod structural;
pub(crate) mod timed;
