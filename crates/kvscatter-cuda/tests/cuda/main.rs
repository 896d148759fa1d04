//! Compares kernels and host code with the oracle, on any CUDA driver.
//!
//! `cargo xtask cuda` builds a simulated driver, which has no device and runs the kernels' source as C++.
//! `cargo xtask cuda-gpu` runs the same tests on the machine's device, except those that need the simulated
//! driver.
//!
//! The tests are ignored by default, because not every machine has a C++ compiler.
#![cfg(test)]

#[path = "../../src/abi.rs"]
#[expect(dead_code, unreachable_pub, reason = "a module of the host code, for the bits of a status")]
mod abi;
mod checks;
mod contract;
#[path = "../../../kvscatter/tests/oracle/call.rs"]
#[expect(dead_code, reason = "shared with the core's tests; here the core itself gives the expected error")]
mod core_call;
mod device;
mod fake;
mod faults;
mod host;
mod hostile;
mod launches;
mod rig;
mod rules;
mod scene;
mod shared;
mod sizes;
mod slots;
mod status;
mod words;
