//! Tests every row of the errata's table "ONNX TensorScatter-24" that is about the operator itself, in the
//! order of the table. A cache element is written `.`, and an element of the update is a letter.

use kvscatter_oracle::cases::{Call, Element};
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::{NegativeIndex, OutOfRange, Refusal, Tensor, nibbles};

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

/// Returns `present` as text and the number of samples skipped.
fn scatter(
    operator: &TensorScatter,
    cache_shape: &[usize],
    update_shape: &[usize],
    write_indices: Option<&[i64]>,
    lengths: Option<&[i64]>,
) -> Result<(String, usize), Refusal> {
    let cache = vec!['.'; cache_shape.iter().product()];
    let update: Vec<_> = LETTERS.chars().take(update_shape.iter().product()).collect();
    let outcome = operator.run(
        Tensor::new(&cache, cache_shape),
        Tensor::new(&update, update_shape),
        write_indices,
        lengths,
    )?;
    Ok((outcome.present.into_iter().collect(), outcome.skipped))
}

fn linear() -> TensorScatter {
    TensorScatter { axis: 1, ..TensorScatter::default() }
}

fn circular() -> TensorScatter {
    TensorScatter { mode: "circular".to_owned(), ..linear() }
}

fn reject() -> TensorScatter {
    TensorScatter { negative_index: NegativeIndex::Reject, ..circular() }
}

/// Writes one sample of `rows` rows into a cache of `capacity` slots.
fn one(operator: &TensorScatter, [capacity, rows]: [usize; 2], start: i64) -> Result<String, Refusal> {
    scatter(operator, &[1, capacity], &[1, rows], Some(&[start]), None).map(|(present, _)| present)
}

#[test]
fn the_modulo_is_of_the_sequence_coordinate_alone() {
    // There are three samples and three heads, and the capacity is 2. The pseudocode of the document would
    // write them onto each other.
    let operator = TensorScatter { axis: 2, ..circular() };
    let (present, _) = scatter(&operator, &[3, 3, 2], &[3, 3, 1], Some(&[0, 1, 2]), None).unwrap();
    assert_eq!(present, "a.b.c..d.e.fg.h.i.");
}

/// A negative index in a ring counts from the end. Without rows and without slots there is still an index,
/// and numbers at the ends of int64 do not overflow.
#[test]
fn starts_that_fit() {
    assert_eq!((i64::MAX % 5, i64::MIN.rem_euclid(5)), (2, 2));
    for (operator, sizes, starts, present) in [
        (circular(), [4, 2], &[-1][..], "b..a"),
        (circular(), [4, 1], &[-4], "a..."),
        (circular(), [4, 1], &[-5], "...a"),
        (reject(), [4, 2], &[3], "b..a"),
        (circular(), [5, 4], &[i64::MIN, i64::MAX], "d.abc"),
        (linear(), [4, 2], &[2], "..ab"),
        (linear(), [2, 0], &[0, 1, 2], ".."),
        (circular(), [2, 0], &[99], ".."),
        (linear(), [0, 0], &[0], ""),
        (circular(), [0, 0], &[0, 7, -7, i64::MIN, i64::MAX], ""),
        (reject(), [0, 0], &[7], ""),
    ] {
        for &start in starts {
            assert_eq!(one(&operator, sizes, start).unwrap(), present, "{operator:?} {sizes:?} {start}");
        }
    }
}

#[test]
fn starts_that_are_refused() {
    for (operator, sizes, starts) in [
        (reject(), [4, 2], &[-1][..]),
        (linear(), [4, 1], &[-1, -4, i64::MIN]),
        (linear(), [2, 0], &[-1]),
        (reject(), [0, 0], &[-7]),
    ] {
        for &start in starts {
            let refusal = Refusal::NegativeStart { sample: 0, start: start.into() };
            assert_eq!(one(&operator, sizes, start), Err(refusal), "{operator:?} {sizes:?}");
        }
    }
    for ([capacity, rows], start) in [([5, 2], i64::MAX), ([4, 2], 3), ([2, 0], 3), ([0, 0], 1)] {
        let refusal = Refusal::OutOfRange { sample: 0, start: start.into(), rows, capacity };
        assert_eq!(one(&linear(), [capacity, rows], start), Err(refusal));
    }
}

