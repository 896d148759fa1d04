//! Tests that need a process without other work. The driver invalidates a capture if any thread waits for the whole
//! device meanwhile, as cudarc does when it creates its first stream.
#![cfg(test)]

#[path = "device/driver.rs"]
#[expect(dead_code, reason = "shared with the tests of `device`")]
mod driver;

use std::thread;

use candle_core::cuda::cudarc::driver::sys;

use crate::driver::{Step, assert_calls, bad_start, device, overwrite, own_stream, slots};

const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// Runs all tests of this file one after the other.
#[test]
fn tests_that_are_alone() {
    kernels_outlive_the_device();
    a_graph_replays_a_write_with_positions_that_change();
    a_thread_that_waits_for_the_device_spoils_a_capture();
}

/// candle releases the device's context with its last tensor. Kernels that were loaded into it would be lost,
/// and a driver before CUDA 12 cannot distinguish the next context from the old one.
fn kernels_outlive_the_device() {
    for loads in [1, 0, 0] {
        let device = device();
        let mut step = Step::new([&device, &device], 1., [2, 0]);
        assert_calls("cuModuleLoadData", loads, || step.write().unwrap());
        step.writer.check().unwrap();
        assert_eq!(slots(&step.caches[0]), [0., 0., 1., 0., 1., 0., 0., 0.]);
    }
}

/// Returns a step that has been written once on its own stream, without events.
fn written(starts: [i64; 2]) -> Step {
    let device = own_stream();
    // SAFETY: These tests use one stream, so no event is needed to order its work.
    unsafe { device.as_cuda_device().unwrap().disable_event_tracking() };
    let mut step = Step::new([&device, &device], 1., starts);
    step.write().unwrap();
    device.synchronize().unwrap();
    step
}

fn a_graph_replays_a_write_with_positions_that_change() {
    let mut step = written([0, 0]);
    let device = step.update.device().clone();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    stream.begin_capture(MODE).unwrap();
    step.write().unwrap();
    let graph = stream.end_capture(FLAGS).unwrap().unwrap();
    for (starts, value) in [([1_i64, 2], 2_f32), ([3, 4], 3.)] {
        overwrite(&step.positions, &starts);
        overwrite(&step.update, &[value; 4]);
        graph.launch().unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(slots(&step.caches[0]), [1., 2., 0., 3., 1., 0., 2., 0.]);
    assert_eq!(bad_start(step.writer.check()), (1, 4, 1, 4));
    // `check` also reports positions of a replay after a `clear`.
    step.writer.clear().unwrap();
    overwrite(&step.positions, &[9_i64, 0]);
    graph.launch().unwrap();
    assert_eq!(bad_start(step.writer.check()), (0, 9, 1, 4));
}

/// Checks that the capture is lost, and that nothing else is.
fn a_thread_that_waits_for_the_device_spoils_a_capture() {
    let mut step = written([0, 3]);
    let stream = step.update.device().as_cuda_device().unwrap().cuda_stream();
    stream.begin_capture(MODE).unwrap();
    let waited = thread::scope(|scope| scope.spawn(|| stream.context().synchronize()).join().unwrap());
    assert_eq!(waited.unwrap_err().0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    step.write().unwrap_err();
    assert!(stream.end_capture(FLAGS).is_err());

    overwrite(&step.update, &[2_f32; 4]);
    step.write().unwrap();
    step.writer.check().unwrap();
    assert_eq!(slots(&step.caches[1]), [2., 0., 0., 0., 0., 0., 0., 2.]);
}
