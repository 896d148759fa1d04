//! Runs a decoder in all the ways in which a static cache is used.

pub(crate) mod reference;
pub(crate) mod rings;
pub(crate) mod scenarios;
pub(crate) mod texts;
pub(crate) mod values;