#[test]
fn an_update_longer_than_the_cache_is_refused_in_both_modes() {
    for operator in [linear(), circular()] {
        assert_eq!(one(&operator, [2, 3], 0), Err(Refusal::UpdateTooLong { capacity: 2, rows: 3 }));
    }
}

#[test]
fn the_axis_is_a_dimension_and_not_the_batch() {
    for axis in [0, -3, 3, -4, i64::MIN, i64::MAX] {
        let refused = scatter(&TensorScatter { axis, ..linear() }, &[2, 2, 2], &[2, 2, 2], None, None);
        assert_eq!(refused, Err(Refusal::Axis { axis, rank: 3 }));
    }
    for (axes, cache, present) in [([1, -2], [1, 4, 2], "abcd...."), ([2, -1], [1, 2, 4], "ab..cd..")] {
        for operator in axes.map(|axis| TensorScatter { axis, ..linear() }) {
            assert_eq!(
                scatter(&operator, &cache, &[1, 2, 2], None, None).unwrap().0,
                present,
                "{operator:?}"
            );
        }
    }
}

#[test]
fn the_smallest_rank_is_two() {
    assert_eq!(scatter(&linear(), &[3], &[3], None, None), Err(Refusal::CacheRank { rank: 1 }));
    assert_eq!(scatter(&linear(), &[], &[], None, None), Err(Refusal::CacheRank { rank: 0 }));
    assert_eq!(scatter(&linear(), &[2, 2], &[2, 1], None, None).unwrap().0, "a.b.");
}

#[test]
fn empty_dimensions_write_nothing_and_are_checked() {
    let operator = TensorScatter { axis: 1, ..linear() };
    assert_eq!(scatter(&operator, &[0, 4], &[0, 2], Some(&[]), None).unwrap().0, "");
    let count = Refusal::IndexCount { argument: "write_indices", given: 1, needed: 0 };
    assert_eq!(scatter(&operator, &[0, 4], &[0, 2], Some(&[0]), None), Err(count));
    assert_eq!(scatter(&operator, &[1, 4, 0], &[1, 2, 0], Some(&[2]), None).unwrap().0, "");
    let beyond = Refusal::OutOfRange { sample: 0, start: 3, rows: 2, capacity: 4 };
    assert_eq!(scatter(&operator, &[1, 4, 0], &[1, 2, 0], Some(&[3]), None), Err(beyond));
    // The write must not iterate over a batch that is huge but empty.
    let huge = usize::MAX / 8;
    assert_eq!(scatter(&operator, &[huge, 4, 0], &[huge, 2, 0], None, None).unwrap().0, "");
}

#[test]
fn absent_indices_are_zeros() {
    for operator in [linear(), circular()] {
        let absent = scatter(&operator, &[2, 3], &[2, 2], None, None);
        assert_eq!(absent, scatter(&operator, &[2, 3], &[2, 2], Some(&[0, 0]), None));
        assert_eq!(absent.unwrap().0, "ab.cd.");
    }
}

#[test]
fn there_is_one_index_per_sample() {
    for given in [0, 1, 3] {
        let refusal = Refusal::IndexCount { argument: "write_indices", given, needed: 2 };
        assert_eq!(scatter(&linear(), &[2, 3], &[2, 2], Some(&vec![0; given]), None), Err(refusal));
    }
}

#[test]
fn the_first_bad_sample_is_reported() {
    let refusal = Refusal::OutOfRange { sample: 1, start: 2, rows: 2, capacity: 3 };
    assert_eq!(scatter(&linear(), &[3, 3], &[3, 2], Some(&[0, 2, -1]), None), Err(refusal));
}

#[test]
fn whole_strings_are_written() {
    let (past, update) = (["κ".to_owned(), String::new()], ["longer than one character".to_owned()]);
    let outcome =
        linear().run(Tensor::new(&past, &[1, 2]), Tensor::new(&update, &[1, 1]), Some(&[1]), None).unwrap();
    assert_eq!(outcome.present, ["κ", "longer than one character"]);
}

#[test]
fn rows_of_an_odd_number_of_nibbles_straddle_bytes() {
    let past = nibbles::unpack(&[0x21, 0x43, 0x65, 0x87, 0x09], 9); // [1, 3, 3]
    let update = nibbles::unpack(&[0xBA, 0x0C], 3);
    let outcome = linear()
        .run(Tensor::new(&past, &[1, 3, 3]), Tensor::new(&update, &[1, 1, 3]), Some(&[1]), None)
        .unwrap();
    assert_eq!(nibbles::pack(&outcome.present), [0x21, 0xA3, 0xCB, 0x87, 0x09]);
}

