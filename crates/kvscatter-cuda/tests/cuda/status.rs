//! Tests the status, and values that no case has: thousands of samples, any 64-bit index, slots that are left
//! out.

use crate::abi::{
    CIRCULAR, Call, FROM_END, Job, LENGTH, Loop, OTHER_LOOPS, POSITIONS_I64, REJECT_NEGATIVE, SKIP_ALL,
    SKIP_NEGATIVE, StatusWords, WriteShape, magic,
};
use crate::device::{Memory, Stream};
use crate::launch::{self, Threads};
use crate::scene::status_of;

const UNTOUCHED: u8 = 0xEE;
const THREADS: Threads = Threads { block: [1, 64], per_thread: 2, spare: 0 };

/// Returns the shape of a write from `[samples, rows]` into `[samples, capacity]`, with one byte for a row.
fn shape(samples: u32, capacity: u32, rows: u32) -> WriteShape {
    let looped = |count: u32, dst: u32, src: u32| Loop {
        dst_stride: dst.into(),
        src_stride: src.into(),
        count,
        magic: magic(count),
    };
    WriteShape {
        samples: looped(samples, capacity, rows),
        rows: looped(rows, 1, 1),
        others: [looped(1, 0, 0); OTHER_LOOPS],
        layer_stride: 0,
        run: 1,
        capacity,
        layers: 1,
        per_thread: 1,
        dst_begin: 0,
        src_begin: 0,
    }
}

/// A cache, an update of ones, and a status.
struct Scene {
    shape: WriteShape,
    cache: Memory,
    update: Memory,
    status: Memory,
    stream: Stream,
}

impl Scene {
    fn new(shape: WriteShape) -> Self {
        let samples = shape.samples.count.max(1) as usize;
        Self {
            cache: Memory::of(&vec![UNTOUCHED; samples * shape.capacity as usize]),
            update: Memory::of(&vec![1; samples * shape.rows.count as usize]),
            status: Memory::of(&[0; size_of::<StatusWords>()]),
            stream: Stream::new(),
            shape,
        }
    }

    fn launch(&self, call: Call, threads: Threads) -> StatusWords {
        let job = Job { cache: self.cache.address, update: self.update.address };
        let call = Call { status: self.status.address, ..call };
        let runs = self.shape.samples.count * self.shape.rows.count;
        launch::write("kvscatter_write_lists_1", &[job], &self.shape, &call, threads, runs, &self.stream);
        self.stream.synchronize();
        status_of(&self.status)
    }

    fn starts(&self, starts: &[i64], flags: u32) -> StatusWords {
        let list = Memory::of_i64(starts);
        self.launch(
            Call { positions: list.address, flags: flags | POSITIONS_I64, ..Call::default() },
            THREADS,
        )
    }

    fn written(&self) -> Vec<usize> {
        let cache = self.cache.read();
        assert!(cache.iter().all(|&byte| byte == 1 || byte == UNTOUCHED));
        (0..cache.len()).filter(|&at| cache[at] == 1).collect()
    }
}

