//! Evaluates models of `TensorScatter` and the few operators that such models need: `Identity`, `Constant`
//! and integer `Add`.
//!
//! A cache is written in place wherever the graph allows it. For this the evaluation must own the buffer of
//! `past_cache`, because the caller donated it or a node produced it. In addition, no node or output may need
//! the old values afterwards. The [`Report`] contains the outcome for every node, with the addresses before
//! and after the write and the number of bytes moved.

mod add;
pub(crate) mod error;
mod evaluator;
mod feed;
mod memory;
mod op;
mod placement;
mod report;
mod run;
mod types;

pub use evaluator::Evaluator;
pub use feed::Feed;
pub use placement::Placement;
pub use report::{NodeReport, NotInPlace, Outcome, OutputCopy, Report, Use};
pub use run::Evaluation;
pub use types::{MAX_RANK, check_declared};

pub(crate) use memory::bytes;
pub(crate) use op::{Op, constant_tensor};
pub(crate) use types::{TensorType, Types, broadcast};
