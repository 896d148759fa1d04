//! Compares writes into paged caches, and the slots of block tables, with the oracle.
#![cfg(test)]

mod exhaustive;
mod limits;
#[path = "../oracle/pool.rs"]
mod pool;
mod properties;
mod scene;
mod tables;
#[path = "../oracle/variants.rs"]
#[expect(dead_code, reason = "tensors are small here")]
mod variants;
#[path = "../oracle/view.rs"]
mod view;
