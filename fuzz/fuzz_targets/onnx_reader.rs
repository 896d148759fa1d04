//! Reads the input as an ONNX model, saves it, reads it again, and evaluates it on generated inputs. The
//! target checks three properties:
//!
//! - Nothing panics.
//! - A saved model that is read and saved again has the same bytes.
//! - All placements give the same outputs.
//!
//! The input also selects a model that is built and not read, because random bytes rarely form a graph that
//! runs.

#![no_main]

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Result, Unstructured};
use kvscatter::ElementType;
use kvscatter_onnx::eval::{Evaluator, Feed, NodeReport, Outcome, Placement};
use kvscatter_onnx::proto::attribute_proto::AttributeType;
use kvscatter_onnx::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};
use kvscatter_onnx::{Model, Tensor, random_inputs, read_tensor_pb, tensor_proto};
use libfuzzer_sys::fuzz_target;

/// The number of bytes that one evaluation, or one set of inputs, may allocate.
const MEMORY_LIMIT: u64 = 16 << 20;

fuzz_target!(|bytes: &[u8]| {
    let read = Model::from_bytes(bytes).ok();
    let built = build(&mut Unstructured::new(bytes)).ok().map(Model::from_proto);
    for model in [read, built].into_iter().flatten() {
        saved_twice(&model);
        evaluated(&model);
    }
    if let Ok(tensor) = read_tensor_pb(bytes) {
        read_back(&tensor);
    }
});

fn saved_twice(model: &Model) {
    let saved = model.to_bytes().expect("a small model");
    let again = Model::from_bytes(&saved).expect("a saved model can be read");
    // Compare bytes, because a NaN is not equal to itself.
    assert_eq!(again.to_bytes().expect("a small model"), saved);
    let Ok(graph) = model.graph() else { return };
    for &message in graph.initializers().values() {
        if let Ok(tensor) = tensor_proto::decode(message.clone(), None) {
            read_back(&tensor);
        }
    }
}

fn read_back(tensor: &Tensor) {
    let raw = tensor_proto::encode("", tensor);
    assert_eq!(&tensor_proto::decode(raw, None).expect("a tensor"), tensor);
    // Only raw data can store bits of a bool other than 0 and 1.
    if tensor.element() != ElementType::Bool {
        let typed = tensor_proto::encode_typed("", tensor);
        assert_eq!(&tensor_proto::decode(typed, None).expect("a tensor"), tensor);
    }
}

fn evaluated(model: &Model) {
    let Ok(evaluator) = Evaluator::new(model) else {
        return;
    };
    let evaluator = evaluator.memory_limit(MEMORY_LIMIT);
    let mut dims = BTreeMap::new();
    for input in evaluator.required_inputs() {
        for axis in 0..input.shape.iter().flatten().count() {
            if let Some(key) = input.dim_key(axis) {
                let size = key.len() % 4;
                dims.insert(key, size);
            }
        }
    }
    let Ok(inputs) = random_inputs::missing_inputs(&evaluator, &BTreeMap::new(), &dims, 1) else {
        return;
    };
    let given: BTreeMap<_, _> =
        inputs.iter().step_by(2).map(|(name, tensor)| (name.as_str(), tensor)).collect();
    if let Ok(rest) = random_inputs::missing_inputs(&evaluator, &given, &dims, 2) {
        assert_eq!(rest.len() + given.len(), inputs.len());
        assert!(rest.iter().all(|(name, tensor)| inputs[name].shape() == tensor.shape()));
    }
    let feeds = |feed: fn(&Tensor) -> Feed<'_>| {
        inputs.iter().map(move |(name, tensor)| (name.as_str(), feed(tensor)))
    };
    let donated = || feeds(|tensor| Feed::Donated(tensor.clone())).collect();
    let borrowed = || feeds(|tensor| Feed::Borrowed(tensor)).collect();
    let Ok(functional) = evaluator.run(borrowed(), Placement::Functional) else {
        return;
    };
    for done in [
        evaluator
            .run(donated(), Placement::Auto)
            .expect("the same evaluation succeeded before and needs less memory now"),
        evaluator
            .run(borrowed(), Placement::Auto)
            .expect("the same evaluation succeeded before and needs less memory now"),
    ] {
        assert_eq!(done.outputs, functional.outputs);
    }
    if let Ok(in_place) = evaluator.run(donated(), Placement::InPlace) {
        assert_eq!(in_place.outputs, functional.outputs);
        assert!(
            in_place
                .report
                .nodes
                .iter()
                .filter(|node| matches!(node.outcome, Outcome::InPlace { .. }))
                .all(NodeReport::is_in_place)
        );
    }
}

