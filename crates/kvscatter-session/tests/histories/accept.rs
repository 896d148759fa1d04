//! Samples of a model with rings, linear caches and a state that keep some of the tokens since `begin`.

use kvscatter_session::{KvSession, Sample, SessionError, SessionOptions};

use super::exact::{Exact, Expected};
use super::models;
use super::random::faults::{Fault, Plan};

/// The tokens before `begin` and the tokens since then.
const BEFORE: [i64; 4] = [11, 12, 13, 14];
const FED: [i64; 5] = [21, 22, 23, 24, 25];

/// Returns a session in which samples 0 and 1 have begun and were then fed in two steps. Runs fail as planned.
fn begun() -> (KvSession, [Sample; 2], Plan) {
    begun_with(&model())
}

/// Returns a model that returns its state after the last token only.
fn model() -> models::Made {
    models::without_columns(&with_columns())
}

fn with_columns() -> models::Made {
    let (windows, sizes, _) = models::RINGS[0];
    models::rings_with_state(windows, sizes)
}

fn begun_with(model: &models::Made) -> (KvSession, [Sample; 2], Plan) {
    let plan = Plan::default();
    let options = SessionOptions { batch: Some(3), ..SessionOptions::default() };
    let mut session = KvSession::open(&Exact(plan.clone()), model.path(), options).unwrap();
    let samples = [session.add().unwrap(), session.add().unwrap()];
    session.step(&samples.map(|sample| (sample, &BEFORE[..]))).unwrap();
    session.begin_all(&samples).unwrap();
    for part in [&FED[..3], &FED[3..]] {
        session.step(&samples.map(|sample| (sample, part))).unwrap();
    }
    (session, samples, plan)
}

/// Checks the tokens of a sample since `begin`, and that it continues like a sample that was fed only these.
fn check(session: &mut KvSession, sample: Sample, kept: &[i64]) {
    let tokens = [&BEFORE[..], kept].concat();
    assert_eq!(session.tokens(sample).unwrap(), tokens);
    let logits = session.step(&[(sample, &[31])]).unwrap();
    let mut expected = Expected::default();
    expected.extend(session.interface(), &[&tokens[..], &[31]].concat());
    let bytes: &[u8] = bytemuck::cast_slice(logits.last(sample).unwrap());
    assert_eq!(bytes[..8], *expected.scores.last().unwrap(), "{kept:?}");
}

#[test]
fn any_number_of_tokens_is_kept() {
    for (tokens, model) in (0..=5).flat_map(|tokens| [(tokens, model()), (tokens, with_columns())]) {
        let (mut session, [sample, other], _) = begun_with(&model);
        session.accept(sample, tokens).unwrap();
        assert_eq!(session.begun(sample).unwrap(), None);
        check(&mut session, sample, &FED[..tokens]);
        assert_eq!(session.begun(other).unwrap(), Some(4));
        session.commit(other).unwrap();
        check(&mut session, other, &FED);
    }
}

#[test]
fn any_path_is_kept() {
    for path in 0_usize..32 {
        let rows: Vec<usize> = (0..5).filter(|row| path >> row & 1 == 1).collect();
        let kept: Vec<i64> = rows.iter().map(|row| FED[*row]).collect();
        let (mut session, [sample, _], _) = begun();
        session.accept_rows(sample, &rows).unwrap();
        check(&mut session, sample, &kept);
    }
}

/// The next run would fail.
#[test]
fn the_state_of_a_convolution_goes_back_to_each_of_the_last_tokens() {
    let model = models::linear_with_columns();
    for tokens in 0..=5 {
        let (mut session, samples, plan) = begun_with(&model);
        plan.set(0, Fault::Refuses);
        // The states of dropped tokens are forgotten.
        session.truncate(samples[0], BEFORE.len() + tokens.max(2)).unwrap();
        session.accept_all(&samples.map(|sample| (sample, tokens))).unwrap();
        assert!(!plan.clear());
        samples.iter().for_each(|sample| check(&mut session, *sample, &FED[..tokens]));
    }
    let (mut session, [sample, _], _) = begun_with(&model);
    session.truncate(sample, BEFORE.len() + 2).unwrap();
    session.step(&[(sample, &FED[3..])]).unwrap();
    session.accept(sample, 3).unwrap();
    check(&mut session, sample, &[FED[0], FED[1], FED[3]]);
}

/// Returns a session with one sample that has begun, and was then fed in runs of these widths.
fn begun_with_runs(model: &models::Made, widths: &[usize]) -> (KvSession, Sample, Plan) {
    let plan = Plan::default();
    let options = SessionOptions { batch: Some(1), ..SessionOptions::default() };
    let mut session = KvSession::open(&Exact(plan.clone()), model.path(), options).unwrap();
    let sample = session.add().unwrap();
    session.step(&[(sample, &BEFORE)]).unwrap();
    session.begin(sample).unwrap();
    for (token, width) in (40..).zip(widths) {
        session.step(&[(sample, &vec![token; *width])]).unwrap();
    }
    (session, sample, plan)
}

