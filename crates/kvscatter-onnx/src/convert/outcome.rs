//! Tests whether a decoder can be converted by trying it.

use super::conversion::convert;
use super::refusal::ConvertRefusal;
use crate::{Model, OnnxError};

/// The result of trying to convert a decoder with growing caches.
#[derive(Debug)]
pub enum ConvertOutcome {
    /// The conversion succeeds.
    Convert {
        /// The number of slots of each sample in the converted caches.
        max_seq: usize,
    },
    /// The conversion fails.
    Refused {
        /// The number of slots of each sample that was tried.
        max_seq: usize,
        /// The error that [`convert`](super::convert()) returned.
        cause: OnnxError,
    },
}

impl ConvertOutcome {
    /// Tries to convert a decoder to this many slots.
    #[must_use]
    pub fn at(model: &Model, max_seq: usize) -> Self {
        match convert(model, max_seq) {
            Ok(_) => Self::Convert { max_seq },
            Err(cause) => Self::Refused { max_seq, cause },
        }
    }

    /// Tries to convert a decoder to this many slots. If its tables of positions have fewer rows, tries again
    /// with the number of their rows.
    #[must_use]
    pub fn near(model: &Model, max_seq: usize) -> Self {
        let advice = Self::at(model, max_seq);
        let Self::Refused { cause, .. } = &advice else { return advice };
        let OnnxError::Convert(ConvertRefusal::Table { rows, .. }) = *cause.root() else { return advice };
        match Self::at(model, rows) {
            Self::Refused { .. } => advice,
            fits => fits,
        }
    }
}
