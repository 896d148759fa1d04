//! The decoder of LFM2 in the form of its public files: convolutions whose columns are joined and cut.

use kvscatter_session::{KvSession, Logits, Sample, SessionOptions, argmax};
use kvscatter_tract::Tract;

use crate::support::converted;

const PROMPTS: [&[i64]; 3] = [&[5], &[7, 11, 13, 17, 19], &[40, 3, 40, 3, 40, 3, 9]];

/// The tokens that transformers generates after these prompts, as `make_lfm2.py` prints them.
const EXPECTED: [[i64; 24]; 3] = [
    [50, 16, 22, 23, 10, 55, 12, 28, 46, 29, 55, 17, 61, 52, 37, 55, 19, 15, 11, 22, 32, 36, 5, 47],
    [4, 10, 17, 0, 2, 48, 36, 17, 39, 36, 60, 55, 38, 54, 3, 5, 1, 34, 22, 46, 34, 39, 16, 1],
    [55, 14, 27, 23, 6, 54, 26, 56, 46, 29, 0, 20, 42, 21, 16, 1, 10, 35, 36, 61, 5, 63, 33, 11],
];

/// Returns a session in which each sample has its prompt, and the samples with their first new tokens.
fn prompted(folder: &tempfile::TempDir) -> (KvSession, Vec<(Sample, i64)>) {
    let model = converted("decoders/transformers-lfm2", 32, folder.path());
    let options = SessionOptions { batch: Some(PROMPTS.len()), ..SessionOptions::default() };
    let mut session = KvSession::open(&Tract, model, options).unwrap();
    let prompts = PROMPTS.map(|prompt| (session.add().unwrap(), prompt));
    let logits = session.prefill(&prompts, 512).unwrap();
    let first = prompts.iter().map(|(sample, _)| (*sample, best(logits.last(*sample)))).collect();
    (session, first)
}

fn best(logits: Option<&[f32]>) -> i64 {
    argmax(logits.unwrap()).try_into().unwrap()
}

fn after(logits: &Logits, sample: Sample, token: usize) -> i64 {
    best(logits.after(sample, token))
}

#[test]
fn a_batch_generates_transformers_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (mut session, mut next) = prompted(&folder);
    for column in 0..EXPECTED[0].len() {
        assert_eq!(next.iter().map(|(_, token)| *token).collect::<Vec<_>>(), EXPECTED.map(|of| of[column]));
        let tokens: Vec<_> = next.iter().map(|(_, token)| [*token]).collect();
        let given: Vec<_> =
            next.iter().zip(&tokens).map(|((sample, _), token)| (*sample, &token[..])).collect();
        let logits = session.step(&given).unwrap();
        next.iter_mut().for_each(|(sample, token)| *token = best(logits.last(*sample)));
    }
}

/// Each step verifies 4 drafted tokens, of which another number is right each time. No token runs again.
#[test]
fn any_number_of_drafted_tokens_is_kept_without_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let (mut session, next) = prompted(&folder);
    for ((sample, first), expected) in next.into_iter().zip(EXPECTED) {
        assert_eq!(first, expected[0]);
        let mut made = 1;
        for right in (0..4).cycle() {
            if made + 5 > expected.len() {
                break;
            }
            let wrong = |(at, token): (usize, &i64)| if at > right { (token + 1) % 64 } else { *token };
            let fed: Vec<_> = expected[made - 1..made + 4].iter().enumerate().map(wrong).collect();
            session.begin(sample).unwrap();
            let logits = session.step(&[(sample, &fed)]).unwrap();
            for at in 0..=right {
                assert_eq!(after(&logits, sample, at), expected[made + at]);
            }
            let written = session.bytes_written();
            session.accept(sample, right + 1).unwrap();
            assert_eq!(session.bytes_written(), written);
            made += right + 1;
        }
        assert!(made > 18);
    }
}
