//! Writes new keys and values into a KV cache, in place.
#![cfg_attr(not(any(feature = "std", test)), no_std)]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "sizes and indices come from strangers: every computation on them is checked or proved"
)]

extern crate alloc;

mod argument;
mod cpu;
mod element;
mod error;
mod geometry;
mod indices;
mod layout;
mod mapping;
mod plan;
mod policy;
pub mod positions;
mod size;
pub mod spec;
mod write;

pub use argument::Argument;
pub use element::{DlpackType, ElementType};
pub use error::Error;
pub use geometry::Geometry;
pub use indices::{Lengths, Starts};
pub use layout::Layout;
pub use mapping::{Block, Loop};
pub use plan::{Segment, WritePlan};
pub use policy::{Mode, NegativeIndex, OutOfRange};
pub use write::{Buffers, Written};
