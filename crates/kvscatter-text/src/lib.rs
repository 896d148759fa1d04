//! Prints the times, sizes and names in what kvscatter shows.
//!
//! The command, the certificates and the benchmarks use this crate, so that the same value reads the same everywhere.
//!
//! - [`units`] prints times and sizes with three digits.
//! - [`names`] escapes names that come from files and arguments of strangers.
#![forbid(unsafe_code)]

pub mod names;
pub mod units;
