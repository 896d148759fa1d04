//! Compares kernels and host code with the oracle, on any CUDA driver.
//!
//! `cargo xtask cuda` builds a simulated driver, which has no device and runs the kernels' source as C++.
//! `cargo xtask cuda-gpu` runs the same tests on the machine's device, except those that need the simulated
//! driver.
//!
//! The tests are ignored by default, because not every machine has a C++ compiler.

#[cfg(test)]
#[path = "../../src/abi.rs"]
#[expect(dead_code, unreachable_pub, reason = "a module of the host code, for the bits of a status")]
mod abi;
#[cfg(test)]
mod checks;
#[cfg(test)]
mod contract;
#[cfg(test)]
#[path = "../../../kvscatter/tests/oracle/call.rs"]
#[expect(dead_code, reason = "shared with the core's tests; here the core itself gives the expected error")]
mod core_call;
#[cfg(test)]
mod device;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod host;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod launches;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod slots;
#[cfg(test)]
mod status;
#[cfg(test)]
mod words;
