//! Certificates of real exports in a real ONNX Runtime. Ignored by default, since no checkout brings one:
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-certify -- --ignored`.

use std::path::{Path, PathBuf};

use kvscatter_certify::certificate::{Certificate, Machine, Verdict};
use kvscatter_certify::onnxruntime::OnnxRuntime;
use kvscatter_certify::{Request, certify};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name)
}

fn request(model: &str, original: Option<&str>) -> Request {
    Request {
        model: testdata(model),
        original: original.map(testdata),
        batch: None,
        prompts: None,
        steps: None,
        chunk: None,
        capacity: None,
        seed: 1,
        tolerance: None,
        threads: 1,
        memory: 1 << 30,
        is_timed: false,
        command: String::new(),
        machine: Machine { cpu: String::new(), cores: 1, os: String::new() },
        made_at: None,
    }
}

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
