//! Tests evaluation: the right values, and an error for everything that cannot be evaluated.

use std::collections::BTreeMap;

use kvscatter::Argument;
use kvscatter::ElementType::{self, Float16, Float32, Int8, Int32, Int64, UInt4, UInt8};
use kvscatter_onnx::internal::eval::{Evaluation, Evaluator, Feed, Outcome, Placement};
use kvscatter_onnx::internal::proto::attribute_proto::AttributeType;
use kvscatter_onnx::internal::proto::{AttributeProto, FunctionProto};
use kvscatter_onnx::internal::tensor_proto;
use kvscatter_onnx::internal::test_dir::{TestCase, discover};
use kvscatter_onnx::{Data, EvalError, ExternalError, GraphError, Model, OnnxError, Tensor};

use crate::support::{
    Nodes, assert_refused, bytes, external, function, graph_mut, int64, opset, parsed, string, tensor,
    testdata,
};

/// Runs a model on donated tensors.
fn run(model: &Model, inputs: &[(&str, Tensor)], placement: Placement) -> Result<Evaluation, OnnxError> {
    let feeds: BTreeMap<_, _> =
        inputs.iter().map(|(name, tensor)| (*name, Feed::Donated(tensor.clone()))).collect();
    Evaluator::new(model)?.run(feeds, placement)
}

/// Makes `y = TensorScatter(x, u, i)` on axis 1, with every dimension symbolic.
fn one_scatter(element: ElementType) -> Model {
    let inputs = format!("x: {element}[b, s], u: {element}[b, t], i: int64[b]");
    parsed(&inputs, "y = TensorScatter(x, u, i) {axis=1}", &format!("y: {element}[b, s]"))
}

fn bytes_of(tensor: &Tensor) -> &[u8] {
    match tensor.data() {
        Data::Bytes(bytes) => bytes,
        Data::Strings(_) => panic!("strings"),
    }
}

#[test]
fn the_three_cases_of_onnx() {
    let folders = discover(&testdata("onnx-node")).unwrap().cases;
    assert_eq!(folders.len(), 3);
    let names = ["test_tensorscatter", "test_tensorscatter_3d", "test_tensorscatter_circular"];
    for (folder, name) in folders.into_iter().zip(names) {
        assert!(folder.ends_with(name), "{}", folder.display());
        let case = TestCase::open(&folder).unwrap();
        let model = Model::load(&case.model_path()).unwrap();
        let evaluator = Evaluator::new(&model).unwrap();
        assert_eq!(case.data_sets.len(), 1);
        for data_set in case.data_sets {
            assert!(data_set.external_files().unwrap().is_empty());
            let expected = data_set.read_outputs().unwrap();
            for placement in [Placement::InPlace, Placement::Functional] {
                let inputs = data_set.read_inputs(evaluator.graph()).unwrap();
                let past_address = inputs[0].1.address();
                let (past, update) = (bytes_of(&inputs[0].1).len(), bytes_of(&inputs[1].1).len());
                let names = evaluator.graph().input_names();
                let feeds = names.zip(inputs.into_iter().map(|(_, tensor)| Feed::Donated(tensor))).collect();
                let done = evaluator.run(feeds, placement).unwrap();
                let [(_, present)] = done.outputs.as_slice() else { panic!("{done:?}") };
                assert_eq!(present, &expected[0], "{}", case.folder.display());

                let [node] = done.report.nodes.as_slice() else { panic!("{done:?}") };
                let present_address = present.address();
                assert_eq!(node.planned_bytes, update);
                if placement == Placement::InPlace {
                    assert_eq!(present_address, past_address);
                    let in_place = Outcome::InPlace { past_address, present_address };
                    assert_eq!((&node.outcome, node.moved_bytes), (&in_place, update));
                } else {
                    assert_ne!(present_address, past_address);
                    assert_eq!(node.moved_bytes, past);
                }
                assert_eq!(done.report.is_in_place(), placement == Placement::InPlace);
            }
        }
    }
}

