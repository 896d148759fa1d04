//! Compares the operator and the writer with the oracle, on whole storages.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod common;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use kvscatter::{Argument, Error as Core, OutOfRange};
use kvscatter_candle::{
    CacheWrite, CandleError, TensorScatter, WriteAt, Writer, positions_from_tensor, write_many,
};
use kvscatter_oracle::OutOfRange::Error as Refuse;
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::onnx;

use common::{Case, assert_error, every_type_moves, numbered, values, view};

const CPU: Device = Device::Cpu;

#[test]
fn ragged_circular_and_strided_writes_are_the_oracles() {
    let (mut random, mut refused) = (Random::new(7, 0), 0);
    for _ in 0..4000 {
        let case = Case::random(&mut random, 0);
        let (cache, whole) = view(&mut random, &case.cache, 0);
        let (update, _) = view(&mut random, &case.update, 100_000);
        let before = values(&whole);
        let expected = case.expected(Refuse, [&cache, &whole], &update);
        let done = match &case.lengths {
            Some(lengths) => {
                let at = WriteAt::new(&case.starts).lengths(lengths);
                let written = Writer::new(case.scatter, &cache).unwrap().write(&update, at);
                written.map(drop).map_err(Into::into)
            }
            None => {
                let indices = Tensor::new(&case.starts[..], &CPU).unwrap();
                cache.inplace_op3(&update, &indices, &case.scatter)
            }
        };
        refused += usize::from(expected.is_none());
        assert_eq!(done.is_ok(), expected.is_some(), "{done:?}");
        let expected = expected.map_or(before, |(expected, _)| expected);
        assert_eq!(values(&whole), expected, "{:?} {:?}", case.cache, case.starts);
    }
    assert!((50..1000).contains(&refused), "{refused} refused");
}

/// A writer gets updates with other layouts, rows and lengths than those it is prepared for.
#[test]
fn one_writer_takes_updates_of_any_layout() {
    let mut random = Random::new(8, 0);
    let cache = numbered(&[2, 3, 6, 2], 0);
    let mut writer = Writer::new(TensorScatter::new(), &cache).unwrap();
    for round in 0..400 {
        let rows = random.between(1, 6);
        let (update, _) = view(&mut random, &[2, 3, rows, 2], 1000 + round * 1000);
        let taken = random.below(rows)..rows;
        let case = Case {
            operator: onnx::TensorScatter::default(),
            scatter: TensorScatter::new(),
            cache: [2, 3, 6, 2],
            update: [2, 3, taken.len(), 2],
            starts: random.many(2, |random| random.below(7 - taken.len()) as i64),
            lengths: None,
        };
        let part = update.narrow(2, taken.start, taken.len()).unwrap();
        let (expected, _) = case.expected(Refuse, [&cache, &cache], &part).unwrap();
        let _ = writer.write(&update, WriteAt::new(&case.starts).rows(taken)).unwrap();
        assert_eq!(values(&cache), expected);
    }
}

#[test]
fn elements_of_every_type_move_bit_for_bit() {
    every_type_moves(&CPU, |cache, update| {
        let _ = Writer::new(TensorScatter::new(), cache).unwrap().write(update, &[3_i64, 0]).unwrap();
    });
}

/// candle has no arithmetic for these types, but it can load them.
#[test]
fn elements_without_arithmetic_are_bytes_or_half_bytes() {
    let loaded =
        |dtype, shape: &[usize], bytes: &[u8]| Tensor::from_raw_buffer(bytes, dtype, shape, &CPU).unwrap();
    let bytes = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F4(bytes) | CpuStorage::F8E8M0(bytes)) => bytes.clone(),
        _ => unreachable!("the types of this test"),
    };
    let (cache, update) =
        (loaded(DType::F4, &[1, 4, 2], &[0x11, 0x22, 0x33, 0x44]), loaded(DType::F4, &[1, 1, 2], &[0xab]));
    let _ = Writer::new(TensorScatter::new(), &cache).unwrap().write(&update, &[2_i64]).unwrap();
    assert_eq!(bytes(&cache), [0x11, 0x22, 0xab, 0x44]);

    let (cache, update) =
        (loaded(DType::F8E8M0, &[1, 3, 1], &[1, 2, 3]), loaded(DType::F8E8M0, &[1, 1, 1], &[9]));
    cache.inplace_op3(&update, &Tensor::new(&[1i64], &CPU).unwrap(), &TensorScatter::new()).unwrap();
    assert_eq!(bytes(&cache), [1, 9, 3]);

    let (argument, dtype) = (Argument::PastCache, DType::F6E2M3);
    let refused = Writer::new(TensorScatter::new(), &loaded(dtype, &[1, 4, 1], &[0; 3])).unwrap_err();
    assert_error(refused, CandleError::DType { argument, dtype });
}

