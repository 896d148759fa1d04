//! Tests lowering: the nodes that replace `TensorScatter`, and refusals.
//!
//! `python-tests/test_lower_exhaustive.py` shows in ONNX Runtime that they compute the same.

use kvscatter::ElementType;
use kvscatter_onnx::proto::attribute_proto::AttributeType;
use kvscatter_onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto,
};
use kvscatter_onnx::{LowerTarget, Model, OnnxError, lower};

use crate::support::{int, model, node, scatter, string, testdata, value};

const TARGETS: [LowerTarget; 2] = [LowerTarget::ScatterElements, LowerTarget::ScatterNd];

/// Returns how often an operator occurs.
fn count(model: &ModelProto, op_type: &str) -> usize {
    model.graph.node.iter().filter(|node| node.op_type.as_deref() == Some(op_type)).count()
}

fn cache(name: &str) -> ValueInfoProto {
    value(name, ElementType::Float32, &["batch", "8", "4"])
}

/// Makes two caches that are written at the same indices, and one that is written at others.
fn three_caches() -> Model {
    let update = |name: &str| value(name, ElementType::Float32, &["batch", "new", "4"]);
    let starts = |name: &str| value(name, ElementType::Int64, &["batch"]);
    let inputs = vec![
        cache("k"),
        cache("v"),
        cache("w"),
        update("new_k"),
        update("new_v"),
        update("new_w"),
        starts("at"),
        starts("elsewhere"),
    ];
    let nodes = vec![
        scatter(&["k", "new_k", "at"], "k_out"),
        scatter(&["v", "new_v", "at"], "v_out"),
        scatter(&["w", "new_w", "elsewhere"], "w_out"),
    ];
    let outputs = vec![cache("k_out"), cache("v_out"), cache("w_out")];
    model(inputs, nodes, outputs)
}

#[test]
fn indices_are_computed_once_for_what_is_written_alike() {
    for (target, op_type) in TARGETS.into_iter().zip(["ScatterElements", "ScatterND"]) {
        let model = three_caches();
        let lowered = lower(&model, target).unwrap();
        let proto = lowered.model.proto();
        assert_eq!(lowered.scatters, 3);
        assert_eq!(proto.graph.node.len(), 3 + lowered.index_nodes);
        assert_eq!((count(proto, op_type), count(proto, "TensorScatter")), (3, 0));
        // There is one for each of the two index inputs. All caches share the size of the batch and the
        // number of rows.
        assert_eq!((count(proto, "Where"), count(proto, "Shape")), (2, 2));
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
    let open = |name: &str| value(name, ElementType::Float32, &["?", "?", "?"]);
    let inputs = vec![open("k"), open("v"), open("new_k"), open("new_v")];
    let nodes = vec![scatter(&["k", "new_k"], "k_out"), scatter(&["v", "new_v"], "v_out")];
    let model = model(inputs, nodes, vec![open("k_out"), open("v_out")]);
    let lowered = lower(&model, LowerTarget::ScatterElements).unwrap();
    assert_eq!(count(lowered.model.proto(), "Shape"), 8, "three dimensions and a length of each");
}

#[test]
fn a_ring_is_taken_modulo() {
    let mut ring = scatter(&["k", "new_k", "at"], "k_out");
    ring.attribute = vec![int("axis", -2), string("mode", "circular")];
    let mut model = three_caches();
    model.proto_mut().graph.get_or_insert_default().node[0] = ring;
    for target in TARGETS {
        let lowered = lower(&model, target).unwrap();
        assert_eq!(count(lowered.model.proto(), "Mod"), 2);
    }
}

#[test]
fn a_real_decoder_keeps_everything_else() {
    let model = Model::load(&testdata("mobius-llama-static/model.onnx")).unwrap();
    let scatters = count(model.proto(), "TensorScatter");
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
        assert_eq!(count(proto, "Where"), 1, "one place for the caches of all layers");
    }
}

