//! Errors before anything is launched.

use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{DType, Device, DeviceLocation, Storage, Tensor};
use kvscatter::error::LengthUnit;
use kvscatter::{Argument, Error as Core};
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter, positions_from_tensor};

use crate::calls::calls;
use crate::common::assert_error;
use crate::driver::{all, caches, device, list, row, slots, writer};

const CPU: DeviceLocation = DeviceLocation::Cpu;
const CUDA: DeviceLocation = DeviceLocation::Cuda { gpu_id: 0 };

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
    let parts = |dim| [0, 1].map(|part| pairs.narrow(dim, part, 1).unwrap().squeeze(dim).unwrap());
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
        for cache in [&whole.get(0).unwrap(), &whole.get(1).unwrap()] {
            let refused = CudaWriter::new(TensorScatter::new(), &[cache]).unwrap_err();
            assert_error(refused, CandleError::DType { argument, dtype });
        }
    }
    let apart = [0, 1].map(|sample| there.narrow(0, sample, 1).unwrap());
    CudaWriter::new(TensorScatter::new(), &apart.each_ref()).unwrap();
}

/// Returns a list of two numbers with the memory of one.
fn too_long(one: &Tensor) -> Tensor {
    let storage = match &*one.storage_and_layout().0 {
        Storage::Cuda(storage) => Storage::Cuda(storage.try_clone(one.layout()).unwrap()),
        _ => unreachable!("a tensor on a device"),
    };
    Tensor::from_storage(storage, 2, BackpropOp::none(), false)
}

#[test]
fn updates_and_lists_must_fit_the_caches() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 1.));
    let numbers = |numbers: &[i64]| list(&device, numbers);
    let (starts, here) = (numbers(&[0, 1]), row(&Device::Cpu, 1.));
    let other_device = |argument| CandleError::OtherDevice { argument, device: CPU, cache: CUDA };
    let count = |argument, got| Core::ListLength { argument, got, expected: 2 }.into();
    let type_mismatch = Core::ElementTypeMismatch {
        argument: Argument::Update,
        cache: kvscatter::ElementType::Float32,
        element: kvscatter::ElementType::Float16,
    };
    let dimension =
        Core::DimensionMismatch { argument: Argument::Update, dimension: 3, expected: 2, got: 3, hint: None };
    let wide = Tensor::zeros((2, 1, 1, 3), DType::F32, &device).unwrap();
    let half = here.to_dtype(DType::F16).unwrap().to_device(&device).unwrap();
    let own = caches[1].narrow(2, 0, 1).unwrap();
    let before = calls(&["cuLaunchKernel"]);
    for (updates, starts, expected) in [
        (&[&update][..], &starts, CandleError::Updates { got: 1, expected: 2 }),
        (&[&update, &here], &starts, other_device(Argument::Update)),
        (&[&update, &update], &list(&Device::Cpu, &[0, 1]), other_device(Argument::WriteIndices)),
        (&[&own, &update], &starts, overlap(Argument::Update, 1, 0)),
        (&[&update, &half], &starts, type_mismatch.into()),
        (&[&update, &wide], &starts, dimension.into()),
        (&[&update, &update], &numbers(&[0, 1, 2]), count(Argument::WriteIndices, 3)),
    ] {
        assert_error(writer.write(updates, starts).unwrap_err(), expected);
    }

    let mut refused = |at: DeviceWriteAt<'_>, expected: CandleError| {
        assert_error(writer.write(&[&update, &update], at).unwrap_err(), expected);
    };
    let at = DeviceWriteAt::new(&starts);
    refused(at.lengths(&numbers(&[1])), count(Argument::Lengths, 1));
    let square = Tensor::new(&[[0_i64, 1]], &device).unwrap();
    let strided = Tensor::new(&[[0_i64, 9], [1, 9]], &device).unwrap();
    let strided = strided.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
    for list in [&Tensor::new(&[0_u32, 1], &device).unwrap(), &square, &strided] {
        for (at, argument) in
            [(DeviceWriteAt::new(list), Argument::WriteIndices), (at.lengths(list), Argument::Lengths)]
        {
            refused(at, CandleError::DeviceList { argument, dtype: list.dtype(), rank: list.rank() });
        }
    }
    for one in [Tensor::new(&[0_i32], &device).unwrap(), numbers(&[0])] {
        let two = too_long(&one);
        for (at, argument, got, expected) in [
            (DeviceWriteAt::new(&two), Argument::WriteIndices, 1, 2),
            (at.lengths(&two), Argument::Lengths, 1, 2),
            (DeviceWriteAt::new(&two.narrow(0, 1, 1).unwrap()), Argument::WriteIndices, 0, 1),
        ] {
            let unit = LengthUnit::Elements;
            let short = Core::BufferLength { argument, pair: 0, got, expected, unit, exact: false };
            refused(at, short.into());
        }
    }
    assert_eq!(calls(&["cuLaunchKernel"]), before);
    writer.check().unwrap();
    assert_eq!(all(&caches[0]), [0.; 16]);
    writer.write(&[&update, &update], &starts).unwrap();
    writer.check().unwrap();
}

#[test]
fn lists_that_do_not_fit_the_last_of_several_launches_stop_the_first() {
    let device = device();
    let [two, _] = caches(&device);
    let three = Tensor::zeros((3, 1, 4, 2), DType::F32, &device).unwrap();
    let mut writer = writer(&[two.clone(), three]);
    let updates = [row(&device, 1.), Tensor::zeros((3, 1, 1, 2), DType::F32, &device).unwrap()];
    let refused = writer.write(&updates.each_ref(), &list(&device, &[0, 1])).unwrap_err();
    assert_error(refused, Core::ListLength { argument: Argument::WriteIndices, got: 2, expected: 3 });
    assert_eq!(slots(&two), [0.; 8]);
}

#[test]
fn errors_of_cpu_tensors_name_the_cpu_writer() {
    let device = device();
    let [cache, _] = caches(&device);
    let (update, starts) = (row(&device, 1.), list(&device, &[0, 1]));
    let error = |argument| CandleError::Device { argument, device: CUDA };
    let refused = kvscatter_candle::Writer::new(TensorScatter::new(), &cache).unwrap_err();
    assert_error(refused, error(Argument::PastCache));
    assert_error(positions_from_tensor(&starts).unwrap_err(), error(Argument::WriteIndices));
    let error = cache.inplace_op3(&update, &starts, &TensorScatter::new()).unwrap_err();
    assert!(error.to_string().contains("cuda::CudaWriter"), "{error}");
}
