//! Tests every change on nodes with literal attributes.

use super::upgrade;
use crate::OnnxError;
use crate::edit::NewNode;
use crate::edit::names::Names;
use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

/// Creates a node that reads the given inputs and has the output `y`.
fn node(op_type: &str, inputs: &[&str]) -> NewNode {
    NewNode::new(op_type, inputs).outputs(&["y"])
}

fn model(version: i64, node: NewNode) -> ModelProto {
    let node = node.into_proto(&mut Names::default());
    let graph = GraphProto { node: vec![node], ..GraphProto::default() };
    ModelProto { graph: graph.into(), opset_import: vec![opset(version)], ..ModelProto::default() }
}

fn opset(version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { version: Some(version), ..OperatorSetIdProto::default() }
}

/// Returns `Op(inputs){attributes} -> outputs`.
fn line(node: &NodeProto) -> String {
    let attributes: Vec<_> = node.attribute.iter().map(attribute).collect();
    let op_type = node.op_type.as_deref().unwrap();
    let attributes =
        if attributes.is_empty() { String::new() } else { format!("{{{}}}", attributes.join(" ")) };
    format!("{op_type}({}){attributes} -> {}", node.input.join(", "), node.output.join(", "))
}

fn attribute(attribute: &AttributeProto) -> String {
    let value = match attribute.r#type.unwrap() {
        AttributeType::INT => attribute.i.unwrap().to_string(),
        AttributeType::INTS => format!("{:?}", attribute.ints),
        AttributeType::STRING => String::from_utf8(attribute.s.clone().unwrap()).unwrap(),
        other => panic!("{other:?}"),
    };
    format!("{}={value}", attribute.name.as_deref().unwrap())
}

fn upgraded(version: i64, node: NewNode) -> Vec<String> {
    let mut model = model(version, node);
    upgrade(&mut model, 24).unwrap();
    assert_eq!((model.ir_version, model.opset_import[0].version), (Some(11), Some(24)));
    model.graph.node.iter().map(line).collect()
}

fn refused(version: i64, node: NewNode) -> String {
    upgrade(&mut model(version, node), 24).unwrap_err().to_string()
}

#[test]
fn axes_become_an_input() {
    for (op_type, versions) in
        [("Squeeze", [11, 12]), ("Unsqueeze", [11, 12]), ("ReduceSum", [11, 12]), ("ReduceMean", [13, 17])]
    {
        for version in versions {
            let axes = node(op_type, &["x"]).ints("axes", &[0, -1]);
            assert_eq!(
                upgraded(version, axes),
                ["Constant(){value_ints=[0, -1]} -> constant", &format!("{op_type}(x, constant) -> y")]
            );
            assert_eq!(upgraded(version, node(op_type, &["x"])), [format!("{op_type}(x) -> y")]);
        }
    }
    assert_eq!(upgraded(13, node("ReduceSum", &["x", "a"])), ["ReduceSum(x, a) -> y"]);
    assert_eq!(upgraded(18, node("ReduceMean", &["x", "a"])), ["ReduceMean(x, a) -> y"]);
}

#[test]
fn a_split_says_its_lengths_in_an_input_or_how_many_there_are() {
    let lengths = node("Split", &["x"]).ints("split", &[2, 4]).int("axis", 1).outputs(&["y", "z"]);
    assert_eq!(
        upgraded(11, lengths),
        ["Constant(){value_ints=[2, 4]} -> constant", "Split(x, constant){axis=1} -> y, z"]
    );
    for inputs in [&["x"][..], &["x", ""]] {
        let even = node("Split", inputs).outputs(&["y", "z"]);
        assert_eq!(upgraded(17, even), ["Split(x){num_outputs=2} -> y, z"]);
    }
    assert_eq!(upgraded(13, node("Split", &["x", "l"])), ["Split(x, l) -> y"]);
    assert_eq!(upgraded(18, node("Split", &["x"]).int("num_outputs", 1)), ["Split(x){num_outputs=1} -> y"]);
}

#[test]
fn softmax_was_over_all_axes_from_one_on() {
    for op_type in ["Softmax", "LogSoftmax", "Hardmax"] {
        let lower = op_type.to_lowercase();
        assert_eq!(
            upgraded(12, node(op_type, &["x"]).int("axis", -1)),
            [format!("{op_type}(x){{axis=-1}} -> y")]
        );
        assert_eq!(upgraded(13, node(op_type, &["x"])), [format!("{op_type}(x) -> y")]);
        for (axis, node) in [(1, node(op_type, &["x"])), (2, node(op_type, &["x"]).int("axis", 2))] {
            assert_eq!(
                upgraded(12, node),
                [
                    "Shape(x) -> shape".to_owned(),
                    format!("Flatten(x){{axis={axis}}} -> flatten"),
                    format!("{op_type}(flatten){{axis=-1}} -> {lower}_1"),
                    format!("Reshape({lower}_1, shape){{allowzero=1}} -> y"),
                ]
            );
        }
    }
}

