//! Tests of the writer on the device of `libcuda.so.1`, which is the simulated driver or NVIDIA's.
#![cfg(test)]

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod refused;
mod status;
mod streams;
mod writes;
