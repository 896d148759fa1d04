//! Runs decoders with static KV caches: ragged, in chunks, in whatever [`Engine`] loads them.
//!
//! An engine loads a model and runs it on [`Tensor`]s; [`Interface`] is what the model takes, [`Feed`] what one step
//! gives it.
#![forbid(unsafe_code)]

mod engine;
mod error;
mod feed;
mod interface;
mod numbers;
mod runner;
mod sample;
mod tensor;

pub use engine::{Engine, Options, Ran, Session, Shared, Step};
pub use error::Error;
pub use feed::{Feed, SampleFeed};
pub use interface::{CachePort, FeedPort, Interface, Purpose};
pub use numbers::{most_likely, to_f32};
pub use runner::{Logits, Runner};
pub use sample::Sample;
pub use tensor::{Memory, Tensor};
