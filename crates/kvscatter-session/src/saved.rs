//! The file of a saved sample.
//!
//! It is a safetensors file with the cached tokens of one sample, the valid rows of its caches, and its states. Every
//! byte is covered by a checksum (XXH3, 128 bits), which detects damage but not forgery. A file therefore never makes
//! a reader allocate more than it contains, and its values are as trustworthy as its origin.
//!
//! A header of JSON has the usual description of each tensor, and these entries of metadata, in this order:
//!
//! | entry | value |
//! |---|---|
//! | `kvscatter.saved` | `1`, the version of the format |
//! | `kvscatter.checksum` | the checksum of the header in which these 32 digits are zeros |
//! | `kvscatter.model` | the fingerprint of the model |
//! | `kvscatter.position` | the number of cached tokens |
//! | `kvscatter.tensor.NAME` | `linear axis=A checksum=X`, `ring axis=A capacity=C window=W first=F checksum=X`, `state checksum=X` or `tokens checksum=X` |
//!
//! The tensor `kvscatter.tokens` has the ids of the tokens, int64. A cache has the name of its input and the rows of
//! the positions from `first` (0 in a linear cache) to the last token, in order, along dimension `axis`. Tensors
//! follow each other without gaps, widest elements first, so that each is aligned.

mod error;
mod header;
mod reader;
mod sample;
#[cfg(test)]
mod tests;
mod writer;

pub use error::SavedError;
pub(crate) use reader::SavedFile;
pub(crate) use sample::{SavedKind, SavedSample, SavedTensor};
pub(crate) use writer::{check_target, write};
