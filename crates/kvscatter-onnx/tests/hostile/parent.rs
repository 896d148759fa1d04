//! Starts child processes, and adds up what they report.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::child::{RANGE, REPORT, now, repeat};
use crate::counts::{Counts, number};

/// The number of files that one process reads.
const A_CHILD: u64 = 500;

/// The memory of a child process in KiB, its code included.
const ADDRESS_SPACE: u64 = 8 << 20;

/// A run over a range of seeds.
pub(crate) struct Run {
    seeds: Range<u64>,
    /// The file with the seed that comes next.
    state: Option<PathBuf>,
}

impl Run {
    /// Reads what the environment asks for. Otherwise the run reads `files` files.
    pub(crate) fn from_environment(files: u64) -> Self {
        let number = |name| std::env::var(name).ok().map(|text| text.trim().parse().expect("a number"));
        let state = std::env::var_os("KVSCATTER_HOSTILE_STATE").map(PathBuf::from);
        let next = state.as_ref().map(|path| match std::fs::read_to_string(path) {
            Ok(text) => text.trim().parse().expect("a seed"),
            Err(_) => files,
        });
        let count = number("KVSCATTER_HOSTILE").unwrap_or(files);
        let from = number("KVSCATTER_HOSTILE_FROM").or(next).unwrap_or_default();
        Self { seeds: from..from + count, state }
    }

    pub(crate) fn count(&self) -> u64 {
        self.seeds.end - self.seeds.start
    }

    /// Reads all files, in as many child processes at once as there are processors.
    pub(crate) fn all(&self) -> Counts {
        let (folder, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        let children = std::thread::available_parallelism().map_or(1, |children| children.get());
        let mut counts = Counts::default();
        let mut from = self.seeds.start;
        while from < self.seeds.end {
            let starts = (from..self.seeds.end).step_by(usize::try_from(A_CHILD).unwrap()).take(children);
            let ranges: Vec<_> = starts.map(|from| from..self.seeds.end.min(from + A_CHILD)).collect();
            from = ranges.last().unwrap().end;
            std::thread::scope(|scope| {
                let read = |seeds: Range<u64>| {
                    let report = folder.path().join(format!("{}.report", seeds.start));
                    scope.spawn(move || range(seeds, &report))
                };
                let threads: Vec<_> = ranges.into_iter().map(read).collect();
                threads.into_iter().for_each(|thread| counts.add(thread.join().unwrap()));
            });
            if let Some(state) = &self.state {
                std::fs::write(state, from.to_string()).unwrap();
            }
            let rate = number(counts.files) / begin.elapsed().as_secs_f64();
            println!(
                "next seed {from}: {} files, {rate:.1} a second, {} failures",
                counts.files,
                counts.failures.len()
            );
        }
        counts
    }
}

/// Reads the files of a range, in another child process after one that a file has ended.
fn range(seeds: Range<u64>, report: &Path) -> Counts {
    let (mut counts, mut from) = (Counts::default(), seeds.start);
    while from < seeds.end {
        from = one(from..seeds.end, report, &mut counts);
    }
    counts
}

/// Runs a child process, and returns the seed after the last one that it read.
fn one(seeds: Range<u64>, report: &Path, counts: &mut Counts) -> u64 {
    for path in [report.to_owned(), now(report)] {
        let _ = std::fs::remove_file(path);
    }
    let status = Command::new("sh")
        .args(["-c", &format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "hostile_files", "--nocapture", "--test-threads=1"])
        .env(RANGE, format!("{}..{}", seeds.start, seeds.end))
        .env(REPORT, report)
        .status()
        .unwrap();
    if let Ok(text) = std::fs::read_to_string(report) {
        counts.add(serde_json::from_str(&text).expect("counts"));
    }
    if status.success() {
        return seeds.end;
    }
    let last = std::fs::read_to_string(now(report)).expect("the child process read a file");
    let last: u64 = last.parse().unwrap();
    let failure = format!("seed {last}: the process ended with {status}");
    println!("FAILED {failure}\n  to repeat it: {}", repeat(last));
    counts.failures.push(failure);
    counts.files += 1;
    last + 1
}
