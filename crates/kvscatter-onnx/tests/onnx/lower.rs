//! Tests lowering: the nodes that replace `TensorScatter`, and refusals.
//!
//! `python-tests/test_lower_exhaustive.py` shows in ONNX Runtime that they compute the same.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{ModelProto, NodeProto};
use kvscatter_onnx::{LowerError, LowerTarget, Lowered, Model, OnnxError, lower};

use crate::support::{Nodes, append, assert_refused, count, function, graph_mut, load, parsed};

const TARGETS: [LowerTarget; 2] = [LowerTarget::ScatterElements, LowerTarget::ScatterNd];

/// Makes two caches that are written at the same indices, and one that is written at others.
fn three_caches() -> Model {
    parsed(
        "k, v, w: float[batch, 8, 4], new_k, new_v, new_w: float[batch, new, 4], at, elsewhere: int64[batch]",
        "k_out = TensorScatter(k, new_k, at) {axis=1}
        v_out = TensorScatter(v, new_v, at) {axis=1}
        w_out = TensorScatter(w, new_w, elsewhere) {axis=1}",
        "k_out, v_out, w_out: float[batch, 8, 4]",
    )
}

#[test]
fn indices_are_computed_once_for_what_is_written_alike() {
    for (target, op_type) in TARGETS.into_iter().zip(["ScatterElements", "ScatterND"]) {
        let model = three_caches();
        let lowered = lower(&model, target).unwrap();
        let proto = lowered.model.proto();
        assert_eq!(lowered.scatters, 3);
        assert_eq!(proto.graph.node.len(), 3 + lowered.index_nodes);
        let count = |op_type| count(&lowered.model, op_type);
        assert_eq!((count(op_type), count("TensorScatter")), (3, 0));
        // There is one for each of the two index inputs. All caches share the size of the batch and the
        // number of rows.
        assert_eq!((count("Where"), count("Shape")), (2, 2));
        let written: Vec<_> =
            proto.graph.node.iter().filter(|node| node.op_type.as_deref() == Some(op_type)).collect();
        assert_eq!(written[0].input[1], written[1].input[1]);
        assert_ne!(written[0].input[1], written[2].input[1]);
        assert_eq!(written[0].name.as_deref(), Some("nk_out"), "it keeps its name");
        assert_eq!((proto.graph.input.len(), proto.graph.output.len()), (8, 3));
        lowered.model.graph().unwrap();
    }
}

#[test]
fn sizes_that_nothing_declares_are_asked_of_each_tensor() {
    let model = parsed(
        "k, v, new_k, new_v: float[?, ?, ?]",
        "k_out = TensorScatter(k, new_k) {axis=1}; v_out = TensorScatter(v, new_v) {axis=1}",
        "k_out, v_out: float[?, ?, ?]",
    );
    let lowered = lower(&model, LowerTarget::ScatterElements).unwrap();
    assert_eq!(count(&lowered.model, "Shape"), 8, "three dimensions and a length of each");
}

#[test]
fn a_ring_is_taken_modulo() {
    let mut model = three_caches();
    let ring = r#"k_out = TensorScatter(k, new_k, at) {axis=-2, mode="circular"}"#;
    graph_mut(&mut model).node[0] = Nodes::parse(ring).nodes.remove(0);
    for target in TARGETS {
        let lowered = lower(&model, target).unwrap();
        assert_eq!(count(&lowered.model, "Mod"), 2);
    }
}

