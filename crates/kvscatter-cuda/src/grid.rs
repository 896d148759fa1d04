//! Chooses how a launch is spread over a device.

use crate::abi::{FEW_JOBS, MAX_VECTORS_PER_THREAD, THREADS};
use crate::driver::Grid;

const WARP: u32 = 32;

/// Numbers that make a launch faster or slower and change nothing else.
///
/// `cargo xtask bench-gpu --choices` times writes with each number changed in turn. A number above the limit
/// for which the kernels are compiled is lowered to that limit. More threads, more vectors and other launch
/// bounds would need other images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LaunchConfig {
    /// The maximum number of jobs in a launch of the kernels with a short table.
    pub small_table_jobs: u32,
    /// The maximum number of threads in a block.
    pub max_threads_per_block: u32,
    /// The minimum number of threads in a block. A block shrinks to it only while there are fewer blocks than
    /// multiprocessors.
    pub min_threads_per_block: u32,
    /// The maximum number of vectors that a thread moves. Their loads are in flight together.
    pub max_vectors_per_thread: u32,
    /// The number of blocks per multiprocessor below which threads do not take more vectors.
    pub min_blocks_per_multiprocessor: u32,
}

impl LaunchConfig {
    /// The defaults. They were chosen by reasoning: a block of a small write has two warps, and a
    /// multiprocessor gets half the number of blocks that it can run at a time.
    ///
    /// On an H100, none of the values that `cargo xtask bench-gpu --choices` tries makes a decode step of keys
    /// and values faster by more than 1%, with 1 to 256 samples. Three other cases of one sample were timed:
    ///
    /// * A prefill of 512 rows takes 0.85 times as long with one block per multiprocessor.
    /// * A prefill of 4096 rows takes 1.5 times as long with one vector for each thread.
    /// * A decode step in the functional form takes 0.92 times as long with one vector for each thread.
    ///
    /// The other cases have not been timed, so the defaults were not changed.
    pub const DEFAULT: Self = Self {
        small_table_jobs: FEW_JOBS as u32,
        max_threads_per_block: THREADS,
        min_threads_per_block: 2 * WARP,
        max_vectors_per_thread: MAX_VECTORS_PER_THREAD,
        min_blocks_per_multiprocessor: 4,
    };
}

/// The work of each job, as its number of runs and the number of threads that one run can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) along: u32,
    pub(crate) runs: usize,
}

/// The grid of a launch, and the number of vectors for each thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) grid: Grid,
    pub(crate) per_thread: u32,
}

/// Spreads a launch over a device.
///
/// The threads of a block go along a run. A block takes the number of runs that it has threads for, and the
/// blocks share the runs. A small write uses as many multiprocessors as possible. In a large write, each
/// thread has several loads in flight.
///
/// There is a block even if there are no runs, because it reports bad indices.
pub(crate) fn spread(work: Work, jobs: u32, multiprocessors: u32, config: &LaunchConfig) -> Spread {
    let threads = config.max_threads_per_block.clamp(1, THREADS);
    let runs = u32::try_from(work.runs).unwrap_or(u32::MAX);
    let along = work.along.max(1);
    let along = match along.div_ceil(along.div_ceil(threads)) {
        few @ 1..WARP => few,
        many => many.next_multiple_of(WARP).min(threads),
    };
    let mut across = (threads / along).clamp(1, runs.max(1));
    let blocks = |across: u32, per_thread: u32| runs.div_ceil(across.saturating_mul(per_thread)).max(1);
    let all = |across, per_thread| u64::from(blocks(across, per_thread)) * u64::from(jobs);
    while across > 1
        && along * across > config.min_threads_per_block
        && all(across, 1) < u64::from(multiprocessors)
    {
        across = across.div_ceil(2);
    }
    let mut per_thread = 1;
    let max_vectors_per_thread = config.max_vectors_per_thread.min(MAX_VECTORS_PER_THREAD);
    let enough = u64::from(multiprocessors) * u64::from(config.min_blocks_per_multiprocessor);
    while 2 * per_thread <= max_vectors_per_thread && all(across, 2 * per_thread) >= enough {
        per_thread *= 2;
    }
    Spread { grid: Grid { blocks: [blocks(across, per_thread), jobs], threads: [along, across] }, per_thread }
}

