//! A device and small caches on it.

use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::DeviceRepr;
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Tensor};
use kvscatter_candle::TensorScatter;
use kvscatter_candle::cuda::CudaWriter;

/// Returns a device with a separate stream on each thread.
pub(crate) fn device() -> Device {
    Device::new_cuda(0).unwrap()
}

/// Returns a device with one separate stream.
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

/// Returns the slots of each sample, as the first element of each row of two.
pub(crate) fn slots(cache: &Tensor) -> Vec<f32> {
    cache.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().step_by(2).collect()
}

/// Returns all elements of a dense tensor.
pub(crate) fn all(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
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

/// The functions of the driver that wait, or may wait, on the host.
pub(crate) const WAITS: [&str; 9] = [
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemAlloc_v2",
    "cuMemAllocAsync",
    "cuModuleLoadData",
];
