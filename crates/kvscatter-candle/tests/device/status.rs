//! Positions that do not fit.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::cuda::At;
use kvscatter_candle::{Error, TensorScatter};

use crate::driver::{caches, device, list, row, slots, writer};

/// The CPU's error for the same call.
fn on_the_cpu(starts: &[i64], lengths: Option<&[i64]>) -> kvscatter::Error {
    let [cache, _] = caches(&Device::Cpu);
    let at = kvscatter_candle::At::new(starts);
    let at = match lengths {
        Some(lengths) => at.lengths(lengths),
        None => at,
    };
    let mut writer = kvscatter_candle::Writer::new(TensorScatter::new(), &cache).unwrap();
    match writer.write(&row(&Device::Cpu, 0.), at) {
        Err(Error::Write(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn write_error(checked: Result<(), Error>) -> kvscatter::Error {
    match checked {
        Err(Error::Write(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sample_that_does_not_fit_is_left_out_and_reported_when_asked() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 1.));
    writer.check().unwrap();
    for starts in [[4, 1], [-1, 1], [i64::MAX, 1]] {
        writer.write(&[&update, &update], &list(&device, &starts)).unwrap();
        assert_eq!(write_error(writer.check()), on_the_cpu(&starts, None));
        assert_eq!(write_error(writer.check()), on_the_cpu(&starts, None), "it is still known");
        for cache in &caches {
            assert_eq!(slots(cache), [0., 0., 0., 0., 0., 1., 0., 0.]);
        }
        writer.clear().unwrap();
        writer.check().unwrap();
    }
}

#[test]
fn the_first_one_stays_known_through_writes_that_fit() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 1.));
    for starts in [[0, 9], [7, 0], [1, 1]] {
        writer.write(&[&update, &update], &list(&device, &starts)).unwrap();
    }
    assert_eq!(write_error(writer.check()), on_the_cpu(&[0, 9], None));
}

#[test]
fn lengths_that_do_not_fit() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 1.));
    let starts = list(&device, &[1, 4]);
    writer.write(&[&update, &update], At::new(&starts).lengths(&list(&device, &[1, 0]))).unwrap();
    writer.check().unwrap();
    assert_eq!(slots(&caches[0]), [0., 1., 0., 0., 0., 0., 0., 0.]);
    for lengths in [[1, 1], [2, 0], [-1, 0]] {
        writer.write(&[&update, &update], At::new(&starts).lengths(&list(&device, &lengths))).unwrap();
        assert_eq!(write_error(writer.check()), on_the_cpu(&[1, 4], Some(&lengths)));
        writer.clear().unwrap();
    }
}

#[test]
fn the_length_of_a_sample_that_does_not_fit_is_in_its_error() {
    let device = device();
    let rows = |device: &Device| Tensor::zeros((2, 1, 2, 2), DType::F32, device).unwrap();
    let [cache, other] = caches(&device);
    let (mut writer, update) = (writer(&[cache, other]), rows(&device));
    let (starts, lengths) = ([4, 0], [1, 2]);
    let lists = [starts, lengths].map(|numbers| list(&device, &numbers));
    writer.write(&[&update, &update], At::new(&lists[0]).lengths(&lists[1])).unwrap();
    let [here, _] = caches(&Device::Cpu);
    let at = kvscatter_candle::At::new(&starts).lengths(&lengths);
    let expected =
        kvscatter_candle::Writer::new(TensorScatter::new(), &here).unwrap().write(&rows(&Device::Cpu), at);
    assert_eq!(write_error(writer.check()), write_error(expected.map(drop)));
}

#[test]
fn all_are_left_out_if_asked_to() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches).skip_all(true), row(&device, 1.));
    writer.write(&[&update, &update], &list(&device, &[0, 4])).unwrap();
    assert_eq!(write_error(writer.check()), on_the_cpu(&[0, 4], None));
    assert_eq!(slots(&caches[0]), [0.; 8]);
    writer.write(&[&update, &update], &list(&device, &[0, 3])).unwrap();
    assert_eq!(slots(&caches[1]), [1., 0., 0., 0., 0., 0., 0., 1.]);
}

#[test]
fn caches_of_different_sizes_are_told_apart() {
    let device = device();
    let [large, _] = caches(&device);
    let [small, _] = caches(&device).map(|cache| cache.narrow(2, 0, 3).unwrap());
    let mut writer = writer(&[large.clone(), small.clone()]);
    let update = row(&device, 1.);
    // It fits into the large one.
    writer.write(&[&update, &update], &list(&device, &[0, 3])).unwrap();
    assert_eq!(slots(&large), [1., 0., 0., 0., 0., 0., 0., 1.]);
    match write_error(writer.check()) {
        kvscatter::Error::StartOutOfRange { index: 1, value: 3, capacity: 3, .. } => {}
        other => panic!("{other:?}"),
    }
}
