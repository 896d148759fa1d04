//! Tests whether a decoder can be converted by trying it.

use super::conversion::{Converted, convert};
use super::options::ConvertOptions;
use super::refusal::{ConvertError, ConvertRefusal};
use super::report::CacheReport;
use super::rule::CacheWindow;
use super::windows::LinearWindow;
use crate::decoder::Decoder;
use crate::{Model, OnnxError, plain_decoder};

/// The result of trying to convert a decoder with growing caches.
#[derive(Debug)]
pub enum ConvertOutcome {
    /// The conversion succeeds.
    Convert {
        /// The number of slots of each sample in the converted caches.
        max_seq: usize,
        /// The windows of the attention.
        windows: Windows,
    },
    /// The conversion fails.
    Refused {
        /// The number of slots of each sample that was tried.
        max_seq: usize,
        /// The error that [`convert`](super::convert()) returned.
        cause: OnnxError,
        /// Whether another number of slots may succeed.
        depends_on_slots: bool,
    },
}

/// The windows of a decoder's attention, and what rings save.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// The window of each attention operation, as in [`CacheReport::windows`].
    pub caches: Vec<CacheWindow>,
    /// The number of bytes of all caches of one sample if they are linear, or `None` if the model leaves a size open.
    pub linear_bytes: Option<u64>,
    /// The number of bytes with rings of the default chunk and rewind, or `None` if there is no ring.
    pub ring_bytes: Option<u64>,
    /// The attention with windows that cannot read rings.
    pub linear: Vec<LinearWindow>,
}

impl Windows {
    fn new(caches: CacheReport) -> Self {
        Self {
            linear_bytes: caches.linear_bytes_per_sample,
            ring_bytes: caches.bytes_per_sample.filter(|_| !caches.rings.is_empty()),
            caches: caches.windows,
            linear: caches.linear_windows,
        }
    }

    /// Returns `true` if attention has a window.
    #[must_use]
    pub fn are_any(&self) -> bool {
        self.caches.iter().any(|cache| cache.window.is_some())
    }
}

/// A number of tokens that no short probe exceeds, unless the model fixes the number of new tokens. Masks that follow
/// the rule up to here follow it in short texts.
const SHORT: usize = 16;

impl ConvertOutcome {
    /// Tries to convert a decoder to this many slots.
    #[must_use]
    pub fn at(model: &Model, max_seq: usize) -> Self {
        match convert(model, max_seq) {
            Ok(converted) => Self::Convert { max_seq, windows: Windows::new(converted.report.caches) },
            Err(cause) => Self::refused(model, max_seq, cause),
        }
    }

    /// Tries to convert a decoder to this many slots. If its tables of positions have fewer rows, tries again
    /// with the number of their rows.
    #[must_use]
    pub fn near(model: &Model, max_seq: usize) -> Self {
        match near(model, max_seq) {
            Ok((max_seq, converted)) => {
                Self::Convert { max_seq, windows: Windows::new(converted.report.caches) }
            }
            Err(cause) => Self::refused(model, max_seq, cause),
        }
    }

    fn refused(model: &Model, max_seq: usize, cause: OnnxError) -> Self {
        Self::Refused { max_seq, depends_on_slots: depends_on_slots(&cause, model), cause }
    }
}

/// Converts a decoder to the slots of the options, or to the number of rows if a table of positions has fewer. Returns
/// the number of slots with the conversion.
pub(crate) fn near(
    model: &Model,
    options: impl Into<ConvertOptions>,
) -> Result<(usize, Converted), OnnxError> {
    let options = options.into();
    let error = match convert(model, options) {
        Ok(converted) => return Ok((options.max_seq, converted)),
        Err(error) => error,
    };
    let Some(&ConvertRefusal::Table { rows: max_seq, .. }) = error.cause() else { return Err(error) };
    let fewer = convert(model, ConvertOptions { max_seq, ..options });
    fewer.map(|converted| (max_seq, converted)).map_err(|_| error)
}

/// Returns `true` if a conversion is refused and another number of slots may succeed.
fn depends_on_slots(cause: &OnnxError, model: &Model) -> bool {
    match cause.cause() {
        Some(
            ConvertRefusal::MaxSeq { .. }
            | ConvertRefusal::PastFixed { .. }
            | ConvertRefusal::NewTokens { .. }
            | ConvertRefusal::MaskSize { .. }
            | ConvertRefusal::Table { .. },
        ) => true,
        Some(ConvertRefusal::Visibility { position, .. } | ConvertRefusal::Bias { position, .. }) => {
            // A step of fixed length fills that many slots of every cache.
            *position >= fixed_tokens(model).unwrap_or_default().max(SHORT)
        }
        _ => matches!(cause.cause(), Some(ConvertError::Capacity { .. })),
    }
}

/// Returns the number of new tokens if the model, or the branch that is converted, fixes it.
fn fixed_tokens(model: &Model) -> Option<usize> {
    let plain = plain_decoder(model).ok()?;
    let graph = plain.model.graph().ok()?;
    Decoder::from_graph(&graph).ok()?.fixed_tokens()
}
