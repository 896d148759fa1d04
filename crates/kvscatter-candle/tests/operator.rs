//! Compares the operator and the writer with the oracle, on whole storages.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

mod common;

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor};
use kvscatter::{Argument, Mode, OutOfRange};
use kvscatter_candle::{
    CacheWrite, CandleError, TensorScatter, WriteAt, Writer, positions_from_tensor, write_many,
};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::onnx;

use common::{numbered, values, view};

const CPU: Device = Device::Cpu;

struct Case {
    operator: onnx::TensorScatter,
    scatter: TensorScatter,
    cache: [usize; 4],
    update: [usize; 4],
    starts: Vec<i64>,
    lengths: Option<Vec<i64>>,
}

impl Case {
    fn random(random: &mut Random) -> Self {
        let circular = random.below(2) == 0;
        let axis = random.between(1, 3);
        let mut cache = [(); 4].map(|()| random.between(1, 3));
        cache[axis] = random.between(1, 5);
        let mut update = cache;
        update[axis] = random.below(cache[axis] + 1);
        let room = cache[axis] - update[axis];
        // In linear mode, one case in eight may have a position that does not fit.
        let outside = usize::from(random.below(8) == 0);
        let starts = random.many(cache[0], |random| match circular {
            true => random.below(40) as i64 - 20,
            false => random.below(room + 1 + outside) as i64,
        });
        let lengths = (random.below(3) == 0)
            .then(|| random.many(cache[0], |random| random.below(update[axis] + 1) as i64));
        let (mode, name) = if circular { (Mode::Circular, "circular") } else { (Mode::Linear, "linear") };
        Self {
            operator: onnx::TensorScatter { axis: axis as i64, mode: name.to_owned(), ..Default::default() },
            scatter: TensorScatter::new().axis(axis as i64).mode(mode),
            cache,
            update,
            starts,
            lengths,
        }
    }

    fn expected(&self, cache: &Tensor, update: &Tensor) -> Option<Vec<u32>> {
        let (cache, update) = (values(cache), values(update));
        let cache = kvscatter_oracle::Tensor::new(&cache, &self.cache);
        let update = kvscatter_oracle::Tensor::new(&update, &self.update);
        let outcome = self.operator.run(cache, update, Some(&self.starts), self.lengths.as_deref());
        outcome.ok().map(|outcome| outcome.present)
    }
}

/// Returns the storage with other values in the view.
fn with(whole: &Tensor, part: &Tensor, values: &[u32]) -> Vec<u32> {
    let mut all = self::values(whole);
    let (dims, layout) = (part.dims(), part.layout());
    for (flat, &value) in values.iter().enumerate() {
        let (mut rest, mut at) = (flat, layout.start_offset());
        for (dim, stride) in dims.iter().zip(layout.stride()).rev() {
            at += rest % dim * stride;
            rest /= dim;
        }
        all[at] = value;
    }
    all
}

#[test]
fn ragged_circular_and_strided_writes_are_the_oracles() {
    let (mut random, mut refused) = (Random::new(7, 0), 0);
    for _ in 0..4000 {
        let case = Case::random(&mut random);
        let (cache, whole) = view(&mut random, &case.cache, 0);
        let (update, _) = view(&mut random, &case.update, 100_000);
        let before = values(&whole);
        let expected = case.expected(&cache, &update).map(|present| with(&whole, &cache, &present));
        let done = match &case.lengths {
            Some(lengths) => {
                let mut writer = Writer::new(case.scatter, &cache).unwrap();
                writer
                    .write(&update, WriteAt::new(&case.starts).lengths(lengths))
                    .map(drop)
                    .map_err(Into::into)
            }
            None => {
                let indices = Tensor::new(&case.starts[..], &CPU).unwrap();
                cache.inplace_op3(&update, &indices, &case.scatter)
            }
        };
        refused += usize::from(expected.is_none());
        assert_eq!(done.is_ok(), expected.is_some(), "{done:?}");
        assert_eq!(values(&whole), expected.unwrap_or(before), "{:?} {:?}", case.cache, case.starts);
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
        let expected = case.expected(&cache, &part).unwrap();
        let _ = writer.write(&update, WriteAt::new(&case.starts).rows(taken)).unwrap();
        assert_eq!(values(&cache), expected);
    }
}

