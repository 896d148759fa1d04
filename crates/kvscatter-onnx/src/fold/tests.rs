//! Tests on real exports with inputs like those of the conversion.

use std::rc::Rc;

use std::path::PathBuf;

use kvscatter::ElementType;

use super::{Fold, Value, Values};
use crate::test_dir::TestCase;
use crate::{FoldError, Graph, Model, OnnxError, test_dir};

const BATCH: usize = 2;
const PAST: usize = 7;
const NEW: usize = 3;

fn load(name: &str) -> Model {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(name);
    Model::load(&folder.join("model.onnx")).unwrap()
}

/// Creates a probe of two samples with seven positions in the past and three new ones. The second sample has
/// two positions of padding on the left.
fn probe<'m>(graph: &Graph<'m>, external: Option<&Rc<crate::ExternalData>>) -> Fold<'m> {
    let mut fold = Fold::new(graph, external);
    let ints =
        |shape: [usize; 2], values| Value::new(ElementType::Int64, shape.to_vec(), Some(values)).unwrap();
    for input in graph.inputs().unwrap() {
        let value = match input.name {
            "attention_mask" => {
                let mut mask = vec![1; BATCH * (PAST + NEW)];
                mask[PAST + NEW..][..2].fill(0);
                ints([BATCH, PAST + NEW], Values::Ints(mask))
            }
            "position_ids" => ints([BATCH, NEW], Values::Ints(vec![7, 8, 9, 5, 6, 7])),
            "input_ids" => Value::shaped(ElementType::Int64, vec![BATCH, NEW]).unwrap(),
            _ => Value::shaped(input.element, vec![BATCH, 2, PAST, 16]).unwrap(),
        };
        fold.set(input.name, value).unwrap();
    }
    fold
}

/// Returns the values that nodes of this operator read at this input.
fn inputs_of<'m>(graph: &Graph<'m>, op_type: &str, slot: usize) -> Vec<&'m str> {
    graph.nodes().iter().filter(|node| node.is(op_type)).filter_map(|node| node.input(slot)).collect()
}

fn maker<'g, 'm>(graph: &'g Graph<'m>, value: &str) -> &'g crate::Node<'m> {
    graph.nodes().iter().find(|node| node.proto().output.iter().any(|output| output == value)).unwrap()
}

/// Evaluates ONNX's own tests of `Attention` with a mask, a length, causality and grouped heads.
#[test]
fn attention_is_computed_as_onnx_defines_it() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/onnx-attention"));
    let found = test_dir::discover(&root).unwrap();
    assert_eq!(found.cases.len(), 7);
    for folder in found.cases {
        let case = TestCase::open(&folder).unwrap();
        let model = Model::load(&case.model_path()).unwrap();
        let graph = model.graph().unwrap();
        for data in &case.data_sets {
            let mut fold = Fold::new(&graph, None);
            for (name, tensor) in data.read_inputs(&graph).unwrap() {
                fold.set(&name, Value::of(&tensor).unwrap()).unwrap();
            }
            let expected = Value::of(&data.read_outputs().unwrap()[0]).unwrap();
            let actual = fold.value(graph.output_names().next().unwrap()).unwrap();
            assert_eq!((actual.element, &actual.shape), (expected.element, &expected.shape));
            let tolerance = if actual.element == ElementType::Float16 { 1e-3 } else { 1e-6 };
            let pairs = actual.as_floats().unwrap().iter().zip(expected.as_floats().unwrap());
            for (actual, expected) in pairs {
                assert!((actual - expected).abs() <= tolerance, "{}: {actual} {expected}", folder.display());
            }
        }
    }
}

#[test]
fn an_additive_mask_is_known_to_the_last_bit() {
    let model = load("optimum-llama");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    let scores = inputs_of(&graph, "Softmax", 0);
    assert_eq!(scores.len(), 2);
    for sum in scores {
        let add = maker(&graph, sum);
        assert!(add.is("Add"));
        let mask = fold.value(add.input(1).unwrap()).unwrap();
        assert_eq!((mask.element, mask.shape.as_slice()), (ElementType::Float32, &[2, 1, 3, 10][..]));
        let drawn: String = mask
            .as_floats()
            .unwrap()
            .iter()
            .map(|&value| match value {
                0.0 => '.',
                f64::NEG_INFINITY => '#',
                other => panic!("{other}"),
            })
            .collect();
        let expected = "........##".to_owned()
            + ".........#"
            + ".........."
            + "##......##"
            + "##.......#"
            + "##........";
        assert_eq!(drawn, expected);
        assert_eq!(fold.shape(sum).unwrap(), [2, 4, 3, 10]);
    }
}

