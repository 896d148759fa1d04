//! Compares the core with the oracle: the same calls, whole buffers bit for bit, and the exact errors.
#![cfg(test)]

mod call;
mod cases;
mod exhaustive;
mod infer;
mod large;
mod nibbles;
mod pool;
mod properties;
mod scene;
mod variants;
mod view;