#[test]
fn four_bits_and_strings() {
    for placement in [Placement::InPlace, Placement::Functional] {
        // The rows have three 4-bit elements, so the second begins in the middle of a byte.
        let inputs = [
            ("x", bytes(UInt4, &[2, 3], &[0x21, 0x43, 0x65])),
            ("u", bytes(UInt4, &[2, 1], &[0xBA])),
            ("i", int64(&[2], &[2, 0])),
        ];
        let done = run(&one_scatter(UInt4), &inputs, placement).unwrap();
        assert_eq!(bytes_of(&done.outputs[0].1), [0x21, 0xBA, 0x65]);

        let strings = |shape: &[usize], words: &[&str]| {
            let words = words.iter().map(|word| word.as_bytes().to_vec()).collect();
            Tensor::new(ElementType::String, shape.to_vec(), Data::Strings(words)).unwrap()
        };
        let inputs = [
            ("x", strings(&[1, 3], &["a", "bb", "ccc"])),
            ("u", strings(&[1, 1], &["longer"])),
            ("i", int64(&[1], &[1])),
        ];
        let done = run(&one_scatter(ElementType::String), &inputs, placement).unwrap();
        assert_eq!(done.outputs[0].1, strings(&[1, 3], &["a", "longer", "ccc"]));
        let moved = if placement == Placement::InPlace { 6 } else { 10 };
        assert_eq!(done.report.nodes[0].moved_bytes, moved);
    }
}

#[test]
fn absent_write_indices_are_zero() {
    for node in ["y = TensorScatter(x, u) {axis=1}", "y = TensorScatter(x, u, _) {axis=1}"] {
        let model = parsed("x: int8[1, 3], u: int8[1, 2]", node, "y: int8[1, 3]");
        let inputs = [("x", bytes(Int8, &[1, 3], &[1, 2, 3])), ("u", bytes(Int8, &[1, 2], &[8, 9]))];
        let done = run(&model, &inputs, Placement::Auto).unwrap();
        assert_eq!(bytes_of(&done.outputs[0].1), [8, 9, 3]);
    }
}

#[test]
fn constants_in_all_their_forms() {
    let one_and_a_half = 1.5_f32.to_le_bytes();
    let text =
        |shape: Vec<usize>, words| Tensor::new(ElementType::String, shape, Data::Strings(words)).unwrap();
    let value_of = bytes(Float16, &[1], &[1, 2]);
    let strings = AttributeProto {
        s: None,
        strings: vec![b"a".to_vec(), vec![]],
        r#type: Some(AttributeType::STRINGS),
        ..string("value_strings", "")
    };
    let parsed_attribute =
        |text: &str| Nodes::parse(&format!("y = Constant() {{{text}}}")).nodes.remove(0).attribute.remove(0);
    for (attribute, expected) in [
        (tensor("value", &value_of), value_of.clone()),
        (parsed_attribute("value_int=7"), int64(&[], &[7])),
        (parsed_attribute("value_ints=[5, -5]"), int64(&[2], &[5, -5])),
        (parsed_attribute("value_float=1.5"), bytes(Float32, &[], &one_and_a_half)),
        (parsed_attribute("value_floats=[1.5]"), bytes(Float32, &[1], &one_and_a_half)),
        (parsed_attribute("value_string=\"a\""), text(vec![], vec![b"a".to_vec()])),
        (strings, text(vec![2], vec![b"a".to_vec(), vec![]])),
    ] {
        let dims: Vec<_> = expected.shape().iter().map(usize::to_string).collect();
        let mut model =
            parsed("", "y = Constant()", &format!("y: {}[{}]", expected.element(), dims.join(", ")));
        graph_mut(&mut model).node[0].attribute = vec![attribute];
        let done = run(&model, &[], Placement::Auto).unwrap();
        assert_eq!(done.outputs[0].1, expected);
        assert_eq!(done.report.nodes[0].outcome, Outcome::Constant);
    }
}

#[test]
fn indices_may_be_computed() {
    let mut model = parsed(
        "x: int8[2, 8], u: int8[2, 1], i: int64[2]",
        "two = Constant() {value_int=2}; j = Add(i, two); k = Identity(j); y = TensorScatter(x, u, k) {axis=1}",
        "y: int8[2, 8]",
    );
    graph_mut(&mut model).node[0].name = Some(String::new());
    let inputs = |indices: &[i64]| {
        [
            ("x", bytes(Int8, &[2, 8], &[0; 16])),
            ("u", bytes(Int8, &[2, 1], &[7, 9])),
            ("i", int64(&[2], indices)),
        ]
    };
    let done = run(&model, &inputs(&[1, 5]), Placement::InPlace).unwrap();
    let mut expected = [0; 16];
    (expected[3], expected[15]) = (7, 9);
    assert_eq!(bytes_of(&done.outputs[0].1), expected);
    let outcomes: Vec<_> = done.report.nodes.iter().map(|node| (&node.outcome, node.moved_bytes)).collect();
    assert!(matches!(
        outcomes.as_slice(),
        [(Outcome::Constant, 0), (Outcome::Computed, 16), (Outcome::Alias, 0), (Outcome::InPlace { .. }, 2)]
    ));
    // The sum wraps to a negative index, which is an error in linear mode.
    let error = run(&model, &inputs(&[0, i64::MAX]), Placement::Auto).unwrap_err();
    let wrapped = i64::MAX.wrapping_add(2);
    assert!(
        matches!(&error, OnnxError::InNode { node, .. } if node.index == 3)
            && matches!(error.cause(), Some(kvscatter::Error::NegativeStart { index: 1, value, .. }) if *value == wrapped),
        "{error}"
    );
}

