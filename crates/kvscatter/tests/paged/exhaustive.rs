//! Tests every write of a small domain, at every width, dense and strided.

use kvscatter_oracle::cases::paged::exhaustive;
use kvscatter_oracle::cases::{Random, View};

use crate::scene::{EVERY_WIDTH, Scene};
use crate::variants::{self, Variant};

/// The elements in each guard. The number is even, so that a buffer of 4-bit elements begins at a byte.
const GUARD: usize = 2;

#[test]
fn every_list_of_slots() {
    let mut random = Random::new(0x5CA7, 0);
    let variants = Variant::for_small();
    for (n, case) in exhaustive().enumerate() {
        let outcome = &case.run_on_origins();
        let dense = Scene {
            case: &case,
            cache: View::dense(&case.cache_shape, GUARD),
            update: View::dense(&case.update_shape, GUARD),
            outcome,
        };
        let update = if random.below(4) == 0 { View::broadcast } else { View::strided };
        let strided = Scene {
            case: &case,
            cache: View::strided(&case.cache_shape, GUARD, &mut random),
            update: update(&case.update_shape, GUARD, &mut random),
            outcome,
        };
        for &element in EVERY_WIDTH {
            // The variants take turns. Every list has several cases.
            let variant = &variants[n % variants.len()..=n % variants.len()];
            dense.check(element, variant, &variants::ODD[n % 2..=n % 2]);
            strided.check(element, variant, &[]);
        }
    }
}
