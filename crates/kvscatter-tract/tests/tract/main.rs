//! Tests of this crate's operators in tract, and of whole decoders in sessions.
//!
//! They are one program because each program that links tract takes 150 MB.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

mod attention;
#[path = "../../../kvscatter-session/tests/blocks/mod.rs"]
mod blocks;
mod encoder;
mod engine;
mod histories;
mod lfm2;
mod mask_columns;
mod matmul_nbits;
mod narrow_caches;
mod onnx_cases;
mod onnxruntime;
#[path = "../../../kvscatter-session/tests/poison/mod.rs"]
mod poison;
#[path = "../../../kvscatter-session/tests/poison/decoder.rs"]
mod poisoned_decoder;
mod quantize;
#[path = "../../../kvscatter-session/tests/random/mod.rs"]
mod random;
#[path = "../../../kvscatter-session/tests/replay/mod.rs"]
mod replay;
mod scatter;
mod sessions;
mod support;