#[test]
fn a_boolean_mask_is_known() {
    let model = load("mobius-llama-dynamic");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    let masks = inputs_of(&graph, "Attention", 3);
    assert_eq!(masks.len(), 2);
    for name in masks {
        let mask = fold.value(name).unwrap();
        assert_eq!((mask.element, mask.shape.as_slice()), (ElementType::Bool, &[2, 1, 3, 10][..]));
        let row = |first: bool| [[first; 2].as_slice(), &[true; 8]].concat();
        let expected = [row(true), row(true), row(true), row(false), row(false), row(false)].concat();
        assert_eq!(mask.as_bools().unwrap(), expected);
    }
}

#[test]
fn every_shape_of_a_decoder_is_known() {
    for (name, values) in [("optimum-llama", 625), ("mobius-llama-dynamic", 59)] {
        let model = load(name);
        let graph = model.graph().unwrap();
        let mut fold = probe(&graph, None);
        let mut count = 0;
        for output in graph.nodes().iter().flat_map(|node| &node.proto().output) {
            fold.shape(output).unwrap();
            count += 1;
        }
        assert_eq!(count, values, "{name}");
        for output in graph.output_names() {
            let expected: &[usize] = if output == "logits" { &[2, 3, 256] } else { &[2, 2, 10, 16] };
            assert_eq!(fold.shape(output).unwrap(), expected, "{output}");
        }
    }
}

/// The router decides the shape of an expert's input, so that value is open. The shape of the joint output of
/// all experts is known.
#[test]
fn what_experts_are_given_is_open_and_what_they_make_is_not() {
    let model = load("decoders/optimum-0.1-qwen3-moe");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    for input in graph.inputs().unwrap().iter().filter(|input| input.name.starts_with("past")) {
        fold.set(input.name, Value::shaped(input.element, vec![BATCH, 2, PAST, 8]).unwrap()).unwrap();
    }
    let mut open = 0;
    for node in graph.nodes() {
        let Some(output) = node.output(0) else { continue };
        let is_open = fold.known(output).unwrap().is_none();
        open += usize::from(is_open);
        assert!(!node.is("NonZero") || is_open, "{output}");
        if is_open {
            let OnnxError::InNode { node, cause } = fold.shape(output).unwrap_err() else {
                panic!("{output}")
            };
            assert_eq!(node.op_type, "NonZero", "{output}");
            assert!(
                matches!(cause.root(), OnnxError::Fold(FoldError::ValuesUnknown { input: 0 })),
                "{output}"
            );
        }
        if node.is("ScatterElements") {
            assert_eq!(fold.shape(output).unwrap(), [BATCH * NEW, 16]);
        }
    }
    assert!(open > 8 * 10, "{open}");
    assert_eq!(fold.shape("logits").unwrap(), [2, 3, 64]);
}

/// A known mask picks elements of an unknown value. The shape of the result is known, but its elements are
/// not.
#[test]
fn what_is_counted_is_counted_for_a_shape_alone() {
    use crate::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto};
    let node = |op_type: &str, input: &[&str], output: &str| NodeProto {
        op_type: Some(op_type.to_owned()),
        input: input.iter().map(|&name| name.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..Default::default()
    };
    let input = |name: &str| ValueInfoProto { name: Some(name.to_owned()), ..Default::default() };
    let graph = GraphProto {
        node: vec![node("NonZero", &["mask"], "places"), node("Gather", &["data", "places"], "picked")],
        input: vec![input("mask"), input("data")],
        ..Default::default()
    };
    let import = OperatorSetIdProto { version: Some(24), ..Default::default() };
    let model = ModelProto { graph: graph.into(), opset_import: vec![import], ..Default::default() };
    let graph = Graph::new(&model).unwrap();
    let mut fold = Fold::new(&graph, None);
    let mask = Values::Ints(vec![1, 0, 1, 1, 0, 0]);
    fold.set("mask", Value::new(ElementType::Int64, vec![2, 3], Some(mask)).unwrap()).unwrap();
    fold.set("data", Value::shaped(ElementType::Float32, vec![5]).unwrap()).unwrap();
    assert_eq!(fold.shape("picked").unwrap(), [2, 3]);
    fold.set("mask", Value::shaped(ElementType::Int64, vec![2, 3]).unwrap()).unwrap();
    assert!(fold.known("picked").unwrap().is_none());
}

