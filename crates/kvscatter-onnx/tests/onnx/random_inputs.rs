//! Tests that generated inputs are reproducible, have the declared types, and are valid.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType::{self, Int8, Int64};
use kvscatter_onnx::internal::eval::{Evaluator, Feed, Placement};
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::{DEFAULT_MEMORY_LIMIT, random_inputs, tensor_proto};
use kvscatter_onnx::{EvalError, Model, Tensor};

use crate::support::{assert_refused, bytes, graph_mut, int64, parsed};

fn dims(dims: &[(&str, usize)]) -> BTreeMap<String, usize> {
    dims.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
}

/// Creates a graph with caches of 8 slots, updates of 3 rows, and three inputs of indices.
fn graph(nodes: &str) -> Model {
    parsed("x: int8[batch, 8], u: int8[batch, ?], i, j: int64[batch]", nodes, "")
}

/// `y` is `x` with rows written at `i`.
const ONE: &str = "y = TensorScatter(x, u, i) {axis=1}";

fn ints(tensor: &Tensor) -> Vec<i64> {
    tensor.int64s().unwrap().collect()
}

/// Generates inputs and checks that the model runs on them.
fn generated(model: &Model, seed: u64) -> BTreeMap<String, Tensor> {
    let inputs = random_inputs::inputs(model, &dims(&[("batch", 64), ("u[1]", 3)]), seed).unwrap();
    let feeds = inputs.iter().map(|(name, tensor)| (name.as_str(), Feed::Borrowed(tensor))).collect();
    Evaluator::new(model).unwrap().run(feeds, Placement::Auto).unwrap();
    inputs
}

#[test]
fn indices_are_valid_by_construction() {
    let one = graph(ONE);
    let indices = ints(&generated(&one, 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&5)));

    let ring = graph(r#"y = TensorScatter(x, u, i) {axis=1, mode="circular"}"#);
    let indices = ints(&generated(&ring, 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&7)));

    let nodes =
        "b = Identity(Add(i, w)); y = TensorScatter(x, u, b) {axis=1}; z = TensorScatter(x, u, i) {axis=1}";
    let offset = |shape: &[usize], values: &[i64]| {
        let mut model = graph(nodes);
        graph_mut(&mut model).initializer = vec![tensor_proto::encode("w", &int64(shape, values))];
        model
    };
    // The sum has rank 2, so the model is invalid for all values.
    assert_refused!(
        random_inputs::inputs(&offset(&[2, 1], &[1, 2]), &dims(&[("batch", 2), ("u[1]", 3)]), 1),
        kvscatter::Error::Rank { rank: 2, .. }
    );
    let indices = ints(&generated(&offset(&[1], &[2]), 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&3)));

    let two = graph("y = TensorScatter(x, u, Add(i, j)) {axis=1}");
    generated(&two, 1);
}

#[test]
fn indices_that_cannot_be_valid() {
    let nodes = "y = TensorScatter(x, u, Add(i, [6])) {axis=1}; z = TensorScatter(x, u, i) {axis=1}";
    let model = graph(nodes);
    assert_refused!(
        random_inputs::inputs(&model, &dims(&[("batch", 2), ("u[1]", 3)]), 1),
        EvalError::NoValidIndices { name } if name == "i"
    );
    assert!(random_inputs::inputs(&model, &dims(&[("batch", 0), ("u[1]", 3)]), 1).is_ok());
}

#[test]
fn a_seed_is_reproducible() {
    let model = graph(ONE);
    assert_eq!(generated(&model, 7), generated(&model, 7));
    assert_ne!(generated(&model, 7), generated(&model, 8));
    // The values are the same across versions and machines.
    let inputs = random_inputs::inputs(&model, &dims(&[("batch", 2), ("u[1]", 3)]), 0).unwrap();
    assert_eq!(ints(&inputs["i"]), [0, 3]);
    assert_eq!(ints(&inputs["j"]), [6_494_991_894_978_360_344, -5_916_434_277_248_049_709]);
}

#[test]
fn every_type_has_values() {
    for element in ElementType::ALL {
        let model = parsed(&format!("x: {element}[5, 3]"), "", "");
        let inputs = random_inputs::inputs(&model, &BTreeMap::new(), 3).unwrap();
        assert_eq!(inputs["x"].element(), element);
        let typed = tensor_proto::encode_typed("x", &inputs["x"]);
        let is_short = |value: f64| (value * 32.0).fract() == 0.0 || element != ElementType::Float32;
        let tame = |value: f64| (0.25..4.0).contains(&value.abs()) && is_short(value);
        assert!(typed.float_data.iter().all(|&value| tame(value.into())), "{typed:?}");
        assert!(typed.double_data.iter().all(|&value| tame(value)), "{typed:?}");
        let signs: BTreeSet<_> = typed.float_data.iter().map(|value| value.is_sign_negative()).collect();
        assert_ne!(signs.len(), 1, "{typed:?}");
        assert_eq!(tensor_proto::decode(typed, None).unwrap(), inputs["x"]);
    }
}

