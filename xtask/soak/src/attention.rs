//! Calls of attention, compared with the oracle in float64.
//!
//! A seed prepares small operators and runs each of them on many inputs. NaN and infinity are in the slots that no
//! query sees. A few larger cases of the oracle reach the vector kernels and several chunks of a cache.

mod bed;
#[path = "../../../crates/kvscatter-attention/tests/oracle/bounds.rs"]
#[expect(clippy::unwrap_used, reason = "a failed test panics")]
mod bounds;
#[path = "../../../crates/kvscatter-attention/tests/oracle/call.rs"]
#[expect(dead_code, reason = "ranks are compared elsewhere")]
mod call;
#[path = "../../../crates/kvscatter-attention/tests/oracle/element.rs"]
mod element;
#[path = "../../../crates/kvscatter-attention/tests/oracle/executors.rs"]
mod executors;
#[path = "../../../crates/kvscatter-attention/tests/oracle/scene.rs"]
#[expect(clippy::unwrap_used, reason = "a failed test panics, and calls are short here")]
mod scene;
mod shapes;
mod values;

use half::{bf16, f16};
use kvscatter_oracle::attention::{Float, Positions};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::cases::attention::random_case;

use self::bed::Bed;
use self::scene::Ways;
use crate::tally::Tally;

/// The operators that a seed prepares, and the inputs of each.
const BEDS: usize = 24;
const INPUTS: usize = 16;

/// The larger cases of a seed.
const CASES: usize = 3;

/// Runs and checks the calls of a seed.
pub(crate) fn attack(seed: u64) -> Tally {
    let mut tally = Tally::default();
    for n in 0..BEDS {
        let r = &mut Random::new(seed, n);
        match r.pick(&Float::ALL) {
            Float::F32 => Bed::<f32>::random(r).run(r, INPUTS, &mut tally),
            Float::F16 => Bed::<f16>::random(r).run(r, INPUTS, &mut tally),
            Float::Bf16 => Bed::<bf16>::random(r).run(r, INPUTS, &mut tally),
        }
    }
    for n in 0..CASES {
        let case = random_case(seed, (seed as usize).wrapping_mul(CASES).wrapping_add(n));
        scene::check(&case, Ways::Two);
        // Rings have no output of scores.
        tally.accepted += if matches!(case.inputs.positions, Positions::Ring(_)) { 2 } else { 3 };
    }
    tally
}
