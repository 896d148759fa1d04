//! Tests of every kernel, and of every number in [`limits`](super::limits) at its boundaries, on each
//! instruction set of this machine. They compare whole buffers with a loop that copies single bytes.
//!
//! The crate documentation defines P3, and `cpu/kernel.rs` defines V1 to V3.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    reason = "the tests choose the sizes, and overflow checks are enabled"
)]

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use kvscatter_oracle::cases::Random;
use proptest::prelude::*;

use super::copy::Stores;
use super::dispatch::Kernels;
use super::kernel::{Kernel, NO_PREFETCH, Pattern, Pointers};
use super::limits::{INLINE_MAX_RUN, Limits, Tuning};
use super::prefetch::{self, Hint, LINE};
use super::present::LineWriter;
use super::{Isa, executor};
use crate::geometry::{Loop, RowRange};
use crate::spec::onnx::TensorScatter;
use crate::spec::tensorrt::KvCacheUpdate;
use crate::{ElementType, Executor, Mode, OutOfRange, Prepared};

const LIMITS: [&Limits; 2] = [&Limits::REAL, &Limits::TINY];

/// Returns bytes whose period is not a power of two.
fn paint(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at % 251) as u8).collect()
}

/// Returns the lengths for which a kernel is compiled and the numbers that choose between kernels, each with
/// its two neighbours.
fn lengths() -> Vec<usize> {
    let compiled = (0..=9).map(|power| 1 << power).chain([192]);
    let chosen = LIMITS.into_iter().flat_map(|limits| {
        [limits.prefetch_max_run, limits.stream_min_run, limits.slab_overwrite_max, limits.prefetch_distance]
    });
    compiled.chain([INLINE_MAX_RUN]).chain(chosen).flat_map(|len: usize| [len - 1, len, len + 1]).collect()
}

fn instruction_sets() -> impl Iterator<Item = Isa> {
    Isa::allowed().up_to()
}

#[test]
fn kernels_are_chosen_for_the_usual_number_of_rows() {
    let usual = |tokens, capacity| {
        let (cache, update) = ([2, 1, capacity, 4], [tokens, 1, 4]);
        let write = KvCacheUpdate::new().prepare_packed(ElementType::Float16, &cache, &update);
        write.unwrap().geometry().usual_rows()
    };
    assert_eq!([usual(1, 8), usual(2, 8), usual(3, 8), usual(9, 8)], [1, 1, 3, 8]);
    let padded = TensorScatter::new().prepare(ElementType::Int8, &[2, 8, 4], &[2, 3, 4]).unwrap();
    assert_eq!(padded.geometry().usual_rows(), 3);
}

#[test]
fn only_large_writes_bypass_the_caches() {
    for limits in LIMITS {
        let least = limits.stream_min_bytes;
        for (bytes, expected) in [
            (0, Stores::Cached),
            (least - 1, Stores::Cached),
            (least, Stores::Streamed),
            (least + 1, Stores::Streamed),
        ] {
            assert_eq!(Stores::for_bytes(bytes, limits), expected, "{bytes} bytes");
        }
    }
}

#[test]
fn instruction_sets_have_names() {
    let names: Vec<_> = Isa::Avx512.up_to().map(|isa| isa.to_string()).collect();
    assert_eq!(names, ["portable", "sse2", "avx2", "avx512"]);
}

#[test]
fn four_bit_rows_of_whole_bytes_are_even() {
    for (row, expected) in [(4, true), (3, false)] {
        let write = TensorScatter::new().prepare(ElementType::Int4, &[2, 4, row], &[2, 2, row]).unwrap();
        assert_eq!(write.geometry().is_even(), expected, "rows of {row} elements");
    }
}

