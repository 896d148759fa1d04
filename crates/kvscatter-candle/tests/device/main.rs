//! The writer on a device, which is whatever `libcuda.so.1` has: the tests' own driver, or NVIDIA's.
#![cfg(test)]

mod calls;
#[path = "../common/mod.rs"]
mod common;
mod driver;
mod refused;
mod status;
mod streams;
mod writes;