fn build(u: &mut Unstructured<'_>) -> Result<ModelProto> {
    let mut graph = GraphProto::default();
    let mut names = Vec::new();
    for index in 0..u.int_in_range(1..=4)? {
        graph.input.push(value(u, format!("x{index}"))?);
        names.push(format!("x{index}"));
    }
    for index in 0..u.int_in_range(0..=2)? {
        graph.initializer.push(tensor(u, format!("w{index}"))?);
        names.push(format!("w{index}"));
    }
    for index in 0..u.int_in_range(0..=6)? {
        graph.node.push(node(u, &names, format!("y{index}"))?);
        names.push(format!("y{index}"));
    }
    for index in 0..u.int_in_range(0..=3)? {
        // The value of that name usually has another type, and an output without a type does not run.
        let last = names.len().saturating_sub(index + 1);
        let mut output = value(u, names.get(last).cloned().unwrap_or_default())?;
        if let Some(input) = graph.input.first() {
            output.r#type = input.r#type.clone();
        }
        graph.output.push(output);
    }
    if u.int_in_range(0..=15)? == 0 {
        // This makes a duplicate name, an unknown name or a cycle.
        let stray = u.choose(&names)?.clone();
        if let Some(node) = graph.node.first_mut() {
            node.output = vec![stray];
        }
    }
    let opset = OperatorSetIdProto { version: Some(24), ..OperatorSetIdProto::default() };
    Ok(ModelProto { graph: graph.into(), opset_import: vec![opset], ..ModelProto::default() })
}

/// Returns one of a few types, so that two values often have the same type, and occasionally any number.
fn element(u: &mut Unstructured<'_>) -> Result<i32> {
    match u.int_in_range(0..=15)? {
        0..=9 => Ok(ElementType::Int64.onnx_code()),
        10..=12 => Ok(ElementType::UInt4.onnx_code()),
        13..=14 => Ok(ElementType::String.onnx_code()),
        _ => u.int_in_range(-1..=30),
    }
}

fn size(u: &mut Unstructured<'_>) -> Result<i64> {
    match u.int_in_range(0..=31)? {
        0 => i64::arbitrary(u),
        _ => u.int_in_range(0..=3),
    }
}

fn value(u: &mut Unstructured<'_>, name: String) -> Result<ValueInfoProto> {
    let dims = (0..*u.choose(&[1, 1, 2, 2, 2, 3, 4])?).map(|_| {
        let value = match u.int_in_range(0..=7)? {
            0 => None,
            1..=4 => Some(DimValue::DimParam((*u.choose(&["b", "ss"])?).to_owned())),
            _ => Some(DimValue::DimValue(size(u)?)),
        };
        Ok(Dimension { value, ..Dimension::default() })
    });
    let shape = TensorShapeProto { dim: dims.collect::<Result<_>>()?, ..TensorShapeProto::default() };
    let tensor = type_proto::Tensor {
        elem_type: Some(element(u)?),
        shape: shape.into(),
        ..type_proto::Tensor::default()
    };
    let ty = TypeProto { value: Some(TypeValue::TensorType(Box::new(tensor))), ..TypeProto::default() };
    Ok(ValueInfoProto { name: Some(name), r#type: ty.into(), ..ValueInfoProto::default() })
}

fn tensor(u: &mut Unstructured<'_>, name: String) -> Result<TensorProto> {
    let dims: Vec<i64> = (0..u.int_in_range(0..=3)?).map(|_| size(u)).collect::<Result<_>>()?;
    let elements: i64 = dims.iter().fold(1, |n, &dim| n.wrapping_mul(dim));
    let len = usize::try_from(elements.clamp(0, 64)).unwrap_or_default();
    let mut tensor =
        TensorProto { name: Some(name), data_type: Some(element(u)?), dims, ..TensorProto::default() };
    match u.int_in_range(0..=5)? {
        0 => tensor.raw_data = Some(u.bytes(len)?.to_vec()),
        1 => tensor.int32_data = (0..len).map(|_| i32::arbitrary(u)).collect::<Result<_>>()?,
        _ => tensor.int64_data = (0..len).map(|_| u.int_in_range(-1..=4)).collect::<Result<_>>()?,
    }
    Ok(tensor)
}

fn node(u: &mut Unstructured<'_>, names: &[String], output: String) -> Result<NodeProto> {
    let (op_type, inputs) = *u.choose(&[
        ("TensorScatter", 3),
        ("TensorScatter", 2),
        ("Identity", 1),
        ("Add", 2),
        ("Constant", 0),
        ("Relu", 1),
    ])?;
    let mut node = NodeProto {
        op_type: Some(op_type.to_owned()),
        input: (0..inputs).map(|_| u.choose(names).cloned()).collect::<Result<_>>()?,
        output: vec![output],
        ..NodeProto::default()
    };
    let attribute = |name: &str, ty| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(ty),
        ..AttributeProto::default()
    };
    if op_type == "Constant" {
        node.attribute.push(AttributeProto {
            ints: (0..u.int_in_range(0..=3)?).map(|_| u.int_in_range(-1..=4)).collect::<Result<_>>()?,
            ..attribute("value_ints", AttributeType::INTS)
        });
    }
    if op_type == "TensorScatter" {
        node.attribute.push(AttributeProto {
            i: Some(*u.choose(&[1, 1, 1, -1, -2, 2, 0, -3])?),
            ..attribute("axis", AttributeType::INT)
        });
        if bool::arbitrary(u)? {
            node.attribute.push(AttributeProto {
                s: Some(b"circular".to_vec()),
                ..attribute("mode", AttributeType::STRING)
            });
        }
    }
    Ok(node)
}
