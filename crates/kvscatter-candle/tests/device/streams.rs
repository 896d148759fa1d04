//! Streams, graphs and threads.

use std::thread;

use candle_core::cuda::CudaDType;
use candle_core::cuda::cudarc::driver::{DeviceRepr, sys};
use candle_core::{CpuStorage, CudaStorage, Device, InplaceOp1, Layout, Tensor};
use kvscatter_candle::Error;
use kvscatter_candle::cuda::Writer;

use crate::driver::{caches, device, list, row, slots, writer};

fn own_stream() -> Device {
    Device::new_cuda_with_stream(0).unwrap()
}

#[test]
fn a_write_waits_for_another_stream_to_make_the_update_and_that_stream_for_the_write() {
    let (ours, others) = (own_stream(), own_stream());
    let caches = caches(&ours);
    let mut writer = writer(&caches);
    let update = row(&others, 1.);
    let positions = list(&others, &[0, 1]);
    writer.write(&[&update, &update], &positions).unwrap();
    // Nothing has run so far. The other stream, run first, must not reach what comes behind the write.
    overwrite(&update, &[7_f32; 4]);
    others.synchronize().unwrap();
    assert_eq!(slots(&caches[0]), [1., 0., 0., 0., 0., 1., 0., 0.]);
    assert_eq!(slots(&update), [7., 7.]);
}

#[test]
fn another_stream_that_reads_a_cache_waits_for_the_write() {
    let (ours, others) = (own_stream(), own_stream());
    let caches = caches(&ours);
    let (update, positions) = (row(&ours, 1.), list(&ours, &[0, 1]));
    writer(&caches).write(&[&update, &update], &positions).unwrap();
    let copy = caches[1].to_device(&others).unwrap();
    assert_eq!(slots(&copy), [1., 0., 0., 0., 0., 1., 0., 0.]);
}

#[test]
fn a_check_waits_for_a_stream_that_blocks_no_other() {
    let device = own_stream();
    let mut writer = writer(&caches(&device));
    let (update, positions) = (row(&device, 1.), list(&device, &[0, 4]));
    writer.write(&[&update, &update], &positions).unwrap();
    assert!(matches!(writer.check(), Err(Error::Write(_))));
    writer.clear().unwrap();
    writer.check().unwrap();
}

/// Copies numbers onto a tensor, on its own stream.
fn overwrite<T: CudaDType + DeviceRepr + 'static>(tensor: &Tensor, numbers: &[T]) {
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

#[test]
fn a_graph_replays_a_write_with_positions_that_change() {
    let device = own_stream();
    // SAFETY: one stream.
    unsafe { device.as_cuda_device().unwrap().disable_event_tracking() };
    let caches = caches(&device);
    let mut writer = writer(&caches);
    let (update, positions) = (row(&device, 1.), list(&device, &[0, 0]));
    writer.write(&[&update, &update], &positions).unwrap();
    device.synchronize().unwrap();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    writer.write(&[&update, &update], &positions).unwrap();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).unwrap().unwrap();
    for (starts, value) in [([1_i64, 2], 2_f32), ([3, 4], 3.)] {
        overwrite(&positions, &starts);
        overwrite(&update, &[value; 4]);
        graph.launch().unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(slots(&caches[0]), [1., 2., 0., 3., 1., 0., 2., 0.]);
    assert_eq!(bad_start(writer.check()), (1, 4));
    // What a graph replays is found after a `clear` too.
    writer.clear().unwrap();
    overwrite(&positions, &[9_i64, 0]);
    graph.launch().unwrap();
    assert_eq!(bad_start(writer.check()), (0, 9));
}

fn bad_start(checked: Result<(), Error>) -> (usize, i64) {
    match checked {
        Err(Error::Write(kvscatter::Error::StartOutOfRange { index, value, .. })) => (index, value),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_writer_moves_to_another_thread() {
    let device = device();
    let caches = caches(&device);
    let mut writer: Writer = writer(&caches);
    let (update, positions) = (row(&device, 1.), list(&device, &[0, 1]));
    device.synchronize().unwrap();
    thread::spawn(move || {
        writer.write(&[&update, &update], &positions).unwrap();
        writer.check().unwrap();
    })
    .join()
    .unwrap();
    assert_eq!(slots(&caches[0]), [1., 0., 0., 0., 0., 1., 0., 0.]);
}
