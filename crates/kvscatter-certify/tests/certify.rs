//! Certificates of real exports in a real ONNX Runtime.
//!
//! These tests are ignored by default because a checkout does not contain ONNX Runtime. Run them with
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-certify -- --ignored`.

mod support;

use kvscatter_certify::certificate::{SecondOpinion, Verdict};
use kvscatter_certify::{CertifyOptions, certify};
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::internal::proto::AttributeProto;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use support::{assert_verdict, check, options, testdata};

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