#[test]
fn a_mode_is_linear_or_circular() {
    for name in ["", "Linear", "ring", "circular "] {
        let operator = TensorScatter { mode: name.to_owned(), ..linear() };
        assert_eq!(one(&operator, [2, 1], 0), Err(Refusal::Mode { name: name.to_owned() }));
    }
}

#[test]
fn cache_and_update_are_of_one_type() {
    let call = Call::TensorScatter { operator: linear(), write_indices: None, lengths: None };
    let [float, double] = ["float", "double"].map(|name| Element::named(name).unwrap());
    assert_eq!(call.check_elements([float, float]), Ok(()));
    let refusal = Refusal::TypesDiffer { cache: "float", update: "double" };
    assert_eq!(call.check_elements([float, double]), Err(refusal));
}

#[test]
fn ranks_and_dimensions_agree_outside_the_axis() {
    assert_eq!(scatter(&linear(), &[2, 3, 2], &[2, 3], None, None), Err(Refusal::UpdateRank { rank: 2 }));
    let refusal = Refusal::Dimension { dimension: 0, cache: 2, update: 1 };
    assert_eq!(scatter(&linear(), &[2, 3, 2], &[1, 3, 2], None, None), Err(refusal));
    let refusal = Refusal::Dimension { dimension: 2, cache: 2, update: 1 };
    assert_eq!(scatter(&linear(), &[2, 3, 2], &[2, 3, 1], None, None), Err(refusal));
}

/// Tests the section "Our extension: `lengths`".
#[test]
fn only_the_real_rows_are_written() {
    let lengths = Some([1, 2].as_slice());
    assert_eq!(scatter(&linear(), &[2, 3], &[2, 2], Some(&[2, 1]), lengths).unwrap().0, "..a.cd");
    // In the ring, padding would have overwritten slot 0 of sample 0.
    assert_eq!(scatter(&circular(), &[2, 3], &[2, 2], Some(&[2, 2]), lengths).unwrap().0, "..ad.c");
}

#[test]
fn lengths_are_between_zero_and_the_rows() {
    for length in [-1, 3, i64::MIN, i64::MAX] {
        let refusal = Refusal::Length { sample: 1, length, rows: 2 };
        assert_eq!(scatter(&linear(), &[2, 3], &[2, 2], None, Some(&[0, length])), Err(refusal));
    }
    let refusal = Refusal::IndexCount { argument: "lengths", given: 1, needed: 2 };
    assert_eq!(scatter(&linear(), &[2, 3], &[2, 2], None, Some(&[0])), Err(refusal));
    // The whole update must still fit.
    let refusal = Refusal::UpdateTooLong { capacity: 3, rows: 4 };
    assert_eq!(scatter(&linear(), &[1, 3], &[1, 4], None, Some(&[2])), Err(refusal));
}

#[test]
fn a_length_of_zero_still_has_a_start() {
    assert_eq!(scatter(&linear(), &[1, 3], &[1, 2], Some(&[3]), Some(&[0])).unwrap().0, "...");
    let refusal = Refusal::OutOfRange { sample: 0, start: 4, rows: 0, capacity: 3 };
    assert_eq!(scatter(&linear(), &[1, 3], &[1, 2], Some(&[4]), Some(&[0])), Err(refusal));
}

#[test]
fn skipped_samples_are_left_alone_and_counted() {
    let operator = TensorScatter { out_of_range: OutOfRange::SkipSample, ..linear() };
    let starts = [2, 0, -1];
    assert_eq!(
        scatter(&operator, &[3, 3], &[3, 2], Some(&starts), None).unwrap(),
        ("...cd....".to_owned(), 2)
    );
    // A wrong length is not a position, so the call is rejected and the sample is not skipped.
    let refusal = Refusal::Length { sample: 2, length: 3, rows: 2 };
    assert_eq!(scatter(&operator, &[3, 3], &[3, 2], Some(&starts), Some(&[2, 2, 3])), Err(refusal));
    let operator = TensorScatter { out_of_range: OutOfRange::SkipSample, ..reject() };
    assert_eq!(scatter(&operator, &[2, 3], &[2, 2], Some(&[-1, 2]), None).unwrap(), ("...d.c".to_owned(), 1));
}
