//! Tests of streams and threads.

use std::thread;

use candle_core::Tensor;
use kvscatter::Argument;
use kvscatter_candle::cuda::{CudaWriter, DeviceWriteAt};
use kvscatter_candle::{CandleError, TensorScatter};

use crate::calls::calls;
use crate::driver::{WAITS, all, caches, device, list, overwrite, own_stream, row, slots, writer};

#[test]
fn a_write_waits_for_another_stream_to_make_the_update_and_that_stream_for_the_write() {
    let (ours, others) = (own_stream(), own_stream());
    let caches = caches(&ours);
    let mut writer = writer(&caches);
    let update = row(&others, 1.);
    let positions = list(&others, &[0, 1]);
    writer.write(&[&update, &update], &positions).unwrap();
    // Nothing has run so far. If the other stream runs first, it must not reach its work that follows the
    // write.
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

/// Returns the caches after a write of a row of `value` at the positions 0 and 1.
fn written(value: f32) -> [f32; 16] {
    let mut expected = [0.; 16];
    for place in [0, 1, 10, 11] {
        expected[place] = value;
    }
    expected
}

fn argument(refused: Result<(), CandleError>) -> Argument {
    match refused {
        Err(CandleError::OtherStream { argument }) => argument,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tensors_of_a_device_with_which_nothing_is_ordered_are_refused() {
    for (ours, others) in [(own_stream(), device()), (device(), own_stream())] {
        let caches = caches(&ours);
        let mut writer = writer(&caches);
        let lists = [&ours, &others].map(|device| list(device, &[0, 1]));
        let ones = [&ours, &others].map(|device| list(device, &[1, 1]));
        let updates = [&ours, &others].map(|device| row(device, 7.));
        let before = calls(&["cuLaunchKernel"]);
        let mut refused = |updates: [&Tensor; 2], at: DeviceWriteAt<'_>| argument(writer.write(&updates, at));
        let [mine, theirs] = &updates;
        assert_eq!(refused([mine, theirs], DeviceWriteAt::new(&lists[0])), Argument::Update);
        assert_eq!(refused([mine, mine], DeviceWriteAt::new(&lists[1])), Argument::WriteIndices);
        assert_eq!(refused([mine, mine], DeviceWriteAt::new(&lists[0]).lengths(&ones[1])), Argument::Lengths);
        let both = [&caches[0], &crate::driver::caches(&others)[0]];
        let made = CudaWriter::new(TensorScatter::new(), &both).map(drop);
        assert_eq!(argument(made), Argument::PastCache);
        assert_eq!(calls(&["cuLaunchKernel"]), before);
        writer.write(&[mine, mine], &lists[0]).unwrap();
        writer.check().unwrap();
        assert_eq!(all(&caches[1]), written(7.));
    }
}

#[test]
fn a_program_that_orders_streams_itself_may_mix_them() {
    let (ours, others) = (own_stream(), device());
    // SAFETY: The other stream is idle while a write runs, so no event is needed to order the two.
    unsafe { others.as_cuda_device().unwrap().disable_event_tracking() };
    let caches = caches(&ours);
    let (mut writer, update) = (writer(&caches), row(&others, 7.));
    others.synchronize().unwrap();
    writer.write(&[&update, &update], &list(&ours, &[0, 1])).unwrap();
    writer.check().unwrap();
    assert_eq!(all(&caches[0]), written(7.));
}

#[test]
fn two_devices_have_one_stream_on_one_thread() {
    let (ours, others) = (device(), device());
    let caches = caches(&ours);
    let (mut writer, update) = (writer(&caches), row(&others, 7.));
    writer.write(&[&update, &update], &list(&others, &[0, 1])).unwrap();
    drop(update);
    others.synchronize().unwrap();
    writer.check().unwrap();
    assert_eq!(all(&caches[0]), written(7.));
}

#[test]
fn a_writer_that_moves_to_another_thread_waits_once_for_the_first_ones_stream() {
    for (device, waits) in [(device(), 1), (own_stream(), 0)] {
        let caches = caches(&device);
        let mut writer: CudaWriter = writer(&caches);
        // No work has finished yet.
        let (update, positions) = (row(&device, 7.), list(&device, &[0, 1]));
        let (update, positions) = thread::spawn(move || {
            let before = calls(&WAITS);
            for _ in 0..2 {
                writer.write(&[&update, &update], &positions).unwrap();
                assert_eq!(calls(&WAITS), before.map(|count| count + waits));
            }
            writer.check().unwrap();
            (update, positions)
        })
        .join()
        .unwrap();
        assert_eq!(all(&caches[0]), written(7.));
        drop((update, positions));
    }
}

#[test]
fn launches_of_another_thread_are_forgotten_too() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update, positions) = (writer(&caches), row(&device, 7.), list(&device, &[9, 0]));
    writer.write(&[&update, &update], &positions).unwrap();
    let checked = thread::spawn(move || {
        writer.clear().unwrap();
        writer.check()
    });
    checked.join().unwrap().unwrap();
}

#[test]
fn a_writer_may_be_dropped_on_another_thread_while_a_launch_is_under_way() {
    let device = device();
    let caches = caches(&device);
    let (mut writer, update) = (writer(&caches), row(&device, 7.));
    let positions = list(&device, &[0, 1]);
    writer.write(&[&update, &update], &positions).unwrap();
    let there = device.clone();
    thread::spawn(move || {
        drop(writer);
        there.synchronize().unwrap(); // The status is freed here.
    })
    .join()
    .unwrap();
    device.synchronize().unwrap();
    assert_eq!(all(&caches[0]), written(7.));
}
