//! Random histories of sessions. `KVSCATTER_HISTORIES` sets the number of histories of each model and batch.

use kvscatter_session::{KvSession, SessionError, SessionOptions};
use kvscatter_tract::Tract;

use crate::random::world::{Counts, histories};
use crate::replay;
use crate::replay::narrow::Narrow;
use crate::replay::tiny::{self, TRAPS};

#[test]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_linear_caches() {
    let mut counts = Counts::default();
    for batch in 1..=4 {
        replay::run(&Tract, tiny::linear().subject(), batch, histories(10), &mut counts);
    }
    counts.check();
}

#[test]
fn every_logit_is_bit_for_bit_that_of_the_tokens_alone_in_rings() {
    let mut counts = Counts::default();
    for (batch, size) in (1..).zip(tiny::RINGS) {
        replay::run(&Tract, tiny::rings(size).subject(), batch, histories(10), &mut counts);
    }
    counts.check();
}

#[test]
fn every_logit_of_narrow_caches_is_bit_for_bit_that_of_the_tokens_alone() {
    for to in [Narrow::Float16, Narrow::Int8] {
        let mut counts = Counts::default();
        let made = [tiny::linear(), tiny::rings(tiny::RINGS[0]), tiny::rings(tiny::RINGS[3])];
        for (batch, made) in (2..).zip(made) {
            replay::run(&Tract, made.narrow(to).subject(), batch, histories(7), &mut counts);
        }
        counts.check();
    }
}

#[test]
fn a_state_is_refused_by_the_name_of_its_operator() {
    for made in [tiny::with_state(), tiny::rings_with_state(tiny::RINGS[0])] {
        let opened = KvSession::open(&Tract, made.subject().model, SessionOptions::default());
        let Err(SessionError::Load { message, .. }) = opened else { panic!("tract has no such operator") };
        assert!(message.contains("(com.microsoft.CausalConvWithState)"), "{message}");
    }
}

/// The second token makes tract's `Gather` panic.
#[test]
fn a_run_fails_in_the_last_write_and_panics_after_it_and_the_caches_are_back() {
    let narrow = [Narrow::Float16, Narrow::Int8].map(|to| tiny::linear().narrow(to));
    for made in [tiny::linear()].into_iter().chain(narrow) {
        let mut session = KvSession::open(&Tract, made.subject().model, SessionOptions::default()).unwrap();
        let sample = session.add().unwrap();
        for (trap, message) in TRAPS.into_iter().zip(["(TensorScatter): write_indices[0]", "it panicked: "]) {
            match session.step(&[(sample, &[1, trap])]) {
                Err(SessionError::Run { message: words, .. }) => assert!(words.contains(message), "{words}"),
                other => panic!("{other:?}"),
            }
        }
        session.step(&[(sample, &[1])]).unwrap();
        assert_eq!(session.bytes_copied(), 0);
    }
}
