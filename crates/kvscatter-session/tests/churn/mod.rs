//! A random test of a running batch, for any engine. After every step, each sample has the same logits as in
//! a batch without other samples.

use std::path::Path;

use kvscatter_oracle::cases::Random;
use kvscatter_session::{Engine, KvSession, Logits, Sample, SessionError, SessionOptions};

/// The number of tokens that every test model has.
const VOCABULARY: usize = 200;

/// Runs 40 random steps on a batch of up to 4 samples.
///
/// Samples are added, removed, truncated and extended, at most to the capacity. The logits may differ by
/// `tolerance` from those of a separate session.
pub(crate) fn churn(engine: &dyn Engine, model: &Path, capacity: Option<usize>, seed: u64, tolerance: f32) {
    churn_as(engine, model, model, capacity, seed, tolerance);
}

/// Runs random steps like [`churn`], and compares the logits with those of another model.
///
/// Samples get at most as many tokens as that model has room for. They are truncated as far as the rings of the first
/// model allow. A truncation that a ring refuses changes nothing.
pub(crate) fn churn_as(
    engine: &dyn Engine,
    model: &Path,
    reference: &Path,
    capacity: Option<usize>,
    seed: u64,
    tolerance: f32,
) {
    let mut random = Random::new(seed, 0);
    let places = 1 + random.below(4);
    let open = |model, batch| {
        let options = SessionOptions { batch: Some(batch), capacity, ..SessionOptions::default() };
        KvSession::open(engine, model, options)
    };
    let (session, alone) = (open(model, places).unwrap(), open(reference, 1).unwrap());
    let mut batch = Batch { session, alone, samples: Vec::new(), tolerance };
    for _ in 0..40 {
        match random.below(8) {
            0 if batch.samples.len() < places => {
                batch.samples.push((batch.session.add().unwrap(), Vec::new()));
            }
            1 if !batch.samples.is_empty() => {
                let (sample, _) = batch.samples.swap_remove(random.below(batch.samples.len()));
                batch.session.remove(sample).unwrap();
            }
            2 if !batch.samples.is_empty() => {
                let index = random.below(batch.samples.len());
                let (sample, tokens) = &mut batch.samples[index];
                let to = random.below(tokens.len() + 1);
                match batch.session.truncate(*sample, to) {
                    Err(SessionError::TruncateRing { least, .. }) => assert!((1..least).contains(&to)),
                    result => {
                        result.unwrap();
                        tokens.truncate(to);
                    }
                }
            }
            kind => batch.step(&mut random, kind == 3),
        }
        for (sample, tokens) in &batch.samples {
            assert_eq!(batch.session.cached_tokens(*sample).unwrap(), tokens.len());
        }
    }
}

struct Batch {
    session: KvSession,
    alone: KvSession,
    samples: Vec<(Sample, Vec<i64>)>,
    tolerance: f32,
}

impl Batch {
    /// Gives random tokens to some of the samples, and compares all logits.
    fn step(&mut self, random: &mut Random, in_chunks: bool) {
        let mut given: Vec<(Sample, Vec<i64>)> = Vec::new();
        for (sample, tokens) in &self.samples {
            let room = self.alone.capacity() - tokens.len();
            let most = if random.below(4) == 0 { room } else { room.min(4) };
            let count = random.below(most + 1);
            if count > 0 {
                given.push((*sample, (0..count).map(|_| token(random)).collect()));
            }
        }
        if given.is_empty() {
            return;
        }
        let lists: Vec<(Sample, &[i64])> =
            given.iter().map(|(sample, tokens)| (*sample, tokens.as_slice())).collect();
        let chunk = 1 + random.below(5);
        let logits = if in_chunks { self.session.prefill(&lists, chunk) } else { self.session.step(&lists) };
        let logits = logits.unwrap();
        assert!(self.session.bytes_written() > 0);
        assert_eq!(self.session.bytes_copied(), 0);
        for (sample, tokens) in &mut self.samples {
            let Some((_, new)) = given.iter().find(|(given, _)| given == sample) else {
                assert_eq!(logits.last(*sample), None);
                continue;
            };
            tokens.extend(new);
            let one = self.alone.add().unwrap();
            let expected = self.alone.step(&[(one, tokens)]).unwrap();
            self.alone.remove(one).unwrap();
            let before = tokens.len() - new.len();
            for token in if in_chunks { new.len() - 1 } else { 0 }..new.len() {
                compare(&logits, (*sample, token), &expected, (one, before + token), self.tolerance);
            }
            assert_eq!(logits.after(*sample, new.len()), None);
        }
    }
}

fn compare(got: &Logits, at: (Sample, usize), expected: &Logits, of: (Sample, usize), tolerance: f32) {
    let (got, expected) = (got.after(at.0, at.1).unwrap(), expected.after(of.0, of.1).unwrap());
    let worst = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{}, token {}: off by {worst}", at.0, at.1);
}

fn token(random: &mut Random) -> i64 {
    i64::try_from(random.below(VOCABULARY)).unwrap()
}
