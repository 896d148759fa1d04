//! The specifications, slow and obvious.
#![forbid(unsafe_code)]
