//! Every call of a small domain.

use kvscatter_oracle::cases::attention::exhaustive;

use crate::scene::{Ways, check};

#[test]
fn the_small_domain_agrees_with_the_oracle() {
    let mut count = 0;
    for case in exhaustive() {
        check(&case, Ways::Two);
        count += 1;
    }
    assert!(count > 100_000, "{count}");
}
