//! Tests of what programs in C cannot check, or not as well: every error in numbers and words, allocations,
//! and the structs as a C compiler lays them out. The programs in `tests-c` test the oracle's cases,
//! executors and threads.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper that panics fails its test")]

mod allocation;
mod attend;
mod attention;
mod c;
mod dlpack;
mod errors;
mod paged;
mod refusals;
mod ring;
mod scene;
mod strides;
mod structs;
