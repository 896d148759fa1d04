//! Certificates of real exports in a real ONNX Runtime.
//!
//! These tests are ignored by default because a checkout does not contain ONNX Runtime. Run them with
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-certify -- --ignored`.

mod support;

use kvscatter_certify::certificate::{Certificate, SecondOpinion, Verdict};
use kvscatter_certify::{CertifyOptions, certify};
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_onnxruntime::OnnxRuntime;
use support::{options, testdata};

fn say(certificate: &Certificate) -> String {
    let lines = certificate.evidence.checks().map(|check| {
        format!("{:?} {}: {} {:?}", check.verdict, check.id, check.evidence, check.failures.first())
    });
    lines.collect::<Vec<_>>().join("\n")
}

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
        println!("{original:?}\n{}", say(&certificate));
        assert_eq!(certificate.verdict, Verdict::Passed, "{}", say(&certificate));
    }
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
        assert_eq!(certificate.verdict, Verdict::Passed, "{}", say(&certificate));
        assert_eq!(certificate.second_opinion, opinion);
        let alone: Vec<_> = certificate.logits.iter().map(|logits| logits.scenario.as_str()).collect();
        let expected = ["to the last slot", "sample 0 alone", "sample 1 alone", "sample 2 alone"];
        assert_eq!(alone, expected.map(|name| [name; 2]).concat());
        for logits in &certificate.logits {
            assert!(logits.compared > 0 && logits.worst <= 1e-6, "{logits:?}");
            assert_eq!(logits.greedy_equal, logits.greedy_compared, "{logits:?}");
        }
        let check = |id| certificate.evidence.checks().find(|check| check.id == id).unwrap();
        let batches = check("logits-equal-in-batches");
        assert_eq!(batches.verdict, Verdict::NotComparable);
        let start = "not comparable because DynamicQuantizeLinear (\"/model/layers.0/input_layernorm/Mul_1_output_0_QuantizeLinear\") and 8 more compute one scale";
        assert!(batches.evidence.starts_with(start), "{}", batches.evidence);
        assert!(check("initial-values-do-not-matter").evidence.contains("padding on the left was left out"));
        // The rows must be equal bit for bit in every scenario.
        for id in ["rows-equal-unaliased-run", "logits-equal-unaliased-run", "present-aliases-past"] {
            assert_eq!(check(id).verdict, Verdict::Passed, "{id}");
        }
    }
}
