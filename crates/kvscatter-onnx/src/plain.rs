//! Brings decoders that some exporters write into the form of the others.

use std::borrow::Cow;

use crate::merged::{self, TakenBranch, Unmerged};
use crate::stacked::{self, Stacks, Unstacked};
use crate::{Model, OnnxError};

/// A decoder with a past, and with a cache for each layer.
#[derive(Clone, Debug)]
pub struct PlainDecoder<'m> {
    /// The decoder. Weights are unchanged.
    pub model: Cow<'m, Model>,
    /// The form of the exported decoder, if it is another one.
    pub form: Option<ExportForm>,
}

/// The form of a decoder that is not a plain one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportForm {
    /// A merged decoder, from which this branch was taken.
    Merged(TakenBranch),
    /// A decoder whose inputs have all layers.
    Stacked(Stacks),
}

/// Converts a merged decoder ([`unmerge`](crate::unmerge)) or stacked caches ([`unstack`](crate::unstack)) to the form
/// of other exporters. Returns the model itself if it needs neither.
///
/// # Errors
/// Returns the errors of these functions.
pub fn plain_decoder(model: &Model) -> Result<PlainDecoder<'_>, OnnxError> {
    if let Some(Unmerged { model, branch }) = merged::unmerge(model)? {
        return Ok(PlainDecoder { model: Cow::Owned(model), form: Some(ExportForm::Merged(branch)) });
    }
    Ok(match stacked::unstack(model)? {
        Some(Unstacked { model, stacks }) => {
            PlainDecoder { model: Cow::Owned(model), form: Some(ExportForm::Stacked(stacks)) }
        }
        None => PlainDecoder { model: Cow::Borrowed(model), form: None },
    })
}
