//! Certificates of real exports in a real ONNX Runtime. Ignored by default, since no checkout brings one:
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-certify -- --ignored`.

mod support;

use kvscatter_certify::certificate::{Certificate, Verdict};
use kvscatter_certify::certify;
use kvscatter_onnxruntime::OnnxRuntime;
use support::request;

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
        let request = request("mobius-llama-static/model.onnx", original);
        let certificate = certify(&engine, &request, &mut |_| {}).unwrap();
        println!("{original:?}\n{}", say(&certificate));
        assert_eq!(certificate.verdict, Verdict::Passed, "{}", say(&certificate));
    }
}
