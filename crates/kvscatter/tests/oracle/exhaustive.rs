//! Tests every `TensorScatter` of a small domain, at every width, dense and strided.

use kvscatter_oracle::cases::{Call, Random, SmallCase, View, exhaustive, exhaustive_extensions};

use crate::scene::{Scene, every_width};

/// The elements in each guard. The number is even, so that a buffer of 4-bit elements begins at a byte.
const GUARD: usize = 2;

fn check(case: &SmallCase, random: &mut Random) {
    let SmallCase { call, cache_shape, update_shape } = case;
    let outcome = &call.run_on_origins(cache_shape, update_shape);
    let dense = Scene {
        call,
        cache: View::dense(cache_shape, GUARD),
        update: View::dense(update_shape, GUARD),
        outcome,
    };
    let update = if random.below(4) == 0 { View::broadcast } else { View::strided };
    let strided = Scene {
        call,
        cache: View::strided(cache_shape, GUARD, random),
        update: update(update_shape, GUARD, random),
        outcome,
    };
    for &element in every_width(call) {
        dense.check(element);
        strided.check(element);
    }
}

/// Checks the part of the domain with this rank and axis. Each part is a test, so that parts run in parallel.
fn check_part(rank: usize, axis: usize) {
    let mut random = Random::new(0x5CA7, 10 * rank + axis);
    let mut cases = 0;
    for case in exhaustive() {
        let Call::TensorScatter { operator, .. } = &case.call else { unreachable!() };
        if case.cache_shape.len() == rank && operator.axis.rem_euclid(rank as i64) == axis as i64 {
            check(&case, &mut random);
            cases += 1;
        }
    }
    assert!(cases > 10_000, "{cases} cases");
}

#[test]
fn rank_2() {
    check_part(2, 1);
}

#[test]
fn rank_3_axis_1() {
    check_part(3, 1);
}

#[test]
fn rank_3_axis_2() {
    check_part(3, 2);
}

#[test]
fn rank_4_axis_1() {
    check_part(4, 1);
}

#[test]
fn rank_4_axis_2() {
    check_part(4, 2);
}

#[test]
fn rank_4_axis_3() {
    check_part(4, 3);
}

#[test]
fn lengths_and_policies() {
    let mut random = Random::new(0x5CA7, 0);
    exhaustive_extensions().for_each(|case| check(&case, &mut random));
}