#[test]
fn a_real_decoder_keeps_everything_else() {
    let model = load("mobius-llama-static");
    let scatters = count(&model, "TensorScatter");
    let others = |proto: &ModelProto| -> Vec<NodeProto> {
        let others = proto.graph.node.iter().filter(|node| {
            node.name.as_deref().is_some_and(|name| name.contains('/') && !name.contains("TensorScatter"))
        });
        others.cloned().collect()
    };
    for target in TARGETS {
        let lowered = lower(&model, target).unwrap();
        let proto = lowered.model.proto();
        assert_eq!(lowered.scatters, scatters);
        assert_eq!(others(proto), others(model.proto()));
        assert_eq!(proto.graph.value_info, model.proto().graph.value_info);
        assert_eq!(proto.graph.input, model.proto().graph.input);
        let weights = model.proto().graph.initializer.len();
        assert_eq!(proto.graph.initializer[..weights], model.proto().graph.initializer[..]);
        assert_eq!(count(&lowered.model, "Where"), 1, "one place for the caches of all layers");
    }
}

#[test]
fn models_that_cannot_be_lowered() {
    let lowered = |model: &Model| lower(model, LowerTarget::ScatterNd);
    assert_refused!(lowered(&load("optimum-llama")), LowerError::NothingToLower);
    let with_nodes = |element: ElementType, nodes: &str| {
        let dims = "[2, 8, 4]";
        parsed(&format!("k, u: {element}{dims}"), nodes, &format!("y: {element}{dims}"))
    };
    let of_type = |element| with_nodes(element, "y = TensorScatter(k, u) {axis=1}");
    for element in
        [ElementType::Float8E4M3Fn, ElementType::Float8E8M0, ElementType::Int4, ElementType::Float4E2M1]
    {
        assert_refused!(
            lowered(&of_type(element)),
            LowerError::LowerType { element: got } if *got == element
        );
    }
    lowered(&of_type(ElementType::BFloat16)).unwrap();

    let unknown = "present = TensorScatter(Neg(k), Neg(u)) {axis=1}; y = Neg(present)";
    let unknown = lowered(&with_nodes(ElementType::Float32, unknown));
    assert_in_node(&unknown, "node 2 \"npresent\" (TensorScatter");
    assert_refused!(unknown, LowerError::RankUnknown);
    let batch = lowered(&with_nodes(ElementType::Float32, "y = TensorScatter(k, u) {axis=0}"));
    assert_refused!(batch, kvscatter::Error::AxisIsBatch { .. });
}

/// Asserts that the text of an error begins with its node.
fn assert_in_node(result: &Result<Lowered, OnnxError>, node: &str) {
    let text = result.as_ref().unwrap_err().to_string();
    assert!(text.starts_with(node), "{text}");
}

/// Each of these small nodes needs hundreds of nodes, because every dimension of every cache is computed.
#[test]
fn the_number_of_added_nodes_is_limited() {
    let dims = vec!["?"; 64].join(", ");
    let many = |count: usize| {
        let scatter = |at| format!("link{} = TensorScatter(link{at}, new, at) {{axis=63}};", at + 1);
        let nodes: String = (0..count).map(scatter).collect();
        let inputs = format!("link0, new: float[{dims}], at: int64[?]");
        parsed(&inputs, &nodes, &format!("link{count}: float[{dims}]"))
    };
    let few = lower(&many(10), LowerTarget::ScatterNd).unwrap();
    assert!((1_000..10_000).contains(&few.index_nodes), "{}", few.index_nodes);
    let lowered = lower(&many(400), LowerTarget::ScatterNd);
    assert_in_node(&lowered, "node ");
    assert_refused!(lowered, LowerError::IndexNodes { limit: 100_000 });
}

#[test]
fn bodies_and_functions_are_refused_with_their_node() {
    let mut nested = three_caches();
    append(&mut nested, "chosen = If(at) {then_branch={inner = TensorScatter(k, new_k) {axis=1}}}");
    let lowered = lower(&nested, LowerTarget::ScatterElements);
    assert_in_node(&lowered, "node 3 \"nchosen\" (If");
    assert_refused!(lowered, LowerError::ScatterNested);

    let mut called = three_caches();
    called.proto_mut().functions = vec![function("write(a, b) -> c", "c = TensorScatter(a, b) {axis=1}")];
    assert_refused!(lower(&called, LowerTarget::ScatterElements), LowerError::ScatterInFunction { name } if name == "write");
}
