//! Runs decoders with static KV caches, for batches of sequences of different lengths. An [`Engine`] computes.
//!
//! [`KvSession`] is a decoder, its caches and a running batch: samples can be added, extended, truncated and removed.
//! [`Generator`] continues prompts with it. Below them, an engine loads a model and runs it on [`Tensor`]s;
//! [`Interface`] is what the model takes, [`Feed`] what one step gives it.
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

mod batch;
mod caches;
mod decoder;
mod engine;
mod error;
mod feed;
mod generate;
mod growing;
mod interface;
mod kv_session;
mod memory_report;
mod numbers;
mod out_of_place;
mod rounds;
mod rows;
mod runner;
mod sample;
mod scores;
mod tensor;

pub use engine::{Engine, InPlaceCache, LoadOptions, Session, Step, StepOutput};
pub use error::{SessionError, Setting};
pub use feed::{Feed, SampleFeed};
pub use generate::{Generated, Generator, Greedy, Progress};
pub use interface::{CachePort, FeedPort, Interface, Purpose};
pub use kv_session::{KvSession, SessionOptions};
pub use memory_report::{CacheMemory, MemoryReport};
pub use numbers::{argmax, to_f32};
pub use out_of_place::OutOfPlace;
pub use rows::Rows;
pub use runner::{Logits, Runner};
pub use sample::Sample;
pub use scores::Scores;
pub use tensor::{Memory, Tensor};
