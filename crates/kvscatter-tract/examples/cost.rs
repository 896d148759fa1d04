//! What the cache write costs inside a plan of tract's, beside the core's call on the same buffers; and what a token
//! costs as the capacity grows and the length does not.
//!
//! `cargo run --release -p kvscatter-tract --example cost`
//!
//! Each time is the least of many runs, so that what else the machine does counts little. The write inside the plan is
//! its node alone: the plan's other work is left out by asking tract for each node's time.

use std::time::{Duration, Instant};

use kvscatter::ElementType;
use kvscatter::spec::onnx::TensorScatter;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto::AttributeType, type_proto,
};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::plan::eval;
use tract_onnx::tract_hir::internal::Framework;

/// Of one token, in elements: 8 heads of 64.
const ROW: usize = 512;

/// Tokens of each sample that are in the cache.
const LENGTH: usize = 100;

const RUNS: usize = 300;

fn main() -> TractResult<()> {
    println!("float32, {LENGTH} tokens in the cache, one more; microseconds, least of {RUNS}");
    println!(
        "{:>6} {:>9} {:>10} {:>10} {:>6} {:>10}",
        "batch", "capacity", "node", "core", "ratio", "attention"
    );
    for batch in [1, 8] {
        for capacity in [128, 512, 2048, 8192, 32768] {
            let [node, core, attention] = measure(batch, capacity)?.map(|time| time.as_secs_f64() * 1e6);
            println!(
                "{batch:>6} {capacity:>9} {node:>10.2} {core:>10.2} {:>6.2} {attention:>10.1}",
                node / core
            );
        }
    }
    Ok(())
}

/// The least times of the node that writes, of the core's call, and of the attention after it.
fn measure(batch: usize, capacity: usize) -> TractResult<[Duration; 3]> {
    let mut onnx = tract_onnx::onnx();
    kvscatter_tract::register(&mut onnx);
    let mut state =
        onnx.model_for_proto_model(&model(batch, capacity))?.into_optimized()?.into_runnable()?.spawn()?;
    let update = Tensor::zero::<f32>(&[batch, 1, ROW])?;
    let prepared = TensorScatter::new().axis(1).prepare(
        ElementType::Float32,
        &[batch, capacity, ROW],
        &[batch, 1, ROW],
    )?;
    let at = vec![i64::try_from(LENGTH)?; batch];
    let lengths = vec![i64::try_from(LENGTH + 1)?; batch];
    let mut cache = Tensor::zero::<f32>(&[batch, capacity, ROW])?;
    let mut least = [Duration::MAX; 3];
    for _ in 0..RUNS {
        let inputs: TVec<TValue> =
            tvec![cache.into(), update.clone().into(), tensor1(&at).into(), tensor1(&lengths).into()];
        let mut times = [Duration::MAX; 3];
        let results = state.run_plan_with_eval(inputs, |context, op_state, node, inputs| {
            let start = Instant::now();
            let results = eval(context, op_state, node, inputs);
            match node.op().name().as_ref() {
                "TensorScatter" => times[0] = start.elapsed(),
                "Attention" => times[2] = start.elapsed(),
                _ => {}
            }
            results
        })?;
        cache = results.into_iter().next().map(IntoTensor::into_tensor).unwrap_or_default();
        let start = Instant::now();
        let _ = prepared.plan(&at)?.write_bytes(cache.as_bytes_mut(), update.as_bytes())?;
        times[1] = start.elapsed();
        least = [0, 1, 2].map(|index| least[index].min(times[index]));
    }
    assert!(kvscatter_tract::cache_copy_counts(&state).is_empty(), "the cache was copied");
    Ok(least)
}

/// One cache, written and attended to: keys and values alike.
fn model(batch: usize, capacity: usize) -> ModelProto {
    let node = |op_type: &str, input: &[&str], output: &str, attributes: &[(&str, i64)]| NodeProto {
        op_type: op_type.to_owned(),
        input: input.iter().map(|name| (*name).to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute: attributes.iter().map(|(name, value)| integer(name, *value)).collect(),
        ..NodeProto::default()
    };
    let (heads, cache) = ([("q_num_heads", 8), ("kv_num_heads", 8)], [batch, capacity, ROW]);
    let graph = GraphProto {
        node: vec![
            node("TensorScatter", &["past", "update", "at"], "present", &[("axis", 1)]),
            node("Attention", &["update", "present", "present", "", "", "", "lengths"], "y", &heads),
        ],
        input: vec![
            value("past", 1, &cache),
            value("update", 1, &[batch, 1, ROW]),
            value("at", 7, &[batch]),
            value("lengths", 7, &[batch]),
        ],
        output: vec![value("present", 1, &cache), value("y", 1, &[batch, 1, ROW])],
        ..GraphProto::default()
    };
    let opset = OperatorSetIdProto { domain: String::new(), version: 24 };
    ModelProto { ir_version: 11, opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

fn integer(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i,
        r#type: AttributeType::Int.into(),
        ..AttributeProto::default()
    }
}

fn value(name: &str, elem_type: i32, dims: &[usize]) -> ValueInfoProto {
    let dim = dims.iter().map(|size| {
        let value = dimension::Value::DimValue(i64::try_from(*size).unwrap_or(i64::MAX));
        Dimension { value: Some(value), ..Dimension::default() }
    });
    let shape = Some(TensorShapeProto { dim: dim.collect() });
    let value = Some(type_proto::Value::TensorType(type_proto::Tensor { elem_type, shape }));
    let r#type = Some(TypeProto { value, ..TypeProto::default() });
    ValueInfoProto { name: name.to_owned(), r#type, ..ValueInfoProto::default() }
}
