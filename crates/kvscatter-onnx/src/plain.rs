//! Brings decoders that some exporters write into the form of the others.

use crate::merged::{self, TakenBranch, Unmerged};
use crate::stacked::{self, Stacks, Unstacked};
use crate::{Model, OnnxError};

/// A decoder with a past, and with a cache for each layer.
#[derive(Clone, Debug)]
pub struct PlainDecoder {
    /// The decoder. Weights are unchanged.
    pub model: Model,
    /// The form of the exported decoder.
    pub form: ExportForm,
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
/// of other exporters. Returns `None` if the model needs neither.
///
/// # Errors
/// Returns the errors of these functions.
pub fn plain_decoder(model: &Model) -> Result<Option<PlainDecoder>, OnnxError> {
    if let Some(Unmerged { model, branch }) = merged::unmerge(model)? {
        return Ok(Some(PlainDecoder { model, form: ExportForm::Merged(branch) }));
    }
    let unstacked = stacked::unstack(model)?;
    Ok(unstacked.map(|Unstacked { model, stacks }| PlainDecoder { model, form: ExportForm::Stacked(stacks) }))
}