#[test]
fn plans_are_shown_before_they_are_executed() {
    let model = one_scatter(Int8);
    let feeds = [
        ("x", Feed::Donated(bytes(Int8, &[2, 4], &[0; 8]))),
        ("u", Feed::Donated(bytes(Int8, &[2, 1], &[7, 9]))),
        ("i", Feed::Donated(int64(&[2], &[3, 1]))),
    ];
    let mut slots = Vec::new();
    let done =
        Evaluator::new(&model).unwrap().run_observed(feeds.into(), Placement::Auto, &mut |node, plan| {
            slots.extend(
                plan.segments().map(|segment| (node.op_type().to_owned(), segment.sample, segment.slot)),
            );
        });
    assert!(done.is_ok());
    let scatter = || "TensorScatter".to_owned();
    assert_eq!(slots, [(scatter(), 0, 3), (scatter(), 1, 1)]);
}

/// An initializer is an input's default.
#[test]
fn initializers_and_feeds() {
    let mut model = one_scatter(Int8);
    let default = tensor_proto::encode("i", &int64(&[1], &[2]));
    graph_mut(&mut model).initializer = vec![default];
    let cache = || ("x", bytes(Int8, &[1, 3], &[1, 2, 3]));
    let update = || ("u", bytes(Int8, &[1, 1], &[9]));
    let done = run(&model, &[cache(), update()], Placement::Auto).unwrap();
    assert_eq!(bytes_of(&done.outputs[0].1), [1, 2, 9]);
    let done = run(&model, &[cache(), update(), ("i", int64(&[1], &[0]))], Placement::Auto).unwrap();
    assert_eq!(bytes_of(&done.outputs[0].1), [9, 2, 3]);
    let evaluator = Evaluator::new(&model).unwrap();
    assert_eq!(evaluator.required_inputs().map(|input| input.name).collect::<Vec<_>>(), ["x", "u"]);
}

/// Prepares a model of one node. The model also has a function `Mine`.
fn refused(node: &str) -> Result<(), OnnxError> {
    let mut model = parsed("x: int8[1, 3], u: int8[1, 1]", node, "");
    let mine = FunctionProto { domain: Some("com.example".into()), ..function("Mine() -> y", "") };
    model.proto_mut().functions = vec![mine];
    model.proto_mut().opset_import = vec![opset("", 24), opset("com.example", 3)];
    Evaluator::new(&model).map(|_| ())
}

#[test]
fn nodes_that_cannot_be_evaluated_are_named() {
    let error = refused("y = Relu(x)").unwrap_err();
    assert!(matches!(error.cause(), Some(EvalError::UnsupportedOperator)));
    assert_eq!(
        error.to_string(),
        "node 0 \"ny\" (Relu, domain ai.onnx, version 24): this operator cannot be evaluated; \
         TensorScatter, Identity, Constant and Add can"
    );
    let other = "y = TensorScatter@com.example(x, u)";
    assert_refused!(refused(other), EvalError::UnsupportedOperator);
    let error = refused(other).unwrap_err().to_string();
    assert!(error.starts_with("node 0 \"ny\" (TensorScatter, domain com.example, version 3): "), "{error}");
    assert_refused!(refused("y = Mine@com.example(x, u)"), EvalError::Function);
    assert_refused!(refused("y = If(x)"), EvalError::UnsupportedOperator);
}