/// Checks a kernel on four blocks of three runs each. In the destination there are `gap` bytes between
/// neighbours, and in the source none.
fn check_kernel(kernel: Kernel, len: usize, prefetch_distance: usize, dst_at: usize, src_at: usize) {
    const RUNS: usize = 3;
    const BLOCKS: usize = 4;
    let gap = 5;
    let src = paint(100, src_at + RUNS * BLOCKS * len);
    let mut dst = paint(0, dst_at + RUNS * BLOCKS * (len + gap));
    let painted = dst.clone();
    let mut expected = dst.clone();
    for run in 0..RUNS * BLOCKS {
        for byte in 0..len {
            expected[dst_at + run * (len + gap) + byte] = src[src_at + run * len + byte];
        }
    }
    let step = |bytes: usize| isize::try_from(bytes).unwrap();
    let runs = Loop { count: RUNS, dst_stride: step(len + gap), src_stride: step(len) };
    for hint in [Hint::L1, Hint::L2] {
        let (dst_start, src_start) = (dst.as_mut_ptr(), src.as_ptr());
        let begins: Vec<_> = (0..BLOCKS)
            .map(|block| Pointers {
                dst: dst_start.wrapping_add(dst_at + block * RUNS * (len + gap)),
                src: src_start.wrapping_add(src_at + block * RUNS * len),
            })
            .collect();
        // SAFETY: V1: every run lies inside its buffer, because the loop above has indexed the same offsets.
        // The two buffers do not overlap. V2: the machine has the instruction set (`instruction_sets`). V3:
        // the kernel is the usual one for runs of `len` bytes, or it takes all runs.
        unsafe { kernel(&begins, &Pattern { runs, len, prefetch_distance, hint }) };
        prefetch::fence();
        assert_eq!(
            dst, expected,
            "len {len} prefetch_distance {prefetch_distance} {hint:?} dst {dst_at} src {src_at}"
        );
        dst.copy_from_slice(&painted);
    }
}

/// Checks each kernel at its length, and one byte below and above.
#[test]
fn every_kernel_copies_every_length() {
    for isa in instruction_sets() {
        for len in lengths().into_iter().chain(0..=40) {
            let kernels = Kernels::choose(isa, len);
            for kernel in [kernels.usual, kernels.any, kernels.stream] {
                for (prefetch_distance, at) in
                    [(NO_PREFETCH, 0), (1, 1), (2, 31), (3, 63), (7, 8), (11, 5), (12, 0)]
                {
                    check_kernel(kernel, len, prefetch_distance, at, 63 - at);
                }
            }
        }
    }
}

/// Checks all heads and tails of a streamed run.
#[test]
fn every_kernel_copies_from_and_to_everywhere() {
    for isa in instruction_sets() {
        for len in [1, 64, 127, 128, 191, 256, 1024, 1087, 1088, 1151] {
            let kernels = Kernels::choose(isa, len);
            for at in 0..64 {
                for (dst_at, src_at) in [(at, 0), (0, at), (at, 37)] {
                    check_kernel(kernels.usual, len, NO_PREFETCH, dst_at, src_at);
                    check_kernel(kernels.stream, len, NO_PREFETCH, dst_at, src_at);
                }
            }
        }
    }
}

/// One call on `[batch, heads, capacity, len]` bytes, with an update of `rows` rows.
#[derive(Clone, Debug)]
struct Shape {
    batch: usize,
    heads: usize,
    capacity: usize,
    rows: usize,
    len: usize,
    /// The number of bytes before the tensor of the cache. `src_at` counts those before the update.
    dst_at: usize,
    src_at: usize,
    limits: &'static Limits,
}

impl Shape {
    fn cache(&self) -> [usize; 4] {
        [self.batch, self.heads, self.capacity, self.len]
    }

    fn update(&self) -> [usize; 4] {
        [self.batch, self.heads, self.rows, self.len]
    }

    /// Checks a ring. Each sample has its start and its number of rows, which may be 0.
    fn check_ring(&self, starts: &[i64], counts: &[i64]) {
        let write = TensorScatter::new().axis(2).mode(Mode::Circular);
        let write = write.prepare(ElementType::Int8, &self.cache(), &self.update()).unwrap();
        let full = counts.iter().all(|&count| count == self.rows as i64);
        // If all lengths are full, leave them out to test the other path through the plan.
        self.check(&write, starts, counts, (!full).then_some(counts));
    }

    /// Checks a linear cache. Samples whose start is out of range receive nothing.
    fn check_linear(&self, starts: &[i64]) {
        let write = TensorScatter::new().axis(2).out_of_range(OutOfRange::SkipSample);
        let write = write.prepare(ElementType::Int8, &self.cache(), &self.update()).unwrap();
        let fits = |start| (0..=(self.capacity - self.rows) as i64).contains(&start);
        let counts: Vec<_> =
            starts.iter().map(|&start| if fits(start) { self.rows as i64 } else { 0 }).collect();
        let skipped = starts.iter().filter(|&&start| !fits(start)).count();
        assert_eq!(write.plan(starts).unwrap().skipped(), skipped);
        self.check(&write, starts, &counts, None);
    }

