//! A device, small caches on it, and the calls that the simulated driver counts.

use std::ffi::{CString, c_char, c_uint};

use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::DeviceRepr;
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Tensor};
use kvscatter_candle::cuda::CudaWriter;
use kvscatter_candle::{CandleError, TensorScatter};
use libloading::Library;

pub(crate) const LAUNCHES: &str = "cuLaunchKernel";

/// The functions of the driver that wait, or may wait, on the host.
pub(crate) const WAITS: &str = "cuCtxSynchronize cuStreamSynchronize cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2 \
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2 cuMemAlloc_v2 cuMemAllocAsync cuModuleLoadData";

/// Returns a device with a separate stream on each thread.
pub(crate) fn device() -> Device {
    Device::new_cuda(0).unwrap()
}

pub(crate) fn own_stream() -> Device {
    Device::new_cuda_with_stream(0).unwrap()
}

/// Returns two small caches of zeros, `[2, 1, 4, 2]`.
pub(crate) fn caches(device: &Device) -> [Tensor; 2] {
    [(); 2].map(|()| Tensor::zeros((2, 1, 4, 2), DType::F32, device).unwrap())
}

/// Returns one row for each sample of such a cache, in which every element is `value`.
pub(crate) fn row(device: &Device, value: f32) -> Tensor {
    Tensor::from_vec(vec![value; 4], (2, 1, 1, 2), device).unwrap()
}

pub(crate) fn list(device: &Device, numbers: &[i64]) -> Tensor {
    Tensor::new(numbers, device).unwrap()
}

pub(crate) fn writer(caches: &[Tensor]) -> CudaWriter {
    CudaWriter::new(TensorScatter::new(), &caches.iter().collect::<Vec<_>>()).unwrap()
}

/// Returns the value of each slot. Both elements of the slot must have it.
pub(crate) fn slots(cache: &Tensor) -> Vec<f32> {
    let elements: Vec<f32> = cache.flatten_all().unwrap().to_vec1().unwrap();
    assert!(elements.chunks(2).all(|slot| slot == [slot[0]; 2]), "{elements:?}");
    elements.into_iter().step_by(2).collect()
}

/// A write of one row for each sample into two small caches.
pub(crate) struct Step {
    pub(crate) caches: [Tensor; 2],
    pub(crate) writer: CudaWriter,
    pub(crate) update: Tensor,
    pub(crate) positions: Tensor,
}

impl Step {
    /// Creates caches on the first device, and what is written on the second.
    pub(crate) fn new([ours, others]: [&Device; 2], value: f32, starts: [i64; 2]) -> Self {
        let caches = caches(ours);
        let (update, positions) = (row(others, value), list(others, &starts));
        Self { writer: writer(&caches), caches, update, positions }
    }

    pub(crate) fn write(&mut self) -> Result<(), CandleError> {
        self.writer.write(&[&self.update; 2], &self.positions)
    }
}

/// Returns the sample, the value, the rows and the capacity in the error of a position.
pub(crate) fn bad_start(checked: Result<(), CandleError>) -> (usize, i64, usize, usize) {
    match checked {
        Err(CandleError::Write(kvscatter::Error::StartOutOfRange {
            index, value, rows, capacity, ..
        })) => (index, value, rows, capacity),
        other => panic!("{other:?}"),
    }
}

/// Copies numbers into a tensor, on its own stream.
pub(crate) fn overwrite<T: CudaDType + DeviceRepr + 'static>(tensor: &Tensor, numbers: &[T]) {
    struct Copy<'a, T>(&'a [T]);
    impl<T: CudaDType + DeviceRepr + 'static> InplaceOp1 for Copy<'_, T> {
        fn name(&self) -> &'static str {
            "copy"
        }
        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
            unreachable!()
        }
        fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
            let device = storage.device.clone();
            device.memcpy_htod(self.0, storage.as_cuda_slice_mut::<T>()?)
        }
    }
    tensor.inplace_op1(&Copy(numbers)).unwrap();
}

/// Checks how many calls of driver functions `run` makes on this thread. NVIDIA's driver does not count.
pub(crate) fn assert_calls(functions: &str, expected: u32, run: impl FnOnce()) {
    let before = calls(functions);
    run();
    assert_eq!(calls(functions), before.map(|before| before + expected), "{functions}");
}

fn calls(functions: &str) -> Option<u32> {
    // SAFETY: Candle has already loaded this library, so no initialiser runs.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: `fake_calls` has this type in `driver.cpp`, and NVIDIA's driver has no function with this name.
    let count =
        unsafe { driver.get::<unsafe extern "C" fn(*const c_char) -> c_uint>(b"fake_calls\0") }.ok()?;
    let calls = functions.split(' ').map(|function| {
        let function = CString::new(function).unwrap();
        // SAFETY: `function` ends with a zero byte and is valid during the call.
        unsafe { count(function.as_ptr()) }
    });
    Some(calls.sum())
}
