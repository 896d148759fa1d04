//! Compares whole storages on the device with the oracle, and counts launches.

use candle_core::cuda::CudaStorageSlice;
use candle_core::{DType, Device, Storage, Tensor};
use kvscatter_candle::TensorScatter;
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_oracle::OutOfRange;
use kvscatter_oracle::cases::Random;

use crate::calls::calls;
use crate::common::{Case, every_type_moves, view};
use crate::driver::{WAITS, caches, device, list, row, slots, writer};

const LAUNCHES: [&str; 1] = ["cuLaunchKernel"];

/// Two caches and their updates are views of any layout.
#[test]
fn views_are_written_as_the_oracle_writes_them() {
    let (device, mut random) = (device(), Random::new(11, 0));
    let mut refused = 0;
    for round in 0..400 {
        let case = Case::random(&mut random, 1);
        let is_narrow = round % 2 == 0 && case.starts.iter().all(|&start| i32::try_from(start).is_ok());
        let numbers = |numbers: &[i64]| match is_narrow {
            true => {
                let narrow: Vec<_> = numbers.iter().map(|&number| number as i32).collect();
                Tensor::new(narrow, &device).unwrap()
            }
            false => list(&device, numbers),
        };
        let sides = [case.cache, case.update].map(|shape| [(); 2].map(|()| view(&mut random, &shape, 1)));
        // Views keep their layouts, and storages keep the values around the views.
        let [caches, updates] =
            sides.each_ref().map(|sides| sides.each_ref().map(|(view, _)| view.to_device(&device).unwrap()));
        let (starts, lengths) = (numbers(&case.starts), case.lengths.as_deref().map(numbers));
        let at = DeviceWriteAt::new(&starts);
        let at = lengths.as_ref().map_or(at, |lengths| at.lengths(lengths));
        let mut writer = CudaWriter::new(case.scatter, &caches.each_ref()).unwrap();
        writer.write(&updates.each_ref(), at).unwrap();
        let is_refused = writer.check().is_err();
        refused += usize::from(is_refused);
        let [wholes, updates] = &sides;
        for ((cache, (view, whole)), (update, _)) in caches.iter().zip(wholes).zip(updates) {
            let (expected, skipped) = case.expected(OutOfRange::SkipSample, [view, whole], update).unwrap();
            assert_eq!((storage(cache), is_refused), (expected, skipped > 0), "{round}");
        }
    }
    assert!((20..200).contains(&refused), "{refused}");
}

/// Returns all of a tensor's storage, on the CPU.
fn storage(tensor: &Tensor) -> Vec<u32> {
    let there = tensor.to_device(&Device::Cpu).unwrap();
    match &*there.storage_and_layout().0 {
        Storage::Cpu(candle_core::CpuStorage::U32(values)) => values.clone(),
        _ => unreachable!("the tests' elements"),
    }
}

#[test]
fn elements_of_every_type_move_bit_for_bit() {
    let device = device();
    every_type_moves(&device, |cache, update| {
        let mut writer = CudaWriter::new(TensorScatter::new(), &[cache]).unwrap();
        writer.write(&[update], &list(&device, &[3, 0])).unwrap();
        writer.check().unwrap();
    });
}

#[test]
fn scales_of_eight_bits_which_candle_itself_does_not_copy_back() {
    let device = device();
    let bytes = |bytes: &[u8], shape: &[usize]| {
        Tensor::from_raw_buffer(bytes, DType::F8E8M0, shape, &device).unwrap()
    };
    let (whole, update) = (bytes(&[0xEE; 12], &[2, 1, 1, 3, 2]), bytes(&[1, 2, 3, 4], &[2, 1, 1, 1, 2]));
    let mut writer = CudaWriter::new(TensorScatter::new(), &[&whole.get(1).unwrap()]).unwrap();
    writer.write(&[&update.get(1).unwrap()], &list(&device, &[1])).unwrap();
    writer.check().unwrap();
    let got = match &*whole.storage_and_layout().0 {
        Storage::Cuda(storage) => match &storage.slice {
            CudaStorageSlice::F8E8M0(slice) => storage.device.clone_dtoh(slice).unwrap(),
            _ => unreachable!("the tensor's type"),
        },
        _ => unreachable!("a tensor on a device"),
    };
    let mut expected = [0xEE; 12];
    expected[8..10].copy_from_slice(&[3, 4]);
    assert_eq!(got, expected);
}