#[test]
fn positions_may_be_a_tensor_of_three_types() -> Result<()> {
    let update = numbered(&[2, 1, 1], 50);
    let strided = Tensor::new(&[[9i64, 3], [9, 1]], &CPU)?.narrow(1, 1, 1)?.squeeze(1)?;
    let plain = Tensor::new(&[3i64, 1], &CPU)?;
    let others = [plain.to_dtype(DType::U32)?, plain.to_dtype(DType::I32)?, strided, plain];
    for indices in others {
        let cache = numbered(&[2, 4, 1], 0);
        cache.inplace_op3(&update, &indices, &TensorScatter::new())?;
        assert_eq!(values(&cache), [0, 1, 2, 50, 4, 51, 6, 7]);
        assert_eq!(positions_from_tensor(&indices)?, [3, 1]);
    }
    let wrong = positions_from_tensor(&Tensor::new(&[1f32], &CPU)?).unwrap_err();
    assert_error(wrong, CandleError::IndexType { dtype: DType::F32 });
    let wrong = positions_from_tensor(&Tensor::new(&[[1i64]], &CPU)?).unwrap_err();
    assert_error(wrong, CandleError::IndexRank { rank: 2 });
    Ok(())
}

#[test]
fn one_position_may_serve_all_and_any_dimension_be_the_sequence() {
    let (scatter, cache) = (TensorScatter::new().one_start(), numbered(&[3, 2], 0));
    let _ = Writer::new(scatter.axis(0), &cache).unwrap().write(&numbered(&[1, 2], 70), &[1_i64]).unwrap();
    assert_eq!(values(&cache), [0, 1, 70, 71, 4, 5]);
    let _ = Writer::new(scatter.axis(-1), &cache).unwrap().write(&numbered(&[3, 1], 80), &[1_i64]).unwrap();
    assert_eq!(values(&cache), [0, 80, 70, 81, 4, 82]);
}

/// Errors count the dimensions of the caller's tensors, with and without a selection of rows.
#[test]
fn errors_about_shapes_have_the_ranks_of_the_tensors() {
    let argument = Argument::Update;
    let axis = |axis, rank| Core::AxisOutOfRange { axis, rank };
    let rank = |cache, update| Core::RankMismatch { argument, cache, update };
    let dimension =
        |dimension, expected, got| Core::DimensionMismatch { argument, dimension, expected, got, hint: None };
    let one_start = TensorScatter::new().one_start();
    for (scatter, cache, update, expected) in [
        (one_start.axis(-2), &[4][..], &[1][..], axis(-2, 1)),
        (one_start.axis(1), &[4], &[1], axis(1, 1)),
        (one_start.axis(2), &[4, 2], &[1, 2], axis(2, 2)),
        (one_start.axis(-3), &[4, 2], &[1, 2], axis(-3, 2)),
        (one_start.axis(i64::MIN), &[4, 2], &[1, 2], axis(i64::MIN, 2)),
        (one_start.axis(i64::MAX), &[4, 2], &[1, 2], axis(i64::MAX, 2)),
        (one_start.axis(0), &[4, 2], &[1], rank(2, 1)),
        (one_start.axis(-2), &[4, 2], &[1, 2, 2], rank(2, 3)),
        (one_start.axis(0), &[4, 2], &[1, 3], dimension(1, 2, 3)),
        (one_start.axis(1), &[4, 2], &[3, 1], dimension(0, 4, 3)),
        // The cache's rank determines the dimension of the rows, even if the update has another rank.
        (TensorScatter::new().axis(3), &[1, 2, 2, 4], &[1, 2, 2], rank(4, 3)),
        (TensorScatter::new().axis(3), &[1, 2, 2, 4], &[1, 2, 2, 1, 1], rank(4, 5)),
    ] {
        let mut writer = Writer::new(scatter, &numbered(cache, 0)).unwrap();
        let at = WriteAt::new(&[0_i64]);
        for at in [at.clone(), at.rows(0..1)] {
            assert_error(writer.write(&numbered(update, 9), at).unwrap_err(), expected);
        }
    }
}

