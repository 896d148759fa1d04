//! Tests that no pass takes time that grows with the square of a file, whichever part of the file is long.
//!
//! Files are untrusted, so a few hundred kilobytes must not keep a command busy for minutes. The tests count
//! steps and measure no times. Each model of [`models`] is made with `N`, `2 N` and `4 N` of something, and
//! each pass of [`passes`] runs on all three. The second increase in size may add at most [`MOST_GROWTH`]
//! times as much work as the first. A linear pass adds twice as much, and a quadratic one four times as much.
//! Comparing the added work leaves out what a pass does once for any model.
//!
//! A counter that the passes increment themselves would only see the loops that its authors remembered, so
//! the compiler counts. `cargo xtask linear` builds with `-Cinstrument-coverage`, which gives a counter to
//! every region of every function, loop body and closure of this workspace and its dependencies. The test
//! adds up the counters in the running process.
//!
//! The standard library has no counters. Its clones of strings and growing vectors are visible in the second
//! part of the count, which is allocations and their bytes. Its searches over elements of standard types, such
//! as `slice.contains(&name)`, are visible in neither part. Write `iter().any(..)` instead or, better, keep a
//! map.
//!
//! An ordinary `cargo test` has no such counters, so it does not run this test.

#![cfg(kvscatter_counted)]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

mod counted;
mod models;
mod passes;
#[path = "../onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the other tests use the rest of it")]
mod support;

/// The largest allowed ratio of the work for `2 N` more things to the work for `N` more. 2 is linear, and 4
/// is quadratic.
const MOST_GROWTH: f64 = 2.5;

/// The smallest amount of work for `2 N` more things that is compared. Below it, the lengths of numbers and
/// the sizes of vectors distort the ratio.
const LEAST_STEPS: u64 = 5_000;

#[test]
fn passes_are_linear_in_every_part_of_a_file() {
    let mut bad = Vec::new();
    for (part, size, make) in models::ALL {
        let models = [1, 2, 4].map(|times| make(times * size));
        for (pass, run) in passes::ALL {
            let [few, more, most] = models.each_ref().map(|model| counted::steps(|| run(model)));
            let (first, second) = (more.saturating_sub(few), most.saturating_sub(more));
            #[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a ratio")]
            let growth = second as f64 / first.max(1) as f64;
            let line = format!("{pass} of {size} {part}: {few}, {more} and {most} steps, x {growth:.2}");
            println!("{line}");
            if growth > MOST_GROWTH && second > LEAST_STEPS {
                bad.push(line);
            }
        }
    }
    assert!(bad.is_empty(), "not linear:\n{}", bad.join("\n"));
}