#[test]
fn keys_and_values_take_one_launch_and_a_step_waits_for_nothing() {
    let device = device();
    let caches = caches(&device);
    let mut writer = writer(&caches);
    let positions = list(&device, &[0, 2]);
    let updates = [1., 2., 3., 4.].map(|value| row(&device, value));
    writer.write(&[&updates[0], &updates[1]], &positions).unwrap();
    let before = (calls(&LAUNCHES), calls(&WAITS));
    // The updates have other addresses.
    writer.write(&[&updates[2], &updates[3]], &positions).unwrap();
    writer.write(&[&updates[2], &updates[3]], &positions).unwrap();
    assert_eq!((calls(&LAUNCHES), calls(&WAITS)), (before.0.map(|count| count + 2), before.1));
    assert_eq!(slots(&caches[0]), [3., 0., 0., 0., 0., 0., 3., 0.]);
    assert_eq!(slots(&caches[1]), [4., 0., 0., 0., 0., 0., 4., 0.]);
}

#[test]
fn layers_may_share_a_storage_and_updates_another() {
    let device = device();
    let stacked = Tensor::zeros((3, 2, 1, 4, 2), DType::F32, &device).unwrap();
    let new = Tensor::arange(1_f32, 13., &device).unwrap().reshape((3, 2, 1, 1, 2)).unwrap();
    let layers = |tensor: &Tensor| [0, 1, 2].map(|layer| tensor.get(layer).unwrap());
    let mut writer = writer(&layers(&stacked));
    let before = calls(&LAUNCHES);
    writer.write(&layers(&new).each_ref(), &list(&device, &[1, 3])).unwrap();
    assert_eq!(calls(&LAUNCHES), before.map(|count| count + 1));
    let mut expected = [0.; 24];
    for (place, value) in [(1, 1.), (7, 3.), (9, 5.), (15, 7.), (17, 9.), (23, 11.)] {
        expected[place] = value;
    }
    assert_eq!(slots(&stacked), expected);
}

#[test]
fn the_layers_of_a_large_model_take_two_launches() {
    let device = device();
    let layers: Vec<_> = (0..80).flat_map(|_| caches(&device)).collect();
    let updates: Vec<_> = (0..160).map(|layer| row(&device, layer as f32)).collect();
    let before = calls(&LAUNCHES);
    writer(&layers).write(&updates.iter().collect::<Vec<_>>(), &list(&device, &[1, 2])).unwrap();
    assert_eq!(calls(&LAUNCHES), before.map(|count| count + 2));
    for (layer, cache) in layers.iter().enumerate() {
        let value = layer as f32;
        assert_eq!(slots(cache), [0., value, 0., 0., 0., 0., value, 0.]);
    }
}

#[test]
fn updates_that_lie_otherwise_take_a_launch_of_their_own() {
    let device = device();
    let caches = [(); 2].map(|()| Tensor::zeros((2, 2, 4, 2), DType::F32, &device).unwrap());
    let mut writer = writer(&caches);
    // The keys have the layout that rotary embedding returns, and the values that of a projection.
    let tokens = |rows: usize| {
        let tokens = Tensor::arange(0_f32, 8. * rows as f32, &Device::Cpu).unwrap();
        let tokens = tokens.reshape((2, rows, 2, 2)).unwrap();
        let dense = tokens.transpose(1, 2).unwrap().flatten_all().unwrap().reshape((2, 2, rows, 2)).unwrap();
        let dense = dense.to_device(&device).unwrap();
        [dense, tokens.to_device(&device).unwrap().transpose(1, 2).unwrap()]
    };
    let mut write = |rows, starts: &[i64]| {
        let updates = tokens(rows);
        assert_ne!(updates[0].stride(), updates[1].stride());
        let before = calls(&LAUNCHES);
        writer.write(&updates.each_ref(), &list(&device, starts)).unwrap();
        assert_eq!(slots(&caches[0]), slots(&caches[1]));
        calls(&LAUNCHES).zip(before).map(|(after, before)| after - before)
    };
    let prefill = write(2, &[0, 1]);
    assert_eq!(slots(&caches[0]), [0., 4., 0., 0., 2., 6., 0., 0., 0., 8., 12., 0., 0., 10., 14., 0.]);
    let decode = write(1, &[2, 3]);
    assert_eq!(slots(&caches[1]), [0., 4., 0., 0., 2., 6., 2., 0., 0., 8., 12., 4., 0., 10., 14., 6.]);
    if let (Some(prefill), Some(decode)) = (prefill, decode) {
        assert_eq!((prefill, decode), (2, 1));
    }
}
