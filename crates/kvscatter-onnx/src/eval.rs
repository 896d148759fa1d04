//! Evaluation of models made of `TensorScatter` and the few operators that such models need besides: `Identity`,
//! `Constant`, and `Add` on integers.
//!
//! The cache is written in place wherever the graph allows it: the buffer of `past_cache` belongs to the
//! evaluation (the caller donated it, or a node made it) and nothing needs the old values afterwards. The
//! [`Report`] states this for every node, with the addresses before and after and the bytes that moved.

mod add;
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
pub use types::MAX_RANK;

pub(crate) use memory::bytes;
pub(crate) use op::{ConstantValue, Op};
pub(crate) use types::{TensorType, Types};
