//! Errors before anything is launched.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Device, DeviceLocation, Storage, Tensor};
use kvscatter::Argument;
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter, positions_from_tensor};

use crate::calls::calls;
use crate::driver::{all, caches, device, list, row, slots, writer};

const CUDA: DeviceLocation = DeviceLocation::Cuda { gpu_id: 0 };

#[test]
fn caches_that_are_not_on_one_cuda_device() {
    let (device, here) = (device(), caches(&Device::Cpu));
    let there = caches(&device);
    let made = |caches: &[&Tensor]| CudaWriter::new(TensorScatter::new(), caches).unwrap_err();
    assert!(matches!(made(&[]), CandleError::NoCaches));
    assert!(matches!(made(&[&here[0], &there[0]]), CandleError::NoCuda { device: DeviceLocation::Cpu }));
    let mixed = made(&[&there[0], &here[0]]);
    assert!(matches!(
        mixed,
        CandleError::OtherDevice { argument: Argument::PastCache, device: DeviceLocation::Cpu, cache: CUDA }
    ));
}

#[test]
fn caches_that_meet() {
    let [cache, _] = caches(&device());
    let views = [(0, 3), (2, 2)].map(|(start, len)| cache.narrow(2, start, len).unwrap());
    let error = CudaWriter::new(TensorScatter::new(), &views.each_ref()).unwrap_err();
    assert!(matches!(
        error,
        CandleError::Write(kvscatter::Error::Overlap {
            argument: Argument::PastCache,
            with: Argument::PastCache,
            pair: 0,
            with_pair: 1
        })
    ));
    // Interleaved views cannot be distinguished from overlapping ones.
    let pairs = cache.reshape((2, 1, 2, 2, 2)).unwrap();
    for dim in [3, 4] {
        let parts = [0, 1].map(|part| pairs.narrow(dim, part, 1).unwrap().squeeze(dim).unwrap());
        let error = CudaWriter::new(TensorScatter::new(), &parts.each_ref()).unwrap_err();
        assert!(matches!(
            error,
            CandleError::Write(kvscatter::Error::Overlap { with: Argument::PastCache, .. })
        ));
    }
    let apart = [0, 1].map(|sample| cache.narrow(0, sample, 1).unwrap());
    CudaWriter::new(TensorScatter::new(), &apart.each_ref()).unwrap();
}

#[test]
fn updates_and_lists_that_do_not_belong_there() {
    use kvscatter::Error as Core;
    let device = device();
    let caches = caches(&device);
    let mut writer = writer(&caches);
    let (update, starts) = (row(&device, 1.), list(&device, &[0, 1]));
    let before = calls(&["cuLaunchKernel"]);
    let mut refused = |updates: &[&Tensor], at: DeviceWriteAt<'_>| writer.write(updates, at).unwrap_err();

    assert!(matches!(
        refused(&[&update], DeviceWriteAt::new(&starts)),
        CandleError::Updates { got: 1, expected: 2 }
    ));
    let here = row(&Device::Cpu, 1.);
    assert!(matches!(
        refused(&[&update, &here], DeviceWriteAt::new(&starts)),
        CandleError::OtherDevice { argument: Argument::Update, device: DeviceLocation::Cpu, cache: CUDA }
    ));
    assert!(matches!(
        refused(&[&update, &update], DeviceWriteAt::new(&list(&Device::Cpu, &[0, 1]))),
        CandleError::OtherDevice { argument: Argument::WriteIndices, .. }
    ));
    let own = caches[1].narrow(2, 0, 1).unwrap();
    assert!(matches!(
        refused(&[&own, &update], DeviceWriteAt::new(&starts)),
        CandleError::Write(Core::Overlap { with: Argument::Update, pair: 1, with_pair: 0, .. })
    ));
    let half =
        update.to_device(&Device::Cpu).unwrap().to_dtype(DType::F16).unwrap().to_device(&device).unwrap();
    assert!(matches!(
        refused(&[&update, &half], DeviceWriteAt::new(&starts)),
        CandleError::Write(Core::ElementTypeMismatch { .. })
    ));
    assert!(matches!(
        refused(&[&update, &caches_row_of_three(&device)], DeviceWriteAt::new(&starts)),
        CandleError::Write(Core::DimensionMismatch { .. })
    ));
    assert!(matches!(
        refused(&[&update, &update], DeviceWriteAt::new(&list(&device, &[0, 1, 2]))),
        CandleError::Write(Core::ListLength { argument: Argument::WriteIndices, got: 3, expected: 2 })
    ));
    assert!(matches!(
        refused(&[&update, &update], DeviceWriteAt::new(&starts).lengths(&list(&device, &[1]))),
        CandleError::Write(Core::ListLength { argument: Argument::Lengths, got: 1, expected: 2 })
    ));
    assert_eq!(calls(&["cuLaunchKernel"]), before);
    writer.write(&[&update, &update], &starts).unwrap();
    writer.check().unwrap();
}

