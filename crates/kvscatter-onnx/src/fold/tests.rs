//! Tests on real exports with inputs like those of the conversion.

use kvscatter::ElementType;

use super::{Fold, FoldError, Value, Values};
use crate::proto::FunctionProto;
use crate::support::{assert_refused, function, int, load, parsed, testdata};
use crate::test_dir::TestCase;
use crate::{EvalError, ExternalError, Graph, GraphError, Model, OnnxError, test_dir};

const BATCH: usize = 2;
const PAST: usize = 7;
const NEW: usize = 3;

/// Creates a probe of two samples with seven positions in the past and three new ones.
fn probe<'m>(graph: &Graph<'m>) -> Fold<'m> {
    let mut fold = Fold::new(graph, None);
    let ints = |shape: [usize; 2], ints| {
        Value::new(ElementType::Int64, shape.to_vec(), Some(Values::Ints(ints))).unwrap()
    };
    for input in graph.inputs().unwrap() {
        let value = match input.name {
            "attention_mask" => ints([BATCH, PAST + NEW], vec![1; BATCH * (PAST + NEW)]),
            "position_ids" => ints([BATCH, NEW], vec![7, 8, 9, 7, 8, 9]),
            "input_ids" => Value::shaped(ElementType::Int64, vec![BATCH, NEW]).unwrap(),
            _ => Value::shaped(input.element, vec![BATCH, 2, PAST, 16]).unwrap(),
        };
        fold.set(input.name, value).unwrap();
    }
    fold
}

