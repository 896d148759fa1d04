//! Compares whole storages on the device with those that the CPU writes.

use candle_core::cuda::CudaStorageSlice;
use candle_core::{DType, Device, Storage, Tensor};
use kvscatter::{Argument, Mode, OutOfRange};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CacheWrite, CandleError, TensorScatter, write_many};
use kvscatter_oracle::cases::Random;

use crate::calls::calls;
use crate::common::{values, view};
use crate::driver::{WAITS, caches, device, list, row, slots, writer};

const LAUNCHES: [&str; 1] = ["cuLaunchKernel"];

/// Two caches with their updates, on the CPU and on the device.
struct Case {
    scatter: TensorScatter,
    shapes: [[usize; 4]; 2],
    starts: Vec<i64>,
    lengths: Option<Vec<i64>>,
}

impl Case {
    /// Returns a case in which one position in eight does not fit.
    fn random(random: &mut Random) -> Self {
        let (circular, axis) = (random.below(2) == 0, random.between(1, 3));
        let mut cache = [(); 4].map(|()| random.between(1, 3));
        cache[axis] = random.between(1, 5);
        let mut update = cache;
        update[axis] = random.between(1, cache[axis]);
        let room = cache[axis] - update[axis];
        let starts = random.many(cache[0], |random| match (circular, random.below(8)) {
            (true, _) => random.below(40) as i64 - 20,
            (false, 0) => [-1, room as i64 + 1, i64::MAX][random.below(3)],
            (false, _) => random.below(room + 1) as i64,
        });
        let lengths = (random.below(3) == 0)
            .then(|| random.many(cache[0], |random| random.below(update[axis] + 1) as i64));
        let mode = if circular { Mode::Circular } else { Mode::Linear };
        Self {
            scatter: TensorScatter::new().axis(axis as i64).mode(mode),
            shapes: [cache, update],
            starts,
            lengths,
        }
    }

    /// Runs the case on the CPU, skipping samples that do not fit.
    fn on_the_cpu(&self, caches: &[Tensor], updates: &[Tensor]) -> usize {
        let scatter = self.scatter.out_of_range(OutOfRange::SkipSample);
        let mut writers: Vec<_> =
            caches.iter().map(|cache| kvscatter_candle::Writer::new(scatter, cache).unwrap()).collect();
        let at = kvscatter_candle::WriteAt::new(&self.starts);
        let at = match &self.lengths {
            Some(lengths) => at.lengths(lengths),
            None => at,
        };
        let writes = writers.iter_mut().zip(updates);
        let writes = writes.map(|(writer, update)| CacheWrite { writer, update, at: at.clone() });
        write_many(&mut writes.collect::<Vec<_>>()).unwrap().skipped
    }

    fn on_the_device(&self, device: &Device, caches: &[Tensor], updates: &[Tensor], narrow: bool) -> bool {
        let mut writer = CudaWriter::new(self.scatter, &caches.iter().collect::<Vec<_>>()).unwrap();
        let numbers = |numbers: &[i64]| match narrow {
            true => {
                Tensor::new(numbers.iter().map(|&number| number as i32).collect::<Vec<_>>(), device).unwrap()
            }
            false => list(device, numbers),
        };
        let (starts, lengths) = (numbers(&self.starts), self.lengths.as_deref().map(numbers));
        let at = DeviceWriteAt::new(&starts);
        let at = lengths.as_ref().map_or(at, |lengths| at.lengths(lengths));
        writer.write(&updates.iter().collect::<Vec<_>>(), at).unwrap();
        writer.check().is_ok()
    }
}

#[test]
fn views_of_any_layout_are_written_as_on_the_cpu() {
    let (device, mut random) = (device(), Random::new(11, 0));
    let mut refused = 0;
    for round in 0..400 {
        let case = Case::random(&mut random);
        let sides = case.shapes.map(|shape| [(); 2].map(|()| view(&mut random, &shape, 1)));
        let narrow = round % 2 == 0 && case.starts.iter().all(|&start| i32::try_from(start).is_ok());
        // Views keep their layouts, and storages keep the values around the views.
        let [there, update] =
            sides.each_ref().map(|sides| sides.each_ref().map(|(view, _)| view.to_device(&device).unwrap()));
        let fits = case.on_the_device(&device, &there, &update, narrow);
        let [here, update] = sides.each_ref().map(|sides| sides.each_ref().map(|(view, _)| view.clone()));
        let skipped = case.on_the_cpu(&here, &update);
        assert_eq!(fits, skipped == 0, "{round}");
        refused += usize::from(!fits);
        for (there, (_, whole)) in there.iter().zip(&sides[0]) {
            assert_eq!(storage(there), values(whole), "{round}");
        }
    }
    assert!((20..200).contains(&refused), "{refused}");
}

/// Returns all of a tensor's storage, on the CPU.
fn storage(tensor: &Tensor) -> Vec<u32> {
    let there = tensor.to_device(&Device::Cpu).unwrap();
    match &*there.storage_and_layout().0 {
        candle_core::Storage::Cpu(candle_core::CpuStorage::U32(values)) => values.clone(),
        _ => unreachable!("the tests' elements"),
    }
}

#[test]
fn elements_of_every_type_that_candle_has_on_devices() {
    use DType as D;
    let device = device();
    for dtype in [D::U8, D::U32, D::I16, D::I32, D::I64, D::BF16, D::F16, D::F32, D::F64, D::F8E4M3] {
        let cache = Tensor::zeros((2, 1, 4, 3), dtype, &device).unwrap();
        let update = Tensor::arange(1_f32, 7., &Device::Cpu).unwrap().reshape((2, 1, 1, 3)).unwrap();
        let update = update.to_dtype(dtype).unwrap().to_device(&device).unwrap();
        let mut writer = CudaWriter::new(TensorScatter::new(), &[&cache]).unwrap();
        writer.write(&[&update], &list(&device, &[3, 0])).unwrap();
        writer.check().unwrap();
        let got = cache.to_device(&Device::Cpu).unwrap().to_dtype(D::F32).unwrap();
        let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
        let mut expected = [0.; 24];
        expected[9..12].copy_from_slice(&[1., 2., 3.]);
        expected[12..15].copy_from_slice(&[4., 5., 6.]);
        assert_eq!(got, expected, "{dtype:?}");
    }
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
fn elements_of_four_and_six_bits_are_refused() {
    let device = device();
    let scatter = TensorScatter::new();
    for dtype in [DType::F4, DType::F6E2M3, DType::F6E3M2] {
        let whole = Tensor::from_raw_buffer(&[0xEE; 24], dtype, &[2, 1, 1, 4, 4], &device).unwrap();
        for cache in [&whole.get(0).unwrap(), &whole.get(1).unwrap()] {
            match CudaWriter::new(scatter, &[cache]).unwrap_err() {
                CandleError::DType { argument: Argument::PastCache, dtype: refused } => {
                    assert_eq!(refused, dtype)
                }
                other => panic!("{other}"),
            }
        }
    }
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
