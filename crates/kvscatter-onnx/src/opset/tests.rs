//! Tests every change on nodes with literal attributes.

use super::upgrade;
use crate::GraphError;
use crate::proto::{FunctionProto, ModelProto};
use crate::support::{assert_refused, function, lines, opset, parsed};

fn model(version: i64, nodes: &str) -> ModelProto {
    let mut model = parsed("", nodes, "").proto().clone();
    model.opset_import[0].version = Some(version);
    model
}

fn upgraded(version: i64, node: &str) -> Vec<String> {
    let mut model = model(version, node);
    upgrade(&mut model, 24).unwrap();
    assert_eq!((model.ir_version, model.opset_import[0].version), (Some(11), Some(24)));
    lines(&model.graph.node)
}

#[test]
fn axes_become_an_input() {
    for (op_type, versions) in
        [("Squeeze", [11, 12]), ("Unsqueeze", [11, 12]), ("ReduceSum", [11, 12]), ("ReduceMean", [13, 17])]
    {
        for version in versions {
            let axes = format!("y = {op_type}(x) {{axes=[0, -1]}}");
            let upgraded_axes = format!("y = {op_type}(x, constant)");
            assert_eq!(
                upgraded(version, &axes),
                ["constant = Constant() {value_ints=[0, -1]}", &upgraded_axes]
            );
        }
    }
}

/// The lengths of a split are an input, and their number is an attribute.
#[test]
fn nodes_of_one_node() {
    for (version, old, new) in [
        (11, "y = Squeeze(x)", "y = Squeeze(x)"),
        (12, "y = Unsqueeze(x)", "y = Unsqueeze(x)"),
        (12, "y = ReduceSum(x)", "y = ReduceSum(x)"),
        (17, "y = ReduceMean(x)", "y = ReduceMean(x)"),
        (13, "y = ReduceSum(x, a)", "y = ReduceSum(x, a)"),
        (18, "y = ReduceMean(x, a)", "y = ReduceMean(x, a)"),
        (17, "y, z = Split(x)", "y, z = Split(x) {num_outputs=2}"),
        (17, "y, z = Split(x, _)", "y, z = Split(x) {num_outputs=2}"),
        (13, "y = Split(x, l)", "y = Split(x, l)"),
        (18, "y = Split(x) {num_outputs=1}", "y = Split(x) {num_outputs=1}"),
        (12, "y = Softmax(x) {axis=-1}", "y = Softmax(x) {axis=-1}"),
        (12, "y = LogSoftmax(x) {axis=-1}", "y = LogSoftmax(x) {axis=-1}"),
        (12, "y = Hardmax(x) {axis=-1}", "y = Hardmax(x) {axis=-1}"),
        (13, "y = Softmax(x)", "y = Softmax(x)"),
        (13, "y = LogSoftmax(x)", "y = LogSoftmax(x)"),
        (13, "y = Hardmax(x)", "y = Hardmax(x)"),
        (11, "y = Dropout(x) {ratio=0.5}", "y = Dropout(x)"),
        (11, "y, _ = Dropout(x)", "y = Dropout(x)"),
        (13, "y = Resize(x, _, s)", "y = Resize(x, _, s)"),
        (16, "y = RoiAlign(x, r, i)", "y = RoiAlign(x, r, i)"),
        (22, "y = MaxPool(x) {ceil_mode=1}", "y = MaxPool(x) {ceil_mode=1}"),
        (11, "y = MatMul(x, z)", "y = MatMul(x, z)"),
        (11, "y = Squeeze@com.example(x) {axes=[0]}", "y = Squeeze(x) {axes=[0]}"),
    ] {
        assert_eq!(upgraded(version, old), [new], "{version} {old}");
    }
    let lengths = upgraded(11, "y, z = Split(x) {split=[2, 4], axis=1}");
    assert_eq!(lengths, ["constant = Constant() {value_ints=[2, 4]}", "y, z = Split(x, constant) {axis=1}"]);
}

#[test]
fn softmax_was_over_all_axes_from_one_on() {
    for op_type in ["Softmax", "LogSoftmax", "Hardmax"] {
        let lower = op_type.to_lowercase();
        for (axis, attributes) in [(1, ""), (2, "axis=2")] {
            assert_eq!(
                upgraded(12, &format!("y = {op_type}(x) {{{attributes}}}")),
                [
                    "shape = Shape(x)".to_owned(),
                    format!("flatten = Flatten(x) {{axis={axis}}}"),
                    format!("{lower} = {op_type}(flatten) {{axis=-1}}"),
                    format!("y = Reshape({lower}, shape) {{allowzero=1}}"),
                ]
            );
        }
    }
}

#[test]
fn a_node_without_an_equivalent_is_refused_with_its_versions() {
    let upgraded = |version, node: &str| upgrade(&mut model(version, node), 24);
    assert_eq!(
        upgraded(13, "y = BatchNormalization(x)").unwrap_err().to_string(),
        "node 0 \"ny\" (BatchNormalization, domain ai.onnx, version 13): the operator changed between \
         versions 13 and 24 of its set: it is not rewritten, because decoders do not have it"
    );
    for (version, node) in [
        (11, "y, mask = Dropout(x)"),
        (12, "y = Resize(x)"),
        (15, "y = RoiAlign(x)"),
        (19, "y = DFT(x)"),
        (19, "y = GridSample(x)"),
        (20, "y = GroupNormalization(x)"),
        (21, "y = AveragePool(x)"),
        (21, "y = MaxPool(x)"),
    ] {
        let refused = upgraded(version, node).unwrap_err().to_string();
        assert!(refused.contains(&format!("changed between versions {version} and 24")), "{refused}");
    }
    for (version, op_type) in [
        (23, "TensorScatter"),
        (11, "Scatter"),
        (11, "Upsample"),
        (13, "Trilu"),
        (22, "Attention"),
        (17, "Frob"),
    ] {
        assert_refused!(upgraded(version, &format!("y = {op_type}(x)")), GraphError::OperatorUnknown { .. });
    }
    assert_refused!(upgraded(10, "y = Relu(x)"), GraphError::OpsetTooOld { version: 10, min: 11 });
}

#[test]
fn newer_sets_and_functions_of_the_model() {
    let mut newer = model(26, "y = Unknown(x)");
    upgrade(&mut newer, 24).unwrap();
    assert_eq!(newer.opset_import[0].version, Some(26));

    let mut called = model(11, "y = Squeeze(x) {axes=[0]}");
    called.functions = vec![FunctionProto {
        domain: None,
        opset_import: vec![opset("", 12)],
        ..function("Squeeze(constant) -> y", "y = Unsqueeze(constant) {axes=[1]}")
    }];
    upgrade(&mut called, 24).unwrap();
    assert_eq!(lines(&called.graph.node), ["y = Squeeze(x) {axes=[0]}"], "the model's own, not the operator");
    assert_eq!(
        lines(&called.functions[0].node),
        ["constant_1 = Constant() {value_ints=[1]}", "y = Unsqueeze(constant, constant_1)"]
    );
    assert_eq!(called.functions[0].opset_import[0].version, Some(24));
}

#[test]
fn new_names_in_bodies_clash_with_no_name_outside() {
    let mut model = model(11, "y = If(flag) {then_branch={y = Squeeze(constant) {axes=[0]}}}");
    upgrade(&mut model, 24).unwrap();
    assert_eq!(
        lines(&model.graph.node[0].attribute[0].g.node),
        ["constant_1 = Constant() {value_ints=[0]}", "y = Squeeze(constant, constant_1)"]
    );
}
