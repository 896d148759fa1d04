//! Tests of what programs in C cannot check, or not as well: every error in numbers and words, allocations,
//! and the structs as a C compiler lays them out. The programs in `tests-c` test the oracle's cases,
//! executors and threads.

#[cfg(test)]
mod allocation;
#[cfg(test)]
mod c;
#[cfg(test)]
mod dlpack;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod ring;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod strides;
#[cfg(test)]
mod structs;