/// The states after the last 128 tokens are kept, in whole runs. A run of more tokens returns no states but its last.
#[test]
fn states_of_old_tokens_run_again() {
    let model = models::long_with_columns();
    for (widths, tokens, runs_again) in [
        (&[120, 40][..], 0, false),
        (&[120, 40], 32, false),
        (&[128, 1], 1, false),
        (&[120, 40, 100], 0, false),
        (&[120, 40, 100], 60, true),
        (&[120, 40, 100], 119, true),
        (&[120, 40, 100], 120, false),
        (&[120, 40, 100], 240, false),
        (&[120, 40, 190], 300, true),
    ] {
        let (mut session, sample, plan) = begun_with_runs(&model, widths);
        let fed = session.tokens(sample).unwrap()[BEFORE.len()..].to_vec();
        plan.set(0, Fault::Refuses);
        let accepted = session.accept(sample, tokens);
        assert_eq!((accepted.is_err(), plan.clear()), (runs_again, runs_again), "{widths:?} {tokens}");
        if !runs_again {
            check(&mut session, sample, &fed[..tokens]);
        }
    }
}

/// A step that fails drops no states of tokens before it, and only those of its tokens are forgotten.
#[test]
fn states_outlive_a_step_that_fails() {
    let (mut session, sample, plan) = begun_with_runs(&models::long_with_columns(), &[100]);
    plan.set(2, Fault::Refuses);
    session.prefill(&[(sample, &[22; 280])], 128).unwrap_err();
    session.truncate(sample, BEFORE.len() + 30).unwrap();
    session.accept(sample, 20).unwrap();
    check(&mut session, sample, &[40; 20]);
}

/// The states are dropped with their point.
#[test]
fn states_are_dropped_at_a_commit() {
    let model = models::long_with_columns();
    let [few, many] = [&[1][..], &[100]].map(|widths| {
        let (mut session, sample, _) = begun_with_runs(&model, widths);
        let begun = session.memory().undo;
        session.commit(sample).unwrap();
        assert!(session.memory().undo < begun);
        session.memory().undo
    });
    assert_eq!(few, many);
}

/// The second run would fail.
#[test]
fn samples_of_a_batch_run_again_in_one_run() {
    let (mut session, [a, b], plan) = begun();
    session.step(&[(a, &[26])]).unwrap();
    let of_step = session.bytes_written();
    plan.set(1, Fault::Refuses);
    session.accept_all(&[(a, 2), (b, 2)]).unwrap();
    assert!(!plan.clear());
    // The runs of `accept` are counted with those of the last step, which fed one row.
    assert_eq!(session.bytes_written(), 5 * of_step);
    check(&mut session, a, &FED[..2]);
    check(&mut session, b, &FED[..2]);
}

/// The rows of the second sample would be enough, but all samples of the list go back.
#[test]
fn after_a_run_that_fails_all_samples_are_at_their_points() {
    for fault in [Fault::Refuses, Fault::FailsLate, Fault::WrongShape] {
        let (mut session, [a, b], plan) = begun();
        plan.set(0, fault);
        session.accept_all(&[(a, 2), (b, 5)]).unwrap_err();
        assert!(plan.clear());
        for sample in [a, b] {
            assert_eq!(session.begun(sample).unwrap(), Some(4));
            // The point can be used again.
            session.step(&[(sample, &FED)]).unwrap();
            session.accept(sample, 3).unwrap();
            check(&mut session, sample, &FED[..3]);
        }
    }
}

#[test]
fn copies_and_saved_samples_keep_what_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    // A saved sample has the fingerprint of the model, so its file must stay.
    let model = with_columns();
    let (mut session, [sample, other], _) = begun_with(&model);
    let copy = session.fork(sample, 1).unwrap()[0];
    session.save(sample, &saved).unwrap();
    session.accept(sample, 2).unwrap();
    check(&mut session, sample, &FED[..2]);
    check(&mut session, copy, &FED);
    session.remove(other).unwrap();
    let loaded = session.load(&saved).unwrap();
    check(&mut session, loaded, &FED);
}

#[test]
fn errors_come_before_anything_changes() {
    let (mut session, [a, b], _) = begun();
    let new = session.add().unwrap();
    let message = |done: Result<(), SessionError>| done.unwrap_err().to_string();
    let mut messages = vec![message(session.accept(a, 6))];
    for rows in [&[0, 2, 2][..], &[3, 1], &[1, 5], &[0, 1, 2, 3, 4, 4]] {
        messages.push(message(session.accept_rows(a, rows)));
    }
    for list in [[(a, 1), (a, 2)], [(a, 1), (b, 6)], [(a, 1), (new, 0)]] {
        messages.push(message(session.accept_all(&list)));
    }
    messages.push(message(session.truncate(a, 6)));
    assert_eq!(
        messages,
        [
            "sample 0 cannot accept 6 tokens: 5 were fed since begin",
            "rows[2] = 2 of sample 0: must be above 2, the index before it",
            "rows[1] = 1 of sample 0: must be above 3, the index before it",
            "rows[1] = 5 of sample 0: must be below 5, the number of tokens fed since begin",
            "rows[5] = 4 of sample 0: must be above 4, the index before it",
            "sample 0 is listed twice",
            "sample 1 cannot accept 6 tokens: 5 were fed since begin",
            "sample 2 has not begun, so there is nothing to commit, accept or roll back",
            "sample 0 cannot be truncated to 6 of 9 tokens: input \"past.conv\" is a state, which has no rows to drop; \
             0 and the tokens at begin are possible, and accept keeps any of the tokens since begin",
        ]
    );
    for sample in [a, b] {
        assert_eq!(session.begun(sample).unwrap(), Some(4));
        session.commit(sample).unwrap();
        check(&mut session, sample, &FED);
    }
}