/// Evaluates ONNX's own tests of `Attention` with a mask, a length, causality and grouped heads.
#[test]
fn attention_is_computed_as_onnx_defines_it() {
    let found = test_dir::discover(&testdata("onnx-attention")).unwrap();
    assert_eq!(found.cases.len(), 7);
    for folder in found.cases {
        let case = TestCase::open(&folder).unwrap();
        let model = Model::load(&case.model_path()).unwrap();
        let graph = model.graph().unwrap();
        for data in &case.data_sets {
            let mut fold = Fold::new(&graph, None);
            for (name, tensor) in data.read_inputs(&graph).unwrap() {
                fold.set(&name, Value::from_tensor(&tensor).unwrap()).unwrap();
            }
            let expected = Value::from_tensor(&data.read_outputs().unwrap()[0]).unwrap();
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
fn every_shape_of_a_decoder_is_known() {
    for (name, values) in [("optimum-llama", 625), ("mobius-llama-dynamic", 59)] {
        let model = load(name);
        let graph = model.graph().unwrap();
        let mut fold = probe(&graph);
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
fn inputs_of_experts_are_open_and_their_joint_output_is_known() {
    let model = load("decoders/optimum-0.1-qwen3-moe");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph);
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
            assert!(matches!(cause.cause(), Some(FoldError::ValuesUnknown { input: 0 })), "{output}");
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
fn counting_known_elements_gives_the_shape_of_unknown_ones() {
    let model = parsed("mask: int64[2, 3], data: float[5]", "picked = Gather(data, NonZero(mask))", "");
    let graph = model.graph().unwrap();
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
    let mut fold = probe(&graph);
    assert_eq!(fold.shape("logits").unwrap(), [2, 3, 256]);
    assert_eq!(fold.value("logits").unwrap().data, None);
    assert_refused!(fold.value("model.rotary_emb.cos_cache"), ExternalError::WithoutFolder { .. });
}

#[test]
fn set_values_cut_the_graph() {
    let model = load("optimum-llama");
    let graph = model.graph().unwrap();
    let mut fold = Fold::new(&graph, None);
    assert_refused!(
        fold.value("/model/Gather_output_0"),
        EvalError::InputMissing { name } if name == "past_key_values.0.key"
    );
    let ints = |values: Vec<i64>| Value::new(ElementType::Int64, vec![], Some(Values::Ints(values))).unwrap();
    fold.set("/model/Gather_output_0", ints(vec![4])).unwrap();
    fold.set("/model/Gather_1_output_0", ints(vec![2])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [4, 5]);
    fold.set("/model/Gather_output_0", ints(vec![9])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [9, 10]);
    assert_refused!(fold.value("nothing"), GraphError::ValueMissing { name } if name == "nothing");
    let mismatched = Value { element: ElementType::Int64, shape: vec![2], data: Some(Values::Ints(vec![1])) };
    assert_refused!(fold.set("input_ids", mismatched), FoldError::Values { got: 1, .. });
}

/// Creates a model that calls functions of the domain `local`.
fn calling(call: &str, functions: Vec<FunctionProto>) -> Model {
    let mut model = parsed("x: float[n]", call, "");
    model.proto_mut().functions = functions;
    model
}

fn evaluate(model: &Model, x: Value) -> Result<Value, OnnxError> {
    let graph = model.graph()?;
    let mut fold = Fold::new(&graph, None);
    fold.set("x", x)?;
    fold.value("y").cloned()
}

#[test]
fn attributes_come_from_the_call_or_are_defaults() {
    let x = || Value::shaped(ElementType::Float32, vec![2, 3, 4]).unwrap();
    let mut flat = function("Flat(a) -> b", "b = Flatten(a) {axis=$where}");
    let shape =
        |call: &str, flat: &FunctionProto| evaluate(&calling(call, vec![flat.clone()]), x()).unwrap().shape;
    // Neither the call nor the function gives the attribute, so the default of the operator applies: 1.
    assert_eq!(shape("y = Flat@local(x)", &flat), [2, 12]);
    flat.attribute_proto = vec![int("where", 2)];
    assert_eq!(shape("y = Flat@local(x)", &flat), [6, 4]);
    assert_eq!(shape("y = Flat@local(x) {where=3}", &flat), [24, 1]);
}

#[test]
fn a_body_computes_with_shapes_of_unknown_inputs() {
    let inner = function("Rows(a) -> b", "b = Neg(Shape(a))");
    let outer = function("Outer(a, left_out) -> b", "b = Rows@local(a)");
    let model = calling("y = Outer@local(x)", vec![inner, outer]);
    let got = evaluate(&model, Value::shaped(ElementType::Float32, vec![5, 3]).unwrap()).unwrap();
    assert_eq!(got.data, Some(Values::Ints(vec![-5, -3])));
}

#[test]
fn an_open_value_inside_a_function_is_one_output_of_it() {
    let both = function("Both(a) -> b, c", "b = NonZero(a); c = Neg(a)");
    let model = calling("open, y = Both@local(x)", vec![both]);
    let graph = model.graph().unwrap();
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
    let called = |body: &str| evaluate(&calling("y = F@local(x)", vec![function("F(a) -> b", body)]), x());
    assert_refused!(called("b = F@local(a)"), FoldError::TooDeep { limit: 16 });
    assert_refused!(called("c = Neg(b); b = Neg(c)"), GraphError::ValueMissing { name } if name == "b");
    assert_refused!(called("a = Neg(a)"), GraphError::DuplicateName { name } if name == "a");
    assert_refused!(called("c = Neg(a)"), GraphError::ValueMissing { name } if name == "b");
    assert_refused!(called("b = Mystery(a)"), FoldError::NoRule);
    assert!(called("b = Mystery(a)").unwrap_err().to_string().contains("Mystery"));
}

/// The work is in the values, or in the number of calls.
#[test]
fn functions_that_multiply_are_stopped() {
    for (calls, levels, elements) in [(2, 15, 1), (200, 4, 1 << 18)] {
        let level = |depth: usize| {
            let next = depth + 1;
            let nested = (0..calls).fold("a".to_owned(), |value, _| format!("F{next}@local({value})"));
            function(&format!("F{depth}(a) -> b"), &format!("b = {nested}"))
        };
        let mut functions: Vec<_> = (0..levels).map(level).collect();
        functions.push(function(&format!("F{levels}(a) -> b"), "b = Neg(a)"));
        let model = calling("y = F0@local(x)", functions);
        let value = evaluate(&model, Value::ints(vec![1; elements]).unwrap());
        assert_refused!(value, FoldError::TooMuch { .. });
    }
}