#[test]
fn dimensions_must_be_given() {
    let model = graph(ONE);
    let inputs = |given: &[(&str, usize)]| random_inputs::inputs(&model, &dims(given), 0);
    let open = |given: &[(&str, usize)]| {
        let error = inputs(given).unwrap_err();
        let Some(EvalError::DimsMissing { open }) = error.cause() else { panic!("{error}") };
        open.iter().map(|open| (open.dim.clone(), open.input.clone())).collect::<Vec<_>>()
    };
    let open_dim = |dim: &str, input: &str| (dim.to_owned(), input.to_owned());
    assert_eq!(open(&[]), [open_dim("batch", "x"), open_dim("u[1]", "u")]);
    assert_eq!(open(&[("u[1]", 3)]), [open_dim("batch", "x")]);
    assert_eq!(open(&[("batch", 2)]), [open_dim("u[1]", "u")]);
    let unused = inputs(&[("batch", 2), ("u[1]", 3), ("x[1]", 3)]);
    assert_refused!(unused, EvalError::DimUnused { dim } if dim == "x[1]");
    let error = inputs(&[("batch", usize::MAX), ("u[1]", 3)]).unwrap_err();
    assert!(["tensor", "operator"].contains(&error.kind()), "{error}");
    // The size is as large as a buffer may be, and far beyond what may be allocated.
    assert_refused!(
        inputs(&[("batch", 1 << 40), ("u[1]", 3)]),
        EvalError::MemoryLimit { needed, limit: DEFAULT_MEMORY_LIMIT } if *needed == (8 + 3 + 8 + 8) << 40
    );
}

/// A given cache is not generated and needs no declared shape. The sizes come from the given tensors.
#[test]
fn only_what_is_missing_is_generated() {
    let mut model = graph("y = TensorScatter(x, u, Add(Identity(i), j)) {axis=1}");
    let graph = graph_mut(&mut model);
    let Some(TypeValue::TensorType(ty)) = &mut graph.input[0].r#type.get_or_insert_default().value else {
        panic!("a tensor")
    };
    ty.shape = None.into();
    assert_refused!(
        random_inputs::inputs(&model, &dims(&[("batch", 2), ("u[1]", 3)]), 0),
        EvalError::ShapeUnknown { name } if name == "x"
    );

    let (x, u, i) = (bytes(Int8, &[2, 8], &[0; 16]), bytes(Int8, &[2, 3], &[1; 6]), int64(&[2], &[4, 5]));
    let given = BTreeMap::from([("x", &x), ("u", &u), ("i", &i)]);
    let evaluator = Evaluator::new(&model).unwrap().memory_limit(16);
    let generated = random_inputs::missing_inputs(&evaluator, &given, &dims(&[]), 0).unwrap();
    assert_eq!(generated.keys().collect::<Vec<_>>(), ["j"]);
    // 4 + j and 5 + j are in 0..=5.
    assert!(ints(&generated["j"]).iter().all(|j| (-4..=0).contains(j)), "{generated:?}");
    let feeds = given.iter().map(|(&name, &tensor)| (name, Feed::Borrowed(tensor)));
    let feeds = feeds.chain([("j", Feed::Borrowed(&generated["j"]))]).collect();
    evaluator.memory_limit(1 << 20).run(feeds, Placement::Auto).unwrap();
}

#[test]
fn given_tensors_that_do_not_fit() {
    let model = graph(ONE);
    let evaluator = Evaluator::new(&model).unwrap().memory_limit(31);
    let (i, int8) = (int64(&[2], &[0, 0]), bytes(Int8, &[2], &[0; 2]));
    let missing = |name, tensor, given: &[(&str, usize)]| {
        random_inputs::missing_inputs(&evaluator, &BTreeMap::from([(name, tensor)]), &dims(given), 0)
    };
    assert_refused!(missing("z", &i, &[]), EvalError::InputUnknown { name } if name == "z");
    let conflict = missing("i", &i, &[("batch", 3), ("u[1]", 3)]);
    assert_refused!(conflict, EvalError::SymbolConflict { name, expected: 3, got: 2, .. } if name == "i");
    let narrow = missing("i", &int8, &[("u[1]", 3)]);
    assert_refused!(narrow, EvalError::ValueType { expected: Int64, got: Int8, .. });
    // The caches have 2 * 8 bytes, the updates 2 * 3 bytes, and the 2 indices 8 bytes each.
    let large = missing("i", &i, &[("u[1]", 3)]);
    assert_refused!(large, EvalError::MemoryLimit { needed: 38, limit: 31 });
}

/// Only some inputs are generated. The others need no sizes, but the names of their dimensions are known.
#[test]
fn shapes_of_some_inputs() {
    let one = graph(ONE);
    let inputs = one.graph().unwrap().inputs().unwrap();
    let shapes = |sizes: &[(&str, usize)]| {
        random_inputs::missing_shapes(&inputs, |input| input.name == "x", &BTreeMap::new(), &dims(sizes))
    };
    let made = shapes(&[("batch", 2), ("u[1]", 3)]).unwrap();
    assert_eq!(made, BTreeMap::from([("x", vec![2, 8])]));
    assert_eq!(shapes(&[("batch", 2)]).unwrap(), made);
    assert_refused!(shapes(&[]), EvalError::DimsMissing { open } if open.len() == 1);
    assert_refused!(shapes(&[("batch", 2), ("rows", 3)]), EvalError::DimUnused { .. });
}

#[test]
fn tensors_without_a_graph() {
    let types = BTreeMap::from([("k", (ElementType::Float32, vec![2, 3])), ("s", (Int8, vec![4]))]);
    let made = random_inputs::tensors(&types, 7, 28).unwrap();
    assert_eq!(made["k"].shape(), [2, 3]);
    assert_eq!(made, random_inputs::tensors(&types, 7, 28).unwrap());
    assert_ne!(made, random_inputs::tensors(&types, 8, 28).unwrap());
    let refused = random_inputs::tensors(&types, 7, 27);
    assert_refused!(refused, EvalError::MemoryLimit { needed: 28, limit: 27 });

    let drawn = random_inputs::int64s(&(-2..=2), 200, 7);
    assert_eq!((drawn.len(), drawn.iter().min(), drawn.iter().max()), (200, Some(&-2), Some(&2)));
}