#[test]
fn every_element_type_moves_bit_for_bit() {
    let dtypes =
        [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64, DType::BF16, DType::F16, DType::F32];
    for dtype in dtypes.into_iter().chain([DType::F64, DType::F8E4M3]) {
        let cast = |tensor: Tensor| tensor.to_dtype(DType::F32).unwrap().to_dtype(dtype).unwrap();
        let (cache, update) = (cast(numbered(&[2, 4, 3], 0)), cast(numbered(&[2, 1, 3], 100)));
        let expected = |tensor: &Tensor| -> Vec<f32> {
            tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
        };
        let (mut present, new) = (expected(&cache), expected(&update));
        present[9..12].copy_from_slice(&new[..3]);
        present[12..15].copy_from_slice(&new[3..]);
        let _ = Writer::new(TensorScatter::new(), &cache).unwrap().write(&update, &[3_i64, 0]).unwrap();
        assert_eq!(expected(&cache), present, "{dtype:?}");
    }
}

/// candle has no arithmetic for these types, but it can load them.
#[test]
fn elements_without_arithmetic_are_bytes_or_half_bytes() {
    let loaded = |name: &str, shape: &str, bytes: &[u8]| -> Tensor {
        let header =
            format!(r#"{{"t":{{"dtype":"{name}","shape":{shape},"data_offsets":[0,{}]}}}}"#, bytes.len());
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length, header.as_bytes(), bytes].concat();
        candle_core::safetensors::load_buffer(&file, &CPU).unwrap().remove("t").unwrap()
    };
    let (cache, update) =
        (loaded("F4", "[1,4,2]", &[0x11, 0x22, 0x33, 0x44]), loaded("F4", "[1,1,2]", &[0xab]));
    let _ = Writer::new(TensorScatter::new(), &cache).unwrap().write(&update, &[2_i64]).unwrap();
    assert!(
        matches!(&*cache.storage_and_layout().0, Storage::Cpu(CpuStorage::F4(bytes)) if bytes == &[0x11, 0x22, 0xab, 0x44])
    );

    let (cache, update) = (loaded("F8_E8M0", "[1,3,1]", &[1, 2, 3]), loaded("F8_E8M0", "[1,1,1]", &[9]));
    cache.inplace_op3(&update, &Tensor::new(&[1i64], &CPU).unwrap(), &TensorScatter::new()).unwrap();
    assert!(
        matches!(&*cache.storage_and_layout().0, Storage::Cpu(CpuStorage::F8E8M0(bytes)) if bytes == &[1, 9, 3])
    );

    let six = loaded("F6_E2M3", "[1,4,1]", &[0; 3]);
    let refused = Writer::new(TensorScatter::new(), &six).unwrap_err();
    assert!(
        matches!(refused, CandleError::DType { argument: Argument::PastCache, dtype: DType::F6E2M3 }),
        "{refused:?}"
    );
}

#[test]
fn positions_may_be_a_tensor_of_three_types() -> Result<()> {
    let update = numbered(&[2, 1, 1], 50);
    let strided = Tensor::new(&[[3i64, 9], [1, 9]], &CPU)?.narrow(1, 0, 1)?.squeeze(1)?;
    let plain = Tensor::new(&[3i64, 1], &CPU)?;
    let others = [plain.to_dtype(DType::U32)?, plain.to_dtype(DType::I32)?, strided, plain];
    for indices in others {
        let cache = numbered(&[2, 4, 1], 0);
        cache.inplace_op3(&update, &indices, &TensorScatter::new())?;
        assert_eq!(values(&cache), [0, 1, 2, 50, 4, 51, 6, 7]);
        assert_eq!(positions_from_tensor(&indices)?, [3, 1]);
    }
    let wrong = positions_from_tensor(&Tensor::new(&[1f32], &CPU)?).unwrap_err();
    assert!(matches!(wrong, CandleError::IndexType { dtype: DType::F32 }), "{wrong}");
    let wrong = positions_from_tensor(&Tensor::new(&[[1i64]], &CPU)?).unwrap_err();
    assert!(matches!(wrong, CandleError::IndexRank { rank: 2 }), "{wrong}");
    Ok(())
}