    /// Checks a write in place and in the functional form, on each instruction set, with and without an
    /// executor.
    fn check(&self, write: &Prepared, starts: &[i64], counts: &[i64], lengths: Option<&[i64]>) {
        let Self { batch, heads, capacity, rows, len, dst_at, src_at, limits } = *self;
        let cache_len = batch * heads * capacity * len;
        let mut past = paint(0, dst_at + cache_len + 70);
        let update = paint(17, src_at + batch * heads * rows * len);
        let mut expected = past.clone();
        for sample in 0..batch {
            for head in 0..heads {
                for row in 0..counts[sample] as usize {
                    let slot = (starts[sample] as usize + row) % capacity;
                    let to = dst_at + ((sample * heads + head) * capacity + slot) * len;
                    let from = src_at + ((sample * heads + head) * rows + row) * len;
                    expected[to..][..len].copy_from_slice(&update[from..][..len]);
                }
            }
        }
        let before = past.clone();
        let variants = instruction_sets().map(|isa| write.clone().with_tuning(Tuning { isa, limits }));
        let executors = [None, Some(&Twice as &dyn Executor)];
        for (write, executor) in
            variants.flat_map(|write| executors.map(|executor| (write.clone(), executor)))
        {
            let plan = write.plan_with_lengths(starts, lengths).unwrap();
            let plan = executor.map_or(plan, |executor| plan.with_executor(executor));
            past.copy_from_slice(&before);
            let _ = plan.write_bytes(&mut past[dst_at..][..cache_len], &update[src_at..]).unwrap();
            assert!(past == expected, "in place, {plan:?} {self:?} {starts:?} {counts:?}");
            past.copy_from_slice(&before);
            let old = &before[dst_at..][..cache_len];
            let _ =
                plan.write_present_bytes(old, &update[src_at..], &mut past[dst_at..][..cache_len]).unwrap();
            assert!(past == expected, "functional, {plan:?} {self:?} {starts:?} {counts:?}");
        }
    }
}

/// An executor that calls its work twice on one thread.
struct Twice;

impl Executor for Twice {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        work();
        work();
    }
}

/// Tests P3 where it is established. Each row is written by exactly one call, regardless of which threads
/// call the work and how often. Rows are counted here, because a row that is written twice looks the same
/// afterwards.
#[test]
fn every_row_is_taken_once() {
    struct Never;
    impl Executor for Never {
        fn broadcast(&self, _work: &(dyn Fn() + Sync)) {}
    }
    struct Pool(rayon::ThreadPool);
    impl Executor for Pool {
        fn broadcast(&self, work: &(dyn Fn() + Sync)) {
            self.0.broadcast(|_| work());
        }
    }
    let pool = Pool(rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap());
    let executors = [&Never as &dyn Executor, &Twice, &pool];
    for (executor, grain) in
        executors.into_iter().flat_map(|executor| LIMITS.map(|l| (executor, l.thread_grain)))
    {
        for row in [1, grain - 1, grain, grain + 1] {
            for count in [0, 1, 2, 7, 100] {
                let taken: Vec<_> = (0..2 * count).map(|_| AtomicUsize::new(0)).collect();
                let take = |rows: RowRange| {
                    for slot in 0..rows.count {
                        taken[rows.sample * count + rows.dst_row + slot].fetch_add(1, Ordering::Relaxed);
                    }
                };
                executor::share(executor, 2 * count * row, |share| {
                    for sample in 0..2 {
                        share.rows(RowRange { sample, dst_row: 0, src_row: 0, count }, row, grain, take);
                    }
                });
                let taken: Vec<_> = taken.into_iter().map(AtomicUsize::into_inner).collect();
                assert_eq!(taken, vec![1; 2 * count], "rows of {row} bytes");
            }
        }
    }
}

/// Returns a limit and its two neighbours.
fn near(limit: usize) -> impl Strategy<Value = usize> {
    limit.saturating_sub(1).max(1)..=limit + 1
}

