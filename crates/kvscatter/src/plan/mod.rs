//! Plans: one call's positions, all checked before the first byte moves, as rows that move.
//!
//! [`Call`] borrows what a caller passes, [`CallRules`] has the rules for it, and [`Moves`] is the proof that a call keeps
//! them. Buffers, kernels and threads do not exist here.

mod indices;
mod moves;
mod policy;
mod rules;

pub use self::indices::{Call, Integers, Lengths, Positions};
pub(crate) use self::moves::Moves;
pub use self::moves::Segment;
pub use self::policy::{Mode, NegativeIndex, OutOfRange};
pub(crate) use self::rules::{CallRules, RuleOptions};
pub use self::rules::{Convention, ListCounts, RowLimits};
