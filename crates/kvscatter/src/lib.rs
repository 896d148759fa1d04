//! Writes new keys and values into a KV cache, in place.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "sizes and indices come from strangers: every computation on them is checked or proved"
)]

extern crate alloc;

mod element;

pub use element::{DlpackType, ElementType};
