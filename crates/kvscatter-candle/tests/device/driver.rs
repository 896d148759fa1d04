//! A device, and small caches on it.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::TensorScatter;
use kvscatter_candle::cuda::CudaWriter;

/// A device with a stream of each thread's own.
pub(crate) fn device() -> Device {
    Device::new_cuda(0).unwrap()
}

/// Two small caches, `[2, 1, 4, 2]`, of zeros.
pub(crate) fn caches(device: &Device) -> [Tensor; 2] {
    [(); 2].map(|()| Tensor::zeros((2, 1, 4, 2), DType::F32, device).unwrap())
}

/// One row for each sample of such a cache, all of this value.
pub(crate) fn row(device: &Device, value: f32) -> Tensor {
    Tensor::from_vec(vec![value; 4], (2, 1, 1, 2), device).unwrap()
}

pub(crate) fn list(device: &Device, numbers: &[i64]) -> Tensor {
    Tensor::new(numbers, device).unwrap()
}

pub(crate) fn writer(caches: &[Tensor]) -> CudaWriter {
    CudaWriter::new(TensorScatter::new(), &caches.iter().collect::<Vec<_>>()).unwrap()
}

/// The slots of each sample: the first element of each row of two.
pub(crate) fn slots(cache: &Tensor) -> Vec<f32> {
    cache.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().step_by(2).collect()
}

/// All elements of a dense tensor.
pub(crate) fn all(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// What keeps a host waiting, or may.
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
