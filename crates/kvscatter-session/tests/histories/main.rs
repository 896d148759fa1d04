//! Random histories of a session: samples are added, extended, undone, copied, saved and removed, and runs fail at
//! every kind of point. Samples of an encoder-decoder also get texts. Every logit must be that of the sample's tokens
//! and text alone.
//!
//! `KVSCATTER_HISTORIES` sets the number of histories of each model and batch.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

mod accept;
#[path = "../conv_state/mod.rs"]
mod conv_state;
#[path = "../decoders/mod.rs"]
#[expect(dead_code, reason = "these models are changed in memory")]
mod decoders;
#[path = "../exact/mod.rs"]
mod exact;
mod kept;
mod models;
#[path = "../replay/narrow.rs"]
mod narrow;
#[path = "../replay/protos.rs"]
mod protos;
#[path = "../random/mod.rs"]
mod random;
mod texts;

use std::path::Path;

use kvscatter_session::{KvSession, SessionOptions};

use exact::{Exact, FromTokens};
use narrow::Narrow;
use random::faults::Plan;
use random::world::{Counts, World, histories};

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_linear_caches() {
    run_all([&models::linear(48).path(), &models::linear(40).path()], [None; 2]);
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_the_first_rings() {
    models::RINGS[..6].iter().for_each(run_rings);
}

/// Some of these rings are small, and they run at the same time as the first ones.
#[test]
fn every_logit_is_that_of_the_tokens_alone_in_the_last_rings() {
    models::RINGS[6..].iter().for_each(run_rings);
}

fn run_rings((windows, model, other): &models::Windows) {
    let [model, other] = [model, other].map(|sizes| models::rings(windows, *sizes));
    run_all([&model.path(), &other.path()], [None; 2]);
}

/// The scales of a head are rows of 4 bytes, and the codes are rows of another type.
#[test]
fn every_logit_is_that_of_the_tokens_alone_in_narrow_caches() {
    let (windows, sizes, _) = models::RINGS[2];
    run_all([&models::linear(48).narrow(Narrow::Float16).path(); 2], [None; 2]);
    run_all([&models::linear(48).narrow(Narrow::Int8).path(); 2], [None; 2]);
    run_all([&models::rings(windows, sizes).narrow(Narrow::BFloat16).path(); 2], [None; 2]);
    run_all([&models::rings(windows, sizes).narrow(Narrow::Int8).path(); 2], [None; 2]);
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_with_states() {
    run_all([&models::with_state().path(); 2], [None; 2]);
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_with_rings_and_states() {
    for (windows, sizes, other) in [models::RINGS[0], models::RINGS[3], models::RINGS[10]] {
        let all = [sizes, other].map(|sizes| models::rings_with_state(windows, sizes));
        run_all([&all[0].path(), &all[1].path()], [None; 2]);
    }
    let (windows, sizes, _) = models::RINGS[0];
    let last_only = models::without_columns(&models::rings_with_state(windows, sizes));
    run_all([&last_only.path(); 2], [None; 2]);
}

/// Texts of one batch have different lengths only if the model has a mask of them.
#[test]
fn every_logit_is_that_of_the_tokens_and_the_text_alone() {
    let (windows, sizes, other) = models::RINGS[0];
    for is_masked in [true, false] {
        let linear = [48, 40].map(|capacity| models::with_encoder(capacity, is_masked));
        let all = [sizes, other].map(|sizes| models::with_all(windows, sizes, is_masked));
        for [model, other] in [linear, all] {
            let counts = run_all([&model.path(), &other.path()], [None; 2]);
            assert!(counts.texts > 0 && counts.refused_texts.keys().eq(&REFUSED_TEXTS), "{counts:?}");
        }
    }
}

/// The errors with which a text or a step without a text is refused.
const REFUSED_TEXTS: [&str; 7] = [
    "Begun",
    "EncoderChanged",
    "EncoderLength",
    "EncoderMissing",
    "EncoderOutput",
    "EncoderOutputMissing",
    "EncoderShape",
];

/// `GroupQueryAttention` takes fewer kinds of runs than a model with `TensorScatter`.
#[test]
fn every_logit_is_that_of_the_tokens_alone_in_caches_of_an_operator() {
    run_all([&decoders::model(decoders::OPERATOR); 2], [24, 20].map(Some));
}

/// Runs histories of a model. Samples are saved and loaded again, also into a session of another batch, whose model or
/// options have other capacities.
fn run_all([model, other]: [&Path; 2], capacities: [Option<usize>; 2]) -> Counts {
    let mut counts = Counts::default();
    let options =
        |batch, capacity| SessionOptions { batch: Some(batch), capacity, ..SessionOptions::default() };
    for batch in [1, 2, 4] {
        let plan = Plan::default();
        let other = KvSession::open(&Exact(Plan::default()), other, options(3, capacities[1])).unwrap();
        let engine = Exact(plan.clone());
        let world = World::open(&engine, model, options(batch, capacities[0]), plan, |_| FromTokens);
        world.with(0..200, &[], Some(other)).run(batch as u64, histories(400), &mut counts);
    }
    counts.check();
    assert!(counts.loaded > 0, "{counts:?}");
    counts
}