/// Returns shapes at every kernel's length and at the ends of batches, with each limits.
fn shapes() -> impl Strategy<Value = Shape> {
    let len = prop_oneof![prop::sample::select(lengths()).prop_map(|len| len.max(1)), 1_usize..=300];
    let limits = prop::sample::select(&LIMITS[..]).prop_flat_map(|limits| {
        let most = limits.samples_per_call;
        (Just(limits), prop_oneof![1_usize..=3, near(most), near(2 * most)])
    });
    let sizes = (limits, 1_usize..=3, 1_usize..=6, len, 0_usize..64, 0_usize..64);
    sizes.prop_flat_map(|((limits, batch), heads, capacity, len, dst_at, src_at)| {
        let shape = move |rows| Shape { batch, heads, capacity, rows, len, dst_at, src_at, limits };
        (0..=capacity).prop_map(shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rings(shape in shapes(), seed: u64, ragged: bool) {
        let random = &mut Random::new(seed, 0);
        let starts = random.many(shape.batch, |random| random.below(shape.capacity) as i64);
        let counts = random.many(shape.batch, |random| {
            if ragged { random.below(shape.rows + 1) as i64 } else { shape.rows as i64 }
        });
        shape.check_ring(&starts, &counts);
    }

    #[test]
    fn skipped_samples(shape in shapes(), seed: u64, half: bool) {
        let random = &mut Random::new(seed, 0);
        let most = shape.capacity - shape.rows;
        let starts = random.many(shape.batch, |random| {
            let skips = random.below(if half { 2 } else { 16 }) == 0;
            if skips { (most + 1 + random.below(9)) as i64 } else { random.below(most + 1) as i64 }
        });
        shape.check_linear(&starts);
    }
}

/// Uses numbers of runs around the prefetch distance, over the blocks of a batch.
#[test]
fn destinations_ahead() {
    let most = |limits: &Limits| limits.prefetch_max_run;
    for (limits, len) in LIMITS.into_iter().flat_map(|limits| {
        [1, 2, 64, 256, most(limits) - 1, most(limits), most(limits) + 1].map(|len| (limits, len))
    }) {
        let prefetch_distance = limits.prefetch_distance.div_euclid(len).max(1);
        for runs in [
            prefetch_distance.saturating_sub(1).max(1),
            prefetch_distance,
            prefetch_distance + 1,
            2 * prefetch_distance + 1,
        ] {
            // All runs are in one sample, then each run is in a different sample of some batches.
            let one =
                Shape { batch: 1, heads: runs, capacity: 2, rows: 1, len, dst_at: 3, src_at: 5, limits };
            one.check_ring(&[1], &[1]);
            let many =
                Shape { batch: runs, heads: 1, capacity: 2, rows: 1, len, dst_at: 60, src_at: 1, limits };
            many.check_ring(&vec![1; runs], &vec![1; runs]);
        }
    }
}

/// Uses sizes around the limit for threads, with pieces that end in the middle of a sample.
#[test]
fn sharing_and_pieces() {
    for (limits, len) in LIMITS.into_iter().flat_map(|limits| {
        let grain = limits.thread_grain;
        [1, grain - 1, grain, grain + 1, grain.div_euclid(2) + 1].map(|len| (limits, len))
    }) {
        let least = limits.parallel_min_bytes;
        for bytes in [least - 1, least, least + limits.thread_grain + 1] {
            let rows = bytes.div_ceil(len);
            let shape =
                Shape { batch: 1, heads: 1, capacity: rows + 2, rows, len, dst_at: 1, src_at: 2, limits };
            shape.check_ring(&[1], &[rows as i64]);
            shape.check_ring(&[rows as i64], &[rows as i64]);
            shape.check_linear(&[2]);
            if rows > 2 {
                let two = Shape { batch: 2, heads: 2, rows: rows.div_euclid(3), ..shape };
                two.check_ring(&[0, two.capacity as i64 - 1], &[two.rows as i64; 2]);
            }
        }
    }
}

/// Uses slabs around the size limit, and numbers of slabs around those that fit in a tile.
#[test]
fn slabs_and_tiles() {
    for (limits, bytes) in LIMITS.into_iter().flat_map(|limits| {
        let most = limits.slab_overwrite_max;
        [1, 2, most - 1, most, most + 1].map(|bytes| (limits, bytes))
    }) {
        let in_tile = limits.slab_tile.div_euclid(bytes).max(1);
        for heads in [in_tile.saturating_sub(1).max(1), in_tile, in_tile + 1, 2 * in_tile + 1] {
            for rows in [0, 1, bytes.div_euclid(2), bytes] {
                let shape =
                    Shape { batch: 2, heads, capacity: bytes, rows, len: 1, dst_at: 7, src_at: 3, limits };
                shape.check_ring(&[0, bytes as i64 - 1], &[rows as i64; 2]);
            }
        }
    }
}

/// Uses sizes at which stores begin to bypass the CPU caches, in place and functional, from and to unaligned
/// addresses.
#[test]
fn streaming() {
    for limits in LIMITS {
        let least = limits.stream_min_bytes;
        let shape =
            Shape { batch: 1, heads: 1, capacity: 1, rows: 1, len: 1, dst_at: 13, src_at: 50, limits };
        for len in [least - 1, least, least + 1] {
            Shape { len, ..shape }.check_ring(&[0], &[1]);
        }
        // Rows that are stored past the CPU caches, and rows that are too short for it.
        for len in [4 * limits.stream_min_run + 17, limits.stream_min_run, limits.stream_min_run - 1] {
            let rows = least.div_ceil(len);
            let shape = Shape { capacity: rows + 1, rows, len, dst_at: 63, src_at: 1, ..shape };
            shape.check_ring(&[2], &[rows as i64]);
        }
        // Slabs whose pieces are stored in the order of their addresses: slabs of 5 short rows, and slabs at each
        // limit.
        let slabs = |rows: usize, capacity: usize, len: usize, start: usize| {
            let heads = least.div_ceil(capacity * len);
            let shape = Shape { heads, capacity, rows, len, dst_at: 9, src_at: 4, ..shape };
            shape.check_ring(&[start as i64], &[rows as i64]);
        };
        slabs(2, 5, 7, 4);
        slabs(4, 5, 7, 3);
        let (min, max) = (limits.slab_stream_min, limits.slab_stream_max);
        slabs(1, min - 1, 1, 2);
        slabs(1, min, 1, min - 1);
        slabs(1, max, 1, max.div_euclid(2));
        slabs(1, max + 1, 1, 5);
    }
}

/// Bytes that are assembled from adjacent or separate pieces are stored unchanged, and no other bytes change.
#[test]
fn lines_of_pieces() {
    const PIECES: [usize; 14] = [1, 62, 0, 2, 64, 65, 63, 0, 200, 128, 7, 3, 129, 64];
    let src = paint(100, PIECES.iter().sum());
    for isa in instruction_sets() {
        for (first, jump, apart) in (0..LINE).flat_map(|first| [(first, 6, 70), (first, 8, 0), (first, 9, 1)])
        {
            let mut dst = paint(0, first + src.len() + apart + LINE);
            let mut expected = dst.clone();
            // `at` counts from the start of a line, not from the start of the vector.
            let at = (first + dst.as_ptr().align_offset(LINE)) % LINE;
            let start = dst.as_mut_ptr();
            let mut lines = LineWriter::new(Kernels::choose(isa, 1).lines);
            let (mut from, mut to) = (0, at);
            for (index, len) in PIECES.into_iter().enumerate() {
                if index == jump {
                    to += apart;
                }
                expected[to..to + len].copy_from_slice(&src[from..from + len]);
                // SAFETY: V1: all bytes that were appended lie inside `dst`, and nothing uses it before
                // `finish`. V2: the machine has the instruction set. V3: the kernel is for whole lines.
                unsafe { lines.seek(start.wrapping_add(to)) };
                // SAFETY: V1: the piece lies inside both buffers, and nothing uses `dst` before `finish`. V2:
                // the machine has the instruction set. V3: the kernel is for whole lines.
                unsafe { lines.append(src.as_ptr().wrapping_add(from), len) };
                (from, to) = (from + len, to + len);
            }
            // SAFETY: V1: all bytes that were appended lie inside `dst`. V2: the machine has the instruction
            // set. V3: the kernel is for whole lines.
            unsafe { lines.finish() };
            prefetch::fence();
            assert!(dst == expected, "{isa:?} from {first}, {apart} apart at piece {jump}");
        }
    }
}
