//! kvscatter's cache write on CUDA devices.
#[expect(dead_code, reason = "the host code that fills these follows")]
mod abi;

pub use abi::StatusWords;
