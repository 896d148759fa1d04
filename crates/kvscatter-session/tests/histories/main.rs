//! Random histories of a session: samples are added, extended, undone, copied, saved and removed, and runs fail at
//! every kind of point. Every logit must be that of the sample's tokens alone.
//!
//! `KVSCATTER_HISTORIES` sets the number of histories of each model and batch.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

#[path = "../conv_state/mod.rs"]
mod conv_state;
#[path = "../exact/mod.rs"]
mod exact;
mod kept;
mod models;
#[path = "../random/mod.rs"]
mod random;

use kvscatter_session::{KvSession, SessionOptions};

use exact::{Exact, FromTokens};
use random::faults::Plan;
use random::world::{Counts, World, histories};

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_linear_caches() {
    run_all(&models::linear(48), &models::linear(40));
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_in_rings() {
    for (windows, model, other) in models::RINGS {
        run_all(&models::rings(windows, model), &models::rings(windows, other));
    }
}

#[test]
fn every_logit_is_that_of_the_tokens_alone_with_states() {
    run_all(&models::with_state(), &models::with_state());
}

/// Runs histories of a model. Samples are saved and loaded again, also into a session of another batch, whose model has
/// other capacities.
fn run_all(model: &models::Made, other: &models::Made) {
    let mut counts = Counts::default();
    for batch in [1, 2, 4] {
        let plan = Plan::default();
        let options = |batch| SessionOptions { batch: Some(batch), ..SessionOptions::default() };
        let other = KvSession::open(&Exact(Plan::default()), other.path(), options(3)).unwrap();
        let engine = Exact(plan.clone());
        let world = World::open(&engine, &model.path(), options(batch), plan, |_| FromTokens);
        world.with(0..200, &[], Some(other)).run(batch as u64, histories(400), &mut counts);
    }
    counts.check();
    assert!(counts.loaded > 0, "{counts:?}");
}
