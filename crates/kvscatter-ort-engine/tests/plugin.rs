//! Tests of the engine with a real ONNX Runtime and kvscatter's plugin. They are ignored by default, because
//! the repository contains neither: `KVSCATTER_ORT_LIB=… KVSCATTER_ORT_PLUGIN=… cargo test -p
//! kvscatter-ort-engine -- --ignored`, where the plugin is what `cargo build -p kvscatter-ort-plugin` makes.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

#[path = "../../kvscatter-session/tests/random/mod.rs"]
#[expect(dead_code, reason = "one test of this file runs histories, with a reference")]
mod random;
#[path = "../../kvscatter-session/tests/replay/mod.rs"]
#[expect(dead_code, reason = "one test of this file runs histories, with a reference")]
mod replay;

use std::path::{Path, PathBuf};

use kvscatter_onnx::Model;
use kvscatter_ort_engine::{OnnxRuntime, RuntimeError, has_plugin, locate_plugin};
use kvscatter_session::{Engine, LoadOptions, SessionError};

fn alone() -> OnnxRuntime {
    OnnxRuntime::load(None).unwrap()
}

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// The tests of this file share one process, which can load only one plugin. They may run in any order.
#[test]
#[ignore = "needs ONNX Runtime and the plugin"]
fn a_process_loads_one_plugin_and_only_a_plugin() {
    let plugin = locate_plugin(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.so");
    std::fs::write(&empty, []).unwrap();
    let absent = folder.path().join("absent.so");
    let Err(RuntimeError::PluginUnusable { why, .. }) = alone().with_plugin(&absent) else { panic!() };
    assert_eq!(why, "no such file or directory");

    let engine = alone().with_plugin(&plugin).unwrap();
    let label = concat!("kvscatter ", env!("CARGO_PKG_VERSION"));
    assert_eq!(engine.plugin(), Some(label));
    assert!(format!("{engine:?}").contains(label));
    assert_eq!(alone().with_plugin(&plugin).unwrap().plugin(), Some(label), "the same again");
    assert_eq!(alone().plugin(), None, "an engine without it");
    assert!(has_plugin(alone().library()).unwrap());
    let another = folder.path().join("another.so");
    std::fs::copy(&plugin, &another).unwrap();
    for other in [empty, another] {
        let Err(RuntimeError::PluginLoaded { loaded, .. }) = alone().with_plugin(&other) else { panic!() };
        assert_eq!(loaded, plugin.canonicalize().unwrap());
    }
}

#[test]
#[ignore = "needs ONNX Runtime and the plugin"]
fn a_decoder_scores_each_sample_as_alone() {
    let engine = alone().with_plugin(&locate_plugin(None).unwrap()).unwrap();
    let model = testdata("mobius-llama-static/model.onnx");
    replay::compare(&engine, [&model; 2], None, 10, 1e-4);
}

/// The plugin takes float8e4m3fn, and the kernel of ONNX Runtime does not. So only the plugin runs this node.
#[test]
#[ignore = "needs ONNX Runtime and the plugin"]
fn its_kernels_run_only_in_sessions_of_an_engine_with_it() {
    let path = testdata("onnx-node/test_tensorscatter/model.onnx");
    let (float32, float8) = ([0x08, 1, 0x12], [0x08, 17, 0x12]);
    let mut bytes = std::fs::read(path).unwrap();
    for at in 0..bytes.len() - float32.len() {
        // The element type of a tensor, and the tag of its shape.
        if bytes[at..].starts_with(&float32) {
            bytes[at..at + float32.len()].copy_from_slice(&float8);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("float8.onnx");
    std::fs::write(&path, bytes).unwrap();
    let model = Model::load(&path).unwrap().file().unwrap();
    let engine = alone().with_plugin(&locate_plugin(None).unwrap()).unwrap();
    drop(engine.load(&model, LoadOptions::default()).unwrap());
    let Err(SessionError::Load { message, .. }) = alone().load(&model, LoadOptions::default()) else {
        panic!()
    };
    assert!(message.contains("TensorScatter"), "{message}");
}
