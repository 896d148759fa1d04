//! Certificates of real exports in a real ONNX Runtime.
//!
//! These tests are ignored by default because a checkout does not contain ONNX Runtime. Run them with
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-certify -- --ignored`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

#[path = "../../kvscatter-session/tests/replay/protos.rs"]
#[expect(dead_code, reason = "these models are changed exports")]
mod protos;
mod support;

use std::path::PathBuf;

use kvscatter_certify::certificate::{SecondOpinion, Verdict};
use kvscatter_certify::{CertifyOptions, certify};
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use protos::{floats, int64s, node, value};
use support::{assert_verdict, check, failed, options, testdata};

#[test]
#[ignore = "needs ONNX Runtime"]
fn a_static_export_is_certified_with_and_without_its_original() {
    let engine = OnnxRuntime::load(None).unwrap();
    for original in [
        None,
        Some("mobius-llama-dynamic/model.onnx"),
        Some("optimum-llama/model.onnx"),
        Some("genai-llama-gqa/model.onnx"),
    ] {
        let options = options("mobius-llama-static/model.onnx", original);
        let certificate = certify(&engine, &options, &mut |_| {}).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
    }
}

/// Scatters write at the positions of all samples, so such an original runs one sample at a time. A merged decoder
/// also needs its condition, and inputs that only its other branch reads. Stacked caches are copied in every step.
#[test]
#[ignore = "needs ONNX Runtime"]
fn originals_that_a_session_does_not_run_are_compared() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (index, name) in [
        "torch-2.15-llama-static/model.onnx",
        "torchscript-2.15-llama-static/model.onnx",
        "optimum-1.18-gpt2-merged/model.onnx",
        "optimum-0.1-marian/decoder_model_merged.onnx",
        "torchscript-2.15-whisper-stacked/decoder.onnx",
    ]
    .iter()
    .enumerate()
    {
        let original = format!("decoders/{name}");
        let path = folder.path().join(format!("{index}.onnx"));
        let converted = convert(&Model::load(&testdata(&original)).unwrap(), 16).unwrap().model;
        converted.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        let options = CertifyOptions { model: path, ..options("", Some(&original)) };
        let certificate = certify(&engine, &options, &mut |_| {}).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
        assert_eq!(certificate.second_opinion, SecondOpinion::OriginalInSameEngine);
    }
}

/// Returns an export in which a convolution with a state mixes each embedding with those of the two tokens before it.
fn with_convolution() -> Model {
    let mut model = Model::load(&testdata("mobius-llama-dynamic/model.onnx")).unwrap();
    let graph = model.proto_mut().graph.get_or_insert_default();
    let float = 1;
    graph.input.push(value("past.conv", float, &["batch", "64", "2"]));
    graph.output.push(value("present.conv", float, &["batch", "64", "2"]));
    graph.initializer.push(floats("kernel", &[64, 1, 3], [0.7, -0.4, 1.0].repeat(64)));
    let embedded = std::mem::replace(&mut graph.node[0].output[0], "rows".to_owned());
    let transpose = |from, to| NodeProto {
        attribute: vec![AttributeProto::ints("perm", &[0, 2, 1])],
        ..node("Transpose", &[from], &[to])
    };
    let convolution = NodeProto {
        domain: Some("com.microsoft".to_owned()),
        ..node("CausalConvWithState", &["columns", "kernel", "", "past.conv"], &["mixed", "present.conv"])
    };
    graph.node.splice(1..1, [transpose("rows", "columns"), convolution, transpose("mixed", &embedded)]);
    model
}

/// Lets the convolution read the states of the batch in reverse order.
fn exchange_states(graph: &mut GraphProto) {
    for (name, number) in [("last", -1), ("first", i64::MIN), ("axis", 0)] {
        graph.initializer.push(int64s(name, &[1], [number]));
    }
    let convolution =
        graph.node.iter().position(|node| node.input.get(3).is_some_and(|of| of == "past.conv"));
    let convolution = convolution.unwrap();
    graph.node[convolution].input[3] = "exchanged".to_owned();
    graph
        .node
        .insert(convolution, node("Slice", &["past.conv", "last", "first", "axis", "last"], &["exchanged"]));
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn a_decoder_with_a_state_is_certified_with_and_without_its_original() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [original, converted, wrong] =
        ["original", "converted", "wrong"].map(|name| folder.path().join(name).with_extension("onnx"));
    with_convolution().save_with_weights(&original, WeightTransfer::Copy).unwrap();
    let mut model = convert(&with_convolution(), 64).unwrap().model;
    model.save_with_weights(&converted, WeightTransfer::Copy).unwrap();
    exchange_states(model.proto_mut().graph.get_or_insert_default());
    model.save_with_weights(&wrong, WeightTransfer::Copy).unwrap();
    for original in [None, Some(original)] {
        let certified = |model: &PathBuf| {
            let (model, original) = (model.clone(), original.clone());
            let options = CertifyOptions { model, original, is_timed: true, ..options("", None) };
            certify(&engine, &options, &mut |_| {}).unwrap()
        };
        let right = certified(&converted);
        assert_verdict(&right, Verdict::Passed);
        assert_eq!(check(&right, "states-equal-unaliased-run").verdict, Verdict::Passed);
        assert_eq!(check(&right, "every-scenario-is-taken").verdict, Verdict::NotApplicable);
        assert!(right.timings.unwrap().decode.is_some());
        assert_eq!(Vec::from_iter(failed(&certified(&wrong))), ["logits-equal", "position-conventions"]);
    }
}

/// The operator writes the caches in place too, but does not take every scenario.
#[test]
#[ignore = "needs ONNX Runtime"]
fn an_export_whose_operator_writes_the_caches_is_certified_with_and_without_its_original() {
    let engine = OnnxRuntime::load(None).unwrap();
    for original in [None, Some("mobius-llama-static/model.onnx"), Some("optimum-llama/model.onnx")] {
        let options = CertifyOptions {
            capacity: Some(64),
            is_timed: true,
            ..options("genai-llama-gqa/model.onnx", original)
        };
        let certificate = certify(&engine, &options, &mut |_| {}).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
        assert_eq!(check(&certificate, "every-scenario-is-taken").verdict, Verdict::NotApplicable);
        assert_eq!(check(&certificate, "nan-does-not-spread").verdict, Verdict::Passed);
        assert_eq!(check(&certificate, "cache-path-flat").verdict, Verdict::NotMeasured);
        let decode = certificate.timings.unwrap().decode.unwrap();
        assert_eq!(decode.at.iter().all(|at| at.original_ns.is_some()), original.is_some());
    }
}

/// ONNX Runtime 1.32 and later has an attribute with which the operator refuses padding and caches that are
/// shorter than its window.
#[test]
#[ignore = "needs ONNX Runtime"]
fn an_operator_that_refuses_padding_is_certified_without_it() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windows.onnx");
    let mut model = Model::load(&testdata("genai-llama-gqa/model.onnx")).unwrap();
    let nodes = &mut model.proto_mut().graph.get_or_insert_default().node;
    for node in nodes.iter_mut().filter(|node| node.op_type.as_deref() == Some("GroupQueryAttention")) {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some("local_window_size"));
        let attributes = [("local_window_size", 5), ("sliding_window_cache", 1)];
        node.attribute.extend(attributes.map(|(name, value)| AttributeProto::int(name, value)));
    }
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let options = CertifyOptions { model: path, capacity: Some(40), ..options("", None) };
    let certificate = match certify(&engine, &options, &mut |_| {}) {
        Ok(certificate) => certificate,
        Err(error) => return assert!(error.to_string().contains("sliding_window_cache"), "{error}"),
    };
    assert_verdict(&certificate, Verdict::Passed);
    assert!(check(&certificate, "every-scenario-is-taken").evidence.ends_with("prompts padded on the right"));
    assert_eq!(check(&certificate, "logits-equal").verdict, Verdict::Passed);
    let mut ran: Vec<_> = certificate.logits.iter().map(|logits| logits.scenario.as_str()).collect();
    ran.dedup();
    assert_eq!(ran, ["prefill", "chunked prefill", "ragged decode", "to the last slot"]);
    assert!(certificate.logits.iter().all(|logits| logits.compared > 0));
}

/// The model computes scales of whole tensors. Runs on the same tensors must give the same logits, and runs
/// on different tensors are not compared.
#[test]
#[ignore = "needs ONNX Runtime"]
fn an_int8_decoder_is_compared_where_steps_are_the_same() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("static.onnx");
    let original = testdata("decoders/optimum-llama-int8/model.onnx");
    let converted = convert(&Model::load(&original).unwrap(), 64).unwrap();
    converted.model.save_with_weights(&model, WeightTransfer::Copy).unwrap();
    for (original, opinion) in
        [(None, SecondOpinion::None), (Some(original), SecondOpinion::OriginalInSameEngine)]
    {
        let options = CertifyOptions { model: model.clone(), original, ..options("", None) };
        let certificate = certify(&engine, &options, &mut |_| {}).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
        assert_eq!(certificate.second_opinion, opinion);
        let alone: Vec<_> = certificate.logits.iter().map(|logits| logits.scenario.as_str()).collect();
        let expected = ["to the last slot", "sample 0 alone", "sample 1 alone", "sample 2 alone"];
        assert_eq!(alone, expected.map(|name| [name; 2]).concat());
        for logits in &certificate.logits {
            assert!(logits.compared > 0 && logits.worst <= 1e-6, "{logits:?}");
            assert_eq!(logits.greedy_equal, logits.greedy_compared, "{logits:?}");
        }
        let batches = check(&certificate, "logits-equal-in-batches");
        assert_eq!(batches.verdict, Verdict::NotComparable);
        let start = "not comparable because DynamicQuantizeLinear (\"/model/layers.0/input_layernorm/Mul_1_output_0_QuantizeLinear\") and 8 more compute one scale";
        assert!(batches.evidence.starts_with(start), "{}", batches.evidence);
        assert!(
            check(&certificate, "initial-values-do-not-matter")
                .evidence
                .contains("padding on the left was left out")
        );
        // The rows must be equal bit for bit in every scenario.
        for id in ["rows-equal-unaliased-run", "logits-equal-unaliased-run", "present-aliases-past"] {
            assert_eq!(check(&certificate, id).verdict, Verdict::Passed, "{id}");
        }
    }
}
