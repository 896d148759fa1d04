//! No pass takes time that grows with the square of a file, whichever part of the file is long.
//!
//! Files come from strangers, so a few hundred kilobytes must not keep a command busy for minutes. This is counted, and
//! not timed. Each model of [`models`] is made with `N`, `2 N` and `4 N` of something, and each pass of [`passes`] runs on
//! all three. The second step of size may add at most [`MOST_GROWTH`] times as much work as the first. A linear pass adds
//! twice as much, a quadratic one four times. Comparing what is added leaves out what a pass does once for any model.
//!
//! A counter that the passes increment themselves would only see the loops that someone remembered. So the compiler
//! counts: `cargo xtask linear` builds with `-Cinstrument-coverage`, which gives every region of every function, loop body
//! and closure of this workspace and its dependencies a counter, and the test sums them up in the running process.
//! What the standard library does without calling back (clones of strings, growing vectors) shows in the second part of
//! the count, allocations and their bytes. What shows in neither are its own searches over elements of its own types, such
//! as `slice.contains(&name)`; write `iter().any(..)` or, rather, keep a map.
//!
//! An ordinary `cargo test` has no such counters and compares allocations alone: it sees what is copied too often, not what
//! is searched too often.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

mod counted;
mod models;
mod passes;
#[path = "../onnx/support.rs"]
#[expect(dead_code, unused_imports, unused_macros, reason = "the other tests use the rest of it")]
mod support;

/// How much more work `2 N` more things may be than `N` more. 2 is linear, and 4 is quadratic.
const MOST_GROWTH: f64 = 2.5;

/// Less work than this for `2 N` more things is not compared: lengths of numbers and sizes of vectors show in it.
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
