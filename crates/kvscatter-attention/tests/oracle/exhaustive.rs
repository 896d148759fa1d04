//! Every call of a small domain.

use kvscatter_oracle::cases::attention::exhaustive;

use crate::scene::{Ways, check};
use crate::variants::Variant;

#[test]
fn the_small_domain_agrees_with_the_oracle() {
    let (mut count, variants) = (0, Variant::for_short());
    for case in exhaustive() {
        check(&case, Ways::Two, &variants);
        count += 1;
    }
    assert!(count > 100_000, "{count}");
}