#[test]
fn weights_are_not_read_for_shapes() {
    // All weights of this model are in another file, and the test does not give its folder.
    let model = load("mobius-llama-dynamic");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    assert_eq!(fold.shape("logits").unwrap(), [2, 3, 256]);
    assert_eq!(fold.value("logits").unwrap().data, None);
    assert!(matches!(
        fold.value("model.rotary_emb.cos_cache").unwrap_err().root(),
        OnnxError::ExternalWithoutFolder { .. }
    ));
}

#[test]
fn what_is_set_cuts_the_graph() {
    let model = load("optimum-llama");
    let graph = model.graph().unwrap();
    let mut fold = Fold::new(&graph, None);
    let error = fold.value("/model/Gather_output_0").unwrap_err();
    assert!(
        matches!(error.root(), OnnxError::InputMissing { name } if name == "past_key_values.0.key"),
        "{error}"
    );
    let ints = |values: Vec<i64>| Value::new(ElementType::Int64, vec![], Some(Values::Ints(values))).unwrap();
    fold.set("/model/Gather_output_0", ints(vec![4])).unwrap();
    fold.set("/model/Gather_1_output_0", ints(vec![2])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [4, 5]);
    fold.set("/model/Gather_output_0", ints(vec![9])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [9, 10]);
    assert!(
        matches!(fold.value("nothing").unwrap_err(), OnnxError::ValueMissing { name } if name == "nothing")
    );
    let mismatched = Value { element: ElementType::Int64, shape: vec![2], data: Some(Values::Ints(vec![1])) };
    let error = fold.set("input_ids", mismatched).unwrap_err();
    assert!(matches!(error.root(), OnnxError::Fold(FoldError::Values { got: 1, .. })), "{error}");
}

/// Tests graphs that call functions. Each function has one node by default.
mod functions {
    use super::{Fold, FoldError, Value, Values};
    use crate::proto::attribute_proto::AttributeType;
    use crate::proto::{
        AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto,
    };
    use crate::{Graph, OnnxError};
    use kvscatter::ElementType;

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn node(domain: &str, op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
        NodeProto {
            domain: Some(domain.to_owned()),
            op_type: Some(op_type.to_owned()),
            input: strings(input),
            output: strings(output),
            ..Default::default()
        }
    }

    fn int(name: &str, value: i64) -> AttributeProto {
        AttributeProto {
            name: Some(name.to_owned()),
            i: Some(value),
            r#type: Some(AttributeType::INT),
            ..Default::default()
        }
    }

    fn reference(name: &str, to: &str) -> AttributeProto {
        AttributeProto {
            name: Some(name.to_owned()),
            ref_attr_name: Some(to.to_owned()),
            r#type: Some(AttributeType::INT),
            ..Default::default()
        }
    }

    fn imports() -> Vec<OperatorSetIdProto> {
        let import = |domain: &str| OperatorSetIdProto {
            domain: Some(domain.to_owned()),
            version: Some(24),
            ..Default::default()
        };
        vec![import(""), import("own")]
    }

    fn function(name: &str, input: &[&str], output: &[&str], node: Vec<NodeProto>) -> FunctionProto {
        FunctionProto {
            domain: Some("own".to_owned()),
            name: Some(name.to_owned()),
            input: strings(input),
            output: strings(output),
            node,
            opset_import: imports(),
            ..Default::default()
        }
    }

    fn model(call: NodeProto, functions: Vec<FunctionProto>) -> ModelProto {
        let input = ValueInfoProto { name: Some("x".to_owned()), ..Default::default() };
        let graph = GraphProto { node: vec![call], input: vec![input], ..Default::default() };
        ModelProto { graph: graph.into(), functions, opset_import: imports(), ..Default::default() }
    }

    fn evaluate(model: &ModelProto, x: Value) -> Result<Value, OnnxError> {
        let graph = Graph::new(model)?;
        let mut fold = Fold::new(&graph, None);
        fold.set("x", x)?;
        fold.value("y").cloned()
    }

    #[test]
    fn attributes_come_from_the_call_or_are_defaults() {
        let mut flatten = node("", "Flatten", &["a"], &["b"]);
        flatten.attribute = vec![reference("axis", "where")];
        let mut flat = function("Flat", &["a"], &["b"], vec![flatten]);
        let x = || Value::shaped(ElementType::Float32, vec![2, 3, 4]).unwrap();
        let call = || node("own", "Flat", &["x"], &["y"]);
        // Neither the call nor the function gives the attribute, so the default of the operator applies: 1.
        assert_eq!(evaluate(&model(call(), vec![flat.clone()]), x()).unwrap().shape, [2, 12]);
        flat.attribute_proto = vec![int("where", 2)];
        assert_eq!(evaluate(&model(call(), vec![flat.clone()]), x()).unwrap().shape, [6, 4]);
        let mut call_with_attribute = call();
        call_with_attribute.attribute = vec![int("where", 3)];
        assert_eq!(evaluate(&model(call_with_attribute, vec![flat]), x()).unwrap().shape, [24, 1]);
    }

