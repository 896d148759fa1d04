//! The passes of a conversion, in order.
//!
//! A pass proposes a change by structure, states what it keeps, and proves the nodes that it writes: by the schemas of
//! operators, because a change of type is exact, or on random values. The driver then compares masks, positions and
//! shapes of both decoders in a small step. A pass that makes caches static compares them itself, in all kinds of
//! steps. If a value differs, the conversion ends with an error that names a node of the exported model. A pass that
//! finds nothing to change copies nothing.

use std::borrow::Cow;

use super::kept::KeptReason;
use super::options::ConvertOptions;
use super::pass::{self, Change, Pass, Stage, Subject, at_origin, move_to_origin};
use super::probes::Padding;
use super::refusal::ConvertRefusal;
use super::report::{CacheReport, Claim, PassReport, Report};
use super::{
    caches, flat, form, joins, narrow, raise_scatters, ring, state_columns, static_caches, to_standard,
};
use crate::decoder::{Cache, Decoder};
use crate::edit::Origins;
use crate::{Model, OnnxError, opset, standard};

/// The passes. Those that make caches static come after those that bring a decoder into the form that they expect, but
/// scatters are raised first, because the other passes expect caches that grow.
pub(super) static PASSES: [Pass; 10] = [
    Pass {
        name: "raise operator set",
        claim: Claim::Values,
        stage: Stage::Prepares,
        takes: |_, _| false,
        run: raise_operator_set,
    },
    Pass {
        name: "raise scatters",
        claim: Claim::Consecutive,
        stage: Stage::MakesStatic,
        takes: |decoder, _| decoder.caches.iter().all(Cache::is_scattered),
        run: raise_scatters::raise_scatters,
    },
    Pass {
        name: "cache types",
        claim: Claim::Rounded,
        stage: Stage::Prepares,
        takes: |_, _| false,
        run: form::unify_types,
    },
    Pass {
        name: "cache layout",
        claim: Claim::Values,
        stage: Stage::Prepares,
        takes: |_, _| false,
        run: form::change_layouts,
    },
    Pass {
        name: "standard operators",
        claim: Claim::Values,
        stage: Stage::Prepares,
        takes: |_, cache| cache.writer.as_ref().is_some_and(standard::replaces),
        run: to_standard::standardize,
    },
    Pass {
        name: "parts of values",
        claim: Claim::Values,
        stage: Stage::Prepares,
        takes: |_, _| false,
        run: joins::join_parts,
    },
    Pass {
        name: "static caches",
        claim: Claim::Visible,
        stage: Stage::MakesStatic,
        takes: |_, cache| caches::is_appended(cache),
        run: static_caches::make_static,
    },
    Pass {
        name: narrow::PASS,
        claim: Claim::Narrowed,
        stage: Stage::AfterStatic,
        takes: |_, _| false,
        run: narrow::narrow_caches,
    },
    Pass {
        name: flat::PASS,
        claim: Claim::Values,
        stage: Stage::AfterStatic,
        takes: |_, _| false,
        run: flat::flatten_caches,
    },
    Pass {
        name: "columns of states",
        claim: Claim::Values,
        stage: Stage::AfterStatic,
        takes: |_, _| false,
        run: state_columns::return_columns,
    },
];

