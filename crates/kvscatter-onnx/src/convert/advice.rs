//! Whether a decoder can be converted: tried, not guessed.

use super::{Refusal, convert};
use crate::{Error, Model};

/// What comes of converting a decoder whose caches grow.
#[derive(Debug)]
pub enum Advice {
    /// Converting to this many slots succeeds: as many as were asked for, or as its tables of positions have rows.
    Convert {
        /// Slots of each sample.
        max_seq: usize,
    },
    /// Converting fails.
    Refused {
        /// Slots of each sample.
        max_seq: usize,
        /// Why.
        cause: Error,
    },
}

/// Tries to convert a decoder to this many slots, or to as many as it has positions.
#[must_use]
pub fn advice(model: &Model, max_seq: usize) -> Advice {
    let Err(cause) = convert(model, max_seq) else { return Advice::Convert { max_seq } };
    match *cause.root() {
        Error::Convert(Refusal::Table { rows, .. }) if convert(model, rows).is_ok() => {
            Advice::Convert { max_seq: rows }
        }
        _ => Advice::Refused { max_seq, cause },
    }
}
