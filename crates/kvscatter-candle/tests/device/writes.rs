//! Compares whole storages on the device with the oracle, counts launches, and checks errors before a launch.

use std::collections::BTreeSet;

use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaStorageSlice;
use candle_core::op::BackpropOp;
use candle_core::{DType, Device, DeviceLocation, Storage, Tensor};
use kvscatter::error::LengthUnit;
use kvscatter::{Argument, ElementType, Error as Core, OutOfRange};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter, positions_from_tensor};
use kvscatter_oracle::Refusal;
use kvscatter_oracle::cases::{Call, Random};

use crate::common::{Case, View, assert_error, bytes};
use crate::driver::{LAUNCHES, Step, WAITS, assert_calls, caches, device, list, row, slots, writer};

const CPU: DeviceLocation = DeviceLocation::Cpu;
const CUDA: DeviceLocation = DeviceLocation::Cuda { gpu_id: 0 };

/// Two caches and their updates are views of any layout.
#[test]
fn views_are_written_as_the_oracle_writes_them() {
    let (device, mut random) = (device(), Random::new(11, 0));
    let (mut types, mut outcomes) = (BTreeSet::new(), [0; 3]);
    for mut case in Case::all(11, 4000) {
        let (elements, shapes) =
            (case.oracle.elements, [&case.oracle.cache_shape, &case.oracle.update_shape]);
        let has_empty = case.starts.is_empty() || case.lengths.as_ref().is_some_and(Vec::is_empty);
        if has_empty || shapes[1].contains(&0) || matches!(case.oracle.expected, Err(Refusal::Length { .. }))
        {
            continue;
        }
        let mut views =
            |side: usize| [(); 2].map(|()| View::new(&mut random, elements[side], shapes[side], &device));
        let (caches, updates) = (views(0), views(1));
        let narrow = |&number: &i64| i32::try_from(number).is_ok();
        let dtype = if case.starts.iter().all(narrow) { DType::I32 } else { DType::I64 };
        let numbers = |numbers: &Vec<i64>| {
            let numbers = Tensor::from_slice(numbers, numbers.len(), &Device::Cpu).unwrap();
            numbers.to_dtype(dtype).unwrap().to_device(&device).unwrap()
        };
        let (starts, lengths) = (numbers(&case.starts), case.lengths.as_ref().map(numbers));
        let at = DeviceWriteAt::new(&starts);
        let at = lengths.as_ref().map_or(at, |lengths| at.lengths(lengths));
        let parts = caches.each_ref().map(|cache| &cache.part);
        let before = caches.each_ref().map(|cache| bytes(&cache.whole));
        let mut writer = CudaWriter::new(case.scatter.out_of_range(OutOfRange::Error), &parts).unwrap();
        let done = writer.write(&updates.each_ref().map(|update| &update.part), at);
        let checked = writer.check().is_ok();
        // The device skips samples that do not fit, and reports them later.
        if let Call::TensorScatter { operator, .. } = &mut case.oracle.call {
            operator.out_of_range = kvscatter_oracle::OutOfRange::SkipSample;
        }
        for ((cache, update), before) in caches.iter().zip(&updates).zip(before) {
            let expected = case.expected(cache, &update.part);
            assert_eq!(done.is_ok(), expected.is_some(), "{}: {done:?}", case.oracle.name);
            let (all, skipped) = expected.unwrap_or((before, 0));
            assert_eq!((bytes(&cache.whole), checked), (all, skipped == 0), "{}", case.oracle.name);
        }
        types.extend(done.is_ok().then_some(elements[0].name));
        outcomes[if done.is_err() { 0 } else { 1 + usize::from(checked) }] += 1;
    }
    assert!(types.len() == 10 && outcomes.iter().all(|&count| count > 20), "{types:?} {outcomes:?}");
}

