//! Plans of all three operators on painted buffers, which are compared as a whole.
//!
//! A seed prepares a few operators at random shapes, strides and element types. Each of them plans many calls with new
//! positions and lengths. For each call the oracle gives the slots of every row, or the rule that the call breaks. A
//! plan is written in place and in functional form.

mod bed;
#[path = "../../../crates/kvscatter/tests/oracle/call.rs"]
#[expect(dead_code, reason = "operators are prepared once and planned many times")]
mod call;
mod lists;
mod memory;
mod shapes;
#[path = "../../../crates/kvscatter/tests/oracle/view.rs"]
mod view;

use kvscatter_oracle::cases::Random;

use self::bed::Bed;
use crate::tally::Tally;

/// The operators that a seed prepares, and the calls of each.
const BEDS: usize = 16;
const CALLS: usize = 512;

/// Checks the calls of a seed.
pub(crate) fn attack(seed: u64) -> Tally {
    let mut tally = Tally::default();
    for n in 0..BEDS {
        let r = &mut Random::new(seed, n);
        let is_large = r.below(24) == 0;
        if let Some(mut bed) = Bed::random(r, is_large) {
            // Calls on large tensors take much longer.
            let calls = if is_large { CALLS / 16 } else { CALLS };
            (0..calls).for_each(|_| bed.plan(r, &mut tally));
        }
    }
    tally
}
