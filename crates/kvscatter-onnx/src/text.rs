//! Formats times, sizes and untrusted names, in the same way for all programs of this project.

pub mod names;
pub mod units;
