//! Tests with a real ONNX Runtime. They are ignored by default because the repository does not contain it:
//! `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-ort-engine -- --ignored`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

#[path = "../../../kvscatter-session/tests/blocks/mod.rs"]
mod blocks;
mod engine;
mod histories;
#[path = "../../../kvscatter-session/tests/poison/mod.rs"]
mod poison;
#[path = "../../../kvscatter-session/tests/poison/decoder.rs"]
mod poisoned_decoder;
#[path = "../../../kvscatter-session/tests/random/mod.rs"]
mod random;
#[path = "../../../kvscatter-session/tests/replay/mod.rs"]
mod replay;
mod sessions;

use std::path::{Path, PathBuf};

/// Returns the path of a decoder of the test data.
fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name).join("model.onnx")
}
