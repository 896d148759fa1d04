//! Models that tract runs through its public interface.

use std::fs;
use std::path::{Path, PathBuf};

use kvscatter_onnx::convert::convert;
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_tract::register;
use tract_onnx::prelude::*;

pub(crate) use crate::replay::protos::value;

pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// Returns the path of a decoder of the test data.
pub(crate) fn decoder(name: &str) -> PathBuf {
    testdata(name).join("model.onnx")
}

/// Converts a decoder of the test data for samples of `capacity` tokens, and saves it in a folder of its name.
pub(crate) fn converted(name: &str, capacity: usize, folder: &Path) -> PathBuf {
    let converted = convert(&Model::load(&decoder(name)).unwrap(), capacity).unwrap();
    let path = folder.join(name).join("model.onnx");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    converted.model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    path
}

pub(crate) fn node(op_type: &str, name: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto { name: Some(name.to_owned()), ..NodeProto::new(op_type, input, output) }
}

pub(crate) fn model(
    node: Vec<NodeProto>,
    input: Vec<ValueInfoProto>,
    output: Vec<ValueInfoProto>,
) -> ModelProto {
    ModelProto::new(11, &[("", 24)], GraphProto { node, input, output, ..GraphProto::default() })
}

/// Returns the model as tract reads it, with the operators of this crate.
pub(crate) fn read(model: ModelProto) -> TractResult<InferenceModel> {
    let mut onnx = tract_onnx::onnx();
    register(&mut onnx);
    onnx.model_for_read(&mut Model::from_proto(model).to_bytes().unwrap().as_slice())
}

/// Returns the model as a plan.
pub(crate) fn plan(model: ModelProto) -> TractResult<Arc<TypedSimplePlan>> {
    read(model)?.into_optimized()?.into_runnable()
}

/// Returns the message of the root cause of an error.
pub(crate) fn words<T>(result: TractResult<T>) -> String {
    result.err().map_or_else(|| "nothing went wrong".to_owned(), |error| error.root_cause().to_string())
}
