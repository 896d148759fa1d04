//! What speaks for a certificate, by kind: what the graph says, what is seen in memory, what takes how long.

pub(crate) mod logits;
mod memory;
pub(crate) mod observed;
pub(crate) mod structural;
mod tally;
pub(crate) mod timed;
