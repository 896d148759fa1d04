//! Tests the binary `kvscatter` with real files, exit codes and printed output.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails must fail its test")]

#[cfg(feature = "full")]
mod advice;
mod apply;
mod bench;
mod beside;
#[cfg(feature = "full")]
mod certify;
mod conformance;
mod convert;
mod directory;
mod external;
mod formats;
#[cfg(feature = "full")]
mod generate;
mod help;
mod hostile;
mod in_place;
mod inspect;
mod interrupted;
mod journal;
mod json;
#[cfg(not(feature = "full"))]
mod light;
mod lower;
mod narrow;
mod outputs;
mod plan;
mod run;
#[cfg(feature = "full")]
mod run_decoder;
mod support;
mod verify;
mod verify_actual;
mod verify_operators;
