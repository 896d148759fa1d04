//! Tests the binary `kvscatter` with real files, exit codes and printed output.
//!
//! Features add engines and change nothing else. So commands that need no engine are tested without features only, and
//! with the feature `full` the others. Modules in both builds test commands of both kinds.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a helper that fails must fail its test"
)]

#[cfg(feature = "full")]
mod advice;
#[cfg(not(feature = "full"))]
mod apply;
#[cfg(not(feature = "full"))]
mod beside;
#[cfg(feature = "full")]
mod certify;
#[cfg(not(feature = "full"))]
mod conformance;
#[cfg(not(feature = "full"))]
mod convert;
#[cfg(not(feature = "full"))]
mod directory;
mod external;
#[cfg(not(feature = "full"))]
mod formats;
#[cfg(feature = "full")]
mod generate;
mod help;
#[cfg(not(feature = "full"))]
mod hostile;
#[cfg(not(feature = "full"))]
mod in_place;
#[cfg(not(feature = "full"))]
mod inspect;
mod interrupted;
mod json;
#[cfg(not(feature = "full"))]
mod light;
#[cfg(not(feature = "full"))]
mod lower;
mod narrow;
mod outputs;
#[cfg(not(feature = "full"))]
mod plan;
#[cfg(not(feature = "full"))]
mod run;
#[cfg(feature = "full")]
mod run_decoder;
#[cfg_attr(feature = "full", expect(dead_code, reason = "the commands that need no engine use all of it"))]
mod support;
#[cfg(feature = "full")]
mod text;
#[path = "../../../kvscatter-session/tests/token_types/mod.rs"]
mod token_types;
#[cfg(not(feature = "full"))]
mod verify;
#[cfg(not(feature = "full"))]
mod verify_actual;
#[cfg(not(feature = "full"))]
mod verify_operators;
