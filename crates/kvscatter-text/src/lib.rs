//! Formats times, sizes and names for output.
//!
//! The command, the certificates and the benchmarks use this crate, so that they format the same value in the
//! same way.
//!
//! - [`units`] formats times and sizes with three digits.
//! - [`names`] escapes names from untrusted files and arguments.
#![forbid(unsafe_code)]

pub mod names;
pub mod units;