/// A decoder after several passes.
pub(super) struct PassOutput<'m> {
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
    passes: impl IntoIterator<Item = &'static Pass>,
) -> Result<PassOutput<'m>, OnnxError> {
    let exported = model.graph()?;
    let decoder = Decoder::from_graph(&exported)?;
    // The caches are checked before the operator set is raised, so that the error is about the caches.
    // Raising the operator set fails for many decoders whose caches cannot be converted in any case.
    let is_taken = |cache: &Cache<'_>| PASSES.iter().any(|pass| (pass.takes)(&decoder, cache));
    let is_changed = |cache: &Cache<'_>| cache.is_static() && options.takes_static();
    let mut is_static = decoder.caches.iter().all(is_changed);
    if is_static {
        caches::check_static(&decoder, options.max_seq)?;
    } else {
        caches::check_written(&exported, &decoder, options.max_seq, is_taken)?;
    }
    let mut origins = Origins::unchanged(exported.nodes().len());
    let mut report = Report::default();
    if is_static {
        report = static_caches::report_of_static(&exported, &decoder, options)?;
        (report.caches.rings, report.caches.most_tokens) = ring::described(model, &decoder);
    }
    let model = Cow::Borrowed(model);
    let mut passed = PassOutput { model, padding: Padding::Anywhere, report };
    let mut open = passes.into_iter().peekable();
    while open.peek().is_some() {
        let padding = passed.padding;
        let fitting = open.by_ref().filter(|pass| (pass.stage == Stage::AfterStatic) == is_static);
        let changed = first_change(&passed.model, options, padding, fitting);
        // Before the first change, an error names a node of the exported model, which may be in a function.
        let is_exported = passed.report.passes.is_empty();
        let place = |error| if is_exported { error } else { at_origin(error, &origins, &exported) };
        let Some((pass, change)) = changed.map_err(place)? else { break };
        let earlier = std::mem::take(&mut origins);
        origins = change.origins.after(&earlier);
        let Change { what, proof, .. } = change;
        passed.report.passes.push(PassReport { name: pass.name, claim: pass.claim, change: what, proof });
        if let Some(mut report) = change.report {
            for kept in &mut report.attention.kept {
                if let KeptReason::Evaluation(error) = &mut kept.reason {
                    move_to_origin(error, &earlier, &exported);
                }
            }
            passed.report = Report { passes: std::mem::take(&mut passed.report.passes), ..report };
        }
        if let Some(narrowed) = change.narrowed {
            let CacheReport { bytes_per_slot, bytes_per_sample, linear_bytes_per_sample, narrow, .. } =
                narrowed;
            let earlier = std::mem::take(&mut passed.report.caches);
            passed.report.caches =
                CacheReport { bytes_per_slot, bytes_per_sample, linear_bytes_per_sample, narrow, ..earlier };
        }
        if let Some(states) = change.states {
            passed.report.states = states;
        }
        passed.padding = change.padding.unwrap_or(padding);
        passed.model = Cow::Owned(change.model);
        is_static |= pass.stage == Stage::MakesStatic;
        if is_static && !options.takes_static() && decoder.states.is_empty() {
            break;
        }
    }
    // Nothing has changed, because static caches have this type and layout already.
    let first = decoder
        .caches
        .first()
        .filter(|cache| is_changed(cache) && passed.report.passes.is_empty() && !options.may_stay);
    match first {
        Some(cache) => Err(ConvertRefusal::AlreadyStatic { past: cache.past.to_owned() }.into()),
        None => Ok(passed),
    }
}

/// Returns the first of the open passes that changes a decoder, and its change.
fn first_change(
    model: &Model,
    options: ConvertOptions,
    padding: Padding,
    open: impl Iterator<Item = &'static Pass>,
) -> Result<Option<(&'static Pass, Change)>, OnnxError> {
    let graph = model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    let subject = Subject { model, graph: &graph, decoder: &decoder, options, padding };
    for pass in open {
        if let Some(mut change) = (pass.run)(&subject)? {
            let placed = |error| at_origin(error, &change.origins, &graph);
            if pass.stage != Stage::MakesStatic && pass::check(pass, &subject, &change).map_err(placed)? {
                change.proof.push_str(", and the masks, positions and shapes of a step");
            }
            return Ok(Some((pass, change)));
        }
    }
    Ok(None)
}