#[cfg(test)]
mod tests {
    use super::{LaunchConfig, Spread, Work};
    use crate::abi::{MAX_VECTORS_PER_THREAD, THREADS};

    /// The number of multiprocessors of an H200.
    const H200: u32 = 132;

    fn spread(along: u32, runs: usize, jobs: u32, multiprocessors: u32) -> Spread {
        super::spread(Work { along, runs }, jobs, multiprocessors, &LaunchConfig::DEFAULT)
    }

    /// Returns the configurations of the benchmark, and some that no kernel allows.
    fn configs() -> Vec<LaunchConfig> {
        let default = LaunchConfig::DEFAULT;
        let mut configs = vec![default];
        for value in [0, 1, 3, 33, 100, 128, 1_000, u32::MAX] {
            configs.extend([
                LaunchConfig { max_threads_per_block: value, ..default },
                LaunchConfig { min_threads_per_block: value, ..default },
                LaunchConfig { max_vectors_per_thread: value, ..default },
                LaunchConfig { min_blocks_per_multiprocessor: value, ..default },
            ]);
        }
        configs
    }

    #[test]
    fn every_run_has_a_thread_and_every_block_a_place() {
        let many_along = || (0..=80).chain([128, 255, 256, 257, 300, 511, 512, 5_000]);
        let many_runs = || (0..40).chain([255, 256, 257, 4_095, 100_000, 0x7FFF_FFFF]);
        for config in configs() {
            for (along, runs) in many_along().flat_map(|along| many_runs().map(move |runs| (along, runs))) {
                for jobs in [1, 2, 64, 128] {
                    let spread = super::spread(Work { along, runs }, jobs, H200, &config);
                    let Spread { grid, per_thread } = spread;
                    let case = format!("{along} {runs} {jobs} {config:?}: {spread:?}");
                    let [x, y] = grid.threads;
                    let [blocks, across] = grid.blocks;
                    assert!((1..=THREADS).contains(&(x * y)), "{case}");
                    assert!(
                        (1..=MAX_VECTORS_PER_THREAD).contains(&per_thread) && per_thread.is_power_of_two()
                    );
                    assert!(blocks >= 1 && across == jobs, "{case}");
                    let covered = u64::from(blocks) * u64::from(y * per_thread);
                    assert!(covered >= runs as u64, "{case}");
                    assert!(covered <= runs.max(1) as u64 + u64::from(y * per_thread), "{case}");
                    assert!(covered < 1 << 32, "numbers of runs do not wrap: {case}");
                    assert!(runs == 0 || u64::from(blocks - 1) * u64::from(y * per_thread) < runs as u64);
                }
            }
        }
    }

    #[test]
    fn a_choice_is_taken() {
        let prefill = |config| super::spread(Work { along: 16, runs: 8 * 4096 }, 2, H200, &config);
        let default = LaunchConfig::DEFAULT;
        assert_eq!(prefill(LaunchConfig { max_threads_per_block: 128, ..default }).grid.threads, [16, 8]);
        assert_eq!(prefill(LaunchConfig { max_vectors_per_thread: 2, ..default }).per_thread, 2);
        assert_eq!(prefill(LaunchConfig { min_blocks_per_multiprocessor: 16, ..default }).per_thread, 1);
        let token = |min_threads_per_block| {
            let config = LaunchConfig { min_threads_per_block, ..default };
            super::spread(Work { along: 16, runs: 8 }, 2, H200, &config).grid.threads
        };
        assert_eq!((token(32), token(128)), ([16, 2], [16, 8]));
    }

    #[test]
    fn small_writes_use_many_multiprocessors_and_large_ones_many_loads() {
        // One token, 8 heads of 256 bytes, keys and values.
        let token = spread(16, 8, 2, H200);
        assert_eq!((token.grid.blocks, token.grid.threads, token.per_thread), ([2, 2], [16, 4], 1));
        // The same for 64 samples.
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
