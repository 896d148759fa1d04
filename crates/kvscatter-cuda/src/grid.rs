//! How a launch is spread over a device.

use crate::abi::{FEW_JOBS, MOST_PER_THREAD, THREADS};
use crate::driver::Grid;

/// Threads of a warp.
const WARP: u32 = 32;

/// What makes a launch faster or slower, and nothing else. `cargo xtask bench-gpu --choices` times writes with one after
/// the other changed. What the kernels do not allow is limited to what they do: more threads, more vectors and other
/// launch bounds would be other images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LaunchConfig {
    /// Caches of a launch for which kernels with a short table are taken.
    pub few_jobs: u32,
    /// Threads of a block at most.
    pub most_threads: u32,
    /// Threads of a block at least, before runs are spread over more blocks.
    pub few_threads: u32,
    /// Vectors of a thread at most, whose loads are under way together.
    pub most_per_thread: u32,
    /// Blocks for each multiprocessor that further vectors of a thread must leave.
    pub blocks_each: u32,
}

impl LaunchConfig {
    /// Reasoned, and not measured yet: two warps for a block of a small write; half as many blocks as run on a
    /// multiprocessor at a time.
    pub const DEFAULT: Self = Self {
        few_jobs: FEW_JOBS as u32,
        most_threads: THREADS,
        few_threads: 2 * WARP,
        most_per_thread: MOST_PER_THREAD,
        blocks_each: 4,
    };
}

/// What there is to do for each job: runs, and something for so many threads along each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) along: u32,
    pub(crate) runs: usize,
}

/// What a launch of jobs that are alike is spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) grid: Grid,
    pub(crate) per_thread: u32,
}

/// Threads go along a run, and as many runs as fill a block; runs go over blocks. A small write is spread over as many
/// multiprocessors as there are, a large one has several loads of each thread under way.
///
/// There is a block even if there are no runs: it reports.
pub(crate) fn spread(work: Work, jobs: u32, multiprocessors: u32, choices: &LaunchConfig) -> Spread {
    let threads = choices.most_threads.clamp(1, THREADS);
    let runs = u32::try_from(work.runs).unwrap_or(u32::MAX);
    let along = work.along.max(1);
    let along = match along.div_ceil(along.div_ceil(threads)) {
        few @ 1..WARP => few,
        many => many.next_multiple_of(WARP).min(threads),
    };
    let mut across = (threads / along).clamp(1, runs.max(1));
    let blocks = |across: u32, per_thread: u32| runs.div_ceil(across.saturating_mul(per_thread)).max(1);
    let all = |across, per_thread| u64::from(blocks(across, per_thread)) * u64::from(jobs);
    while across > 1 && along * across > choices.few_threads && all(across, 1) < u64::from(multiprocessors) {
        across = across.div_ceil(2);
    }
    let mut per_thread = 1;
    let most_per_thread = choices.most_per_thread.min(MOST_PER_THREAD);
    let enough = u64::from(multiprocessors) * u64::from(choices.blocks_each);
    while 2 * per_thread <= most_per_thread && all(across, 2 * per_thread) >= enough {
        per_thread *= 2;
    }
    Spread { grid: Grid { blocks: [blocks(across, per_thread), jobs], threads: [along, across] }, per_thread }
}

#[cfg(test)]
mod tests {
    use super::{LaunchConfig, Spread, Work};
    use crate::abi::{MOST_PER_THREAD, THREADS};

    /// Multiprocessors of an H200.
    const H200: u32 = 132;

    fn spread(along: u32, runs: usize, jobs: u32, multiprocessors: u32) -> Spread {
        super::spread(Work { along, runs }, jobs, multiprocessors, &LaunchConfig::DEFAULT)
    }

    /// Those of the benchmark, and some that no kernel allows.
    fn choices() -> Vec<LaunchConfig> {
        let default = LaunchConfig::DEFAULT;
        let mut choices = vec![default];
        for value in [0, 1, 3, 33, 100, 128, 1_000, u32::MAX] {
            choices.extend([
                LaunchConfig { most_threads: value, ..default },
                LaunchConfig { few_threads: value, ..default },
                LaunchConfig { most_per_thread: value, ..default },
                LaunchConfig { blocks_each: value, ..default },
            ]);
        }
        choices
    }

    #[test]
    fn every_run_has_a_thread_and_every_block_a_place() {
        let many_along = || (0..=80).chain([128, 255, 256, 257, 300, 511, 512, 5_000]);
        let many_runs = || (0..40).chain([255, 256, 257, 4_095, 100_000, 0x7FFF_FFFF]);
        for choices in choices() {
            for (along, runs) in many_along().flat_map(|along| many_runs().map(move |runs| (along, runs))) {
                for jobs in [1, 2, 64, 128] {
                    let spread = super::spread(Work { along, runs }, jobs, H200, &choices);
                    let Spread { grid, per_thread } = spread;
                    let case = format!("{along} {runs} {jobs} {choices:?}: {spread:?}");
                    let [x, y] = grid.threads;
                    let [blocks, across] = grid.blocks;
                    assert!((1..=THREADS).contains(&(x * y)), "{case}");
                    assert!((1..=MOST_PER_THREAD).contains(&per_thread) && per_thread.is_power_of_two());
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
        let prefill = |choices| super::spread(Work { along: 16, runs: 8 * 4096 }, 2, H200, &choices);
        let default = LaunchConfig::DEFAULT;
        assert_eq!(prefill(LaunchConfig { most_threads: 128, ..default }).grid.threads, [16, 8]);
        assert_eq!(prefill(LaunchConfig { most_per_thread: 2, ..default }).per_thread, 2);
        assert_eq!(prefill(LaunchConfig { blocks_each: 16, ..default }).per_thread, 1);
        let token = |few_threads| {
            let choices = LaunchConfig { few_threads, ..default };
            super::spread(Work { along: 16, runs: 8 }, 2, H200, &choices).grid.threads
        };
        assert_eq!((token(32), token(128)), ([16, 2], [16, 8]));
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
