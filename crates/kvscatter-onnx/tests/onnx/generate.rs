//! Generated inputs: reproducible, of the declared types, and valid.

use std::collections::BTreeMap;

use kvscatter::ElementType::{self, Int8, Int64};
use kvscatter_onnx::eval::{Evaluator, Feed, Placement};
use kvscatter_onnx::proto::NodeProto;
use kvscatter_onnx::{Data, Error, Model, Tensor, generate, tensor_proto};

use crate::support::{assert_refused, int64, model, node, scatter, string, value};

fn dims(dims: &[(&str, usize)]) -> BTreeMap<String, usize> {
    dims.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
}

/// Caches of 8 slots, updates of 3 rows, and three inputs of indices.
fn graph(nodes: Vec<NodeProto>) -> Model {
    model(
        vec![
            value("x", Int8, &["batch", "8"]),
            value("u", Int8, &["batch", "?"]),
            value("i", Int64, &["batch"]),
            value("j", Int64, &["batch"]),
        ],
        nodes,
        vec![],
    )
}

fn ints(tensor: &Tensor) -> Vec<i64> {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect(),
        Data::Strings(_) => panic!("strings"),
    }
}

/// Generates inputs and checks that the model runs on them.
fn generated(model: &Model, seed: u64) -> BTreeMap<String, Tensor> {
    let inputs = generate::inputs(model, &dims(&[("batch", 64), ("u[1]", 3)]), seed).unwrap();
    let feeds = inputs.iter().map(|(name, tensor)| (name.as_str(), Feed::Borrowed(tensor))).collect();
    Evaluator::new(model).unwrap().run(feeds, Placement::Auto).unwrap();
    inputs
}

#[test]
fn indices_are_valid_by_construction() {
    let one = graph(vec![scatter(&["x", "u", "i"], "y")]);
    let indices = ints(&generated(&one, 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&5)));

    let mut ring = scatter(&["x", "u", "i"], "y");
    ring.attribute.push(string("mode", "circular"));
    let indices = ints(&generated(&graph(vec![ring]), 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&7)));

    let mut offset = graph(vec![
        node("Add", &["i", "w"], "a"),
        node("Identity", &["a"], "b"),
        scatter(&["x", "u", "b"], "y"),
        scatter(&["x", "u", "i"], "z"),
    ]);
    let initializer = tensor_proto::encode("w", &int64(&[2, 1], &[1, 2]));
    offset.proto_mut().graph.get_or_insert_default().initializer = vec![initializer];
    // The sum has rank 2, so the model is wrong whatever the values are.
    assert_refused!(
        generate::inputs(&offset, &dims(&[("batch", 2), ("u[1]", 3)]), 1),
        Error::Operator(kvscatter::Error::Rank { rank: 2, .. })
    );
    let initializer = tensor_proto::encode("w", &int64(&[1], &[2]));
    offset.proto_mut().graph.get_or_insert_default().initializer = vec![initializer];
    let indices = ints(&generated(&offset, 1)["i"]);
    assert_eq!((indices.iter().min(), indices.iter().max()), (Some(&0), Some(&3)));

    let two = graph(vec![node("Add", &["i", "j"], "a"), scatter(&["x", "u", "a"], "y")]);
    generated(&two, 1);
}

#[test]
fn indices_that_cannot_be_valid() {
    let mut model = graph(vec![
        node("Add", &["i", "w"], "a"),
        scatter(&["x", "u", "a"], "y"),
        scatter(&["x", "u", "i"], "z"),
    ]);
    let initializer = tensor_proto::encode("w", &int64(&[1], &[6]));
    model.proto_mut().graph.get_or_insert_default().initializer = vec![initializer];
    assert_refused!(
        generate::inputs(&model, &dims(&[("batch", 2), ("u[1]", 3)]), 1),
        Error::NoValidIndices { name } if name == "i"
    );
    assert!(generate::inputs(&model, &dims(&[("batch", 0), ("u[1]", 3)]), 1).is_ok());
}

#[test]
fn a_seed_is_reproducible() {
    let model = graph(vec![scatter(&["x", "u", "i"], "y")]);
    assert_eq!(generated(&model, 7), generated(&model, 7));
    assert_ne!(generated(&model, 7), generated(&model, 8));
    // Across versions and machines as well.
    let inputs = generate::inputs(&model, &dims(&[("batch", 2), ("u[1]", 3)]), 0).unwrap();
    assert_eq!(ints(&inputs["i"]), [0, 3]);
    assert_eq!(ints(&inputs["j"]), [6_494_991_894_978_360_344, -5_916_434_277_248_049_709]);
}

#[test]
fn every_type_has_values() {
    for element in ElementType::ALL {
        let model = model(vec![value("x", element, &["5", "3"])], vec![], vec![]);
        let inputs = generate::inputs(&model, &BTreeMap::new(), 3).unwrap();
        assert_eq!(inputs["x"].element(), element);
        let typed = tensor_proto::encode_typed("x", &inputs["x"]);
        let tame = |value: f64| value.is_finite() && (0.25..4.0).contains(&value.abs());
        assert!(typed.float_data.iter().all(|&value| tame(value.into())), "{typed:?}");
        assert!(typed.double_data.iter().all(|&value| tame(value)), "{typed:?}");
        assert_eq!(tensor_proto::decode(typed, None).unwrap(), inputs["x"]);
    }
}

#[test]
fn dimensions_must_be_given() {
    let model = graph(vec![scatter(&["x", "u", "i"], "y")]);
    let refused = |given: &[(&str, usize)]| generate::inputs(&model, &dims(given), 0).unwrap_err();
    let error = refused(&[("u[1]", 3)]);
    assert!(matches!(&error, Error::DimMissing { name, dim } if name == "x" && dim == "batch"), "{error}");
    let error = refused(&[("batch", 2)]);
    assert!(matches!(&error, Error::DimMissing { name, dim } if name == "u" && dim == "u[1]"), "{error}");
    let error = refused(&[("batch", 2), ("u[1]", 3), ("x[1]", 3)]);
    assert!(matches!(&error, Error::DimUnused { dim } if dim == "x[1]"), "{error}");
    let error = refused(&[("batch", usize::MAX), ("u[1]", 3)]);
    assert!(matches!(error.root(), Error::Tensor(_) | Error::Operator(_)), "{error}");
    // As large as a buffer may be, and far beyond what is allocated.
    let error = refused(&[("batch", 1 << 40), ("u[1]", 3)]);
    assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
}