#[test]
fn what_cannot_be_lowered() {
    let refused = |model: &Model| lower(model, LowerTarget::ScatterNd).unwrap_err();

    let none = Model::load(&testdata("optimum-llama/model.onnx")).unwrap();
    assert!(matches!(refused(&none), OnnxError::NothingToLower));

    let of_type = |element| {
        let float = |name: &str| value(name, element, &["2", "8", "4"]);
        model(vec![float("k"), float("u")], vec![scatter(&["k", "u"], "y")], vec![float("y")])
    };
    for element in
        [ElementType::Float8E4M3Fn, ElementType::Float8E8M0, ElementType::Int4, ElementType::Float4E2M1]
    {
        let error = refused(&of_type(element));
        assert!(matches!(error.root(), OnnxError::LowerType { element: got } if *got == element), "{error}");
    }
    lower(&of_type(ElementType::BFloat16), LowerTarget::ScatterNd).unwrap();

    let mut unknown = of_type(ElementType::Float32);
    let graph = unknown.proto_mut().graph.get_or_insert_default();
    graph.node.insert(0, node("Neg", &["k"], "past"));
    graph.node.insert(0, node("Neg", &["u"], "update"));
    graph.node[2] = scatter(&["past", "update"], "present");
    graph.node.push(node("Neg", &["present"], "y"));
    let error = refused(&unknown);
    assert!(matches!(error.root(), OnnxError::RankUnknown), "{error}");
    assert!(error.to_string().starts_with("node 2 \"npresent\" (TensorScatter"), "{error}");

    let mut batch = of_type(ElementType::Float32);
    batch.proto_mut().graph.get_or_insert_default().node[0].attribute = vec![int("axis", 0)];
    let error = refused(&batch);
    assert!(matches!(error.root(), OnnxError::Operator(_)), "{error}");
}

/// Each of these small nodes needs hundreds of nodes, because every dimension of every cache is computed.
#[test]
fn the_number_of_added_nodes_is_limited() {
    let link = |at: usize| if at == 0 { "past".to_owned() } else { format!("link{at}") };
    let dims = ["?"; 64];
    let many = |count: usize| {
        let nodes = (0..count).map(|at| {
            let mut scatter = node("TensorScatter", &[&link(at), "new", "at"], &link(at + 1));
            scatter.attribute = vec![int("axis", 63)];
            scatter
        });
        let float = |name: &str| value(name, ElementType::Float32, &dims);
        let inputs = vec![float("past"), float("new"), value("at", ElementType::Int64, &["?"])];
        model(inputs, nodes.collect(), vec![float(&link(count))])
    };
    let few = lower(&many(10), LowerTarget::ScatterNd).unwrap();
    assert!((1_000..10_000).contains(&few.index_nodes), "{}", few.index_nodes);
    let error = lower(&many(400), LowerTarget::ScatterNd).unwrap_err();
    assert!(matches!(error.root(), OnnxError::IndexNodes { limit: 100_000 }), "{error}");
    assert!(matches!(error, OnnxError::InNode { .. }), "{error}");
}

#[test]
fn bodies_and_functions_are_refused_with_their_node() {
    let branch = AttributeProto {
        name: Some("then_branch".to_owned()),
        r#type: Some(AttributeType::GRAPH),
        g: GraphProto { node: vec![scatter(&["k", "new_k"], "inner")], ..GraphProto::default() }.into(),
        ..AttributeProto::default()
    };
    let mut nested = three_caches();
    let mut choice = node("If", &["at"], "chosen");
    choice.attribute = vec![branch];
    nested.proto_mut().graph.get_or_insert_default().node.push(choice);
    let error = lower(&nested, LowerTarget::ScatterElements).unwrap_err();
    assert!(matches!(error.root(), OnnxError::ScatterNested), "{error}");
    assert!(error.to_string().starts_with("node 3 \"nchosen\" (If"), "{error}");

    let mut called = three_caches();
    called.proto_mut().functions = vec![FunctionProto {
        name: Some("write".to_owned()),
        domain: Some("local".to_owned()),
        node: vec![scatter(&["a", "b"], "c")],
        ..FunctionProto::default()
    }];
    let error = lower(&called, LowerTarget::ScatterElements).unwrap_err();
    assert!(matches!(error.root(), OnnxError::ScatterInFunction { name } if name == "write"), "{error}");
}
