//! Runs decoders with static KV caches, for batches of sequences of different lengths. The model itself runs
//! in an [`Engine`].
//!
//! - [`KvSession`] is a decoder with its caches and a running batch. Samples can be added, extended,
//!   truncated and removed.
//! - [`Generator`] generates the tokens after prompts, with such a decoder.
//! - [`Engine`] loads a model, and [`Session`] runs the model on [`Tensor`]s.
//! - [`Interface`] describes the model's inputs and outputs. [`Feed`] describes the tokens of one step.
//!
//! # Modules
//!
//! A module imports only modules that this table names before it, and from the module that defines an item. A test of
//! `xtask` checks that.
//!
//! | for | modules, in order |
//! |---|---|
//! | errors | `sample`, `saved`, `error` |
//! | a model's inputs, and tensors | `interface`, `tensor`, `numbers`, `opening` |
//! | engines | `engine`, `rows`, `memory_report` |
//! | the tokens of a run | `feed`, `ring_track`, `model_runs`, `blocks` |
//! | one run of a model | `states`, `runner`, `encoder`, `encoder_run`, `inputs`, `logits` |
//! | caches in two buffers | `out_of_place`, `exported`, `session_options`, `growing` |
//! | samples, their rows and how they go back | `batch`, `caches`, `state_history`, `undo`, `sample_store` |
//! | a session | `steps`, `accept`, `saves`, `kv_session`, `transaction` |
//! | the choice of tokens | `generate_options`, `sampling`, `lookup`, `texts` |
//! | generation | `decoder`, `generate` |
#![warn(missing_debug_implementations)]
#![forbid(unsafe_code)]

mod accept;
mod batch;
mod blocks;
mod caches;
mod decoder;
mod encoder;
mod encoder_run;
mod engine;
mod error;
mod exported;
mod feed;
mod generate;
mod generate_options;
mod growing;
mod inputs;
mod interface;
mod kv_session;
mod logits;
mod lookup;
mod memory_report;
mod model_runs;
mod numbers;
mod opening;
mod out_of_place;
mod ring_track;
mod rows;
mod runner;
mod sample;
mod sample_store;
mod sampling;
mod saved;
mod saves;
mod session_options;
mod state_history;
mod states;
mod steps;
mod tensor;
mod texts;
mod transaction;
mod undo;

pub use encoder::EncoderInputs;
pub use encoder_run::{Encoder, EncoderInput, EncoderOutputs};
pub use engine::{
    Engine, GroupQueryNodes, InPlaceCache, LoadOptions, Session, Step, StepOutput, engine_label,
};
pub use error::{GenerateSetting, ModelSize, SessionError, SessionSetting};
pub use exported::ExportedDecoder;
pub use feed::{Feed, SampleFeed};
pub use generate::{Generated, Generator};
pub use generate_options::{GenerateOptions, Sampling};
pub use interface::{CachePort, CacheWriter, EncoderPort, FeedPort, Interface, Purpose, StatePort};
pub use kv_session::KvSession;
pub use logits::Logits;
pub use memory_report::{CacheSize, MemoryReport};
pub use numbers::{argmax, to_f32};
pub use out_of_place::OutOfPlace;
pub use rows::Rows;
pub use runner::{LogitsTensor, Runner};
pub use sample::Sample;
pub use saved::SavedError;
pub use saves::saved_tokens;
pub use session_options::SessionOptions;
pub use states::States;
pub use tensor::{Memory, Tensor, by_name};
pub use texts::{End, Event, NewTokens, Progress};
pub use transaction::Transaction;

/// The examples of this crate's README are tested with those of the crate.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