    #[test]
    fn what_a_body_makes_of_shapes_is_known_though_the_input_is_not() {
        let rows = vec![node("", "Shape", &["a"], &["s"]), node("", "Neg", &["s"], &["b"])];
        let inner = function("Rows", &["a"], &["b"], rows);
        let outer = function("Outer", &["a", "left_out"], &["b"], vec![node("own", "Rows", &["a"], &["b"])]);
        let model = model(node("own", "Outer", &["x"], &["y"]), vec![inner, outer]);
        let got = evaluate(&model, Value::shaped(ElementType::Float32, vec![5, 3]).unwrap()).unwrap();
        assert_eq!(got.data, Some(Values::Ints(vec![-5, -3])));
    }

    #[test]
    fn an_open_value_inside_a_function_is_one_output_of_it() {
        let body = vec![node("", "NonZero", &["a"], &["b"]), node("", "Neg", &["a"], &["c"])];
        let both = function("Both", &["a"], &["b", "c"], body);
        let model = model(node("own", "Both", &["x"], &["open", "y"]), vec![both]);
        let graph = Graph::new(&model).unwrap();
        let mut fold = Fold::new(&graph, None);
        fold.set("x", Value::shaped(ElementType::Float32, vec![5, 3]).unwrap()).unwrap();
        assert_eq!(fold.shape("y").unwrap(), [5, 3]);
        assert!(fold.known("open").unwrap().is_none());
        let OnnxError::InNode { node, cause } = fold.value("open").unwrap_err() else { panic!() };
        assert_eq!(node.op_type, "Both");
        let OnnxError::InNode { node, .. } = *cause else { panic!("{cause}") };
        assert_eq!(node.op_type, "NonZero");
    }

    #[test]
    fn bodies_that_are_not_well_formed_are_refused() {
        let x = || Value::shaped(ElementType::Float32, vec![1]).unwrap();
        let refused = |body: Vec<NodeProto>| {
            let function = function("F", &["a"], &["b"], body);
            evaluate(&model(node("own", "F", &["x"], &["y"]), vec![function]), x()).unwrap_err()
        };
        let error = refused(vec![node("own", "F", &["a"], &["b"])]);
        assert!(matches!(error.root(), OnnxError::Fold(FoldError::TooDeep { limit: 16 })), "{error}");
        let error = refused(vec![node("", "Neg", &["b"], &["c"]), node("", "Neg", &["c"], &["b"])]);
        assert!(matches!(error.root(), OnnxError::ValueMissing { name } if name == "b"), "{error}");
        let error = refused(vec![node("", "Neg", &["a"], &["a"])]);
        assert!(matches!(error.root(), OnnxError::DuplicateName { name } if name == "a"), "{error}");
        let error = refused(vec![node("", "Neg", &["a"], &["c"])]);
        assert!(matches!(error.root(), OnnxError::ValueMissing { name } if name == "b"), "{error}");
        let error = refused(vec![node("", "Mystery", &["a"], &["b"])]);
        assert!(matches!(error.root(), OnnxError::Fold(FoldError::NoRule)), "{error}");
        assert!(error.to_string().contains("Mystery"), "{error}");
    }

    /// The work is in the values, or in the number of calls.
    #[test]
    fn functions_that_multiply_are_stopped() {
        for (calls, levels, elements) in [(200, 4, 1 << 18), (2, 15, 1)] {
            let level = |depth: usize| {
                let (name, next) = (format!("F{depth}"), format!("F{}", depth + 1));
                let call = |call: usize| {
                    let output = if call == calls - 1 { "b".to_owned() } else { format!("b{call}") };
                    let input = if call == 0 { "a".to_owned() } else { format!("b{}", call - 1) };
                    node("own", &next, &[&input], &[&output])
                };
                function(&name, &["a"], &["b"], (0..calls).map(call).collect())
            };
            let mut functions: Vec<_> = (0..levels).map(level).collect();
            let last = format!("F{levels}");
            functions.push(function(&last, &["a"], &["b"], vec![node("", "Neg", &["a"], &["b"])]));
            let model = model(node("own", "F0", &["x"], &["y"]), functions);
            let error = evaluate(&model, Value::ints(vec![1; elements]).unwrap()).unwrap_err();
            assert!(matches!(error.root(), OnnxError::Fold(FoldError::TooMuch { .. })), "{error}");
        }
    }
}