#[test]
fn scales_of_eight_bits_which_candle_itself_does_not_copy_back() {
    let device = device();
    let bytes = |bytes: &[u8], shape: &[usize]| {
        Tensor::from_raw_buffer(bytes, DType::F8E8M0, shape, &device).unwrap()
    };
    let (whole, update) = (bytes(&[0xEE; 12], &[2, 1, 1, 3, 2]), bytes(&[1, 2, 3, 4], &[2, 1, 1, 1, 2]));
    let mut writer = writer(&[whole.get(1).unwrap()]);
    writer.write(&[&update.get(1).unwrap()], &list(&device, &[1])).unwrap();
    writer.check().unwrap();
    let (storage, _) = whole.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { unreachable!("a tensor on a device") };
    let CudaStorageSlice::F8E8M0(slice) = &storage.slice else { unreachable!("the tensor's type") };
    let mut expected = [0xEE; 12];
    expected[8..10].copy_from_slice(&[3, 4]);
    assert_eq!(storage.device.clone_dtoh(slice).unwrap(), expected);
}

#[test]
fn layers_may_share_a_storage_and_updates_another() {
    let device = device();
    let stacked = Tensor::zeros((3, 2, 1, 4, 2), DType::F32, &device).unwrap();
    let new: Vec<f32> = (2..14).map(|element| (element / 2) as f32).collect();
    let new = Tensor::from_vec(new, (3, 2, 1, 1, 2), &device).unwrap();
    let layers = |tensor: &Tensor| [0, 1, 2].map(|layer| tensor.get(layer).unwrap());
    let (mut writer, starts) = (writer(&layers(&stacked)), list(&device, &[1, 3]));
    assert_calls(LAUNCHES, 1, || writer.write(&layers(&new).each_ref(), &starts).unwrap());
    let mut expected = [0.; 24];
    for (place, value) in [(1, 1.), (7, 2.), (9, 3.), (15, 4.), (17, 5.), (23, 6.)] {
        expected[place] = value;
    }
    assert_eq!(slots(&stacked), expected);
}

#[test]
fn the_layers_of_a_large_model_take_two_launches_and_a_step_waits_for_nothing() {
    let device = device();
    let layers: Vec<_> = (0..80).flat_map(|_| caches(&device)).collect();
    let updates: Vec<_> = (0..160).map(|layer| row(&device, layer as f32)).collect();
    let (mut updates, starts) = (updates.iter().collect::<Vec<_>>(), list(&device, &[1, 2]));
    let mut writer = writer(&layers);
    assert_calls(LAUNCHES, 2, || writer.write(&updates, &starts).unwrap());
    updates.reverse(); // Each layer's update has another address.
    for _ in 0..2 {
        assert_calls(WAITS, 0, || assert_calls(LAUNCHES, 2, || writer.write(&updates, &starts).unwrap()));
    }
    for (layer, cache) in layers.iter().rev().enumerate() {
        let value = layer as f32;
        assert_eq!(slots(cache), [0., value, 0., 0., 0., 0., value, 0.]);
    }
}

#[test]
fn updates_that_lie_otherwise_take_a_launch_of_their_own() {
    let device = device();
    let caches = [(); 2].map(|()| Tensor::zeros((2, 2, 4, 2), DType::F32, &device).unwrap());
    let mut writer = writer(&caches);
    for (rows, starts, launches, expected) in [
        (2, [0, 1], 2, [1., 3., 0., 0., 2., 4., 0., 0., 0., 5., 7., 0., 0., 6., 8., 0.]),
        (1, [2, 3], 1, [1., 3., 1., 0., 2., 4., 2., 0., 0., 5., 7., 3., 0., 6., 8., 4.]),
    ] {
        // The keys have the layout that rotary embedding returns, and the values that of a projection.
        let tokens: Vec<f32> = (2..2 + 8 * rows).map(|element| (element / 2) as f32).collect();
        let tokens = Tensor::from_vec(tokens, (2, rows, 2, 2), &Device::Cpu).unwrap();
        let dense = tokens.transpose(1, 2).unwrap().reshape((2, 2, rows, 2)).unwrap();
        let [dense, tokens] = [dense, tokens].map(|tensor| tensor.to_device(&device).unwrap());
        let updates = [dense, tokens.transpose(1, 2).unwrap()];
        assert_ne!(updates[0].stride(), updates[1].stride());
        let starts = list(&device, &starts);
        assert_calls(LAUNCHES, launches, || writer.write(&updates.each_ref(), &starts).unwrap());
        assert_eq!(caches.each_ref().map(slots), [expected; 2]);
    }
}

