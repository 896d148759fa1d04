//! The evidence for a certificate, by kind: the graph, the observed memory, the time.

mod check_builder;
pub(crate) mod logits;
mod memory;
pub(crate) mod narrow;
pub(crate) mod observed;
mod slots;
pub(crate) mod stored;
pub(crate) mod structural;
pub(crate) mod timed;
