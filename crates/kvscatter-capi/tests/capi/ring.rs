//! Checks the rule for rings with numbers that no program should pass. `tests-c/ring.c` compares the rule with
//! writes.

use std::ptr;

use kvscatter_capi::*;

use crate::c::{Refused, result};

fn least_capacity(window: usize, rows: usize, rewind: usize, feeding: i32) -> Result<usize, Refused> {
    let mut capacity = 77;
    // SAFETY: `capacity` is a reference.
    let status = unsafe { kvs_ring_least_capacity(window, rows, rewind, feeding, &mut capacity) };
    assert!(status == 0 || capacity == 77, "an error sets no output");
    result(status).map(|()| capacity)
}

#[test]
fn the_least_capacity_depends_on_the_feeding() {
    let capacity = |feeding: kvs_feeding| least_capacity(8, 4, 2, feeding as i32).unwrap();
    let all = [
        kvs_feeding::KVS_FEEDING_WITHOUT_PADDING,
        kvs_feeding::KVS_FEEDING_PADDED_ON_THE_RIGHT,
        kvs_feeding::KVS_FEEDING_IDLE,
    ];
    assert_eq!(all.map(capacity), [11, 12, 13]);
}

#[test]
fn wrong_arguments_are_refused() {
    for (feeding, limit) in [(-1, 0), (3, 2), (i32::MIN, 0), (i32::MAX, 2)] {
        let refused = least_capacity(8, 4, 2, feeding).unwrap_err();
        assert_eq!((refused.code, refused.argument), ("KVS_ERROR_UNKNOWN_OPTION", Some("feeding")));
        assert_eq!((refused.value, refused.limit), (Some(feeding.into()), Some(limit)));
    }
    let mut words = [0_usize; 2];
    let odd = words.as_mut_ptr().wrapping_byte_add(1);
    for (out, code) in [
        (ptr::null_mut(), "KVS_ERROR_NULL_POINTER"),
        (odd, "KVS_ERROR_MISALIGNED"),
        (ptr::without_provenance_mut(usize::MAX - 7), "KVS_ERROR_ADDRESS_SPACE"),
    ] {
        // SAFETY: The function rejects each of these addresses before it writes there.
        let status = unsafe { kvs_ring_least_capacity(8, 4, 2, 0, out) };
        assert_eq!(result(status).unwrap_err().code, code);
    }
    assert_eq!(words, [0; 2]);
}

/// A negative number of C becomes a huge `size_t`. No such number makes a step acceptable.
#[test]
fn negative_numbers_take_nothing() {
    let negative = |number: isize| number.cast_unsigned();
    for minus in [-1, -2, isize::MIN, isize::MIN + 1].map(negative) {
        let ring = kvs_ring { capacity: 11, window: 8 };
        assert_eq!(kvs_ring_takes(kvs_ring { capacity: minus, ..ring }, 0, 0, 1), 0, "capacity");
        assert_eq!(kvs_ring_takes(ring, minus, 5, 1), 0, "high");
        assert_eq!(kvs_ring_takes(ring, 11, minus, 1), 0, "start");
        assert_eq!(kvs_ring_takes(ring, 11, 11, minus), 0, "rows");
        assert_eq!(kvs_ring_takes(kvs_ring { window: minus, ..ring }, 12, 12, 1), 0, "window");
    }
}

#[test]
fn extreme_numbers_do_not_overflow() {
    const NUMBERS: [usize; 7] =
        [0, 1, 2, isize::MAX.unsigned_abs(), isize::MAX.unsigned_abs() + 1, usize::MAX - 1, usize::MAX];
    for (capacity, window) in NUMBERS.iter().flat_map(|&c| NUMBERS.map(|w| (c, w))) {
        let ring = kvs_ring { capacity, window };
        for (high, start) in NUMBERS.iter().flat_map(|&high| NUMBERS.map(|start| (high, start))) {
            let most = kvs_ring_most_rows(ring, high, start);
            assert!(most <= capacity, "{ring:?} {high} {start}");
            for rows in NUMBERS {
                let takes = rows <= most && start <= isize::MAX.unsigned_abs();
                assert_eq!(kvs_ring_takes(ring, high, start, rows), i32::from(takes));
                assert!(kvs_ring_high_after(high, start, rows) >= rows);
                for feeding in 0..3 {
                    assert!(least_capacity(window, rows, high, feeding).unwrap() >= rows);
                }
            }
            kvs_ring_least_start(ring, high);
        }
    }
}
