//! Runs a static-cache decoder and certifies that its KV cache is written in place.
//!
//! [`Certificate`](certificate::Certificate) is what comes of it.

pub mod certificate;
