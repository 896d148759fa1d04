//! The passes of a conversion, in order.
//!
//! A pass proposes a change by structure, and states what it keeps. The report states how that is known: by the schemas
//! of operators, because a change of type is exact, or by an evaluation of both decoders. If an evaluation differs, the
//! conversion ends with an error that names a node of the exported model. A pass that finds nothing to change copies
//! nothing.

use std::borrow::Cow;

use super::kept::KeptReason;
use super::options::ConvertOptions;
use super::pass::{Change, Pass, Subject, at_origin, move_to_origin};
use super::probes::Padding;
use super::report::{Claim, PassReport, Report};
use super::{caches, form, raise_scatters, static_caches, to_standard};
use crate::decoder::Decoder;
use crate::edit::Origins;
use crate::{Model, OnnxError, opset};

/// The passes. A decoder whose scatters were raised has static caches, so the conversion ends. Otherwise the last pass
/// makes the caches static, and the others bring the decoder into the form that it expects.
pub(super) const PASSES: [Pass; 6] = [
    Pass { name: "raise operator set", claim: Claim::Values, run: raise },
    Pass { name: "raise scatters", claim: Claim::Consecutive, run: raise_scatters::raised },
    Pass { name: "cache types", claim: Claim::Rounded, run: form::with_one_type },
    Pass { name: "cache layout", claim: Claim::Values, run: form::by_head },
    Pass { name: "standard operators", claim: Claim::Values, run: to_standard::replaced },
    Pass { name: "static caches", claim: Claim::Visible, run: static_caches::converted },
];

/// A decoder after several passes.
pub(super) struct Passed<'m> {
    pub(super) model: Cow<'m, Model>,
    pub(super) padding: Padding,
    pub(super) report: Report,
}

/// Runs passes. The graph and the caches of a decoder are found once after each change but the last.
///
/// # Errors
/// Returns the errors of the passes. If one names a node, it is a node of this model.
pub(super) fn run<'m>(
    model: &'m Model,
    options: ConvertOptions,
    passes: &[Pass],
) -> Result<Passed<'m>, OnnxError> {
    let exported = model.graph()?;
    // The caches are checked before the operator set is raised, so that the error is about the caches.
    // Raising the operator set fails for many decoders whose caches cannot be converted in any case.
    caches::check_written(&exported, &Decoder::from_graph(&exported)?, options.max_seq)?;
    let mut origins = Origins::unchanged(exported.nodes().len());
    let (model, report) = (Cow::Borrowed(model), Report::default());
    let mut passed = Passed { model, padding: Padding::Anywhere, report };
    let mut open = passes.iter();
    while open.len() > 0 {
        let padding = passed.padding;
        let changed = first_change(&passed.model, options, padding, &mut open);
        // Before the first change, an error names a node of the exported model, which may be in a function.
        let is_exported = passed.report.passes.is_empty();
        let place = |error| if is_exported { error } else { at_origin(error, &origins, &exported) };
        let Some((pass, change)) = changed.map_err(place)? else { break };
        let earlier = std::mem::take(&mut origins);
        origins = change.origins.after(&earlier);
        let Change { what, proof, .. } = change;
        passed.report.passes.push(PassReport { name: pass.name, claim: pass.claim, change: what, proof });
        let is_last = change.report.is_some();
        if let Some(mut report) = change.report {
            for kept in &mut report.attention.kept {
                if let KeptReason::Evaluation(error) = &mut kept.reason {
                    move_to_origin(error, &earlier, &exported);
                }
            }
            passed.report = Report { passes: std::mem::take(&mut passed.report.passes), ..report };
        }
        passed.padding = change.padding.unwrap_or(padding);
        passed.model = Cow::Owned(change.model);
        if is_last {
            break;
        }
    }
    Ok(passed)
}

/// Returns the first of the open passes that changes a decoder, and its change.
fn first_change<'p>(
    model: &Model,
    options: ConvertOptions,
    padding: Padding,
    open: &mut std::slice::Iter<'p, Pass>,
) -> Result<Option<(&'p Pass, Change)>, OnnxError> {
    let graph = model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    let subject = Subject { model, graph: &graph, decoder: &decoder, options, padding };
    for pass in open.by_ref() {
        if let Some(change) = (pass.run)(&subject)? {
            return Ok(Some((pass, change)));
        }
    }
    Ok(None)
}

/// Raises the operator set to the first with `TensorScatter`.
fn raise(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let mut model = subject.model.clone();
    let raised = opset::upgrade(model.proto_mut(), opset::NEWEST)?;
    if let Some(origins) = raised {
        let change = Change::new(model, origins).what(format!("nodes to version {}", opset::NEWEST));
        return Ok(Some(change.proof("the schemas of the operators")));
    }
    if model.proto() == subject.model.proto() {
        return Ok(None);
    }
    let origins = Origins::unchanged(subject.graph.nodes().len());
    Ok(Some(Change::new(model, origins).what("versions only".to_owned()).proof("no node changes")))
}

#[cfg(test)]
mod tests {
    use super::{PASSES, run};
    use crate::OnnxError;
    use crate::convert::ConvertOptions;
    use crate::proto::FunctionProto;
    use crate::support::{function, load, opset};

    /// The nodes of a function have other numbers.
    #[test]
    fn an_operator_of_a_function_is_named_if_it_cannot_be_raised() {
        let mut model = load("optimum-llama");
        model.proto_mut().functions.push(FunctionProto {
            opset_import: vec![opset("", 11)],
            ..function("Inner(x) -> y", "a = Neg(x); y, mask = Dropout(a)")
        });
        let error = run(&model, ConvertOptions::new(16), &PASSES).err().unwrap();
        assert!(matches!(&error, OnnxError::InNode { node, .. } if node.op_type == "Dropout"), "{error}");
    }
}
