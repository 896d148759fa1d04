//! Random histories of sessions. `KVSCATTER_HISTORIES` sets the number of histories of each model and batch.

use kvscatter_ort_engine::OnnxRuntime;

use crate::random::world::{Counts, histories};
use crate::replay::narrow::Narrow;
use crate::replay::{self, Subject, tiny};
use crate::testdata;

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
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_narrow_caches() {
    for to in [Narrow::Float16, Narrow::BFloat16, Narrow::Int8] {
        run(tiny::linear().narrow(to).subject(), 20);
        run(tiny::rings(tiny::RINGS[3]).narrow(to).subject(), 20);
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_with_a_state() {
    run(tiny::with_state().subject(), 40);
    tiny::RINGS.iter().step_by(2).for_each(|setting| run(tiny::rings_with_state(*setting).subject(), 20));
}

/// `GroupQueryAttention` writes the caches of this export.
#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_caches_of_an_operator() {
    run(Subject { model: &testdata("genai-llama-gqa"), capacity: Some(24), traps: &[] }, 30);
}

/// Runs the model of the path in `KVSCATTER_MODEL`, such as an export with states. Does nothing without the variable.
#[test]
#[ignore = "needs ONNX Runtime"]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_a_given_model() {
    let Some(model) = std::env::var_os("KVSCATTER_MODEL") else { return };
    run(Subject { model: model.as_ref(), capacity: Some(24), traps: &[] }, 30);
}
