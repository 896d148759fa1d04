//! A device that is released while no other exists, and created again. Nothing else runs in this process.
#![cfg(test)]

#[path = "device/calls.rs"]
mod calls;

use calls::calls;
use candle_core::{DType, Device, Tensor};
use kvscatter_candle::TensorScatter;
use kvscatter_candle::cuda::CudaWriter;

/// candle releases the device's context with its last tensor. Kernels that were loaded into it would be lost,
/// and a driver before CUDA 12 cannot distinguish the next context from the old one.
#[test]
fn kernels_outlive_the_device() {
    for _ in 0..3 {
        let device = Device::new_cuda(0).unwrap();
        let cache = Tensor::zeros((1, 1, 4, 1), DType::F32, &device).unwrap();
        let update = Tensor::new(&[[[[1_f32]]]], &device).unwrap();
        let mut writer = CudaWriter::new(TensorScatter::new(), &[&cache]).unwrap();
        writer.write(&[&update], &Tensor::new(&[2_i64], &device).unwrap()).unwrap();
        writer.check().unwrap();
        assert_eq!(cache.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [0., 0., 1., 0.]);
    }
    // NVIDIA's driver does not count calls.
    if let Some(loads) = calls(&["cuModuleLoadData"]) {
        assert_eq!(loads, 1);
    }
}
