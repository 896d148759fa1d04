//! Tests what the oracle does not know of ONNX `TensorScatter`: hints, segments, padding bits, and sizes that no
//! buffer has.
//!
//! `oracle/` compares all writes and errors with the oracle.

use kvscatter::error::SequenceHint;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error, Mode, NegativeIndex};

const LINEAR: TensorScatter = TensorScatter::new().axis(1);

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
    let write = LINEAR.mode(Mode::Circular).prepare(ElementType::UInt8, &[2, 4], &[2, 3]).unwrap();
    let plan = write.plan(&[2_i64, 1]).unwrap();
    let segments: Vec<_> = plan
        .segments()
        .map(|segment| (segment.sample, segment.slot, segment.row, segment.rows, segment.is_wrapped()))
        .collect();
    assert_eq!(segments, [(0, 2, 0, 2, false), (0, 0, 2, 1, true), (1, 1, 0, 3, false)]);
}

#[test]
fn a_huge_batch_without_elements_is_not_walked() {
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

#[test]
fn modes_are_spelled_as_in_onnx() {
    for (mode, name) in [(Mode::Linear, "linear"), (Mode::Circular, "circular")] {
        assert_eq!((mode.to_string().as_str(), name.parse()), (name, Ok(mode)));
    }
    assert_eq!("Linear".parse::<Mode>(), Err(Error::UnknownMode));
}

#[test]
fn a_prepared_write_and_its_plan_return_their_settings() {
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
