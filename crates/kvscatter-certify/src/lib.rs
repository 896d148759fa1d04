//! Runs a static-cache decoder and certifies that its KV cache is written in place.
//!
//! [`Certificate`](certificate::Certificate) is what comes of it. An [`Engine`] runs the model on [`Tensor`]s of ours,
//! so that every byte of every cache can be looked at after every step; [`onnxruntime`] is one.
#![deny(unsafe_code, reason = "only an engine with a foreign interface needs any")]

pub mod certificate;
mod certify;
mod drive;
mod engine;
mod error;
mod evidence;
pub mod onnxruntime;
pub mod report;
mod subject;
mod tensor;

pub use certify::{Progress, Request, certify};
pub use engine::{Engine, Options, Ran, Session, Shared, Step};
pub use error::Error;
pub use tensor::Tensor;