#[test]
fn nodes_that_break_their_operators_rules_are_refused() {
    assert_refused!(
        refused(r#"y = TensorScatter(x, u) {Mode="linear"}"#),
        GraphError::AttributeUnknown { name } if name == "Mode"
    );
    assert_refused!(
        refused(r#"y = TensorScatter(x, u) {axis="1"}"#),
        GraphError::AttributeType { expected: "INT", .. }
    );
    assert_refused!(
        refused("y = TensorScatter(x, u) {mode=0}"),
        GraphError::AttributeType { expected: "STRING", .. }
    );
    assert_refused!(refused("y = TensorScatter(x, u) {axis=$axis}"), GraphError::AttributeType { .. });
    assert_refused!(
        refused(r#"y = TensorScatter(x, u) {mode="ring"}"#),
        EvalError::Mode { mode } if mode == "ring"
    );
    assert_refused!(
        refused("y = TensorScatter(x, u) {axis=1, axis=1}"),
        GraphError::AttributeTwice { name } if name == "axis"
    );
    assert_refused!(refused("y = TensorScatter(x)"), GraphError::InputCount { min: 2, max: 3, got: 1 });
    assert_refused!(refused("y = TensorScatter(x, u, _, _)"), GraphError::InputCount { got: 4, .. });
    assert_refused!(refused("y = TensorScatter(x, _)"), GraphError::InputAbsent { index: 1 });
    assert_refused!(refused("y, z = TensorScatter(x, u)"), GraphError::OutputCount { got: 2 });
    assert_refused!(refused("_ = TensorScatter(x, u)"), GraphError::OutputCount { got: 0 });
    assert_refused!(refused("y = Constant()"), EvalError::ConstantAttributes { got: 0 });
    assert_refused!(refused("y = Constant() {value_float=1}"), GraphError::AttributeType { .. });
    let mut sparse = parsed("", "y = Constant() {sparse_value=1}", "");
    graph_mut(&mut sparse).node[0].attribute[0].r#type = Some(AttributeType::SPARSE_TENSOR);
    assert_refused!(Evaluator::new(&sparse), GraphError::Sparse { .. });
}

#[test]
fn old_operator_sets() {
    let mut model = one_scatter(Int8);
    model.proto_mut().opset_import = vec![opset("", 23)];
    assert_refused!(Evaluator::new(&model), GraphError::OpsetTooOld { version: 23, min: 24 });
    model.proto_mut().opset_import = vec![opset("", 28)];
    assert!(Evaluator::new(&model).is_ok());
}

#[test]
fn external_constants_need_a_folder() {
    let mut model = one_scatter(Int8);
    graph_mut(&mut model).initializer = vec![external("w", Int8, &[1], &[("location", "../w")])];
    assert_refused!(Evaluator::new(&model), ExternalError::WithoutFolder { .. });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save(&path).unwrap();
    assert_refused!(Model::load(&path), ExternalError::Escape { .. });
}

#[test]
fn feeds_that_do_not_fit() {
    let scatter = one_scatter(Int8);
    let run = |inputs: &[(&str, Tensor)]| run(&scatter, inputs, Placement::Auto);
    let zeros = |shape: &[usize]| bytes(Int8, shape, &vec![0; shape.iter().product()]);
    let (x, u, i) = (("x", zeros(&[2, 4])), ("u", zeros(&[2, 1])), ("i", int64(&[2], &[0, 0])));
    let with_update = |shape| run(&[x.clone(), ("u", zeros(shape)), i.clone()]);
    let with_indices = |indices| run(&[x.clone(), u.clone(), ("i", indices)]);

    assert_refused!(run(&[x.clone(), u.clone()]), EvalError::InputMissing { name } if name == "i");
    let unknown = run(&[x.clone(), u.clone(), i.clone(), ("z", zeros(&[1]))]);
    assert_refused!(unknown, EvalError::InputUnknown { name } if name == "z");
    let narrow = with_indices(bytes(Int32, &[2], &[0; 8]));
    assert_refused!(narrow, EvalError::ValueType { expected: Int64, got: Int32, .. });
    let column = with_indices(int64(&[2, 1], &[0, 0]));
    assert_refused!(column, EvalError::ValueRank { expected: 1, got: 2, .. });
    assert_refused!(
        with_update(&[3, 1]),
        EvalError::SymbolConflict { name, axis: 0, symbol, expected: 2, got: 3 } if name == "u" && symbol == "b"
    );
    // The operator's rules check what the graph leaves open, before anything is written.
    let (argument, rows, capacity) = (Argument::Update, 5, 4);
    let too_long = kvscatter::Error::UpdateLongerThanCache { argument, rows, capacity };
    assert_eq!(with_update(&[2, 5]).unwrap_err().cause(), Some(&too_long));
    let late = with_indices(int64(&[2], &[0, 4]));
    assert_refused!(late, kvscatter::Error::StartOutOfRange { index: 1, value: 4, .. });
}

#[test]
fn models_whose_types_do_not_fit() {
    let run_with = |inputs: &str, node: &str, outputs: &str| {
        let model = parsed(inputs, node, outputs);
        let evaluator = Evaluator::new(&model)?;
        let zeros = kvscatter_onnx::internal::random_inputs::inputs(&model, &BTreeMap::new(), 0)?;
        let feeds = zeros.iter().map(|(name, tensor)| (name.as_str(), Feed::Borrowed(tensor))).collect();
        evaluator.run(feeds, Placement::Auto)
    };
    assert_refused!(
        run_with("x: int8[2, 4], u: uint8[2, 1]", "y = TensorScatter(x, u) {axis=1}", ""),
        kvscatter::Error::ElementTypeMismatch { cache: Int8, argument: Argument::Update, element: UInt8 }
    );
    let argument = Argument::WriteIndices;
    for (indices, rule) in [
        ("int64[1]", kvscatter::Error::ListLength { argument, got: 1, expected: 2 }),
        ("int64[2, 1]", kvscatter::Error::Rank { argument, rank: 2, expected: &[1] }),
        ("int32[2]", kvscatter::Error::ElementType { argument, element: Int32, accepted: &[Int64] }),
    ] {
        let inputs = format!("x: int8[2, 4], u: int8[2, 1], i: {indices}");
        let error = run_with(&inputs, "y = TensorScatter(x, u, i) {axis=1}", "").unwrap_err();
        assert_eq!(error.cause(), Some(&rule), "{error}");
    }
    let added = run_with("x: int8[2, 4], v: int8[3]", "y = Add(x, v)", "");
    assert_refused!(added, EvalError::Broadcast { .. });
    let added = run_with("f: float[2]", "y = Add(f, f)", "");
    assert_refused!(added, EvalError::AddType { element: Float32 });
    let declared = run_with("x: int8[2, 4]", "y = Identity(x)", "y: int8[2, 5]");
    assert_refused!(declared, EvalError::ValueDim { axis: 1, expected: 5, got: 4, .. });
    let deep = run_with(&format!("x: int8[{}]", vec!["1"; 65].join(", ")), "y = Identity(x)", "");
    assert_refused!(deep, EvalError::RankTooLarge { rank: 65, limit: 64, .. });
}

/// The two operands are small, but their sum is enormous.
#[test]
fn memory_is_limited() {
    let model = parsed("x: int64[1000, 1], v: int64[1000]", "y = Add(x, v)", "y: int64[1000, 1000]");
    let evaluator = Evaluator::new(&model).unwrap().memory_limit(1 << 20);
    let (x, v) = (int64(&[1000, 1], &[1; 1000]), int64(&[1000], &[1; 1000]));
    let feeds = [("x", Feed::Borrowed(&x)), ("v", Feed::Borrowed(&v))].into();
    // The sum, and both operands expanded to its size.
    assert_refused!(
        evaluator.run(feeds, Placement::Auto),
        EvalError::MemoryLimit { needed: 24_000_000, limit } if *limit == 1 << 20
    );
}

/// Many small nodes each make a large copy. The model is refused before the first copy is made.
#[test]
fn memory_is_added_up_before_anything_is_computed() {
    let nodes: String = (0..2000).map(|at| format!("y{at} = TensorScatter(x, u) {{axis=1}};")).collect();
    let model = parsed("x: int8[1, 1024], u: int8[1, 1]", &nodes, "y0, y1: int8[1, 1024]");
    let (x, u) = (bytes(Int8, &[1, 1024], &[0; 1024]), bytes(Int8, &[1, 1], &[7]));
    let run = |limit| {
        let mut executed = 0;
        let feeds = [("x", Feed::Borrowed(&x)), ("u", Feed::Borrowed(&u))].into();
        let evaluator = Evaluator::new(&model).unwrap().memory_limit(limit);
        (evaluator.run_observed(feeds, Placement::Auto, &mut |_, _| executed += 1), executed)
    };
    let (refused, executed) = run(2_047_999);
    assert_refused!(refused, EvalError::MemoryLimit { needed: 2_048_000, limit: 2_047_999 });
    assert_eq!(executed, 0);
    assert!(matches!(run(2_048_000), (Ok(_), 2000)));
}