fn caches_row_of_three(device: &Device) -> Tensor {
    Tensor::zeros((2, 1, 1, 3), DType::F32, device).unwrap()
}

#[test]
fn lists_that_do_not_fit_the_last_of_several_launches_stop_the_first() {
    let device = device();
    let [two, _] = caches(&device);
    let three = Tensor::zeros((3, 1, 4, 2), DType::F32, &device).unwrap();
    let mut writer = writer(&[two.clone(), three]);
    let updates = [row(&device, 1.), Tensor::zeros((3, 1, 1, 2), DType::F32, &device).unwrap()];
    let error = writer.write(&updates.each_ref(), &list(&device, &[0, 1])).unwrap_err();
    assert!(matches!(error, CandleError::Write(kvscatter::Error::ListLength { got: 2, expected: 3, .. })));
    assert_eq!(slots(&two), [0.; 8]);
}

#[test]
fn lists_that_a_device_does_not_read() {
    let device = device();
    let mut writer = writer(&caches(&device));
    let update = row(&device, 1.);
    let unsigned = Tensor::new(&[0_u32, 1], &device).unwrap();
    let square = Tensor::new(&[[0_i64, 1]], &device).unwrap();
    let strided =
        Tensor::new(&[[0_i64, 9], [1, 9]], &device).unwrap().narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    for (numbers, expected) in
        [(&unsigned, (DType::U32, 1)), (&square, (DType::I64, 2)), (&strided, (DType::I64, 1))]
    {
        match writer.write(&[&update, &update], numbers).unwrap_err() {
            CandleError::DeviceList { argument: Argument::WriteIndices, dtype, rank } => {
                assert_eq!((dtype, rank), expected);
            }
            other => panic!("{other}"),
        }
    }
    let starts = list(&device, &[0, 1]);
    assert!(matches!(
        writer.write(&[&update, &update], DeviceWriteAt::new(&starts).lengths(&unsigned)),
        Err(CandleError::DeviceList { argument: Argument::Lengths, .. })
    ));
}

#[test]
fn lists_that_are_longer_than_their_storages() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 1.));
    let (narrow, wide) = (Tensor::new(&[0_i32], &device).unwrap(), list(&device, &[0]));
    let before = calls(&["cuLaunchKernel"]);
    for one in [narrow, wide] {
        let storage = match &*one.storage_and_layout().0 {
            Storage::Cuda(storage) => Storage::Cuda(storage.try_clone(one.layout()).unwrap()),
            _ => unreachable!("a tensor on a device"),
        };
        let two = Tensor::from_storage(storage, 2, BackpropOp::none(), false);
        let starts = list(&device, &[0, 0]);
        for at in [
            DeviceWriteAt::new(&two),
            DeviceWriteAt::new(&starts).lengths(&two),
            DeviceWriteAt::new(&two.narrow(0, 1, 1).unwrap()),
        ] {
            let error = writer.write(&[&update, &update], at).unwrap_err();
            assert!(matches!(error, CandleError::Write(kvscatter::Error::BufferLength { .. })), "{error}");
        }
    }
    assert_eq!(calls(&["cuLaunchKernel"]), before);
    writer.check().unwrap();
    assert_eq!(all(&caches[0]), [0.; 16]);
}

#[test]
fn errors_of_cpu_tensors_name_the_cpu_writer() {
    let device = device();
    let [cache, _] = caches(&device);
    let (update, starts) = (row(&device, 1.), list(&device, &[0, 1]));
    let error = kvscatter_candle::Writer::new(TensorScatter::new(), &cache).unwrap_err();
    assert!(matches!(error, CandleError::Device { argument: Argument::PastCache, device: CUDA }));
    assert!(matches!(
        positions_from_tensor(&starts),
        Err(CandleError::Device { argument: Argument::WriteIndices, .. })
    ));
    let error = cache.inplace_op3(&update, &starts, &TensorScatter::new()).unwrap_err();
    assert!(error.to_string().contains("cuda::CudaWriter"), "{error}");
}
