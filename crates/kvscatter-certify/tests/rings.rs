//! Converts a decoder with a sliding window to rings, plants faults in it, and checks that the certificate reports
//! them. tract runs the decoder. The original is the same decoder with linear caches and a mask.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test they help")]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kvscatter_certify::certificate::{Certificate, LinearCaches, Verdict};
use kvscatter_certify::{CertifyError, CertifyOptions, certify};
use kvscatter_onnx::convert::{ConvertOptions, RingSize, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value;
use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, type_proto,
};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::SessionError;
use kvscatter_tract::Tract;
use support::{assert_verdict, check, failed, options, testdata};

/// A window of 4 tokens, in steps of up to 3 tokens, that can be taken back by 2 tokens.
const RING: RingSize = RingSize { capacity: 8, window: 4, chunk: 3, rewind: 2 };

const MAX_SEQ: usize = 64;

/// The converted decoder, and its original.
struct Decoder {
    folder: tempfile::TempDir,
    original: PathBuf,
    model: Model,
}

impl Decoder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let exported = Model::load(&testdata("decoders/optimum-0.1-mistral-window/model.onnx")).unwrap();
        let converted =
            |windowed| convert(&exported, ConvertOptions::new(MAX_SEQ).windowed(windowed)).unwrap().model;
        let original = save(&converted(WindowedCaches::Mask), folder.path(), "original.onnx");
        let ring = WindowedCaches::Ring { chunk: Some(RING.chunk), rewind: RING.rewind };
        Self { model: converted(ring), original, folder }
    }

    /// Certifies the decoder after a change.
    fn certified(mut self, change: impl FnOnce(&mut ModelProto)) -> Result<Certificate, CertifyError> {
        change(self.model.proto_mut());
        let model = save(&self.model, self.folder.path(), "model.onnx");
        let options = CertifyOptions { model, original: Some(self.original), ..options("", None) };
        certify(&Tract, &options, &mut |_| {})
    }

    fn failed(self, change: impl FnOnce(&mut ModelProto)) -> Certificate {
        let certificate = self.certified(change).unwrap();
        assert_verdict(&certificate, Verdict::Failed);
        certificate
    }
}

fn save(model: &Model, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    path
}

/// Returns the scenarios in which logits are wrong.
fn wrong(certificate: &Certificate) -> BTreeSet<&str> {
    let wrong = certificate.logits.iter().filter(|logits| logits.worst > logits.tolerance);
    wrong.map(|logits| logits.scenario.as_str()).collect()
}

fn graph(model: &mut ModelProto) -> &mut GraphProto {
    model.graph.as_option_mut().unwrap()
}

/// Makes the metadata declare another ring.
fn declare(model: &mut ModelProto, ring: RingSize) {
    let entry = model.metadata_props.iter_mut().find(|entry| entry.key.as_deref() == Some("kvscatter.rings"));
    entry.unwrap().value = Some(ring.to_string());
}

/// Returns the constant that is an input of the only node of this type that has one with this value.
fn constant<'g>(graph: &'g mut GraphProto, op_type: &str, value: usize) -> &'g mut TensorProto {
    let names: BTreeSet<String> = graph
        .node
        .iter()
        .filter(|node| node.op_type.as_deref() == Some(op_type))
        .flat_map(|node| node.input.clone())
        .collect();
    let value = i64::try_from(value).unwrap();
    let is_it = |tensor: &&mut TensorProto| {
        names.contains(tensor.name.as_deref().unwrap_or_default()) && numbers(tensor) == [value]
    };
    graph.initializer.iter_mut().find(is_it).unwrap()
}

fn numbers(tensor: &TensorProto) -> Vec<i64> {
    match &tensor.raw_data {
        Some(bytes) if !bytes.is_empty() => {
            bytes.as_chunks().0.iter().map(|chunk| i64::from_le_bytes(*chunk)).collect()
        }
        _ => tensor.int64_data.clone(),
    }
}

fn set(tensor: &mut TensorProto, value: usize) {
    let value = i64::try_from(value).unwrap();
    tensor.raw_data = Some(value.to_le_bytes().to_vec().into());
    tensor.int64_data.clear();
}

/// Gives every ring another capacity. The nodes of the mask share one constant for it.
fn resize(model: &mut ModelProto, capacity: usize) {
    let graph = graph(model);
    set(constant(graph, "Mod", RING.capacity), capacity);
    for info in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
        let tensor = info.r#type.as_option_mut().and_then(|ty| ty.value.as_mut());
        let Some(type_proto::Value::TensorType(tensor)) = tensor else { continue };
        let dims = tensor.shape.as_option_mut().map(|shape| &mut shape.dim);
        if let Some([_, _, slots, _]) = dims.map(Vec::as_mut_slice) {
            slots.value = Some(Value::DimValue(i64::try_from(capacity).unwrap()));
        }
    }
}

/// Lets these nodes read their first input modulo the capacity of the ring.
fn wrap_first_input(graph: &mut GraphProto, op_type: &str) {
    let capacity = constant(graph, "Mod", RING.capacity).name.clone().unwrap();
    let is_reader = |node: &NodeProto| {
        node.op_type.as_deref() == Some(op_type) && node.input.iter().all(|input| !input.is_empty())
    };
    let at = graph.node.iter().position(is_reader).unwrap();
    let wrapped = NodeProto::new("Mod", &[&graph.node[at].input[0], &capacity], &["wrapped"]);
    graph.node[at].input[0] = "wrapped".to_owned();
    graph.node.insert(at, wrapped);
}

