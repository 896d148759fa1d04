//! Plans, which check the positions of one call before the first byte moves.
//!
//! [`Call`] borrows the lists of the caller. [`CallRules`] contains the rules for these lists. A [`Moves`]
//! value proves that a call follows the rules. This module has no buffers, kernels and threads.

mod indices;
mod moves;
mod policy;
mod rules;
mod slots;

pub use self::indices::{Call, Integers, Lengths, Positions};
pub(crate) use self::moves::Moves;
pub use self::moves::Segment;
pub use self::policy::{Mode, NegativeIndex, OutOfRange};
pub(crate) use self::rules::{CallRules, RuleOptions, check_count, within};
pub use self::rules::{Convention, ListCounts, RowLimits};
