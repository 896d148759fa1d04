//! Compares the crate with the oracle, and results with each other.
#![cfg(test)]

mod boundaries;
mod bounds;
mod call;
mod cases;
mod codes;
mod element;
mod executors;
mod exhaustive;
mod extensions;
mod laid;
mod layouts;
mod prompts;
mod properties;
mod rings;
mod scene;
mod variants;
