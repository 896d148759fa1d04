//! Positions that do not fit.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter};

use crate::driver::{caches, device, list, row, slots, writer};

/// Returns the CPU's error for one row at these positions.
fn on_the_cpu(starts: &[i64], lengths: Option<&[i64]>) -> kvscatter::Error {
    on_the_cpu_with(&row(&Device::Cpu, 0.), starts, lengths)
}

fn on_the_cpu_with(update: &Tensor, starts: &[i64], lengths: Option<&[i64]>) -> kvscatter::Error {
    let [cache, _] = caches(&Device::Cpu);
    let at = kvscatter_candle::WriteAt::new(starts);
    let at = match lengths {
        Some(lengths) => at.lengths(lengths),
        None => at,
    };
    let mut writer = kvscatter_candle::Writer::new(TensorScatter::new(), &cache).unwrap();
    match writer.write(update, at) {
        Err(CandleError::Write(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Returns two rows for each sample.
fn rows(device: &Device) -> Tensor {
    Tensor::zeros((2, 1, 2, 2), DType::F32, device).unwrap()
}

fn write_error(checked: Result<(), CandleError>) -> kvscatter::Error {
    match checked {
        Err(CandleError::Write(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Returns the count, the sample and the value of an error without the rows. The writes differ in their rows
/// or lengths.
fn first_bad(checked: Result<(), CandleError>) -> (u32, Option<usize>, i64) {
    match checked {
        Err(CandleError::Cuda(kvscatter_cuda::CudaError::BadIndices { bad_samples, first })) => {
            (bad_samples, first.sample, first.value)
        }
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
    writer.write(&[&update, &update], DeviceWriteAt::new(&starts).lengths(&list(&device, &[1, 0]))).unwrap();
    writer.check().unwrap();
    assert_eq!(slots(&caches[0]), [0., 1., 0., 0., 0., 0., 0., 0.]);
    for lengths in [[1, 1], [2, 0], [-1, 0]] {
        writer
            .write(&[&update, &update], DeviceWriteAt::new(&starts).lengths(&list(&device, &lengths)))
            .unwrap();
        assert_eq!(write_error(writer.check()), on_the_cpu(&[1, 4], Some(&lengths)));
        writer.clear().unwrap();
    }
}

#[test]
fn the_length_of_a_sample_that_does_not_fit_is_in_its_error() {
    let device = device();
    let (mut writer, update) = (writer(&caches(&device)), rows(&device));
    let (starts, lengths) = ([4, 0], [1, 2]);
    let lists = [starts, lengths].map(|numbers| list(&device, &numbers));
    writer.write(&[&update, &update], DeviceWriteAt::new(&lists[0]).lengths(&lists[1])).unwrap();
    let expected = on_the_cpu_with(&rows(&Device::Cpu), &starts, Some(&lengths));
    assert_eq!(write_error(writer.check()), expected);
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
    // The row fits into the large cache.
    writer.write(&[&update, &update], &list(&device, &[0, 3])).unwrap();
    assert_eq!(slots(&large), [1., 0., 0., 0., 0., 0., 0., 1.]);
    match write_error(writer.check()) {
        kvscatter::Error::StartOutOfRange { index: 1, value: 3, capacity: 3, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn found_errors_outlive_skip_all() {
    let device = device();
    let (mut writer, update) = (writer(&caches(&device)), row(&device, 1.));
    writer.write(&[&update, &update], &list(&device, &[4, 1])).unwrap();
    let mut writer = writer.skip_all(true);
    assert_eq!(write_error(writer.check()), on_the_cpu(&[4, 1], None));
}

#[test]
fn found_errors_outlive_a_refused_write() {
    let device = device();
    let shape = [2_usize, 2, 2, 2, 2, 2, 4, 2];
    let cache = Tensor::zeros(&shape, DType::F32, &device).unwrap();
    let update = cache.narrow(6, 0, 1).unwrap().copy().unwrap();
    let mut writer = writer(&[cache]);
    writer.write(&[&update], &list(&device, &[4, 1])).unwrap();
    let expected = on_the_cpu(&[4, 1], None);
    // The errors are of the launch's requirements, of the kernels' loops, and of the shapes.
    let turned = update.permute([0, 5, 4, 3, 2, 1, 6, 7]).unwrap();
    let short = update.narrow(7, 0, 1).unwrap();
    for (update, starts) in [(&update, &[0, 0, 0][..]), (&turned, &[0, 0]), (&short, &[0, 0])] {
        writer.write(&[update], &list(&device, starts)).unwrap_err();
        assert_eq!(write_error(writer.check()), expected);
    }
}

#[test]
fn rows_of_another_write_are_never_in_the_error() {
    let device = device();
    let (mut writer, one, two) = (writer(&caches(&device)), row(&device, 1.), rows(&device));
    // Position 9 is too large even for one row. Position 3 is too large only for two rows.
    for start in [9, 3] {
        let starts = [start, 0];
        let expected = on_the_cpu_with(&rows(&Device::Cpu), &starts, None);
        writer.write(&[&two, &two], &list(&device, &starts)).unwrap();
        assert_eq!(write_error(writer.check()), expected);
        writer.write(&[&one, &one], &list(&device, &[0, 0, 0])).unwrap_err();
        assert_eq!(write_error(writer.check()), expected, "one row was refused");
        writer.write(&[&one, &one], &list(&device, &[0, 0])).unwrap();
        assert_eq!(first_bad(writer.check()), (1, Some(0), start));
        for update in [&one, &two, &two] {
            writer.write(&[update, update], &list(&device, &[0, 0])).unwrap();
            assert_eq!(first_bad(writer.check()), (1, Some(0), start), "it may have been either");
        }
        writer.clear().unwrap();
    }
}

#[test]
fn a_check_that_finds_nothing_settles_what_was_written() {
    let device = device();
    let (mut writer, one, two) = (writer(&caches(&device)), row(&device, 1.), rows(&device));
    for _ in 0..2 {
        writer.write(&[&two, &two], &list(&device, &[0, 2])).unwrap();
        writer.check().unwrap();
        writer.write(&[&one, &one], &list(&device, &[9, 0])).unwrap();
        assert_eq!(write_error(writer.check()), on_the_cpu(&[9, 0], None));
        writer.clear().unwrap();
    }
}

#[test]
fn lengths_of_another_write_are_never_in_the_error() {
    let device = device();
    let (mut writer, one, two) = (writer(&caches(&device)), row(&device, 1.), rows(&device));
    let write = |writer: &mut CudaWriter, update: &Tensor, starts: [i64; 2], lengths: Option<[i64; 2]>| {
        let (starts, lengths) = (list(&device, &starts), lengths.map(|lengths| list(&device, &lengths)));
        let at = lengths
            .as_ref()
            .map_or(DeviceWriteAt::new(&starts), |lengths| DeviceWriteAt::new(&starts).lengths(lengths));
        writer.write(&[update, update], at).unwrap();
    };
    // A bad sample of one row has length 1, for any lengths of later writes.
    write(&mut writer, &one, [4, 0], Some([1, 1]));
    write(&mut writer, &one, [4, 0], Some([0, 1]));
    assert_eq!(write_error(writer.check()), on_the_cpu(&[4, 0], None));
    for (found, later) in [(Some([1, 2]), Some([2, 2])), (Some([1, 2]), None), (None, Some([1, 2]))] {
        writer.clear().unwrap();
        write(&mut writer, &two, [4, 0], found);
        write(&mut writer, &two, [0, 0], later);
        assert_eq!(first_bad(writer.check()), (1, Some(0), 4), "{found:?} {later:?}");
    }
}
