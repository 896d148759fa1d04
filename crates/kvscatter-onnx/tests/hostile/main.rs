//! Tests models that are made to break the code that reads them.
//!
//! Each file follows from a seed: a decoder or another graph, changed by the [`generator`]. The [`passes`] do with it
//! what the commands do. No pass may panic, hang, change a file, read outside of the folder of the model, or take more
//! time or memory than a [limit](bounds::Bounds) that follows from the size of the file.
//!
//! The files are read in child processes, because a stack overflow or an allocation that fails ends the process. The
//! test also checks that the files reach every pass and many errors.
//!
//! `KVSCATTER_HOSTILE` sets the number of files and `KVSCATTER_HOSTILE_FROM` the first seed.
//! `KVSCATTER_HOSTILE_STATE` is a file with the first seed, which is replaced by the next one during the run.
//! `cargo xtask hostile` sets these.

#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers of tests may fail as tests do"
)]

mod bounds;
mod child;
mod counts;
#[path = "../linear/models.rs"]
mod families;
mod generator;
mod parent;
mod passes;
mod scene;
#[path = "../onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the other tests use the rest of it")]
mod support;

/// The number of files that continuous integration reads. Their seeds begin at 0.
const FILES: u64 = 1000;

/// The least share of the files for which each pass must succeed, in percent.
const LEAST_PERCENT: f64 = 5.0;

/// The least number of different errors.
const LEAST_ERRORS: usize = 90;

#[test]
fn hostile_files() {
    if let Some(range) = child::range() {
        return child::run(range);
    }
    let run = parent::Run::from_environment(FILES);
    let counts = run.all();
    counts.print();
    assert!(
        counts.failures.is_empty(),
        "{} failures:\n{}",
        counts.failures.len(),
        counts.failures.join("\n")
    );
    assert_eq!(counts.files, run.count());
    if run.count() < FILES {
        return;
    }
    let rare: Vec<_> =
        child::PASSES.split(", ").filter(|pass| counts.percent(pass) < LEAST_PERCENT).collect();
    assert!(rare.is_empty(), "these passes succeed for too few files: {rare:?}");
    assert!(counts.errors.len() >= LEAST_ERRORS, "only {} different errors", counts.errors.len());
}