fn overlap(with: Argument, pair: usize, with_pair: usize) -> CandleError {
    Core::Overlap { argument: Argument::PastCache, with, pair, with_pair }.into()
}

#[test]
fn caches_must_be_apart_on_one_cuda_device() {
    let argument = Argument::PastCache;
    let (device, [here, _]) = (device(), caches(&Device::Cpu));
    let [there, _] = caches(&device);
    let meeting = [(0, 3), (2, 2)].map(|(start, len)| there.narrow(2, start, len).unwrap());
    // Interleaved views cannot be distinguished from overlapping ones.
    let pairs = there.reshape((2, 1, 2, 2, 2)).unwrap();
    let parts = |dim| [0, 1].map(|part| pairs.get_on_dim(dim, part).unwrap());
    for (caches, expected) in [
        (&[][..], CandleError::NoCaches),
        (&[here.clone(), there.clone()], CandleError::NoCuda { device: CPU }),
        (&[there.clone(), here], CandleError::OtherDevice { argument, device: CPU, cache: CUDA }),
        (&meeting, overlap(argument, 0, 1)),
        (&parts(3), overlap(argument, 0, 1)),
        (&parts(4), overlap(argument, 0, 1)),
    ] {
        let caches: Vec<_> = caches.iter().collect();
        assert_error(CudaWriter::new(TensorScatter::new(), &caches).unwrap_err(), expected);
    }
    for dtype in [DType::F4, DType::F6E2M3, DType::F6E3M2] {
        let whole = Tensor::from_raw_buffer(&[0xEE; 24], dtype, &[2, 1, 1, 4, 4], &device).unwrap();
        for cache in [0, 1].map(|index| whole.get(index).unwrap()) {
            let refused = CudaWriter::new(TensorScatter::new(), &[&cache]).unwrap_err();
            assert_error(refused, CandleError::DType { argument, dtype });
        }
    }
    let _ = writer(&[0, 1].map(|sample| there.narrow(0, sample, 1).unwrap()));
}

/// Returns a list of two numbers with the memory of one.
fn too_long(one: &Tensor) -> Tensor {
    let (storage, layout) = one.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { unreachable!("a tensor on a device") };
    let storage = Storage::Cuda(storage.try_clone(layout).unwrap());
    Tensor::from_storage(storage, 2, BackpropOp::none(), false)
}

