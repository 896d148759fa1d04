//! Decoders of the test data, changed copies of them, and how tests generate with them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kvscatter_onnx::internal::proto::type_proto::{Tensor as TensorType, Value as TypeValue};
use kvscatter_onnx::internal::proto::{GraphProto, ValueInfoProto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{Engine, Event, GenerateOptions, Generator, SessionOptions};
use tempfile::TempDir;

pub(crate) const STATIC: &str = "mobius-llama-static";
pub(crate) const GROWING: &str = "mobius-llama-dynamic";
pub(crate) const OPERATOR: &str = "genai-llama-gqa";

/// Returns the path of a decoder.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name).join("model.onnx")
}

/// Writes a model with a changed graph. The file is gone when the folder is dropped.
pub(crate) fn changed(name: &str, change: impl FnOnce(&mut GraphProto)) -> (TempDir, PathBuf) {
    let mut model = Model::load(&model(name)).unwrap();
    change(model.proto_mut().graph.get_or_insert_default());
    let folder = tempfile::tempdir().unwrap();
    // The fake engine knows a model by its folder.
    let path = folder.path().join(name).join("model.onnx");
    std::fs::create_dir(folder.path().join(name)).unwrap();
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    (folder, path)
}

/// Returns an input or an output.
pub(crate) fn find<'g>(values: &'g mut [ValueInfoProto], name: &str) -> &'g mut ValueInfoProto {
    values.iter_mut().find(|value| value.name.as_deref() == Some(name)).unwrap()
}

/// Returns the type of an input or output.
pub(crate) fn tensor(value: &mut ValueInfoProto) -> &mut TensorType {
    match value.r#type.as_option_mut().unwrap().value.as_mut() {
        Some(TypeValue::TensorType(tensor)) => tensor,
        other => panic!("a value of type {other:?}"),
    }
}

/// Returns a generator for this number of prompts.
pub(crate) fn generator(engine: &dyn Engine, model: impl AsRef<Path>, prompts: usize) -> Generator {
    Generator::open(engine, model, prompts, SessionOptions::default()).unwrap()
}

/// Returns options for this number of new tokens, which are the most likely ones.
pub(crate) fn greedy(tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens: Some(tokens), ..GenerateOptions::default() }
}

/// Ignores the progress.
pub(crate) fn ignore_event(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}
