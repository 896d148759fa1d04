//! Tokens whose rows are NaN, for any engine. Engines may multiply rows of later tokens by zero, and 0 × NaN is NaN.

use std::path::Path;

use kvscatter_session::{Engine, KvSession, SessionError, SessionOptions};

/// Checks that a token of NaN, which a step feeds after other tokens, leaves the rows and the logits of these as they
/// are without it.
pub(crate) fn nan_spares_earlier_tokens(
    engine: &dyn Engine,
    model: &Path,
    capacity: Option<usize>,
    nan: i64,
    tolerance: f32,
) {
    let options = SessionOptions { batch: Some(2), capacity, ..SessionOptions::default() };
    let mut session = KvSession::open(engine, model, options).unwrap();
    let (draft, other) = (session.add().unwrap(), session.add().unwrap());
    session.step(&[(draft, &[1, 2, 3]), (other, &[4])]).unwrap();
    session.begin(draft).unwrap();
    let fed = session.step(&[(draft, &[5, 6, nan, 7]), (other, &[8, 9])]).unwrap();
    session.accept(draft, 2).unwrap();
    let next = session.step(&[(draft, &[8, 9])]).unwrap();
    let alone = {
        let mut session = KvSession::open(engine, model, options).unwrap();
        let samples = [session.add().unwrap(), session.add().unwrap()];
        let lists: [&[i64]; 2] = [&[1, 2, 3, 5, 6, 8, 9], &[4, 8, 9]];
        let logits = session.step(&[(samples[0], lists[0]), (samples[1], lists[1])]).unwrap();
        move |sample: usize, token| logits.after(samples[sample], token).unwrap().to_vec()
    };
    for (got, expected) in [
        (fed.after(draft, 0), alone(0, 3)),
        (fed.after(draft, 1), alone(0, 4)),
        (fed.after(other, 0), alone(1, 1)),
        (fed.after(other, 1), alone(1, 2)),
        (next.after(draft, 0), alone(0, 5)),
        (next.after(draft, 1), alone(0, 6)),
    ] {
        let worst = got.unwrap().iter().zip(&expected).map(|(got, expected)| (got - expected).abs());
        assert!(worst.clone().all(|off| off <= tolerance), "{:?}", worst.collect::<Vec<_>>());
    }
    assert!(fed.after(draft, 2).unwrap().iter().all(|logit| logit.is_nan()));
    let strict = SessionOptions { refuse_nan: true, ..options };
    let mut session = KvSession::open(engine, model, strict).unwrap();
    let sample = session.add().unwrap();
    let refused = session.step(&[(sample, &[5, 6, nan, 7])]).unwrap_err();
    assert!(matches!(refused, SessionError::NanLogits { index: 2, .. }), "{refused}");
    assert_eq!(session.cached_tokens(sample).unwrap(), 0);
}