#[test]
fn updates_and_lists_must_fit_the_caches() {
    use Argument::{Lengths, Update, WriteIndices};
    let device = device();
    let mut step = Step::new([&device, &device], 1., [0, 1]);
    let Step { caches, writer, update, positions } = &mut step;
    let (at, both) = (DeviceWriteAt::new(positions), [&*update; 2]);
    let mut refused = |updates: &[&Tensor], at: DeviceWriteAt<'_>, expected: CandleError| {
        assert_calls(LAUNCHES, 0, || assert_error(writer.write(updates, at).unwrap_err(), expected));
    };
    let numbers = |numbers: &[i64]| list(&device, numbers);
    let other_device = |argument| CandleError::OtherDevice { argument, device: CPU, cache: CUDA };
    let count = |argument, got| Core::ListLength { argument, got, expected: 2 }.into();

    refused(&[update], at, CandleError::Updates { got: 1, expected: 2 });
    let here = row(&Device::Cpu, 1.);
    refused(&[update, &here], at, other_device(Update));
    refused(&both, DeviceWriteAt::new(&list(&Device::Cpu, &[0, 1])), other_device(WriteIndices));
    refused(&[&caches[1].narrow(2, 0, 1).unwrap(), update], at, overlap(Update, 1, 0));
    let (cache, element) = (ElementType::Float32, ElementType::Float16);
    let half = here.to_dtype(DType::F16).unwrap().to_device(&device).unwrap();
    refused(&[update, &half], at, Core::ElementTypeMismatch { argument: Update, cache, element }.into());
    let wide = Tensor::zeros((2, 1, 1, 3), DType::F32, &device).unwrap();
    let (argument, dimension, hint) = (Update, 3, None);
    let mismatch = Core::DimensionMismatch { argument, dimension, expected: 2, got: 3, hint };
    refused(&[update, &wide], at, mismatch.into());
    refused(&both, DeviceWriteAt::new(&numbers(&[0, 1, 2])), count(WriteIndices, 3));
    refused(&both, at.lengths(&numbers(&[1])), count(Lengths, 1));
    let strided = Tensor::new(&[[0_i64, 9], [1, 9]], &device).unwrap().get_on_dim(1, 0).unwrap();
    let unsigned = Tensor::new(&[0_u32, 1], &device).unwrap();
    for list in [unsigned, positions.unsqueeze(0).unwrap(), strided] {
        let wrong = |argument| CandleError::DeviceList { argument, dtype: list.dtype(), rank: list.rank() };
        refused(&both, DeviceWriteAt::new(&list), wrong(WriteIndices));
        refused(&both, at.lengths(&list), wrong(Lengths));
    }
    for one in [Tensor::new(&[0_i32], &device).unwrap(), numbers(&[0])] {
        let short = |argument, got, expected| {
            let unit = LengthUnit::Elements;
            Core::BufferLength { argument, pair: 0, got, expected, unit, exact: false }.into()
        };
        let two = too_long(&one);
        refused(&both, DeviceWriteAt::new(&two), short(WriteIndices, 1, 2));
        refused(&both, at.lengths(&two), short(Lengths, 1, 2));
        refused(&both, DeviceWriteAt::new(&two.narrow(0, 1, 1).unwrap()), short(WriteIndices, 0, 1));
    }
    writer.check().unwrap();
    assert_eq!(caches.each_ref().map(slots), [[0.; 8]; 2]);
    step.write().unwrap();
    step.writer.check().unwrap();
}

#[test]
fn lists_that_do_not_fit_the_last_of_several_launches_stop_the_first() {
    let device = device();
    let [two, _] = caches(&device);
    let three = Tensor::zeros((3, 1, 4, 2), DType::F32, &device).unwrap();
    let updates = [row(&device, 1.), Tensor::zeros((3, 1, 1, 2), DType::F32, &device).unwrap()];
    let refused = writer(&[two.clone(), three]).write(&updates.each_ref(), &list(&device, &[0, 1]));
    let argument = Argument::WriteIndices;
    assert_error(refused.unwrap_err(), Core::ListLength { argument, got: 2, expected: 3 });
    assert_eq!(slots(&two), [0.; 8]);
}

#[test]
fn errors_of_cpu_tensors_name_the_cpu_writer() {
    let device = device();
    let Step { caches: [cache, _], update, positions, .. } = Step::new([&device, &device], 1., [0, 1]);
    let error = |argument| CandleError::Device { argument, device: CUDA };
    let refused = kvscatter_candle::Writer::new(TensorScatter::new(), &cache).unwrap_err();
    assert_error(refused, error(Argument::PastCache));
    assert_error(positions_from_tensor(&positions).unwrap_err(), error(Argument::WriteIndices));
    let error = cache.inplace_op3(&update, &positions, &TensorScatter::new()).unwrap_err();
    assert!(error.to_string().contains("cuda::CudaWriter"), "{error}");
}
