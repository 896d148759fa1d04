//! Random histories of sessions in a real ONNX Runtime. Ignored by default: `KVSCATTER_ORT_LIB=… cargo test -p
//! kvscatter-ort-engine -- --ignored`. `KVSCATTER_HISTORIES` sets the number of histories of each model and batch.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

#[path = "../../kvscatter-session/tests/random/mod.rs"]
mod random;
#[path = "../../kvscatter-session/tests/replay/mod.rs"]
mod replay;

use std::path::Path;

use kvscatter_ort_engine::OnnxRuntime;
use random::world::{Counts, histories};
use replay::{Subject, tiny};

fn run(subject: Subject<'_>, count: usize) {
    let (engine, mut counts) = (OnnxRuntime::load(None).unwrap(), Counts::default());
    (1..=4).for_each(|batch| replay::run(&engine, subject, batch, histories(count), &mut counts));
    counts.check();
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_linear_caches() {
    run(tiny::linear().subject(), 40);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_rings() {
    for setting in tiny::RINGS {
        run(tiny::rings(setting).subject(), 20);
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_with_a_state() {
    run(tiny::with_state().subject(), 40);
}

/// `GroupQueryAttention` writes the caches of this export.
#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_caches_of_an_operator() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/genai-llama-gqa/model.onnx");
    run(Subject { model: &model, capacity: Some(24), traps: &[] }, 30);
}

/// Runs the model of the path in `KVSCATTER_MODEL`, such as an export with states. Does nothing without the variable.
#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_a_given_model() {
    let Some(model) = std::env::var_os("KVSCATTER_MODEL") else { return };
    run(Subject { model: model.as_ref(), capacity: Some(24), traps: &[] }, 30);
}
