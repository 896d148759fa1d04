//! Runs a static-cache decoder and certifies that its KV cache is written in place.
//!
//! [`Certificate`](certificate::Certificate) is what comes of it. An [`Engine`](kvscatter_session::Engine) runs the model
//! on tensors of ours, so that every byte of every cache can be looked at after every step.
#![warn(missing_debug_implementations)]
#![deny(unsafe_code, reason = "only where memory is measured is any needed")]

pub mod certificate;
mod certify;
mod drive;
mod error;
mod evidence;
pub mod report;
mod subject;
pub mod text;

pub use certify::{CertifyOptions, Progress, certify};
pub use error::CertifyError;
