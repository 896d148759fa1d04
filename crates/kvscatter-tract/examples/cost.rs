//! Measures the cost of the cache write inside a plan of tract, and compares it with a call of the core on
//! the same buffers. Also measures the cost of a token for larger capacities at the same length.
//!
//! `cargo run --release -p kvscatter-tract --example cost`
//!
//! Each time is the minimum of many runs, so other work of the machine has little effect. The time of the
//! write inside the plan is the time that tract reports for its node, without the rest of the plan.

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

/// The elements of one token, 8 heads of 64.
const ROW: usize = 512;

/// The number of cached tokens of each sample.
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

/// Returns the minimum times of tract's write node, of the call of the core, and of the attention.
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

/// Returns a model that writes one cache and attends to it as keys and values.
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
