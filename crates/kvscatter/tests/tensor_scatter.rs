//! Tests ONNX `TensorScatter`: every row of the errata's table about the operator, with the exact error.

use kvscatter::error::SequenceHint;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error, Mode, NegativeIndex, OutOfRange};

const WRITE_INDICES: Argument = Argument::WriteIndices;

/// Writes letters of `update_shape` into a cache of dots, and returns the cache as a string.
fn scatter(
    operator: TensorScatter,
    cache_shape: &[usize],
    update_shape: &[usize],
    write_indices: Option<&[i64]>,
) -> Result<String, Error> {
    let mut cache = vec![b'.'; cache_shape.iter().product()];
    let update: Vec<_> = (b'a'..=b'z').cycle().take(update_shape.iter().product()).collect();
    let write = operator.prepare(ElementType::UInt8, cache_shape, update_shape)?;
    let plan = write.plan(write_indices)?;
    let _ = plan.write(&mut cache, &update)?;
    Ok(cache.into_iter().map(char::from).collect())
}

/// Writes one sample of `rows` rows at `start` into `capacity` slots.
fn one(operator: TensorScatter, capacity: usize, rows: usize, start: i64) -> Result<String, Error> {
    scatter(operator, &[1, capacity], &[1, rows], Some(&[start]))
}

const LINEAR: TensorScatter = TensorScatter::new().axis(1);
const CIRCULAR: TensorScatter = LINEAR.mode(Mode::Circular);
const REJECT: TensorScatter = CIRCULAR.negative_index(NegativeIndex::Reject);

fn negative(value: i64) -> Error {
    Error::NegativeStart { argument: WRITE_INDICES, index: 0, value }
}

fn beyond(value: i64, rows: usize, capacity: usize) -> Error {
    Error::StartOutOfRange { argument: WRITE_INDICES, index: 0, value, rows, capacity }
}

#[test]
fn the_modulo_is_of_the_sequence_coordinate_alone() {
    let present = scatter(CIRCULAR.axis(2), &[3, 3, 2], &[3, 3, 1], Some(&[0, 1, 2]));
    assert_eq!(present.unwrap(), "a.b.c..d.e.fg.h.i.");
}

#[test]
fn indices_and_what_becomes_of_them() {
    let table = [
        // Circular mode with a negative index.
        (one(CIRCULAR, 4, 2, -1), Ok("b..a")),
        (one(CIRCULAR, 4, 1, -5), Ok("...a")),
        (one(REJECT, 4, 2, -1), Err(negative(-1))),
        (one(REJECT, 4, 2, i64::MIN), Err(negative(i64::MIN))),
        // Circular mode with an index near INT64_MAX, which is 2 modulo 5. INT64_MIN is 2 modulo 5 too.
        (one(CIRCULAR, 5, 4, i64::MAX), Ok("d.abc")),
        (one(CIRCULAR, 5, 4, i64::MIN), Ok("d.abc")),
        (one(REJECT, 5, 4, i64::MAX), Ok("d.abc")),
        // Linear mode with a negative index.
        (one(LINEAR, 4, 1, -1), Err(negative(-1))),
        (one(LINEAR, 4, 0, -1), Err(negative(-1))),
        (one(LINEAR, 4, 1, i64::MIN), Err(negative(i64::MIN))),
        // Linear mode with index + length > capacity.
        (one(LINEAR, 4, 2, 2), Ok("..ab")),
        (one(LINEAR, 4, 2, 3), Err(beyond(3, 2, 4))),
        (one(LINEAR, 4, 2, i64::MAX), Err(beyond(i64::MAX, 2, 4))),
        // A sequence_length of 0.
        (one(LINEAR, 4, 0, 4), Ok("....")),
        (one(LINEAR, 4, 0, 5), Err(beyond(5, 0, 4))),
        (one(CIRCULAR, 4, 0, 99), Ok("....")),
        // A capacity of 0.
        (one(LINEAR, 0, 0, 0), Ok("")),
        (one(LINEAR, 0, 0, 1), Err(beyond(1, 0, 0))),
        (one(CIRCULAR, 0, 0, -7), Ok("")),
        (one(CIRCULAR, 0, 0, i64::MAX), Ok("")),
        (one(REJECT, 0, 0, 7), Ok("")),
        (one(REJECT, 0, 0, -7), Err(negative(-7))),
    ];
    for (row, (actual, expected)) in table.into_iter().enumerate() {
        assert_eq!(actual.as_deref(), expected.as_ref().copied(), "row {row}");
    }
}