#[test]
fn memory_and_rows_that_do_not_fit_are_refused() {
    let cache = numbered(&[1, 4, 1], 0);
    let repeated = numbered(&[1, 1, 1], 0).broadcast_as((1, 4, 1)).unwrap();
    let within = cache.narrow(1, 0, 1).unwrap();
    let (argument, with) = (Argument::PastCache, Argument::Update);
    for (cache, update, rows, expected) in [
        (&repeated, &numbered(&[1, 1, 1], 9), 0..1, Core::CacheOverlapsItself { argument }.into()),
        (&cache, &within, 0..1, Core::Overlap { argument, with, pair: 0, with_pair: 0 }.into()),
        (&cache, &numbered(&[1, 2, 1], 9), 1..3, CandleError::Rows { first: 1, end: 3, rows: 2 }),
    ] {
        let mut writer = Writer::new(TensorScatter::new(), cache).unwrap();
        let before = values(cache);
        assert_error(writer.write(update, WriteAt::new(&[3_i64]).rows(rows)).unwrap_err(), expected);
        assert_eq!(values(cache), before);
    }
    let indices = Tensor::new(&[3i64], &CPU).unwrap();
    assert!(cache.inplace_op3(&within, &indices, &TensorScatter::new()).is_err());
    assert_eq!(values(&cache), [0, 1, 2, 3]);
}

fn write_to<'w>(writer: &'w mut Writer, update: &'w Tensor, start: &'w [i64; 1]) -> CacheWrite<'w> {
    CacheWrite { writer, update, at: WriteAt::new(start) }
}

/// After an error, all caches are unchanged, including those before the write with the error.
#[test]
fn many_caches_are_written_all_or_none() {
    let (k, v) = (numbered(&[1, 4, 1], 0), numbered(&[1, 4, 1], 10));
    let [mut write_k, mut write_v] = [&k, &v].map(|cache| Writer::new(TensorScatter::new(), cache).unwrap());
    let (new, long) = (numbered(&[1, 1, 1], 90), numbered(&[1, 5, 1], 90));
    let mut both = |update: &Tensor, start: &[i64; 1]| {
        write_many(&mut [write_to(&mut write_k, &new, &[2]), write_to(&mut write_v, update, start)])
    };
    let refused = [
        both(&long, &[2]),
        both(&new, &[4]),
        both(&new.to_dtype(DType::F32).unwrap(), &[2]),
        both(&v.narrow(1, 0, 1).unwrap(), &[2]),
        both(&k.narrow(1, 0, 1).unwrap(), &[2]),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(CandleError::Write(_))), "{refused:?}");
    }
    assert_eq!((values(&k), values(&v)), (vec![0, 1, 2, 3], vec![10, 11, 12, 13]));
    assert_eq!(both(&new, &[3]).unwrap().skipped, 0);
    assert_eq!((values(&k), values(&v)), (vec![0, 1, 90, 3], vec![10, 11, 12, 90]));
}

#[test]
fn caches_may_share_a_storage_if_they_keep_apart() {
    let whole = numbered(&[2, 4, 1], 0);
    let [mut k, mut v] = [0, 1].map(|index| {
        let cache = whole.narrow(0, index, 1).unwrap();
        Writer::new(TensorScatter::new(), &cache).unwrap()
    });
    let (mut again, new) = (k.clone(), numbered(&[1, 1, 1], 90));
    let _ = write_many(&mut [write_to(&mut k, &new, &[1]), write_to(&mut v, &new, &[1])]).unwrap();
    assert_eq!(values(&whole), [0, 90, 2, 3, 4, 90, 6, 7]);
    let refused = write_many(&mut [write_to(&mut k, &new, &[1]), write_to(&mut again, &new, &[1])]);
    let (argument, with) = (Argument::PastCache, Argument::PastCache);
    assert_error(refused.unwrap_err(), Core::Overlap { argument, with, pair: 0, with_pair: 1 });
}

#[test]
fn samples_that_do_not_fit_are_left_out_and_counted() {
    let cache = numbered(&[2, 2, 1], 0);
    let scatter = TensorScatter::new().out_of_range(OutOfRange::SkipSample);
    let written = Writer::new(scatter, &cache).unwrap().write(&numbered(&[2, 1, 1], 9), &[2_i64, 1]).unwrap();
    assert_eq!(written.skipped, 1);
    assert_eq!(values(&cache), [0, 1, 2, 10]);
}
