//! Converts a decoder.

use super::cache_layout::CacheLayout;
use super::options::ConvertOptions;
use super::passes::{self, PASSES};
use super::report::Report;
use crate::{Model, OnnxError, PlainDecoder, plain_decoder};

/// A decoder with a static cache.
#[derive(Debug)]
pub struct Converted {
    /// The decoder. Weights that the exported model keeps in other files stay in those files, and this model
    /// refers to them.
    pub model: Model,
    /// What the conversion did.
    pub report: Report,
}

/// Converts a decoder to a static cache. The options are a number of slots for each sample, or
/// [`ConvertOptions`].
///
/// If the options name a type or a layout of caches, a decoder whose caches are static already is converted too, and
/// only these change. With [`may_stay`](ConvertOptions::may_stay), such a decoder is returned as it is.
///
/// Merged decoders and stacked caches are first split by [`plain_decoder`].
///
/// # Errors
/// * Returns the errors of [`Model::graph`] for an invalid graph.
/// * Returns the errors of [`plain_decoder`].
/// * Returns [`GraphError::OpsetTooOld`](crate::GraphError::OpsetTooOld) or
///   [`GraphError::OpsetTooNew`](crate::GraphError::OpsetTooNew) if the operator set cannot be raised.
/// * Returns [`GraphError::OperatorUnknown`](crate::GraphError::OperatorUnknown) or
///   [`GraphError::OperatorChanged`](crate::GraphError::OperatorChanged), wrapped in [`OnnxError::InNode`], if a node
///   has no equivalent in the operator set of the converted model.
/// * Returns [`NoStandardForm`](super::NoStandardForm), wrapped in [`OnnxError::InNode`], if an operator of ONNX
///   Runtime cannot be expressed in operators of ONNX.
/// * Returns [`ConvertError::Capacity`](super::ConvertError::Capacity) or [`ConvertRefusal`](super::ConvertRefusal),
///   often wrapped in [`OnnxError::InNode`], if this decoder cannot be converted.
pub fn convert(model: &Model, options: impl Into<ConvertOptions>) -> Result<Converted, OnnxError> {
    let PlainDecoder { model, form } = plain_decoder(model)?;
    let options = options.into();
    let passed = passes::run(&model, options, &PASSES)?;
    let mut converted = passed.model.into_owned();
    let ConvertOptions { keep_attention, .. } = options;
    let mut caches = passed.report.caches.narrow.as_ref().map(ToString::to_string).unwrap_or_default();
    // Rows of another layout have another order, so a saved sample does not fit.
    if options.layout != CacheLayout::default() {
        caches.push_str(&options.layout.to_string());
    }
    let exported = model.graph_hash()?;
    exported.name_decoder(converted.proto_mut());
    let exported = exported.with_options([keep_attention, options.may_cap()], &caches);
    exported.set(converted.graph_hash()?, converted.proto_mut());
    Ok(Converted { model: converted, report: Report { form, ..passed.report } })
}