/// Raises the operator set to the first with `TensorScatter`.
fn raise_operator_set(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
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
    use kvscatter::ElementType;

    use super::{Change, Claim, PASSES, Pass, first_change, run};
    use crate::convert::ConvertOptions;
    use crate::convert::ConvertRefusal;
    use crate::convert::pass::Stage;
    use crate::convert::probes::Padding;
    use crate::decoder::Decoder;
    use crate::edit::Origins;
    use crate::proto::FunctionProto;
    use crate::support::{self, extend, function, load, parsed};
    use crate::{Model, OnnxError, opset};

    /// The nodes of a function have other numbers.
    #[test]
    fn an_operator_of_a_function_is_named_if_it_cannot_be_raised() {
        let mut model = load("optimum-llama");
        model.proto_mut().functions.push(FunctionProto {
            opset_import: vec![support::opset("", 11)],
            ..function("Inner(x) -> y", "a = Neg(x); y, mask = Dropout(a)")
        });
        let error = run(&model, ConvertOptions::new(16), &PASSES).err().unwrap();
        assert!(matches!(&error, OnnxError::InNode { node, .. } if node.op_type == "Dropout"), "{error}");
    }

    #[test]
    fn a_pass_that_changes_a_value_is_refused() {
        static WRONG: Pass = Pass {
            name: "wrong",
            claim: Claim::Values,
            stage: Stage::Prepares,
            takes: |_, _| false,
            run: |subject| {
                let mut model = subject.model.clone();
                let mut nodes = model.proto_mut().graph.get_or_insert_default().node.iter_mut();
                let compares = nodes.find(|node| node.op_type.as_deref() == Some("LessOrEqual")).unwrap();
                compares.op_type = Some("Less".to_owned());
                let origins = Origins::unchanged(subject.graph.nodes().len());
                Ok(Some(Change::new(model, origins)))
            },
        };
        let error = run(&load("optimum-llama"), ConvertOptions::new(16), [&WRONG]).err().unwrap();
        assert!(matches!(error, OnnxError::InNode { .. }), "{error}");
        assert!(matches!(error.cause(), Some(ConvertRefusal::PassDiffers { pass: "wrong", .. })), "{error}");
    }

    /// Otherwise the change would count as checked as far as possible.
    #[test]
    fn weights_that_cannot_be_read_are_an_error_of_the_check() {
        static SAME: Pass = Pass {
            name: "same",
            claim: Claim::Values,
            stage: Stage::Prepares,
            takes: |_, _| false,
            run: |subject| {
                let origins = Origins::unchanged(subject.graph.nodes().len());
                Ok(Some(Change::new(subject.model.clone(), origins)))
            },
        };
        let checked = |model: &Model| {
            let changed =
                first_change(model, ConvertOptions::new(16), Padding::Anywhere, [&SAME].into_iter());
            changed.map(|change| change.is_some_and(|(_, change)| change.proof.contains("of a step")))
        };
        let mut model = load("optimum-llama");
        assert!(checked(&model).unwrap());
        extend(&mut model, "", "other = Unknown(logits)", "other: float[a, b, c]");
        assert!(!checked(&model).unwrap());
        let mut model = load("optimum-llama");
        extend(&mut model, "", "weight = 0.5[4]; other = Neg(weight)", "other: float[4]");
        let absent = support::external("absent", ElementType::Float32, &[4], &[("location", "absent.data")]);
        let graph = support::graph_mut(&mut model);
        graph.initializer.push(absent);
        let node = graph.node.last_mut().unwrap();
        node.input[0] = "absent".to_owned();
        let error = checked(&model).unwrap_err();
        assert_eq!(error.kind(), "io", "{error}");
    }

    #[test]
    fn new_nodes_may_read_a_value_of_open_shape() {
        let mut model = parsed(
            "ids: int64[batch, new], past: float[batch, 2, past, 4]",
            "row = Unsqueeze(Gather(0.5[16, 4], ids), [1]); rows = Concat(row, row) {axis=1}
            present = Concat(past, rows) {axis=2}
            y = Softmax(GatherND(present, Transpose(NonZero(present)))) {axis=0}",
            "y: float[many], present: float[batch, 2, all, 4]",
        );
        model.proto_mut().opset_import[0].version = Some(12);
        for node in &mut model.proto_mut().graph.get_or_insert_default().node {
            if node.op_type.as_deref() == Some("Unsqueeze") {
                node.input.truncate(1);
                node.attribute.push(support::ints("axes", &[1]));
            }
        }
        let raise = PASSES.iter().take(1);
        let changed = first_change(&model, ConvertOptions::new(16), Padding::Anywhere, raise).unwrap();
        let (_, Change { model, proof, .. }) = changed.unwrap();
        assert!(model.proto().graph.node.iter().any(|node| node.op_type.as_deref() == Some("Flatten")));
        assert!(proof.contains("of a step"), "{proof}");
    }

    /// A value that the exported decoder has too comes from the node that computed it there, and a new value from a
    /// node of the same layer.
    #[test]
    fn new_nodes_come_from_the_nodes_that_they_replace() {
        let by_token = parsed(
            "ids: int64[batch, new], first: float[batch, past, 2, 4], second: float[batch, past, 2, 4]",
            "row = Unsqueeze(Gather(0.5[16, 4], ids), [2])
            rows = Concat(row, row) {axis=2}
            length = Shape(first) {start=1, end=2}
            k = Concat(first, rows) {axis=1}
            v = Concat(second, rows) {axis=1}
            y = Add(ReduceSum(k), ReduceSum(Mul(v, Cast(length) {to=float})))",
            "y: float[], k: float[batch, all, 2, 4], v: float[batch, all, 2, 4]",
        );
        let exports = [
            ("optimum-llama", "static caches"),
            ("genai-llama-gqa", "standard operators"),
            ("decoders/torch-2.15-llama-static", "raise scatters"),
            ("decoders/torchscript-2.15-llama-static", "raise scatters"),
        ];
        let exports = exports.map(|(name, pass)| (name, load(name), pass));
        for (name, mut model, pass) in exports.into_iter().chain([("by token", by_token, "cache layout")]) {
            opset::upgrade(model.proto_mut(), opset::NEWEST).unwrap();
            let pass = PASSES.iter().filter(|row| row.name == pass);
            let changed = first_change(&model, ConvertOptions::new(16), Padding::Anywhere, pass);
            let (_, change) = changed.unwrap().unwrap();
            let [before, after] = [&model, &change.model].map(|model| model.graph().unwrap());
            let decoder = Decoder::from_graph(&before).unwrap();
            let mut checked = 0;
            for node in after.nodes() {
                let origin = change.origins.index_of(node.index()).unwrap();
                for output in node.outputs() {
                    let Some((producer, _)) = before.producer(output) else { continue };
                    let mut writers = decoder.caches.iter().filter(|cache| cache.present == output);
                    let is_writer = writers.any(|cache| cache.writer.unwrap().index() == origin);
                    assert!(
                        producer.index() == origin || is_writer,
                        "{name}: {output} of {}",
                        node.op_type()
                    );
                    checked += 1;
                }
            }
            assert!(checked > 0, "{name}");
        }
    }
}
