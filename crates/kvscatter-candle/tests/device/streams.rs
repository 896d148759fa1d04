//! Tests of streams and threads.

use std::thread;

use candle_core::Tensor;
use kvscatter::Argument;
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter};

use crate::common::assert_error;
use crate::driver::{
    LAUNCHES, Step, WAITS, assert_calls, caches, device, list, overwrite, own_stream, row, slots,
};

/// A cache after a write of a row of 7 at the positions 0 and 1.
const WRITTEN: [f32; 8] = [7., 0., 0., 0., 0., 7., 0., 0.];

#[test]
fn a_write_waits_for_another_stream_to_make_the_update_and_that_stream_for_the_write() {
    let (ours, others) = (own_stream(), own_stream());
    let mut step = Step::new([&ours, &others], 7., [0, 1]);
    step.write().unwrap();
    // Nothing has run so far. If the other stream runs first, it must not reach its work that follows the
    // write.
    overwrite(&step.update, &[9_f32; 4]);
    others.synchronize().unwrap();
    assert_eq!((slots(&step.caches[0]), slots(&step.update)), (WRITTEN.to_vec(), vec![9., 9.]));
}

#[test]
fn another_stream_that_reads_a_cache_waits_for_the_write() {
    let (ours, others) = (own_stream(), own_stream());
    let mut step = Step::new([&ours, &ours], 7., [0, 1]);
    step.write().unwrap();
    assert_eq!(slots(&step.caches[1].to_device(&others).unwrap()), WRITTEN);
}

#[test]
fn tensors_of_a_device_with_which_nothing_is_ordered_are_refused() {
    for (ours, others) in [(own_stream(), device()), (device(), own_stream())] {
        let [mut step, theirs] = [&ours, &others].map(|device| Step::new([&ours, device], 7., [0, 1]));
        let mut refused = |update: &Tensor, at: DeviceWriteAt<'_>, argument| {
            let refused = step.writer.write(&[&step.update, update], at).unwrap_err();
            assert_error(refused, CandleError::OtherStream { argument });
        };
        let (update, at) = (&step.update, DeviceWriteAt::new(&step.positions));
        assert_calls(LAUNCHES, 0, || {
            refused(&theirs.update, at, Argument::Update);
            refused(update, DeviceWriteAt::new(&theirs.positions), Argument::WriteIndices);
            refused(update, at.lengths(&list(&others, &[1, 1])), Argument::Lengths);
            let both = [&step.caches[0], &caches(&others)[0]];
            let made = CudaWriter::new(TensorScatter::new(), &both).map(drop);
            assert_error(made.unwrap_err(), CandleError::OtherStream { argument: Argument::PastCache });
        });
        step.write().unwrap();
        step.writer.check().unwrap();
        assert_eq!(slots(&step.caches[1]), WRITTEN);
    }
}

#[test]
fn a_program_that_orders_streams_itself_may_mix_them() {
    let (ours, others) = (own_stream(), device());
    // SAFETY: The other stream is idle while a write runs, so no event is needed to order the two.
    unsafe { others.as_cuda_device().unwrap().disable_event_tracking() };
    let mut step = Step::new([&ours, &others], 7., [0, 1]);
    others.synchronize().unwrap();
    step.write().unwrap();
    step.writer.check().unwrap();
    assert_eq!(slots(&step.caches[0]), WRITTEN);
}

#[test]
fn two_devices_have_one_stream_on_one_thread() {
    let (ours, others) = (device(), device());
    let mut step = Step::new([&ours, &others], 7., [0, 1]);
    step.write().unwrap();
    step.update = row(&others, 0.);
    others.synchronize().unwrap();
    step.writer.check().unwrap();
    assert_eq!(slots(&step.caches[0]), WRITTEN);
}

#[test]
fn a_writer_that_moves_to_another_thread_waits_once_for_the_first_ones_stream() {
    for (device, waits) in [(device(), 1), (own_stream(), 0)] {
        // No work has finished yet.
        let mut step = Step::new([&device, &device], 7., [0, 1]);
        let moved = thread::spawn(move || {
            assert_calls(WAITS, waits, || step.write().unwrap());
            assert_calls(WAITS, 0, || step.write().unwrap());
            step.writer.check().unwrap();
            step
        });
        assert_eq!(slots(&moved.join().unwrap().caches[0]), WRITTEN);
    }
}

#[test]
fn launches_of_another_thread_are_forgotten_too() {
    let device = device();
    let mut step = Step::new([&device, &device], 7., [9, 0]);
    step.write().unwrap();
    let mut writer = step.writer;
    let checked = thread::spawn(move || writer.clear().and_then(|()| writer.check()));
    checked.join().unwrap().unwrap();
}

#[test]
fn a_writer_may_be_dropped_on_another_thread_while_a_launch_is_under_way() {
    let device = device();
    let mut step = Step::new([&device, &device], 7., [0, 1]);
    step.write().unwrap();
    let Step { caches, writer, update: _update, positions: _positions } = step;
    let there = device.clone();
    let dropped = thread::spawn(move || {
        drop(writer);
        there.synchronize().unwrap(); // The status is freed here.
    });
    dropped.join().unwrap();
    device.synchronize().unwrap();
    assert_eq!(slots(&caches[0]), WRITTEN);
}
