//! The oracle's random cases, in every element type.

use kvscatter_oracle::attention::Positions;
use kvscatter_oracle::cases::attention::{random, refused};

use crate::call::{Operands, operator};
use crate::scene::{Ways, check};
use crate::variants::Variant;

#[test]
fn random_cases_agree_with_the_oracle() {
    let variants = Variant::for_short();
    random(20, 400).for_each(|case| check(&case, Ways::All, &variants));
}

#[test]
fn refused_cases_are_refused() {
    let mut refused_ones = 0;
    for case in refused(21, 400) {
        assert!(case.expected().is_err());
        let op = operator(&case.attention, &case.inputs.positions);
        // Operands with only one part of a past cannot be expressed.
        let Some(operands) = Operands::<f32>::new(&case.inputs) else { continue };
        let result = op.map(|op| operands.run(&op));
        let is_refused = result.as_ref().is_none_or(Result::is_err);
        assert!(is_refused, "{}: {result:?}", case.name);
        let is_ring = matches!(case.inputs.positions, Positions::Ring(_));
        refused_ones += usize::from(!is_ring);
    }
    assert!(refused_ones > 250, "{refused_ones}");
}
