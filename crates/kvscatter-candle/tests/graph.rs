//! Tests of graphs, one after the other in a process without other tests. The driver invalidates a capture if
//! any thread waits for the whole device meanwhile, as cudarc does when it creates its first stream.
#![cfg(test)]

#[path = "device/driver.rs"]
#[expect(dead_code, reason = "shared with the tests of `device`")]
mod driver;

use std::sync::Mutex;
use std::thread;

use candle_core::cuda::cudarc::driver::sys;
use kvscatter_candle::CandleError;

use crate::driver::{caches, list, overwrite, own_stream, row, slots, writer};

const MODE: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const FLAGS: sys::CUgraphInstantiate_flags =
    sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

/// Held by each test, because tests of one process run at the same time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_graph_replays_a_write_with_positions_that_change() {
    let _alone = ALONE.lock();
    let device = own_stream();
    // SAFETY: This test uses one stream, so no event is needed to order its work.
    unsafe { device.as_cuda_device().unwrap().disable_event_tracking() };
    let caches = caches(&device);
    let mut writer = writer(&caches);
    let (update, positions) = (row(&device, 1.), list(&device, &[0, 0]));
    writer.write(&[&update, &update], &positions).unwrap();
    device.synchronize().unwrap();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    stream.begin_capture(MODE).unwrap();
    writer.write(&[&update, &update], &positions).unwrap();
    let graph = stream.end_capture(FLAGS).unwrap().unwrap();
    for (starts, value) in [([1_i64, 2], 2_f32), ([3, 4], 3.)] {
        overwrite(&positions, &starts);
        overwrite(&update, &[value; 4]);
        graph.launch().unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(slots(&caches[0]), [1., 2., 0., 3., 1., 0., 2., 0.]);
    assert_eq!(bad_start(writer.check()), (1, 4));
    // `check` also reports positions of a replay after a `clear`.
    writer.clear().unwrap();
    overwrite(&positions, &[9_i64, 0]);
    graph.launch().unwrap();
    assert_eq!(bad_start(writer.check()), (0, 9));
}

fn bad_start(checked: Result<(), CandleError>) -> (usize, i64) {
    match checked {
        Err(CandleError::Write(kvscatter::Error::StartOutOfRange { index, value, .. })) => (index, value),
        other => panic!("{other:?}"),
    }
}

/// Checks that the capture is lost, and that nothing else is.
#[test]
fn a_thread_that_waits_for_the_device_spoils_a_capture() {
    let _alone = ALONE.lock();
    let device = own_stream();
    // SAFETY: This test uses one stream, so no event is needed to order its work.
    unsafe { device.as_cuda_device().unwrap().disable_event_tracking() };
    let caches = caches(&device);
    let mut writer = writer(&caches);
    let (update, positions) = (row(&device, 1.), list(&device, &[0, 3]));
    writer.write(&[&update, &update], &positions).unwrap();
    device.synchronize().unwrap();
    let stream = device.as_cuda_device().unwrap().cuda_stream();
    stream.begin_capture(MODE).unwrap();
    let waited = thread::scope(|scope| scope.spawn(|| stream.context().synchronize()).join().unwrap());
    assert_eq!(waited.unwrap_err().0, sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    writer.write(&[&update, &update], &positions).unwrap_err();
    assert!(stream.end_capture(FLAGS).is_err());

    overwrite(&update, &[2_f32; 4]);
    writer.write(&[&update, &update], &positions).unwrap();
    writer.check().unwrap();
    assert_eq!(slots(&caches[1]), [2., 0., 0., 0., 0., 0., 0., 2.]);
}
