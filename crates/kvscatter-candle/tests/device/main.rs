//! Tests of the writer on the device of `libcuda.so.1`, which is the simulated driver or NVIDIA's.
#![cfg(test)]

#[path = "../common/mod.rs"]
mod common;
mod driver;
mod status;
mod streams;
mod writes;
