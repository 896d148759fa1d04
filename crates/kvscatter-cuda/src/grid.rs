//! How a launch is spread over a device.

use crate::abi::MOST_PER_THREAD;
use crate::driver::Grid;

/// Threads of a block at most: the kernels are compiled for as many.
const THREADS: u32 = 256;

/// Threads of a block at least, before runs are spread over more blocks: two warps.
const FEW_THREADS: u32 = 64;

/// Threads of a warp.
const WARP: u32 = 32;

/// Blocks for each multiprocessor that a thread's further loads must leave: half of what run there at a time.
const BLOCKS_EACH: u32 = 4;

/// What a launch of jobs that are alike is spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) grid: Grid,
    pub(crate) per_thread: u32,
}

/// Threads go along a run, and as many runs as fill a block; runs go over blocks. A small write is spread over as many
/// multiprocessors as there are, a large one has several loads of each thread under way.
///
/// `along` is what there is to do for threads along a run. There is a block even if there are no runs: it reports.
pub(crate) fn spread(along: u32, runs: usize, jobs: u32, multiprocessors: u32) -> Spread {
    let runs = u32::try_from(runs).unwrap_or(u32::MAX);
    let steps = along.max(1).div_ceil(THREADS);
    let along = match along.max(1).div_ceil(steps) {
        few @ 1..WARP => few,
        many => many.next_multiple_of(WARP),
    };
    let mut across = (THREADS / along).clamp(1, runs.max(1));
    let blocks = |across: u32, per_thread: u32| runs.div_ceil(across.saturating_mul(per_thread)).max(1);
    let all = |across, per_thread| u64::from(blocks(across, per_thread)) * u64::from(jobs);
    while across > 1 && along * across > FEW_THREADS && all(across, 1) < u64::from(multiprocessors) {
        across = across.div_ceil(2);
    }
    let mut per_thread = 1;
    let enough = u64::from(multiprocessors) * u64::from(BLOCKS_EACH);
    while per_thread < MOST_PER_THREAD && all(across, 2 * per_thread) >= enough {
        per_thread *= 2;
    }
    Spread { grid: Grid { blocks: [blocks(across, per_thread), jobs], threads: [along, across] }, per_thread }
}

#[cfg(test)]
mod tests {
    use super::{Spread, THREADS, spread};
    use crate::abi::MOST_PER_THREAD;

    /// Multiprocessors of an H200.
    const H200: u32 = 132;

    #[test]
    fn every_run_has_a_thread_and_every_block_a_place() {
        for along in (0..=80).chain([128, 255, 256, 257, 300, 511, 512, 5_000]) {
            for runs in (0..40).chain([255, 256, 257, 4_095, 100_000, 0x7FFF_FFFF]) {
                for jobs in [1, 2, 64, 128] {
                    let Spread { grid, per_thread } = spread(along, runs, jobs, H200);
                    let [x, y] = grid.threads;
                    let [blocks, across] = grid.blocks;
                    assert!((1..=THREADS).contains(&(x * y)) && (1..=MOST_PER_THREAD).contains(&per_thread));
                    assert!(blocks >= 1 && across == jobs);
                    let covered = u64::from(blocks) * u64::from(y * per_thread);
                    assert!(covered >= runs as u64, "{along} {runs} {jobs}");
                    assert!(
                        covered <= runs.max(1) as u64 + u64::from(y * per_thread),
                        "{along} {runs} {jobs}"
                    );
                    assert!(covered < 1 << 32, "numbers of runs do not wrap");
                    assert!(runs == 0 || u64::from(blocks - 1) * u64::from(y * per_thread) < runs as u64);
                }
            }
        }
    }

    #[test]
    fn small_writes_use_many_multiprocessors_and_large_ones_many_loads() {
        // One token, 8 heads of 256 bytes, keys and values.
        let token = spread(16, 8, 2, H200);
        assert_eq!((token.grid.blocks, token.grid.threads, token.per_thread), ([2, 2], [16, 4], 1));
        // 64 of them.
        let batch = spread(16, 512, 2, H200);
        assert!(batch.grid.blocks[0] * 2 >= H200 && batch.per_thread == 1, "{batch:?}");
        // A prefill of 4096 tokens.
        let prefill = spread(16, 8 * 4096, 2, H200);
        assert_eq!((prefill.grid.threads, prefill.per_thread), ([16, 16], 4));
    }

    #[test]
    fn long_runs_are_shared_by_whole_warps() {
        assert_eq!(spread(300, 64, 1, 1).grid.threads, [160, 1]);
        assert_eq!(spread(256, 64, 1, 1).grid.threads, [256, 1]);
        assert_eq!(spread(3, 1_000_000, 1, H200).grid.threads, [3, 85]);
    }
}
