//! Gives the caches of a converted decoder fewer bits, plants faults, and checks that the certificate reports them. The
//! original is the same decoder with linear caches of float32.
//!
//! The tests of int8 are ignored by default because a checkout does not contain ONNX Runtime.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test they help")]

mod support;

use kvscatter::{ElementType, quantize};
use kvscatter_certify::certificate::{Certificate, Verdict};
use kvscatter_certify::{CertifyError, CertifyOptions, certify};
use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value;
use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, type_proto,
};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::Engine;
use kvscatter_tract::Tract;
use support::{assert_verdict, check, failed, options, testdata};

const LLAMA: &str = "optimum-llama/model.onnx";
const WINDOWED: &str = "decoders/optimum-0.1-mistral-window/model.onnx";
const MAX_SEQ: usize = 64;

/// What is wrong with a model whose caches are of int8.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The codes are read as they are, and no scales are stored.
    NoScales,
    /// Scales are written into the next slot.
    ScalesOfAnotherSlot,
    /// The caches of scales have one slot more.
    OneMoreScale,
    KeysRotatedAlone,
    QueriesRotatedAlone,
    /// The codes are those of twice the scale.
    WrongScales,
}

/// Converts an export, and lets `change` change it.
fn certified(
    engine: &dyn Engine,
    export: &str,
    change: impl FnOnce(&mut GraphProto),
) -> Result<Certificate, CertifyError> {
    let folder = tempfile::tempdir().unwrap();
    let [path, original] = ["model.onnx", "original.onnx"].map(|name| folder.path().join(name));
    let ring = WindowedCaches::Ring { chunk: Some(3), rewind: 2 };
    let exported = Model::load(&testdata(export)).unwrap();
    let converted =
        |windowed| convert(&exported, ConvertOptions::new(MAX_SEQ).windowed(windowed)).unwrap().model;
    converted(WindowedCaches::Mask).save_with_weights(&original, WeightTransfer::Copy).unwrap();
    let mut model = converted(ring);
    change(model.proto_mut().graph.as_option_mut().unwrap());
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let options = CertifyOptions { model: path, original: Some(original), ..options("", None) };
    certify(engine, &options, &mut |_| {})
}

fn declared<'g>(graph: &'g mut GraphProto, name: &str) -> &'g mut type_proto::Tensor {
    let values = graph.input.iter_mut().chain(&mut graph.output);
    let value = values.into_iter().find(|value| value.name.as_deref() == Some(name)).unwrap();
    match value.r#type.as_option_mut().unwrap().value.as_mut().unwrap() {
        type_proto::Value::TensorType(tensor) => tensor,
        other => panic!("{other:?}"),
    }
}

fn initializer(graph: &mut GraphProto, name: &str, element: ElementType, dims: &[usize], bytes: Vec<u8>) {
    graph.initializer.push(TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(element.onnx_code()),
        dims: dims.iter().map(|dim| i64::try_from(*dim).unwrap()).collect(),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    });
}

/// Replaces every `TensorScatter` by the nodes that `write` returns, which write the cache in this type and read it.
/// Attention then reads the value whose name ends in `.read`.
fn replace_writes(
    graph: &mut GraphProto,
    element: ElementType,
    mut write: impl FnMut(&mut GraphProto, &NodeProto) -> (Vec<NodeProto>, Vec<NodeProto>),
) {
    for node in std::mem::take(&mut graph.node) {
        let present = node.output[0].clone();
        if node.op_type.as_deref() != Some("TensorScatter") {
            graph.node.push(node);
            continue;
        }
        for name in [&node.input[0], &present] {
            declared(graph, name).elem_type = Some(element.onnx_code());
        }
        let (before, after) = write(graph, &node);
        graph.node.extend(before);
        graph.node.extend(after);
    }
    for node in graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("Attention")) {
        for input in &mut node.input[1..3] {
            input.push_str(".read");
        }
    }
}

fn scatter(node: &NodeProto, past: &str, update: &str, indices: &str, present: &str) -> NodeProto {
    let inputs = [past, update, indices].map(str::to_owned).to_vec();
    NodeProto { input: inputs, output: vec![present.to_owned()], name: None, ..node.clone() }
}

