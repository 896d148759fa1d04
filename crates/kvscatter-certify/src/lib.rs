//! Runs a static-cache decoder and certifies that its KV cache is written in place.
//!
//! [`certify`] returns a [`Certificate`](certificate::Certificate). An [`Engine`](kvscatter_session::Engine)
//! runs the model on tensors that this crate owns, so that this crate can read every byte of every cache
//! after every step.
#![warn(missing_debug_implementations)]
#![deny(unsafe_code, reason = "only where memory is measured is any needed")]

pub mod certificate;
mod certify;
mod drive;
mod error;
mod evidence;
pub mod report;
mod subject;

pub use certify::{CertifyOptions, Progress, certify};
pub use error::CertifyError;