#[test]
fn rings_are_certified_all_the_way_around() {
    let certificate = Decoder::new().certified(|_| {}).unwrap();
    assert_verdict(&certificate, Verdict::Passed);
    assert_eq!(check(&certificate, "rings-go-around").verdict, Verdict::Passed);
    let scenarios: BTreeSet<_> = certificate.logits.iter().map(|logits| logits.scenario.as_str()).collect();
    for what in [
        "token by token",
        "chunks of 3",
        "chunks of 4",
        "chunks of 5",
        "padded",
        "padded on the left",
        "taken back",
    ] {
        assert!(scenarios.contains(format!("around the rings, {what}").as_str()), "{what}: {scenarios:?}");
    }
    assert_eq!(certificate.parameters.capacity, 4 * RING.capacity);
    let (bytes, sizes) = (4 * 2 * 4 * 4 * 3, &certificate.decoder);
    assert_eq!(sizes.rings().into_iter().collect::<Vec<_>>(), [(RING, 4)]);
    assert_eq!(sizes.bytes, bytes * RING.capacity as u64);
    assert_eq!(sizes.without_rings, Some(LinearCaches { capacity: MAX_SEQ, bytes: bytes * MAX_SEQ as u64 }));
}

#[test]
fn slots_are_pictured_around_the_ring() {
    let certificate = Decoder::new().certified(|_| {}).unwrap();
    assert!(certificate.occupancy.iter().all(|picture| picture.is_ring && picture.capacity == RING.capacity));
    let picture = certificate
        .occupancy
        .iter()
        .find(|picture| picture.scenario == "around the rings, chunks of 3")
        .unwrap();
    // The prompts of 7, 3 and 5 tokens take three steps. Sample 0 then writes the positions 7 to 9.
    let slots = &picture.steps[3].samples[0];
    assert_eq!((&slots.written, &slots.valid), (&vec![0..2, 7..8], &std::iter::once(0..8).collect()));
    let steps = certificate.occupancy.iter().flat_map(|picture| &picture.steps);
    for slots in steps.flat_map(|step| &step.samples) {
        assert!(slots.clobbered.is_empty() && slots.valid.iter().all(|valid| valid.end <= RING.capacity));
    }
}

/// The certificate of a model with growing caches and of one with linear caches does not mention rings.
#[test]
fn rings_are_mentioned_only_where_there_are_some() {
    let decoder = Decoder::new();
    let options = CertifyOptions { model: decoder.original.clone(), ..options("", None) };
    let certificate = certify(&Tract, &options, &mut |_| {}).unwrap();
    assert_verdict(&certificate, Verdict::Passed);
    let json = serde_json::to_string(&certificate).unwrap();
    assert!(!json.contains("ring\"") && !json.contains("rings"), "{json}");
}

#[test]
fn a_ring_that_lacks_one_slot_is_caught() {
    let small = RingSize { capacity: RING.capacity - 1, ..RING };
    let refused = Decoder::new().certified(|model| {
        resize(model, small.capacity);
        declare(model, small);
    });
    let CertifyError::InModel { cause, .. } = refused.unwrap_err() else { panic!("not about the model") };
    assert!(matches!(*cause, CertifyError::Session(SessionError::RingTooSmall { .. })), "{cause}");
    // A smaller window would need no more slots. Only samples that are taken back as far as declared miss the slot.
    let certificate = Decoder::new().failed(|model| {
        resize(model, small.capacity);
        declare(model, RingSize { window: small.window - 1, ..small });
    });
    assert_eq!(wrong(&certificate), BTreeSet::from(["around the rings, taken back"]));
}

#[test]
fn a_mask_that_is_off_by_one_is_caught() {
    for oldest in [RING.window, RING.window - 2] {
        let certificate =
            Decoder::new().failed(|model| set(constant(graph(model), "Min", RING.window - 1), oldest));
        assert!(failed(&certificate).contains("logits-equal"));
        assert!(
            wrong(&certificate).contains("around the rings, token by token"),
            "{:?}",
            wrong(&certificate)
        );
    }
}

#[test]
fn steps_that_overwrite_rows_in_use_are_caught() {
    // The ring has room for steps of 5 rows, if nothing is taken back.
    let certificate =
        Decoder::new().failed(|model| declare(model, RingSize { window: 2, chunk: 6, rewind: 1, ..RING }));
    assert!(failed(&certificate).contains("logits-equal"));
    assert!(wrong(&certificate).contains("around the rings, padded"), "{:?}", wrong(&certificate));
    assert!(!wrong(&certificate).contains("around the rings, token by token"), "{:?}", wrong(&certificate));
}

/// The mask needs positions that keep growing. If they wrap, a query sees fewer tokens.
#[test]
fn positions_that_wrap_are_caught() {
    let certificate = Decoder::new().failed(|model| wrap_first_input(graph(model), "Min"));
    assert!(failed(&certificate).contains("logits-equal"));
    assert!(wrong(&certificate).contains("around the rings, token by token"), "{:?}", wrong(&certificate));
}

#[test]
fn attention_that_is_causal_in_slots_is_caught() {
    let certificate = Decoder::new().failed(|model| {
        for node in graph(model).node.iter_mut().filter(|node| node.op_type.as_deref() == Some("Attention")) {
            node.attribute.retain(|attribute| attribute.name.as_deref() != Some("is_causal"));
            node.attribute.push(AttributeProto::int("is_causal", 1));
        }
    });
    assert!(failed(&certificate).contains("logits-equal"));
}
