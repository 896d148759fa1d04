//! Tests that one launch serves all caches and is asynchronous, that it can be captured and replayed, and
//! that several threads can launch.

use std::thread;

use allocation_counter::measure;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Argument, ElementType, Error as CoreError};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceWrite, LaunchConfig,
    PresentBuffers, StatusWords, Stream as OfCaller,
};

use crate::device::{Memory, Stream, device};
use crate::fake::{all_calls, calls, exchanges, is_fake, threads};
use crate::host::cuda;
use crate::rig::{ROW, Rig, SAMPLES, SLOTS, buffer, shapes, written};
use crate::scene::status_of;

fn status(bad_samples: u32, first_sample: u32, first_value: i64) -> StatusWords {
    StatusWords { bad_samples, first_sample, first_value }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn keys_and_values_are_one_launch_that_asks_the_driver_for_nothing_else() {
    let rig = Rig::new(2);
    let write = rig.write();
    rig.starts.fill(&[3_i64, 1].map(i64::to_ne_bytes).concat());
    let before = is_fake().then(|| (calls("cuLaunchKernel"), all_calls()));
    let allocations = measure(|| rig.launch(&write).unwrap());
    if let Some((launches, all)) = before {
        assert_eq!((calls("cuLaunchKernel"), all_calls()), (launches + 1, all + 1));
        assert_eq!(allocations.count_total, 0, "{allocations:?}");
        // The launch has not run yet, because nothing has waited for it.
        rig.assert_written(&[]);
    }
    rig.stream.synchronize();
    rig.assert_written(&[[Some(3), Some(1)]]);
    rig.check(&write).unwrap();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_number_of_caches_is_written_and_each_sample_counted_once() {
    for (caches, launches) in [(1, 1), (2, 1), (3, 1), (127, 1), (128, 1), (129, 2), (257, 3)] {
        let rig = Rig::new(caches);
        let write = rig.write();
        let before = is_fake().then(|| calls("cuLaunchKernel"));
        assert_eq!(rig.run(&write, [4, 2]), status(1, 0, 4));
        if let Some(before) = before {
            assert_eq!(calls("cuLaunchKernel") - before, launches, "{caches}");
        }
        rig.assert_written(&[[None, Some(2)]]);
        let expected = CoreError::StartOutOfRange {
            argument: Argument::WriteIndices,
            index: 0,
            value: 4,
            rows: 1,
            capacity: SLOTS,
        };
        assert!(matches!(rig.check(&write), Err(CudaError::Write(error)) if error == expected));

        assert_eq!(rig.run(&write.skip_all(true), [-1, 3]), status(2, 0, 4));
        rig.assert_written(&[[None, Some(2)]]);
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_number_of_presents_is_filled() {
    for caches in [1, 63, 64, 65, 129] {
        let rig = Rig::new(caches);
        let presents: Vec<_> = (0..caches).map(|_| Memory::from_bytes(&[0; SAMPLES * SLOTS * ROW])).collect();
        let write = rig.present(&presents);
        assert_eq!(rig.run(&write, [1, -1]), status(1, 1, -1));
        for (number, present) in presents.iter().enumerate() {
            assert_eq!(present.read(), written(number, &[[Some(1), None]]), "{number} of {caches}");
        }
        rig.assert_written(&[]);
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn the_launch_config_limits_the_threads() {
    let Some(rig) = Rig::simulated(2) else { return };
    let threads_of = |write: &DeviceWrite| {
        rig.run(write, [0, 0]);
        threads()
    };
    let by_default = threads_of(&rig.write());
    assert!(by_default > 1);
    assert_eq!(threads_of(&rig.write().with_launch_config(&LaunchConfig::DEFAULT)), by_default);
    let alone = LaunchConfig { max_threads_per_block: 1, ..LaunchConfig::DEFAULT };
    assert_eq!(threads_of(&rig.write().with_launch_config(&alone)), 1);
}

/// Checks that launches count at every replay, with the indices at that time.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_graph_reads_its_indices_when_it_runs() {
    for caches in [2, 200] {
        let rig = Rig::new(caches);
        let write = rig.write();
        rig.starts.fill(&[9_i64, 9].map(i64::to_ne_bytes).concat());
        let graph = rig.stream.captured(|| rig.launch(&write).unwrap()).unwrap();
        rig.stream.synchronize();
        rig.assert_written(&[]);
        let mut expected = Vec::new();
        let replays = [
            ([0_i64, 1], [Some(0), Some(1)], status(0, 0, 0)),
            ([3, -7], [Some(3), None], status(1, 1, -7)),
            ([4, 2], [None, Some(2)], status(2, 1, -7)),
        ];
        for (starts, slots, counted) in replays {
            rig.starts.fill(&starts.map(i64::to_ne_bytes).concat());
            graph.launch(&rig.stream);
            rig.stream.synchronize();
            expected.push(slots);
            rig.assert_written(&expected);
            assert_eq!(status_of(&rig.status), counted);
        }
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn threads_launch_at_once() {
    const STEPS: usize = 100;
    let shared = Rig::new(3);
    let (write, status) = (shared.write(), shared.status());
    let launched = &write;
    thread::scope(|scope| {
        // The same write of the same rows runs on separate streams. In any order, the rows are written.
        for _ in 0..3 {
            scope.spawn(move || {
                device();
                let (starts, stream) = (Memory::of_i64(&[2, 0]), Stream::new());
                let indices = DeviceCallIndices::new(DeviceList::i64(starts.address, SAMPLES));
                for _ in 0..STEPS {
                    // SAFETY: The caches and updates, the list `starts` and the status are memory of the
                    // context with the sizes given here, and live until the stream was waited for below.
                    unsafe { launched.launch(OfCaller::new(stream.0), &indices, Some(status)) }.unwrap();
                }
                stream.synchronize();
            });
        }
        // Other writes are prepared at the same time.
        for caches in [1, 2, 130] {
            scope.spawn(move || {
                device();
                let rig = Rig::new(caches);
                for step in 0..STEPS {
                    let write = rig.write();
                    let slot = (step % SLOTS) as i64;
                    assert_eq!(rig.run(&write, [slot, 9]).bad_samples, step as u32 + 1);
                }
                let all = (0..SLOTS).map(|slot| [Some(slot), None]).collect::<Vec<_>>();
                rig.assert_written(&all);
            });
        }
    });
    shared.assert_written(&[[Some(2), Some(0)]]);
    shared.check(&write).unwrap();
}

/// Checks that words that rows share are exchanged. A plain store would undo what another thread has written
/// there.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn words_that_rows_share_are_exchanged() {
    // There are 3 samples of 5 half bytes. Elements 0 to 7 are one word, 8 to 14 another. Rows begin at 0, 5
    // and 10.
    let write = TensorScatter::new().axis(1).prepare(ElementType::UInt4, &[3, 1, 5], &[3, 1, 5]).unwrap();
    let (cache, update) =
        (Memory::from_bytes(&[0; 8]), Memory::from_bytes(&[0xBA, 0xDC, 0xFE, 0x21, 0x43, 0x65, 0x87, 0x09]));
    let pair = BufferPair { cache: buffer(&cache), update: buffer(&update) };
    let write = cuda().prepare(&write, &[pair]).unwrap();
    let rig = Rig::new(0);
    let before = is_fake().then(exchanges);
    rig.launch_with(&write, &DeviceCallIndices::zero()).unwrap();
    rig.stream.synchronize();
    assert_eq!(cache.read(), update.read());
    if let Some(before) = before {
        // One row is in the first word, one in both and one in the second. An exchange is repeated if another
        // one came in between.
        assert!((4..=8).contains(&(exchanges() - before)));
    }
}

/// Tests writes without samples, without rows, and with rows without elements. Only the kept part of a
/// present is written. The memory of a tensor without elements is not checked, and indices are checked as on
/// the CPU.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn writes_of_nothing_report_what_is_bad() {
    let nothing = DeviceBuffer::new(0, 0);
    for (cache, update, bad) in [
        ([0, 4, 8], [0, 1, 8], None),
        ([2, 4, 8], [2, 0, 8], Some(5)),
        ([2, 4, 0], [2, 1, 0], Some(4)),
        ([2, 0, 8], [2, 0, 8], Some(1)),
        ([0, 4, 7], [0, 1, 7], None),
        ([2, 4, 7], [2, 0, 7], Some(5)),
    ] {
        let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, &cache, &update).unwrap();
        let bytes = write.geometry().cache_bytes().unwrap();
        let held = [0xEE, 0].map(|fill| Memory::from_bytes(&vec![fill; bytes.next_multiple_of(4)]));
        let [of_cache, of_present] =
            held.each_ref().map(|held| if held.bytes == 0 { nothing } else { buffer(held) });
        let in_place = BufferPair { cache: of_cache, update: nothing };
        let functional = PresentBuffers { present: of_present, past: of_cache, update: nothing };
        let starts = Memory::of_i64(&[0, bad.unwrap_or(0)][..update[0]]);
        let indices = DeviceCallIndices::new(DeviceList::i64(starts.address, update[0]));
        for write in [
            cuda().prepare(&write, &[in_place]).unwrap(),
            cuda().prepare_present(&write, &[functional]).unwrap(),
        ] {
            let expected = bad.map_or(status(0, 0, 0), |bad| status(1, 1, bad));
            assert_eq!(Rig::new(0).run_with(&write, &indices), expected, "{cache:?}");
        }
        let [held, present] = held.map(|held| held.read());
        assert!(held.iter().chain(&present[..bytes]).all(|&byte| byte == 0xEE), "{cache:?}");
    }
    let no_caches = cuda().prepare(&shapes(), &[]).unwrap();
    let rig = Rig::new(0);
    rig.launch(&no_caches).unwrap();
    rig.stream.synchronize();
}