#[test]
fn an_update_longer_than_the_cache_is_refused_in_both_modes() {
    for operator in [LINEAR, CIRCULAR] {
        assert_eq!(
            one(operator, 2, 3, 0),
            Err(Error::UpdateLongerThanCache { argument: Argument::Update, rows: 3, capacity: 2 })
        );
    }
}

#[test]
fn axis_and_rank() {
    let with_axis = |axis| scatter(LINEAR.axis(axis), &[2, 2, 2], &[2, 2, 2], None).map(|_| ());
    for axis in [1, 2, -1, -2] {
        assert_eq!(with_axis(axis), Ok(()));
    }
    for axis in [0, -3] {
        assert_eq!(with_axis(axis), Err(Error::AxisIsBatch { axis, rank: 3 }));
    }
    for axis in [3, -4, i64::MIN, i64::MAX] {
        assert_eq!(with_axis(axis), Err(Error::AxisOutOfRange { axis, rank: 3 }));
    }
    for shape in [&[][..], &[3]] {
        let rank = Error::RankTooLow { argument: Argument::PastCache, rank: shape.len(), min: 2 };
        assert_eq!(scatter(LINEAR, shape, shape, None), Err(rank));
    }
    assert_eq!(scatter(LINEAR, &[2, 2], &[2, 1], None).unwrap(), "a.b.");
}

#[test]
fn shapes_agree_outside_the_axis() {
    let refused = |update: &[usize]| scatter(LINEAR, &[2, 3, 2], update, None).unwrap_err();
    assert_eq!(refused(&[2, 3]), Error::RankMismatch { argument: Argument::Update, cache: 3, update: 2 });
    let argument = Argument::Update;
    let mismatch =
        |dimension, got, hint| Error::DimensionMismatch { argument, dimension, expected: 2, got, hint };
    assert_eq!(refused(&[1, 3, 2]), mismatch(0, 1, None));
    assert_eq!(refused(&[2, 3, 3]), mismatch(2, 3, None));
    assert_eq!(refused(&[2, 2, 3]), mismatch(2, 3, Some(SequenceHint::GiveStrides)));
    assert_eq!(refused(&[2, 3, 1]), mismatch(2, 1, Some(SequenceHint::SetAxis)));
}

/// An error has a hint if and only if it helps to follow the hint.
#[test]
fn hints_about_the_sequence_can_be_followed() {
    let sizes = |n: usize| [n / 27, n / 9, n / 3, n].map(|n| n % 3 + 1);
    let mut given = [0; 2];
    for (cache, update, axis) in (0..27 * 27 * 3).map(|n| (sizes(n / 81), sizes(n / 3 % 27), n % 3 + 1)) {
        let prepare = |axis: usize, update: &[usize; 4]| {
            TensorScatter::new().axis(axis as i64).prepare(ElementType::UInt8, &cache, update)
        };
        let Err(Error::DimensionMismatch { dimension: dimension @ 1.., hint, .. }) = prepare(axis, &update)
        else {
            continue;
        };
        let mut exchanged = update;
        exchanged.swap(axis, dimension);
        let expected = if prepare(dimension, &update).is_ok() {
            given[0] += 1;
            Some(SequenceHint::SetAxis)
        } else if prepare(axis, &exchanged).is_ok() || prepare(dimension, &exchanged).is_ok() {
            given[1] += 1;
            Some(SequenceHint::GiveStrides)
        } else {
            None
        };
        assert_eq!(hint, expected, "{cache:?} {update:?} axis {axis}");
    }
    assert!(given.iter().all(|&times| times > 50), "{given:?}");

    // TensorRT has no axis.
    let padded = |cache: &[usize; 4], update: &[usize; 4]| {
        KvCacheUpdate::new().prepare(ElementType::Float16, cache, update).unwrap_err().to_string()
    };
    assert_eq!(
        padded(&[2, 4096, 8, 128], &[2, 1, 8, 128]),
        "dimension 1 of update is 1, must be 4096 as in the cache; if it is the sequence, give strides"
    );
    assert_eq!(
        padded(&[2, 8, 4096, 128], &[2, 512, 8, 128]),
        "dimension 1 of update is 512, must be 8 as in the cache; if it is the sequence, give strides"
    );
    assert_eq!(
        padded(&[2, 128, 8, 64], &[2, 8, 1, 64]),
        "dimension 1 of update is 8, must be 128 as in the cache; if it is the sequence, give strides"
    );
    assert_eq!(
        padded(&[2, 8, 4096, 128], &[2, 8, 1, 64]),
        "dimension 3 of update is 64, must be 128 as in the cache"
    );
}

