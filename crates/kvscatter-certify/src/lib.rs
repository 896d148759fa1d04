//! Runs a static-cache decoder and certifies that its KV cache is written in place.
//!
//! [`certify`] returns a [`Certificate`](certificate::Certificate). An [`Engine`](kvscatter_session::Engine)
//! runs the model on tensors that this crate owns. This crate can therefore read every byte of every cache
//! after every step.
//!
//! Before some runs, the caches are filled with *canaries*: finite values that differ from row to row. A slot
//! that has lost its canary was written.
//!
//! `drive` has the scenarios and their expected results, and the claims that only they need. `evidence` has the claims
//! about the graph, the memory and the times. `certificate` is the document, and `report` renders it.
#![warn(missing_debug_implementations)]
#![deny(unsafe_code, reason = "only the measurement of memory needs unsafe code")]

pub mod certificate;
mod certify;
mod drive;
mod error;
mod evidence;
pub mod report;
mod subject;

pub use certify::{CertifyOptions, Progress, certify};
pub use error::CertifyError;
