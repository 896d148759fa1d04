//! The pass that makes `TensorScatter` of scatters into caches of a fixed size, as an export of transformers'
//! `StaticCache` has them.
//!
//! PyTorch exports `index_copy_` as `ScatterND` or `ScatterElements`. All samples of such a decoder are at the same
//! position, which an input contains: the position of the first new token, or of each of them. `TensorScatter` takes a
//! position for each sample, so the input becomes `write_indices`, int64 `[batch]`, and masks and angles are computed
//! for each sample. A lowered decoder has `write_indices` already.
//!
//! Both decoders are [evaluated](proof) in steps that begin at different positions. The indices must be those of
//! `TensorScatter`, and every other value that arithmetic uses must be the same for each sample.

mod proof;
mod samples;
mod step;
#[cfg(test)]
mod tests;
mod write;

use std::rc::Rc;

use kvscatter::ElementType;

use super::pass::{Change, Subject, at_origin};
use super::refusal::ConvertRefusal;
use super::report::Report;
use super::{caches, metadata, static_caches};
use crate::decoder::{Cache, Decoder};
use crate::edit::{Editor, Origins};
use crate::fold::{Budget, Fold};
use crate::proto::set_metadata;
use crate::{Graph, Model, OnnxError};

use samples::{ExportedNames, PerSample};
use step::ScatteredDecoder;
use write::Write;

/// Replaces the scatters of a decoder of the newest operator set, if scatters write all of its caches.
pub(super) fn raise_scatters(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, .. } = *subject;
    let max_seq = options.max_seq;
    caches::each(decoder, |cache| differs(decoder, cache))?;
    caches::each(decoder, |cache| match cache.capacity().size() {
        Some(length) if cache.is_scattered() && length != max_seq => {
            Some(ConvertRefusal::PastFixed { past: cache.past.to_owned(), length, max_seq })
        }
        _ => None,
    })?;
    let scattered = decoder.caches.iter().filter(|cache| cache.is_scattered());
    let writes = scattered.map(|cache| Write::new(graph, cache)).collect::<Result<Vec<_>, _>>()?;
    let [first, ..] = writes.as_slice() else { return Ok(None) };
    let setting = ScatteredDecoder::new(graph, decoder, first, max_seq)?;
    let (mut raised, origins, compared) = proved(model, graph, &setting, &writes)?;
    if setting.positions.are_shared {
        // Both evaluations feed this input, which no node reads now.
        let inputs = &mut raised.proto_mut().graph.get_or_insert_default().input;
        inputs.retain(|input| input.name.as_deref() != Some(setting.positions.name));
    }
    let finished = raised.graph()?;
    let static_decoder = Decoder::from_graph(&finished)?;
    let report = static_caches::report_of_static(&finished, &static_decoder, options)
        .map_err(|error| at_origin(error, &origins, graph))?;
    describe(decoder, max_seq, &report, &mut raised);
    let change = Change::new(raised, origins).what(format!("{} caches", writes.len()));
    let change = change.proof(format!("slots and values of each sample in {compared} steps"));
    Ok(Some(Change { report: Some(report), ..change }))
}

/// Returns the refusal of a cache that has another capacity than the first one.
fn differs(decoder: &Decoder<'_>, cache: &Cache<'_>) -> Option<ConvertRefusal> {
    let mut scattered = decoder.caches.iter().filter(|cache| cache.is_scattered());
    let first = scattered.next().filter(|_| cache.is_scattered())?;
    let ([expected, length], other) = ([first, cache].map(|cache| cache.capacity().size()), first.past);
    let (expected, length) = (expected?, length.filter(|&length| Some(length) != expected)?);
    Some(ConvertRefusal::PastsDiffer {
        past: cache.past.to_owned(),
        length,
        other: other.to_owned(),
        expected,
    })
}

/// Returns the decoder with `TensorScatter`, where its nodes come from, and the number of steps that were compared.
fn proved<'m>(
    model: &Model,
    graph: &Graph<'m>,
    setting: &ScatteredDecoder<'m>,
    writes: &[Write<'m>],
) -> Result<(Model, Origins, usize), OnnxError> {
    let external = model.shared_external_data()?;
    let budget = Rc::new(Budget::new());
    let steps = setting.steps();
    let mut before = Fold::with(graph, external.as_ref(), Some(Rc::clone(&budget)));
    if let Some(step) = steps.first() {
        setting.feed_exported(step, 0, &mut before)?;
    }
    let mut raised = model.clone();
    let (input, operands, origins) = replaced(graph, setting, writes, before, &mut raised)?;
    let raised_graph = raised.graph()?;
    for step in &steps {
        let mut after = Fold::with(&raised_graph, external.as_ref(), Some(Rc::clone(&budget)));
        setting.feed_raised(step, &input, &mut after)?;
        for (sample, start) in setting.samples(step) {
            let mut before = Fold::with(graph, external.as_ref(), Some(Rc::clone(&budget)));
            setting.feed_exported(step, start, &mut before)?;
            for write in writes {
                proof::check_slots(write, start, &mut before)?;
            }
            let checked =
                proof::check_values(graph, &raised_graph, &operands, sample, [&mut before, &mut after]);
            checked.map_err(|error| at_origin(error, &origins, graph))?;
        }
    }
    Ok((raised, origins, steps.len()))
}

/// Writes the new nodes. Returns the input with the first position of each sample, the operands that have an axis for
/// the samples now, and where the nodes come from.
fn replaced<'m>(
    graph: &Graph<'m>,
    setting: &ScatteredDecoder<'m>,
    writes: &[Write<'m>],
    before: Fold<'m>,
    raised: &mut Model,
) -> Result<(String, ExportedNames<'m>, Origins), OnnxError> {
    let mut editor = Editor::new(raised.proto_mut())?;
    let positions = &setting.positions;
    let int64 = ElementType::Int64;
    let (input, starts) = match positions.are_shared {
        true => {
            let added = editor.add_input("write_indices", int64, &[setting.batch_dim]);
            (added.clone(), added)
        }
        false => (positions.name.to_owned(), editor.cast(positions.name, positions.element, int64)),
    };
    for write in writes {
        write.replace(&starts, &mut editor);
    }
    let operands = match positions.are_shared {
        true => {
            let (values, operands) = Default::default();
            PerSample { graph, setting, editor: &mut editor, before, values, operands }.compute(&starts)?
        }
        false => ExportedNames::new(),
    };
    Ok((input, operands, editor.finish()?))
}

/// Describes the decoder in its metadata. Its masks are those of the exported one.
fn describe(decoder: &Decoder<'_>, max_seq: usize, report: &Report, raised: &mut Model) {
    let proto = raised.proto_mut();
    metadata::write_caches(decoder, max_seq, &max_seq.to_string(), proto);
    let write_indices = &report.inputs.write_indices;
    let text = format!(
        "{write_indices}: int64 [batch], the position of each sample's first new token; token i of sample b has position \
         {write_indices}[b] + i, which must be below {max_seq} and is its slot. The exported positions of a step are \
         taken to be consecutive from the first one"
    );
    set_metadata(proto, "kvscatter.write_indices", &text);
    let compared = "the slots of the exported writes, and the exported masks and values of positions, were evaluated and \
                    compared for each sample, up to the last slot";
    set_metadata(proto, "kvscatter.compared", compared);
    set_metadata(proto, "kvscatter.least_onnxruntime", &report.least_onnxruntime.to_string());
}