#[test]
fn a_ring_wraps_into_a_second_segment() {
    let write = CIRCULAR.prepare(ElementType::UInt8, &[2, 4], &[2, 3]).unwrap();
    let plan = write.plan(&[2_i64, 1]).unwrap();
    let segments: Vec<_> = plan
        .segments()
        .map(|segment| (segment.sample, segment.slot, segment.row, segment.rows, segment.is_wrapped()))
        .collect();
    assert_eq!(segments, [(0, 2, 0, 2, false), (0, 0, 2, 1, true), (1, 1, 0, 3, false)]);
}

#[test]
fn empty_dimensions_are_checked_and_not_walked() {
    let count = Error::ListLength { argument: WRITE_INDICES, got: 1, expected: 0 };
    assert_eq!(scatter(LINEAR, &[0, 4], &[0, 2], Some(&[0])), Err(count));
    assert_eq!(scatter(LINEAR, &[0, 4], &[0, 2], Some(&[])).unwrap(), "");
    assert_eq!(scatter(LINEAR, &[1, 4, 0], &[1, 2, 0], Some(&[3])), Err(beyond(3, 2, 4)));
    // A loop over this batch would not end.
    let huge = 1 << 60;
    let write = LINEAR.prepare(ElementType::UInt8, &[huge, 4, 0], &[huge, 1, 0]).unwrap();
    let plan = write.plan(None::<&[i64]>).unwrap();
    assert_eq!((plan.elements(), plan.blocks().count(), plan.segments().count()), (0, 0, 0));
    let _ = plan.write_bytes(&mut [], &[]).unwrap();
    let _ = plan.write_present_bytes(&[], &[], &mut []).unwrap();
    let _ = plan.write_cloned::<String>(&mut [], &[]).unwrap();
    let _ = plan.write_present_cloned::<String>(&[], &[], &mut []).unwrap();
}

#[test]
fn blocks_of_a_huge_batch_are_counted_and_not_visited() {
    let huge = 1 << 40;
    let write = LINEAR.prepare(ElementType::UInt8, &[huge, 2, 4], &[huge, 1, 4]).unwrap();
    let plan = write.plan(None::<&[i64]>).unwrap();
    assert_eq!((plan.block_count(), plan.skipped_samples().next()), (huge, None));
}

#[test]
fn sizes_that_no_buffer_has_are_refused() {
    let refused = |cache: &[usize], update: &[usize]| {
        LINEAR.prepare(ElementType::Complex128, cache, update).map(|_| ()).unwrap_err()
    };
    let past_cache = Error::TooLarge { argument: Argument::PastCache };
    assert_eq!(refused(&[2, usize::MAX], &[2, 1]), past_cache);
    assert_eq!(refused(&[1, 1 << 60], &[1, 1]), past_cache, "in bytes, not in elements");
    assert_eq!(refused(&[1 << 32, 1 << 32, 0], &[1 << 32, 1, 0]), past_cache, "a 0 after large dimensions");
}

#[test]
fn absent_indices_are_zeros() {
    for operator in [LINEAR, CIRCULAR, REJECT] {
        assert_eq!(scatter(operator, &[2, 3], &[2, 2], None).unwrap(), "ab.cd.");
    }
}

#[test]
fn there_is_one_index_and_one_length_per_sample() {
    for got in [0, 1, 3] {
        let count = |argument| Error::ListLength { argument, got, expected: 2 };
        let values = vec![0; got];
        assert_eq!(scatter(LINEAR, &[2, 3], &[2, 2], Some(&values)), Err(count(WRITE_INDICES)));
        let write = LINEAR.prepare(ElementType::UInt8, &[2, 3], &[2, 2]).unwrap();
        let lengths = write.plan_with_lengths(None::<&[i64]>, &values).map(|_| ());
        assert_eq!(lengths, Err(count(Argument::Lengths)));
    }
}

#[test]
fn a_mode_is_linear_or_circular() {
    assert_eq!("linear".parse(), Ok(Mode::Linear));
    assert_eq!("circular".parse(), Ok(Mode::Circular));
    for name in ["", "Linear", "ring", "circular "] {
        assert_eq!(name.parse::<Mode>(), Err(Error::UnknownMode));
    }
}

#[test]
fn whole_strings_are_written() {
    let write = LINEAR.prepare(ElementType::String, &[1, 2], &[1, 1]).unwrap();
    let mut cache = ["κ".to_owned(), String::new()];
    let _ = write
        .plan(&[1_i64])
        .unwrap()
        .write_cloned(&mut cache, &["longer than one character".to_owned()])
        .unwrap();
    assert_eq!(cache, ["κ", "longer than one character"]);
}