fn status(bad_samples: u32, first_sample: u32, first_value: i64) -> StatusWords {
    StatusWords { bad_samples, first_sample, first_value }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn samples_are_counted_once_per_launch_until_the_caller_resets_the_status() {
    let scene = Scene::new(shape(3, 8, 2));
    assert_eq!(scene.starts(&[0, 6, 3], 0), status(0, 0, 0));
    assert_eq!(scene.starts(&[0, 7, -1], 0), status(2, 1, 7));
    assert_eq!(scene.starts(&[-5, 0, 0], 0), status(3, 1, 7));
    assert_eq!(scene.starts(&[0, 0, 0], 0), status(3, 1, 7));
    scene.status.fill(&[0; 16]);
    assert_eq!(scene.starts(&[-5, 0, 0], 0), status(1, 0, -5));
}

/// Tests more samples than a block has threads, for any thread that finds the first bad sample.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn thousands_of_samples_are_counted_exactly() {
    const SAMPLES: u32 = 3_000;
    for (bad, threads) in [(vec![2_999], 256), (vec![1, 257, 513, 2_000], 256), ((5..3_000).collect(), 64)] {
        let scene = Scene::new(shape(SAMPLES, 2, 1));
        let mut starts = vec![1; SAMPLES as usize];
        bad.iter().for_each(|&sample: &usize| starts[sample] = 2 + sample as i64);
        let list = Memory::of_i64(&starts);
        let call = Call { positions: list.address, flags: POSITIONS_I64, ..Call::default() };
        let found = scene.launch(call, Threads { block: [1, threads], ..THREADS });
        assert_eq!(found, status(bad.len() as u32, bad[0] as u32, starts[bad[0]]));
        let good = (0..SAMPLES as usize).filter(|sample| !bad.contains(sample));
        assert_eq!(scene.written(), good.map(|sample| 2 * sample + 1).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_start_is_a_slot_of_a_ring() {
    let starts = [i64::MIN, i64::MAX, i64::MIN + 1, -1, 7, 1 << 32, -(1 << 32), 0];
    let scene = Scene::new(shape(8, 7, 3));
    assert_eq!(scene.starts(&starts, CIRCULAR), status(0, 0, 0));
    let slots = |(sample, start): (usize, &i64)| {
        let mut slots = [0, 1, 2].map(|row| 7 * sample + ((start.rem_euclid(7) + row) % 7) as usize);
        slots.sort_unstable();
        slots
    };
    assert_eq!(scene.written(), starts.iter().enumerate().flat_map(slots).collect::<Vec<_>>());

    let refusing = Scene::new(shape(8, 7, 3));
    assert_eq!(refusing.starts(&starts, CIRCULAR | REJECT_NEGATIVE), status(4, 0, i64::MIN));
    let kept = starts.iter().enumerate().filter(|(_, start)| **start >= 0);
    assert_eq!(refusing.written(), kept.flat_map(slots).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn no_end_and_no_linear_start_overflows() {
    let edges =
        [i64::MIN, i64::MIN + 1, -1, 0, 1, 2, 3, 8, 9, 1 << 32, (1 << 32) + 3, i64::MAX - 1, i64::MAX];
    for flags in [0, FROM_END] {
        for start in edges {
            let scene = Scene::new(shape(1, 8, 3));
            let first = if flags == FROM_END { start.checked_sub(3) } else { Some(start) };
            let slot = first.filter(|slot| (0..=5).contains(slot));
            let expected = if slot.is_some() { status(0, 0, 0) } else { status(1, 0, start) };
            assert_eq!(scene.starts(&[start], flags), expected, "{start}");
            let slots = slot.into_iter().flat_map(|slot| slot as usize..slot as usize + 3);
            assert_eq!(scene.written(), slots.collect::<Vec<_>>(), "{start}");
        }
    }
}

/// Checks that a bad length hides a bad start of the same sample, as on the CPU.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn lengths_are_looked_at_before_starts() {
    let scene = Scene::new(shape(3, 8, 3));
    let (starts, lengths) = (Memory::of_i64(&[6, 6, -1]), Memory::of_i32(&[2, -1, 4]));
    let call =
        Call { positions: starts.address, lengths: lengths.address, flags: POSITIONS_I64, ..Call::default() };
    assert_eq!(scene.launch(call, THREADS), status(2, 1 | LENGTH, -1));
    assert_eq!(scene.written(), [6, 7]);
}

/// Tests one cache with one slot for each token. A negative slot leaves its token out, as in engines that pad
/// batches.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_slot_mapping_skips_what_is_negative_and_reports_what_is_beyond() {
    let tokens = |starts: &[i64], flags| {
        let mut one_cache = shape(starts.len() as u32, 10, 1);
        one_cache.samples.dst_stride = 0;
        let scene = Scene::new(one_cache);
        let found = scene.starts(starts, flags | SKIP_NEGATIVE);
        (found, scene.written())
    };
    assert_eq!(tokens(&[3, -1, 9, i64::MIN, 0], 0), (status(0, 0, 0), vec![0, 3, 9]));
    assert_eq!(tokens(&[3, -1, 10, 5, i64::MAX], 0), (status(2, 2, 10), vec![3, 5]));
    assert_eq!(tokens(&[3, -1, 10, 5, i64::MAX], SKIP_ALL), (status(2, 2, 10), vec![]));
    assert_eq!(tokens(&[3, -1, 1, 5, -2], SKIP_ALL), (status(0, 0, 0), vec![1, 3, 5]));
}

/// Checks that a bad layer, or a list of rows that is not a partition, counts every sample. A launch without
/// samples counts one.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn what_refuses_a_launch_counts_at_least_one() {
    for (samples, counted) in [(0, 1), (1, 1), (5, 5)] {
        let scene = Scene::new(shape(samples, 8, 1));
        let layer = Memory::of_i32(&[1]);
        let found = scene.launch(Call { layer: layer.address, ..Call::default() }, THREADS);
        assert_eq!(found, status(counted, u32::MAX, 1));
        assert_eq!(scene.written(), []);
    }
}

/// Checks that a launch without rows to move still reports a bad start.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_launch_of_no_rows_reports() {
    let scene = Scene::new(shape(2, 4, 0));
    assert_eq!(scene.starts(&[4, 5], 0), status(1, 1, 5));
    let ring_without_slots = Scene::new(shape(3, 0, 0));
    assert_eq!(ring_without_slots.starts(&[i64::MIN, 5, 0], CIRCULAR), status(0, 0, 0));
    assert_eq!(scene.written(), []);
}
