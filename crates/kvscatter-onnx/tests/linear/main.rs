//! Tests that no pass takes time that grows with the square of a file, whichever part of the file is long.
//!
//! Files are untrusted, so a few hundred kilobytes must not keep a command busy for minutes. The test counts
//! steps and measures no times. Each model of [`models`] is made with `N`, `2 N` and `4 N` of something, and
//! each pass of the hostile test runs on all three. The second increase in size may add at most [`MOST_GROWTH`]
//! times as much work as the first. A linear pass adds twice as much, and a quadratic one four times as much.
//! Comparing the added work leaves out what a pass does once for any model.
//!
//! A counter that the passes increment themselves would only see the loops that its authors remembered, so
//! the compiler counts. `cargo xtask linear` builds the crates of this workspace with `-Cinstrument-coverage`, which
//! gives a counter to every region of every function, loop body and closure. The test adds up the counters in the
//! running process.
//!
//! Other crates and the standard library have no counters. Their clones of strings and growing vectors are visible in
//! the second part of the count, which is allocations and their bytes. Searches over elements of standard types, such
//! as `slice.contains(&name)`, are visible in neither part. Write `iter().any(..)` instead or, better, keep a
//! map.
//!
//! An ordinary `cargo test` has no such counters, so it does not run this test.

#![cfg(kvscatter_counted)]
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test they help")]

#[path = "../hostile/bounds.rs"]
mod bounds;
#[path = "../hostile/counts.rs"]
#[expect(dead_code, reason = "the hostile test prints the counts")]
mod counts;
mod models;
#[path = "../hostile/passes.rs"]
mod passes;
#[path = "../onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the other tests use the rest of it")]
mod support;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use kvscatter_onnx::Model;

/// The largest allowed ratio of the work for `2 N` more things to the work for `N` more. 2 is linear, and 4
/// is quadratic.
const MOST_GROWTH: f64 = 2.25;

/// The smallest amount of work for `2 N` more things that is compared. Below it, the lengths of numbers and
/// the sizes of vectors distort the ratio.
const LEAST_STEPS: u64 = 5_000;

/// The number of allocated bytes that count as one step.
const BYTES_A_STEP: u64 = 64;

#[test]
fn passes_are_linear_in_every_part_of_a_file() {
    let mut bad = Vec::new();
    for (part, size, make) in models::ALL {
        let [few, more, most] = [1, 2, 4].map(|times| steps(make(times * size)));
        for (pass, &few) in &few {
            let (Some(&more), Some(&most)) = (more.get(pass), most.get(pass)) else { continue };
            let (first, second) = (more.saturating_sub(few), most.saturating_sub(more));
            let growth = counts::number(second) / counts::number(first.max(1));
            let line = format!("{pass} of {size} {part}: {few}, {more} and {most} steps, x {growth:.2}");
            println!("{line}");
            if growth > MOST_GROWTH && second > LEAST_STEPS {
                bad.push(line);
            }
        }
    }
    assert!(bad.is_empty(), "not linear:\n{}", bad.join("\n"));
}

/// Returns the steps of each pass over a model: how often each part of the code runs, and what it allocates.
fn steps(model: Model) -> BTreeMap<String, u64> {
    let (before, steps) = (Cell::new(0), RefCell::new(BTreeMap::new()));
    let mut meter = bounds::Meter {
        counts: &mut counts::Counts::default(),
        seed: 0,
        slower: f64::INFINITY,
        len: f64::INFINITY,
        failures: Vec::new(),
        passed: BTreeSet::new(),
        starts: &|_| before.set(regions()),
        ends: &|pass, memory| {
            let allocated = memory.count_total + memory.bytes_total / BYTES_A_STEP;
            *steps.borrow_mut().entry(pass.to_owned()).or_default() += regions() - before.get() + allocated;
        },
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let save = |model: &Model, _: &str| {
        model.save(&path)?;
        let file = Model::load(&path)?.file()?;
        Ok(file.fingerprint().map(|_| model.external_files()).map(drop)?)
    };
    meter.pass("save", bounds::Bounds::REWRITE, || save(&model, ""));
    // With this seed, windows are masks.
    passes::run(&mut meter, model, 2, &save);
    assert!(meter.failures.is_empty(), "{:?}", meter.failures);
    steps.into_inner()
}

/// Returns how often the regions of all instrumented functions have run.
fn regions() -> u64 {
    unsafe extern "C" {
        safe fn __llvm_profile_begin_counters() -> *mut u64;
        safe fn __llvm_profile_end_counters() -> *mut u64;
    }
    let (begin, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
    let count = (end.addr() - begin.addr()) / size_of::<u64>();
    // SAFETY: The compiler's runtime provides the two ends of the array of its counters. The array is valid
    // as long as the process lives. Only the thread of the one test changes the counters, and that thread is
    // executing this function.
    let counters = unsafe { std::slice::from_raw_parts(begin, count) };
    counters.iter().sum()
}