#[test]
fn nodes_that_mean_the_same_stay() {
    let ratio = AttributeProto {
        name: Some("ratio".to_owned()),
        r#type: Some(AttributeType::FLOAT),
        f: Some(0.5),
        ..AttributeProto::default()
    };
    let cases = [
        (11, node("Dropout", &["x"]).attribute(ratio), "Dropout(x) -> y"),
        (11, node("Dropout", &["x"]).outputs(&["y", ""]), "Dropout(x) -> y"),
        (13, node("Resize", &["x", "", "s"]), "Resize(x, , s) -> y"),
        (16, node("RoiAlign", &["x", "r", "i"]), "RoiAlign(x, r, i) -> y"),
        (22, node("MaxPool", &["x"]).int("ceil_mode", 1), "MaxPool(x){ceil_mode=1} -> y"),
        (11, node("MatMul", &["x", "z"]), "MatMul(x, z) -> y"),
    ];
    for (version, node, expected) in cases {
        assert_eq!(upgraded(version, node), [expected]);
    }
}

#[test]
fn a_node_without_an_equivalent_is_refused_with_its_versions() {
    assert_eq!(
        refused(13, node("BatchNormalization", &["x"])),
        "node 0 \"batchnormalization\" (BatchNormalization, domain ai.onnx, version 13): the operator changed between \
         versions 13 and 24 of its set: it is not rewritten, because decoders do not have it"
    );
    let changed = [
        (11, node("Dropout", &["x"]).outputs(&["y", "mask"])),
        (12, node("Resize", &["x"])),
        (15, node("RoiAlign", &["x"])),
        (19, node("DFT", &["x"])),
        (19, node("GridSample", &["x"])),
        (20, node("GroupNormalization", &["x"])),
        (21, node("AveragePool", &["x"])),
        (21, node("MaxPool", &["x"])),
    ];
    for (version, node) in changed {
        let refused = refused(version, node);
        assert!(refused.contains(&format!("changed between versions {version} and 24")), "{refused}");
    }
    let unknown = [
        (23, "TensorScatter"),
        (11, "Scatter"),
        (11, "Upsample"),
        (13, "Trilu"),
        (22, "Attention"),
        (17, "Frob"),
    ];
    for (version, op_type) in unknown {
        let error = upgrade(&mut model(version, node(op_type, &["x"])), 24).unwrap_err();
        assert!(matches!(error.root(), OnnxError::OperatorUnknown { .. }), "{error}");
    }
    let error = upgrade(&mut model(10, node("Relu", &["x"])), 24).unwrap_err();
    assert!(matches!(error, OnnxError::OpsetTooOld { version: 10, min: 11 }), "{error}");
}

#[test]
fn other_domains_newer_sets_and_functions_of_the_model() {
    let mut foreign = node("Squeeze", &["x"]).ints("axes", &[0]).into_proto(&mut Names::default());
    foreign.domain = Some("com.example".to_owned());
    assert_eq!(upgraded(11, foreign.into()), ["Squeeze(x){axes=[0]} -> y"]);

    let mut newer = model(26, node("Unknown", &["x"]));
    upgrade(&mut newer, 24).unwrap();
    assert_eq!(newer.opset_import[0].version, Some(26));

    let squeeze = || node("Squeeze", &["x"]).ints("axes", &[0]);
    let mut called = model(11, squeeze());
    let body = node("Unsqueeze", &["constant"]).ints("axes", &[1]).into_proto(&mut Names::default());
    called.functions = vec![FunctionProto {
        name: Some("Squeeze".to_owned()),
        input: vec!["constant".to_owned()],
        output: vec!["y".to_owned()],
        node: vec![body],
        opset_import: vec![opset(12)],
        ..FunctionProto::default()
    }];
    upgrade(&mut called, 24).unwrap();
    assert_eq!(line(&called.graph.node[0]), "Squeeze(x){axes=[0]} -> y", "the model's own, not the operator");
    let function: Vec<_> = called.functions[0].node.iter().map(line).collect();
    assert_eq!(
        function,
        ["Constant(){value_ints=[1]} -> constant_1", "Unsqueeze(constant, constant_1) -> y"]
    );
    assert_eq!(called.functions[0].opset_import[0].version, Some(24));
}

#[test]
fn subgraphs_too_with_names_that_clash_with_nothing_around_them() {
    let inner = node("Squeeze", &["constant"]).ints("axes", &[0]).into_proto(&mut Names::default());
    let branch = AttributeProto {
        name: Some("then_branch".to_owned()),
        r#type: Some(AttributeType::GRAPH),
        g: GraphProto { node: vec![inner], ..GraphProto::default() }.into(),
        ..AttributeProto::default()
    };
    let mut model = model(11, node("If", &["flag"]).attribute(branch));
    upgrade(&mut model, 24).unwrap();
    let body: Vec<_> = model.graph.node[0].attribute[0].g.node.iter().map(line).collect();
    assert_eq!(body, ["Constant(){value_ints=[0]} -> constant_1", "Squeeze(constant, constant_1) -> y"]);
}
