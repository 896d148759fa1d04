//! The writer on a device: the tests' own driver, or a GPU where `KVSCATTER_GPU` is set.
#![cfg(test)]

#[path = "../common/mod.rs"]
mod common;
mod driver;
mod refused;
mod status;
mod streams;
mod writes;
