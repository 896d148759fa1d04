//! A device that goes while no other is there, and comes again. Nothing else runs in this process.

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::TensorScatter;
use kvscatter_candle::cuda::Writer;
use libloading::Library;
use std::ffi::{c_char, c_uint};

/// candle gives the device's context back with its last tensor; kernels that were loaded into it would be gone, and a
/// driver before CUDA 12 does not tell the next context from it.
#[test]
fn kernels_outlive_the_device() {
    for _ in 0..3 {
        let device = Device::new_cuda(0).unwrap();
        let cache = Tensor::zeros((1, 1, 4, 1), DType::F32, &device).unwrap();
        let update = Tensor::new(&[[[[1_f32]]]], &device).unwrap();
        let mut writer = Writer::new(TensorScatter::new(), &[&cache]).unwrap();
        writer.write(&[&update], &Tensor::new(&[2_i64], &device).unwrap()).unwrap();
        writer.check().unwrap();
        assert_eq!(cache.flatten_all().unwrap().to_vec1::<f32>().unwrap(), [0., 0., 1., 0.]);
    }
    // SAFETY: the driver of this process, which is loaded already.
    let driver = unsafe { Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: `fake_calls` of `driver.cpp`; NVIDIA's driver has none.
    if let Ok(calls) = unsafe { driver.get::<unsafe extern "C" fn(*const c_char) -> c_uint>(b"fake_calls\0") }
    {
        // SAFETY: it reads a name that ends with a zero.
        assert_eq!(unsafe { calls(c"cuModuleLoadData".as_ptr()) }, 1);
    }
}
