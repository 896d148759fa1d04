//! Compares the operator and the writer with the oracle, on whole storages.
#![cfg(test)]

mod common;

use std::collections::BTreeMap;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use kvscatter::{Argument, Error as Core};
use kvscatter_candle::{
    CacheWrite, CandleError, TensorScatter, WriteAt, Writer, positions_from_tensor, write_many,
};
use kvscatter_oracle::cases::{Call, Random};

use common::{Case, View, assert_error, bytes};

const CPU: Device = Device::Cpu;

fn writer(cache: &Tensor) -> Writer {
    Writer::new(TensorScatter::new(), cache).unwrap()
}

/// Returns a tensor in which every element is different.
fn numbered(shape: &[usize], first: u32) -> Tensor {
    let end = first + shape.iter().product::<usize>() as u32;
    Tensor::arange(first, end, &CPU).unwrap().reshape(shape).unwrap()
}

fn values(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns the dimension of the rows, if there is one.
fn axis(Case { oracle, .. }: &Case) -> Option<usize> {
    let Call::TensorScatter { operator, .. } = &oracle.call else { unreachable!("no other operator") };
    let rank = if operator.axis < 0 { oracle.cache_shape.len() as i64 } else { 0 };
    let axis = usize::try_from(operator.axis.wrapping_add(rank)).ok()?;
    (axis < oracle.update_shape.len()).then_some(axis)
}

/// Each writer gets updates with different layouts and selections of rows.
#[test]
fn views_are_written_as_the_oracle_writes_them() {
    let (mut random, mut written, mut refused) = (Random::new(7, 0), BTreeMap::new(), 0);
    for case in Case::all(7, 20_000) {
        let ([element, other], name) = (case.oracle.elements, &case.oracle.name);
        let cache = View::new(&mut random, element, &case.oracle.cache_shape, &CPU);
        let mut writer = Writer::new(case.scatter, &cache.part).unwrap();
        let mut longer = case.oracle.update_shape.clone();
        let axis = axis(&case);
        let rows = axis.map_or(0, |axis| longer[axis]);
        axis.into_iter().for_each(|axis| longer[axis] += 2);
        let longer = View::new(&mut random, other, &longer, &CPU).part;
        for first in [1, 2, 0] {
            let update = axis.map_or(longer.clone(), |axis| longer.narrow(axis, first, rows).unwrap());
            let (before, expected) = (bytes(&cache.whole), case.expected(&cache, &update));
            let at = WriteAt::new(&case.starts);
            let at = case.lengths.as_ref().map_or(at.clone(), |lengths| at.lengths(lengths));
            let done = match (&case.lengths, random.below(3)) {
                (None, 0) => {
                    let starts = Tensor::from_slice(&case.starts, case.starts.len(), &CPU).unwrap();
                    cache.part.inplace_op3(&update, &starts, &case.scatter).map(|()| None)
                }
                (_, 1) if axis.is_some() => {
                    writer.write(&longer, at.rows(first..first + rows)).map(Some).map_err(Into::into)
                }
                _ => writer.write(&update, at).map(Some).map_err(Into::into),
            };
            assert_eq!(done.is_ok(), expected.is_some(), "{name}: {done:?}");
            *if done.is_ok() { written.entry(element.name).or_default() } else { &mut refused } += 1;
            let (all, skipped) = expected.unwrap_or((before, 0));
            assert!(done.is_err() || done.unwrap().is_none_or(|done| done.skipped == skipped), "{name}");
            assert_eq!(bytes(&cache.whole), all, "{name}");
        }
    }
    let is_tested = written.len() == 10 && written.values().all(|&count| count > 300) && refused > 1000;
    assert!(is_tested, "{written:?} {refused}");
}

/// candle has no arithmetic for these types, but it can load them.
#[test]
fn elements_without_arithmetic_are_bytes_or_half_bytes() {
    let loaded =
        |dtype, slots, bytes: &[u8]| Tensor::from_raw_buffer(bytes, dtype, &[1, slots, 2], &CPU).unwrap();
    let bytes = |tensor: &Tensor| match &*tensor.storage_and_layout().0 {
        Storage::Cpu(CpuStorage::F4(bytes) | CpuStorage::F8E8M0(bytes)) => bytes.clone(),
        _ => unreachable!("the types of this test"),
    };
    let (cache, update) = (loaded(DType::F4, 4, &[0x11, 0x22, 0x33, 0x44]), loaded(DType::F4, 1, &[0xab]));
    let _ = writer(&cache).write(&update, &[2_i64]).unwrap();
    assert_eq!(bytes(&cache), [0x11, 0x22, 0xab, 0x44]);
    let (cache, update) = (loaded(DType::F8E8M0, 3, &[1, 2, 3, 4, 5, 6]), loaded(DType::F8E8M0, 1, &[8, 9]));
    cache.inplace_op3(&update, &Tensor::new(&[1_i64], &CPU).unwrap(), &TensorScatter::new()).unwrap();
    assert_eq!(bytes(&cache), [1, 2, 8, 9, 5, 6]);
    let (argument, dtype) = (Argument::PastCache, DType::F6E2M3);
    let refused = Writer::new(TensorScatter::new(), &loaded(dtype, 2, &[0; 3])).unwrap_err();
    assert_error(refused, CandleError::DType { argument, dtype });
}

#[test]
fn positions_may_be_a_tensor_of_three_types() {
    let (update, plain) = (numbered(&[2, 1, 1], 50), Tensor::new(&[3_i64, 1], &CPU).unwrap());
    let strided = Tensor::new(&[[9_i64, 3], [9, 1]], &CPU).unwrap().get_on_dim(1, 1).unwrap();
    let others = [DType::U32, DType::I32, DType::I64].map(|dtype| plain.to_dtype(dtype).unwrap());
    for indices in others.into_iter().chain([strided]) {
        let cache = numbered(&[2, 4, 1], 0);
        cache.inplace_op3(&update, &indices, &TensorScatter::new()).unwrap();
        assert_eq!(values(&cache), [0, 1, 2, 50, 4, 51, 6, 7]);
        assert_eq!(positions_from_tensor(&indices).unwrap(), [3, 1]);
    }
    let floats = plain.to_dtype(DType::F32).unwrap();
    let wrong = [floats, plain.unsqueeze(0).unwrap()].map(|wrong| positions_from_tensor(&wrong).unwrap_err());
    let expected = [CandleError::IndexType { dtype: DType::F32 }, CandleError::IndexRank { rank: 2 }];
    wrong.into_iter().zip(expected).for_each(|(wrong, expected)| assert_error(wrong, expected));
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
    let (cache, one) = (numbered(&[1, 4, 1], 0), numbered(&[1, 1, 1], 9));
    let (repeated, within) = (one.broadcast_as((1, 4, 1)).unwrap(), cache.narrow(1, 0, 1).unwrap());
    let (argument, with) = (Argument::PastCache, Argument::Update);
    for (cache, update, rows, expected) in [
        (&repeated, &numbered(&[1, 1, 1], 8), 0..1, Core::CacheOverlapsItself { argument }.into()),
        (&cache, &within, 0..1, Core::Overlap { argument, with, pair: 0, with_pair: 0 }.into()),
        (&cache, &numbered(&[1, 2, 1], 9), 1..3, CandleError::Rows { first: 1, end: 3, rows: 2 }),
    ] {
        let before = values(cache);
        let refused = writer(cache).write(update, WriteAt::new(&[3_i64]).rows(rows)).unwrap_err();
        assert_error(refused, expected);
        assert_eq!(values(cache), before);
    }
    let indices = Tensor::new(&[3_i64], &CPU).unwrap();
    assert!(cache.inplace_op3(&within, &indices, &TensorScatter::new()).is_err());
    assert_eq!(values(&cache), [0, 1, 2, 3]);
}

/// After an error, all caches are unchanged, including those before the write with the error. Caches may be views of
/// one storage if they do not overlap.
#[test]
fn many_caches_are_written_all_or_none() {
    let stacked = numbered(&[2, 4, 1], 0);
    let new = numbered(&[1, 1, 1], 90);
    for [k, v] in [
        [numbered(&[1, 4, 1], 0), numbered(&[1, 4, 1], 4)],
        [0, 1].map(|index| stacked.narrow(0, index, 1).unwrap()),
    ] {
        let mut writers = [&k, &v, &k].map(writer);
        let mut both = |second: usize, update: &Tensor, start: i64| {
            let [first, second] = writers.get_disjoint_mut([0, second]).unwrap();
            write_many(&mut [
                CacheWrite { writer: first, update: &new, at: WriteAt::new(&[2_i64]) },
                CacheWrite { writer: second, update, at: WriteAt::new(&[start]) },
            ])
        };
        for refused in [
            both(1, &numbered(&[1, 5, 1], 90), 2),
            both(1, &new, 4),
            both(1, &new.to_dtype(DType::F32).unwrap(), 2),
            both(1, &v.narrow(1, 0, 1).unwrap(), 2),
            both(1, &k.narrow(1, 0, 1).unwrap(), 2),
        ] {
            assert!(matches!(refused, Err(CandleError::Write(_))), "{refused:?}");
        }
        let (argument, with) = (Argument::PastCache, Argument::PastCache);
        assert_error(both(2, &new, 3).unwrap_err(), Core::Overlap { argument, with, pair: 0, with_pair: 1 });
        assert_eq!((values(&k), values(&v)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7]));
        assert_eq!(both(1, &new, 3).unwrap().skipped, 0);
        assert_eq!((values(&k), values(&v)), (vec![0, 1, 90, 3], vec![4, 5, 6, 90]));
    }
}