#[test]
fn rows_of_an_odd_number_of_nibbles_straddle_bytes() {
    let write = LINEAR.prepare(ElementType::UInt4, &[1, 3, 3], &[1, 1, 3]).unwrap();
    let plan = write.plan(&[1_i64]).unwrap();
    let mut cache = [0x21, 0x43, 0x65, 0x87, 0xF9];
    let mut present = [0; 5];
    let _ = plan.write_present_bytes(&cache, &[0xBA, 0x0C], &mut present).unwrap();
    assert_eq!(present, [0x21, 0xA3, 0xCB, 0x87, 0x09], "the last pad nibble is 0");
    let _ = plan.write_bytes(&mut cache, &[0xBA, 0x0C]).unwrap();
    assert_eq!(cache, [0x21, 0xA3, 0xCB, 0x87, 0xF9], "in place, neighbours are untouched");
}

/// Tests the section "Our extension: `lengths`" of the errata.
#[test]
fn lengths() {
    let run = |operator: TensorScatter, starts: &[i64], lengths: &[i64]| {
        let mut cache = *b"......";
        let write = operator.prepare(ElementType::UInt8, &[2, 3], &[2, 2])?;
        let plan = write.plan_with_lengths(starts, lengths)?;
        let skipped = plan.write(&mut cache, b"abcd")?.skipped;
        Ok((cache.map(char::from).iter().collect::<String>(), skipped))
    };
    let written = |present: &str, skipped| Ok((present.to_owned(), skipped));
    assert_eq!(run(LINEAR, &[2, 1], &[1, 2]), written("..a.cd", 0));
    assert_eq!(run(CIRCULAR, &[2, 2], &[1, 2]), written("..ad.c", 0), "padding overwrites no live slot");
    assert_eq!(run(LINEAR, &[3, 0], &[0, 0]), written("......", 0));
    let start = Error::StartOutOfRange { argument: WRITE_INDICES, index: 0, value: 4, rows: 0, capacity: 3 };
    assert_eq!(run(LINEAR, &[4, 0], &[0, 0]), Err(start), "a length of 0 still has a start");
    for value in [-1, 3, i64::MIN, i64::MAX] {
        let length = Error::LengthOutOfRange { argument: Argument::Lengths, index: 1, value, min: 0, max: 2 };
        assert_eq!(run(LINEAR, &[0, 0], &[0, value]), Err(length));
        let skipping = LINEAR.out_of_range(OutOfRange::SkipSample);
        assert_eq!(run(skipping, &[0, 0], &[0, value]), Err(length), "a wrong length is no position");
    }
    assert_eq!(run(LINEAR.out_of_range(OutOfRange::SkipSample), &[2, -1], &[2, 2]), written("......", 2));
    assert_eq!(run(REJECT.out_of_range(OutOfRange::SkipSample), &[2, -1], &[2, 2]), written("b.a...", 1));
}

#[test]
fn modes_are_spelled_as_in_onnx() {
    for (mode, name) in [(Mode::Linear, "linear"), (Mode::Circular, "circular")] {
        assert_eq!((mode.to_string().as_str(), name.parse()), (name, Ok(mode)));
    }
    assert_eq!("Linear".parse::<Mode>(), Err(Error::UnknownMode));
}

#[test]
fn a_prepared_write_and_its_plan_say_what_they_do() {
    let operator = TensorScatter::new().axis(1).mode(Mode::Circular);
    for negative in [NegativeIndex::Modulo, NegativeIndex::Reject] {
        let write =
            operator.negative_index(negative).prepare(ElementType::Float16, &[2, 4, 3], &[2, 2, 3]).unwrap();
        assert_eq!(write.negative_index(), negative);
        let plan = write.plan(&[0_i64, 1]).unwrap();
        assert_eq!((plan.elements(), plan.bytes()), (12, Some(24)));
        // Unsigned indices are read, and one above the largest int64 is not.
        assert_eq!(write.plan(&[0_u32, 1]).unwrap().elements(), 12);
        assert_eq!(write.plan(&[0_usize, 1]).unwrap().elements(), 12);
        assert!(write.plan(&[0_u64, u64::MAX]).is_err());
    }
}

#[test]
fn every_pair_of_an_array_is_written() {
    let write = TensorScatter::new().axis(1).prepare(ElementType::UInt8, &[1, 2], &[1, 1]).unwrap();
    let plan = write.plan(&[1_i64]).unwrap();
    let (mut keys, mut values) = ([0_u8; 2], [0_u8; 2]);
    let _ = plan.write_many(&mut [(&mut keys, &[1_u8]), (&mut values, &[2_u8])]).unwrap();
    assert_eq!((keys, values), ([0, 1], [0, 2]));
}
