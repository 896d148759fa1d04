//! Scores the tokens of one sample in a separate session.

use kvscatter_session::{Interface, KvSession, Sample};

use crate::random::oracle::Oracle;

pub(crate) struct Reference {
    /// A session of one sample.
    pub(crate) alone: KvSession,
    /// The largest difference between logits that count as the same.
    pub(crate) tolerance: f32,
}

/// The past of a sample.
#[derive(Clone, Default)]
pub(crate) struct Scored {
    tokens: Vec<i64>,
    /// The logits after each token.
    scores: Vec<Vec<f32>>,
}

impl Oracle for Reference {
    type Past = Scored;

    fn extend(&mut self, past: &mut Scored, _: &Interface, _: Sample, tokens: &[i64]) {
        past.tokens.extend(tokens);
        let sample = self.alone.add().unwrap();
        let logits = self.alone.step(&[(sample, &past.tokens)]).unwrap();
        let new = past.scores.len()..past.tokens.len();
        past.scores.extend(new.map(|token| logits.after(sample, token).unwrap().to_vec()));
        self.alone.remove(sample).unwrap();
    }

    fn truncate(&mut self, past: &mut Scored, to: usize) {
        past.tokens.truncate(to);
        past.scores.truncate(to);
    }

    fn tokens<'p>(&self, past: &'p Scored) -> &'p [i64] {
        &past.tokens
    }

    fn scores(&self, past: &Scored, position: usize, logits: &[f32]) -> bool {
        let expected = &past.scores[position];
        let is_near = |(got, expected): (&f32, &f32)| (got - expected).abs() <= self.tolerance;
        logits.len() == expected.len() && logits.iter().zip(expected).all(is_near)
    }
}
