//! The unsafe code of this crate: copies without bounds checks, and a closure that other threads borrow.

mod pool;
mod runs;

pub use pool::Pool;

pub(crate) use runs::{Runs, Series, checksum};