#[test]
fn one_position_may_serve_all_and_any_dimension_be_the_sequence() -> Result<()> {
    let scatter = TensorScatter::new().one_start();
    let cache = numbered(&[3, 2], 0);
    let mut writer = Writer::new(scatter.axis(0), &cache).unwrap();
    let _ = writer.write(&numbered(&[1, 2], 70), &[1_i64]).unwrap();
    assert_eq!(values(&cache), [0, 1, 70, 71, 4, 5]);
    let refused = writer.write(&numbered(&[1, 3], 0), &[1_i64]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "dimension 1 of update is 3, must be 2 as in the cache; if it is the sequence, give strides"
    );
    let last = Writer::new(scatter.axis(-1), &cache).unwrap().write(&numbered(&[3, 1], 80), &[1_i64]);
    assert!(last.is_ok());
    assert_eq!(values(&cache), [0, 80, 70, 81, 4, 82]);
    Ok(())
}

/// Errors count the dimensions of the caller's tensors, with and without a selection of rows.
#[test]
fn errors_of_tensors_without_a_batch_have_their_own_ranks() {
    use kvscatter::Error as Core;
    let argument = Argument::Update;
    for (axis, cache, update, expected) in [
        (-2, &[4][..], &[1][..], Core::AxisOutOfRange { axis: -2, rank: 1 }),
        (1, &[4], &[1], Core::AxisOutOfRange { axis: 1, rank: 1 }),
        (2, &[4, 2], &[1, 2], Core::AxisOutOfRange { axis: 2, rank: 2 }),
        (-3, &[4, 2], &[1, 2], Core::AxisOutOfRange { axis: -3, rank: 2 }),
        (i64::MIN, &[4, 2], &[1, 2], Core::AxisOutOfRange { axis: i64::MIN, rank: 2 }),
        (i64::MAX, &[4, 2], &[1, 2], Core::AxisOutOfRange { axis: i64::MAX, rank: 2 }),
        (0, &[4, 2], &[1], Core::RankMismatch { argument, cache: 2, update: 1 }),
        (-2, &[4, 2], &[1, 2, 2], Core::RankMismatch { argument, cache: 2, update: 3 }),
        (
            0,
            &[4, 2],
            &[1, 3],
            Core::DimensionMismatch { argument, dimension: 1, expected: 2, got: 3, hint: None },
        ),
        (
            1,
            &[4, 2],
            &[3, 1],
            Core::DimensionMismatch { argument, dimension: 0, expected: 4, got: 3, hint: None },
        ),
    ] {
        let scatter = TensorScatter::new().one_start().axis(axis);
        let mut writer = Writer::new(scatter, &numbered(cache, 0)).unwrap();
        for rows in [None, Some(0..1)] {
            let at = WriteAt::new(&[0_i64]);
            let at = rows.map_or(at.clone(), |rows| at.rows(rows));
            let refused = writer.write(&numbered(update, 9), at).unwrap_err();
            assert!(matches!(refused, CandleError::Write(error) if error == expected), "{axis}: {refused:?}");
        }
    }
}

/// The cache's rank determines the dimension of the rows, even if the update has another rank.
#[test]
fn rows_of_an_update_of_another_rank_are_refused_for_the_rank() {
    let mut writer = Writer::new(TensorScatter::new().axis(3), &numbered(&[1, 2, 2, 4], 0)).unwrap();
    for update in [&[1, 2, 2][..], &[1, 2, 2, 1, 1]] {
        let at = WriteAt::new(&[0_i64]).rows(0..1);
        let refused = writer.write(&numbered(update, 9), at).unwrap_err();
        let expected =
            kvscatter::Error::RankMismatch { argument: Argument::Update, cache: 4, update: update.len() };
        assert!(matches!(refused, CandleError::Write(error) if error == expected), "{refused:?}");
    }
}

/// After an error, all caches are unchanged, including those before the write with the error.
#[test]
fn many_caches_are_written_all_or_none() {
    let (k, v) = (numbered(&[1, 4, 1], 0), numbered(&[1, 4, 1], 10));
    let [mut write_k, mut write_v] = [&k, &v].map(|cache| Writer::new(TensorScatter::new(), cache).unwrap());
    let (new, long) = (numbered(&[1, 1, 1], 90), numbered(&[1, 5, 1], 90));
    let starts = [2_i64];
    let mut both = |update: &Tensor, at: WriteAt<'_>| {
        let first = CacheWrite { writer: &mut write_k, update: &new, at: WriteAt::new(&starts) };
        write_many(&mut [first, CacheWrite { writer: &mut write_v, update, at }])
    };
    let refused = [
        both(&long, WriteAt::new(&starts)),
        both(&new, WriteAt::new(&[4_i64])),
        both(&new.to_dtype(DType::F32).unwrap(), WriteAt::new(&starts)),
        both(&v.narrow(1, 0, 1).unwrap(), WriteAt::new(&starts)),
        both(&k.narrow(1, 0, 1).unwrap(), WriteAt::new(&starts)),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(CandleError::Write(_))), "{refused:?}");
    }
    assert_eq!((values(&k), values(&v)), (vec![0, 1, 2, 3], vec![10, 11, 12, 13]));
    assert_eq!(both(&new, WriteAt::new(&[3_i64])).unwrap().skipped, 0);
    assert_eq!((values(&k), values(&v)), (vec![0, 1, 90, 3], vec![10, 11, 12, 90]));
}

