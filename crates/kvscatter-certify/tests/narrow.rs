//! Converts decoders to narrow caches, plants faults, and checks that the certificate reports them. The original is the
//! same decoder with linear caches of float32.
//!
//! The tests of int8 are ignored by default because a checkout does not contain ONNX Runtime.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

mod support;

use std::collections::BTreeMap;

use kvscatter::ElementType;
use kvscatter_certify::certificate::{Certificate, Verdict};
use kvscatter_certify::{CertifyError, CertifyOptions, certify};
use kvscatter_onnx::convert::{CacheType, ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value;
use kvscatter_onnx::internal::proto::{GraphProto, NodeProto, TensorProto, type_proto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::Engine;
use kvscatter_tract::Tract;
use support::{assert_verdict, check, failed, options, testdata};

const LLAMA: &str = "optimum-llama/model.onnx";
const WINDOWED: &str = "decoders/optimum-0.1-mistral-window/model.onnx";
const MAX_SEQ: usize = 64;

/// Converts an export to caches of this type, lets `change` change it, and certifies it.
fn certified(
    engine: &dyn Engine,
    export: &str,
    cache_type: CacheType,
    change: impl FnOnce(&mut GraphProto),
) -> Result<Certificate, CertifyError> {
    let folder = tempfile::tempdir().unwrap();
    let [path, original] = ["model.onnx", "original.onnx"].map(|name| folder.path().join(name));
    let exported = Model::load(&testdata(export)).unwrap();
    let options_of = |windowed| ConvertOptions::new(MAX_SEQ).windowed(windowed);
    let linear = convert(&exported, options_of(WindowedCaches::Mask)).unwrap().model;
    linear.save_with_weights(&original, WeightTransfer::Copy).unwrap();
    let ring = options_of(WindowedCaches::Ring { chunk: Some(3), rewind: 2 });
    let mut model = convert(&exported, ring.caches(Some(cache_type), true)).unwrap().model;
    change(model.proto_mut().graph.as_option_mut().unwrap());
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let options = CertifyOptions { model: path, original: Some(original), ..options("", None) };
    certify(engine, &options, &mut |_| {})
}

#[test]
fn caches_of_float16_are_near_what_they_were_given() {
    check_halves(&Tract, CacheType::Float16);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn caches_of_bfloat16_are_near_what_they_were_given() {
    check_halves(&OnnxRuntime::load(None).unwrap(), CacheType::BFloat16);
}

fn check_halves(engine: &dyn Engine, cache_type: CacheType) {
    let certificate = certified(engine, LLAMA, cache_type, |_| {}).unwrap();
    assert_verdict(&certificate, Verdict::Passed);
    assert_stored(&certificate, 4, 0.9);
    assert!(certificate.evidence.checks().all(|check| check.id != "scales-with-codes"));
}

/// Checks the numbers of a certificate that passed.
fn assert_stored(certificate: &Certificate, caches: usize, worst: f64) {
    let stored = &certificate.stored;
    assert_eq!(stored.len(), caches);
    for rows in stored {
        assert!((worst..=1.0).contains(&rows.worst) && rows.compared > 1000, "{rows:?}");
        assert!(rows.largest_error > 0.0 && rows.largest_given > rows.largest_error, "{rows:?}");
        let bounds =
            [rows.score_bound, rows.output_bound].map(|bound| bound.is_some_and(|bound| bound > 0.0));
        assert_eq!(bounds, [".key", ".value"].map(|part| rows.cache.ends_with(part)), "{rows:?}");
    }
    for id in ["stored-near-given", "attention-error-bound"] {
        assert_eq!(check(certificate, id).verdict, Verdict::Passed, "{id}");
    }
    let divergence = certificate.divergence.as_ref().unwrap();
    assert!(divergence.mean_kl > 0.0 && divergence.mean_kl <= divergence.p99_kl, "{divergence:?}");
    assert!(divergence.same_top_1 <= divergence.tokens && divergence.tokens > 100, "{divergence:?}");
    assert_eq!(check(certificate, "near-original-distribution").verdict, Verdict::Passed);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn caches_of_int8_are_near_what_they_were_given() {
    let engine = OnnxRuntime::load(None).unwrap();
    for (export, rotated) in [(LLAMA, 2), (WINDOWED, 0)] {
        let certificate = certified(&engine, export, CacheType::Int8, |_| {}).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
        assert_stored(&certificate, 4, 0.98);
        let rotation = check(&certificate, "keys-and-queries-rotated");
        assert_eq!(rotation.verdict, Verdict::Passed);
        assert_eq!(rotation.evidence, format!("{rotated} of 2 key caches are rotated"));
        assert_eq!(check(&certificate, "scales-with-codes").verdict, Verdict::Passed);
    }
}

fn is_scale(name: &str) -> bool {
    name.ends_with("_scale")
}

fn constant(graph: &mut GraphProto, name: &str, element: ElementType, bytes: Vec<u8>) {
    graph.initializer.push(TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(element.onnx_code()),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    });
}

/// Replaces an input of every node of this type by what `replace` returns for it.
fn replace(graph: &mut GraphProto, op_type: &str, slot: usize, replace: impl Fn(&str) -> String) {
    for node in graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some(op_type)) {
        node.input[slot] = replace(&node.input[slot]);
    }
}

/// Lets every node of this type read rows as they are before the rotation.
fn unrotate(graph: &mut GraphProto, op_type: &str) {
    let products = graph.node.iter().filter(|node| node.op_type.as_deref() == Some("MatMul"));
    let before: BTreeMap<_, _> =
        products.map(|node| (node.output[0].clone(), node.input[0].clone())).collect();
    replace(graph, op_type, 0, |name| before.get(name).map_or(name, String::as_str).to_owned());
}

fn read_without_scales(graph: &mut GraphProto) {
    constant(graph, "one", ElementType::Float32, 1_f32.to_le_bytes().to_vec());
    let one = |name: &str| if is_scale(name) { "one".to_owned() } else { name.to_owned() };
    (0..2).for_each(|slot| replace(graph, "Mul", slot, one));
}

fn write_scales_into_the_next_slot(graph: &mut GraphProto) {
    constant(graph, "one", ElementType::Int64, 1_i64.to_le_bytes().to_vec());
    let is_write = |node: &NodeProto| node.op_type.as_deref() == Some("TensorScatter");
    let indices = graph.node.iter().find(|node| is_write(node)).unwrap().input[2].clone();
    for node in graph.node.iter_mut().filter(|node| is_write(node) && is_scale(&node.input[0])) {
        node.input[2] = "next".to_owned();
    }
    graph.node.insert(0, NodeProto::new("Add", &[&indices, "one"], &["next"]));
}

/// The codes are those of twice the scale that is stored.
fn divide_by_other_scales(graph: &mut GraphProto) {
    for mut node in std::mem::take(&mut graph.node) {
        if node.op_type.as_deref() == Some("QuantizeLinear") {
            let doubled = format!("{}.doubled", node.output[0]);
            let scale = std::mem::replace(&mut node.input[1], doubled.clone());
            graph.node.push(NodeProto::new("Add", &[&scale, &scale], &[&doubled]));
        }
        graph.node.push(node);
    }
}

fn lengthen_scales(graph: &mut GraphProto) {
    let is_of_scales = |name: &Option<String>| name.as_deref().is_some_and(is_scale);
    let values = graph.input.iter_mut().chain(&mut graph.output).filter(|value| is_of_scales(&value.name));
    for value in values {
        let value = value.r#type.as_option_mut().unwrap().value.as_mut().unwrap();
        let type_proto::Value::TensorType(tensor) = value else { continue };
        let dims = &mut tensor.shape.as_option_mut().unwrap().dim;
        if let Some(Value::DimValue(slots)) = &mut dims[2].value {
            *slots += 1;
        }
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_fault_of_int8_is_caught_by_the_claim_that_it_breaks() {
    let engine = OnnxRuntime::load(None).unwrap();
    let rotate_queries_alone = |graph: &mut GraphProto| {
        ["Abs", "QuantizeLinear"].iter().for_each(|op_type| unrotate(graph, op_type));
    };
    for (fault, claims) in [
        (
            &read_without_scales as &dyn Fn(&mut GraphProto),
            &["scales-with-codes", "stored-near-given", "logits-equal"][..],
        ),
        (
            &write_scales_into_the_next_slot,
            &["scales-with-codes", "stored-near-given", "rows-lie-where-named"],
        ),
        // The scores of this model are so small that they hardly change its logits.
        (&|graph: &mut GraphProto| unrotate(graph, "Attention"), &["keys-and-queries-rotated"]),
        (&rotate_queries_alone, &["keys-and-queries-rotated"]),
        (&divide_by_other_scales, &["stored-near-given", "logits-equal"]),
    ] {
        let certificate = certified(&engine, LLAMA, CacheType::Int8, fault).unwrap();
        let failed = failed(&certificate);
        assert!(claims.iter().all(|claim| failed.contains(claim)), "{claims:?}: {failed:?}");
    }
    // A session needs one capacity, and ONNX Runtime compares the shapes of a ring.
    for (export, why) in [(LLAMA, "has 65"), (WINDOWED, "Incompatible dimensions")] {
        let error = certified(&engine, export, CacheType::Int8, lengthen_scales).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}