fn cast(from: &str, to: &str, element: ElementType) -> NodeProto {
    let attribute = vec![AttributeProto::int("to", element.onnx_code().into())];
    NodeProto { attribute, ..NodeProto::new("Cast", &[from], &[to]) }
}

/// Gives the caches a half type.
fn halves(graph: &mut GraphProto, element: ElementType) {
    replace_writes(graph, element, |_, node| {
        let present = &node.output[0];
        let [rows, read] = ["rows", "read"].map(|name| format!("{present}.{name}"));
        let written = scatter(node, &node.input[0], &rows, &node.input[2], present);
        let before = vec![cast(&node.input[1], &rows, element), written];
        (before, vec![cast(present, &read, ElementType::Float32)])
    });
}

/// Gives the caches int8 codes, with a float32 scale for each row.
fn int8(graph: &mut GraphProto, fault: Fault) {
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    initializer(graph, "last", ElementType::Int64, &[1], (-1_i64).to_le_bytes().to_vec());
    initializer(graph, "one", ElementType::Int64, &[1], 1_i64.to_le_bytes().to_vec());
    initializer(graph, "two", ElementType::Float32, &[], floats(&[2.0]));
    initializer(graph, "factor", ElementType::Float32, &[], floats(&[quantize::SCALE_FACTOR]));
    initializer(graph, "least", ElementType::Float32, &[], floats(&[quantize::MIN_SCALE]));
    let mut size = 0;
    replace_writes(graph, ElementType::Int8, |graph, node| {
        let [past, update, indices] = [0, 1, 2].map(|at| node.input[at].clone());
        let present = &node.output[0];
        let name = |name: &str| format!("{present}.{name}");
        let of_past = declared(graph, &past).shape.as_option_mut().unwrap().dim.clone();
        let Some(Value::DimValue(head_size)) = of_past[3].value else { panic!("no head size") };
        size = usize::try_from(head_size).unwrap();
        let mut nodes = Vec::new();
        let is_rotated = present.contains("key") && quantize::rotation_block(size).is_some();
        let given = if is_rotated && fault != Fault::QueriesRotatedAlone {
            nodes.push(NodeProto::new("MatMul", &[&update, "hadamard"], &[&name("rotated")]));
            name("rotated")
        } else {
            update
        };
        nodes.push(NodeProto::new("Abs", &[&given], &[&name("abs")]));
        nodes.push(NodeProto {
            attribute: vec![AttributeProto::int("keepdims", 1)],
            ..NodeProto::new("ReduceMax", &[&name("abs"), "last"], &[&name("most")])
        });
        nodes.push(NodeProto::new("Mul", &[&name("most"), "factor"], &[&name("product")]));
        nodes.push(NodeProto::new("Max", &[&name("product"), "least"], &[&name("scale")]));
        let mut divisor = name("scale");
        if fault == Fault::WrongScales {
            divisor = name("doubled");
            nodes.push(NodeProto::new("Mul", &[&name("scale"), "two"], &[&divisor]));
        }
        let attributes =
            [("axis", 3), ("block_size", head_size), ("output_dtype", ElementType::Int8.onnx_code().into())];
        nodes.push(NodeProto {
            attribute: attributes.map(|(name, value)| AttributeProto::int(name, value)).to_vec(),
            ..NodeProto::new("QuantizeLinear", &[&given, &divisor], &[&name("codes")])
        });
        nodes.push(scatter(node, &past, &name("codes"), &indices, present));
        if fault == Fault::NoScales {
            return (nodes, vec![cast(present, &name("read"), ElementType::Float32)]);
        }
        let [past_scale, present_scale] = [&past, present].map(|name| format!("{name}_scale"));
        for (name, is_input) in [(&past_scale, true), (&present_scale, false)] {
            let mut value = ValueInfoProto::tensor(name, ElementType::Float32.onnx_code(), &[]);
            let Some(type_proto::Value::TensorType(tensor)) = &mut value.r#type.get_or_insert_default().value
            else {
                unreachable!("a tensor")
            };
            let mut dims = of_past.clone();
            dims[3].value = Some(Value::DimValue(1));
            if let (Fault::OneMoreScale, Some(Value::DimValue(slots))) = (fault, &mut dims[2].value) {
                *slots += 1;
            }
            tensor.shape.get_or_insert_default().dim = dims;
            if is_input { graph.input.push(value) } else { graph.output.push(value) }
        }
        let mut slots = indices;
        if fault == Fault::ScalesOfAnotherSlot {
            nodes.push(NodeProto::new("Add", &[&slots, "one"], &[&name("next")]));
            slots = name("next");
        }
        nodes.push(scatter(node, &past_scale, &name("scale"), &slots, &present_scale));
        let read = vec![
            cast(present, &name("cast"), ElementType::Float32),
            NodeProto::new("Mul", &[&name("cast"), &present_scale], &[&name("read")]),
        ];
        (nodes, read)
    });
    let Some(block) = quantize::rotation_block(size) else { return };
    assert_eq!(block, size);
    let element = |at: usize| {
        let sign = if ((at / size) & (at % size)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * quantize::inverse_root(size)
    };
    let matrix: Vec<f32> = (0..size * size).map(element).collect();
    initializer(graph, "hadamard", ElementType::Float32, &[size, size], floats(&matrix));
    for mut node in std::mem::take(&mut graph.node) {
        if node.op_type.as_deref() == Some("Attention") && fault != Fault::KeysRotatedAlone {
            let rotated = format!("{}.rotated", node.input[0]);
            graph.node.push(NodeProto::new("MatMul", &[&node.input[0], "hadamard"], &[&rotated]));
            node.input[0] = rotated;
        }
        graph.node.push(node);
    }
}

#[test]
fn caches_of_float16_are_near_what_they_were_given() {
    check_halves(&Tract, ElementType::Float16);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn caches_of_bfloat16_are_near_what_they_were_given() {
    check_halves(&OnnxRuntime::load(None).unwrap(), ElementType::BFloat16);
}

fn check_halves(engine: &dyn Engine, element: ElementType) {
    let certificate = certified(engine, LLAMA, |graph| halves(graph, element)).unwrap();
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
        let certificate = certified(&engine, export, |graph| int8(graph, Fault::None)).unwrap();
        assert_verdict(&certificate, Verdict::Passed);
        assert_stored(&certificate, 4, 0.98);
        let rotation = check(&certificate, "keys-and-queries-rotated");
        assert_eq!(
            (rotation.verdict, rotation.evidence.as_str()),
            (Verdict::Passed, &*format!("{rotated} of 2 key caches are rotated"))
        );
        assert_eq!(check(&certificate, "scales-with-codes").verdict, Verdict::Passed);
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_fault_of_int8_is_caught_by_the_claim_that_it_breaks() {
    let engine = OnnxRuntime::load(None).unwrap();
    for (fault, claims) in [
        (Fault::NoScales, &["scales-with-codes", "stored-near-given", "logits-equal"][..]),
        (Fault::ScalesOfAnotherSlot, &["scales-with-codes", "stored-near-given", "rows-lie-where-named"]),
        // The scores of this model are so small that they hardly change its logits.
        (Fault::KeysRotatedAlone, &["keys-and-queries-rotated"]),
        (Fault::QueriesRotatedAlone, &["keys-and-queries-rotated"]),
        (Fault::WrongScales, &["stored-near-given", "logits-equal"]),
    ] {
        let certificate = certified(&engine, LLAMA, |graph| int8(graph, fault)).unwrap();
        assert_eq!(certificate.verdict, Verdict::Failed, "{fault:?}");
        let failed = failed(&certificate);
        assert!(claims.iter().all(|claim| failed.contains(claim)), "{fault:?}: {failed:?}");
    }
    // A session needs one capacity, and ONNX Runtime compares the shapes of a ring.
    for (export, why) in [(LLAMA, "has 65"), (WINDOWED, "Incompatible dimensions")] {
        let error = certified(&engine, export, |graph| int8(graph, Fault::OneMoreScale)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}