#[test]
fn caches_may_share_a_storage_if_they_keep_apart() {
    let whole = numbered(&[2, 4, 1], 0);
    let [mut k, mut v] = [0, 1].map(|index| {
        let cache = whole.narrow(0, index, 1).unwrap();
        Writer::new(TensorScatter::new(), &cache).unwrap()
    });
    let mut again = k.clone();
    let new = numbered(&[1, 1, 1], 90);
    fn at_1<'w>(writer: &'w mut Writer, update: &'w Tensor) -> CacheWrite<'w> {
        CacheWrite { writer, update, at: WriteAt::new(&[1_i64]) }
    }
    let _ = write_many(&mut [at_1(&mut k, &new), at_1(&mut v, &new)]).unwrap();
    assert_eq!(values(&whole), [0, 90, 2, 3, 4, 90, 6, 7]);
    let refused = write_many(&mut [at_1(&mut k, &new), at_1(&mut again, &new)]).unwrap_err();
    let words = kvscatter::Error::Overlap {
        argument: Argument::PastCache,
        with: Argument::PastCache,
        pair: 0,
        with_pair: 1,
    };
    assert!(matches!(refused, CandleError::Write(error) if error == words), "{refused:?}");
}

#[test]
fn an_update_that_lies_in_the_cache_is_refused() {
    let cache = numbered(&[1, 4, 1], 0);
    let update = cache.narrow(1, 0, 1).unwrap();
    let refused = Writer::new(TensorScatter::new(), &cache).unwrap().write(&update, &[3_i64]).unwrap_err();
    let words = kvscatter::Error::Overlap {
        argument: Argument::PastCache,
        with: Argument::Update,
        pair: 0,
        with_pair: 0,
    };
    assert!(matches!(refused, CandleError::Write(error) if error == words), "{refused:?}");
    let indices = Tensor::new(&[3i64], &CPU).unwrap();
    assert!(cache.inplace_op3(&update, &indices, &TensorScatter::new()).is_err());
    assert_eq!(values(&cache), [0, 1, 2, 3]);
}

#[test]
fn a_cache_whose_elements_repeat_is_refused() {
    let cache = numbered(&[1, 1, 1], 0).broadcast_as((1, 4, 1)).unwrap();
    let refused =
        Writer::new(TensorScatter::new(), &cache).unwrap().write(&numbered(&[1, 1, 1], 9), &[0_i64]);
    assert!(
        matches!(refused, Err(CandleError::Write(kvscatter::Error::CacheOverlapsItself { .. }))),
        "{refused:?}"
    );
    assert_eq!(values(&cache), [0; 4]);
}

#[test]
fn rows_that_are_not_there_are_refused() {
    let cache = numbered(&[1, 4, 1], 0);
    let mut writer = Writer::new(TensorScatter::new(), &cache).unwrap();
    let refused = writer.write(&numbered(&[1, 2, 1], 9), WriteAt::new(&[0_i64]).rows(1..3)).unwrap_err();
    assert!(matches!(refused, CandleError::Rows { first: 1, end: 3, rows: 2 }), "{refused}");
}

#[test]
fn samples_that_do_not_fit_are_left_out_and_counted() {
    let cache = numbered(&[2, 2, 1], 0);
    let scatter = TensorScatter::new().out_of_range(OutOfRange::SkipSample);
    let written = Writer::new(scatter, &cache).unwrap().write(&numbered(&[2, 1, 1], 9), &[2_i64, 1]).unwrap();
    assert_eq!(written.skipped, 1);
    assert_eq!(values(&cache), [0, 1, 2, 10]);
}
