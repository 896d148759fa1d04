//! Changes caches to the form that the conversion expects: past and present of one type, and the shape
//! `[batch, heads, length, head size]`.
//!
//! Both changes only add nodes that widen, transpose or reshape. The rest of the decoder reads and writes the
//! cache as before.

mod casts;
mod layout;

use crate::{Model, OnnxError};

/// Returns the decoder with caches of the expected form. A cache for which there is no such form stays as it
/// is.
///
/// # Errors
/// Returns the errors of [`Model::graph`] and [`Decoder::from_graph`](crate::decoder::Decoder::from_graph), of the
/// evaluation and of the editor.
pub(super) fn formed(model: Model) -> Result<Model, OnnxError> {
    layout::formed(casts::formed(model)?)
}
