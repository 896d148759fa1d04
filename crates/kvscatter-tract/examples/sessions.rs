//! The examples of `docs/sessions.md`: speculation, branches and a saved prompt.
//!
//! ```sh
//! cargo run --release -p kvscatter-tract --example sessions
//! ```

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use kvscatter_session::{KvSession, Logits, Sample, SessionError, SessionOptions, argmax};
use kvscatter_tract::Tract;

fn main() -> Result<(), Box<dyn Error>> {
    let model = env::args_os().nth(1).map_or_else(static_llama, PathBuf::from);
    let folder = tempfile::tempdir()?;
    let saved = folder.path().join("prompt.kv");
    let [kept, sampled, beams, loaded] = run(&model, &saved)?;
    println!("accepted of the draft    {kept:?}");
    println!("two continuations        {sampled:?}");
    println!("two beams                {beams:?}");
    println!("after the saved prompt   {loaded:?}");
    Ok(())
}

fn static_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static/model.onnx")
}

fn run(model: &Path, saved: &Path) -> Result<[Vec<i64>; 4], Box<dyn Error>> {
    let options = SessionOptions { batch: Some(4), ..SessionOptions::default() };
    let mut session = KvSession::open(&Tract, model, options)?;
    let sample = session.add()?;
    let logits = session.prefill(&[(sample, &[5, 9, 200, 17, 33])], 512)?;
    let next = best(&logits, sample);
    assert_eq!(session.cached_tokens(sample)?, 5);

    // A sample is undone.
    session.begin(sample)?;
    session.step(&[(sample, &[next, 1, 2])])?;
    session.rollback(sample)?;
    assert_eq!(session.tokens(sample)?, [5, 9, 200, 17, 33]);

    let kept = speculate(&mut session, sample, next, &[106, 114, 7])?;

    // Both are undone if the second step fails.
    let other = session.add()?;
    let mut both = session.transaction(&[sample, other])?;
    both.step(&[(sample, &[kept[kept.len() - 1]]), (other, &[101])])?;
    both.step(&[(sample, &[4]), (other, &[7])])?;
    both.commit_all();

    // Three samples continue one prompt, which was computed once.
    session.remove(other)?;
    let copies = session.fork(sample, 2)?;
    let logits = session.step(&[(copies[0], &[8]), (copies[1], &[9])])?;
    let sampled: Vec<i64> = copies.iter().map(|&copy| best(&logits, copy)).collect();

    let beams = beam_search(&mut session, &copies, 4)?;

    // The prompt is paid for once.
    session.save(sample, saved)?;
    let options = SessionOptions { batch: Some(1), ..SessionOptions::default() };
    let mut later = KvSession::open(&Tract, model, options)?;
    let sample = later.load(saved)?;
    let logits = later.step(&[(sample, &[8])])?;
    let loaded = vec![best(&logits, sample)];
    Ok([kept, sampled, beams, loaded])
}

fn best(logits: &Logits, sample: Sample) -> i64 {
    logits.last(sample).map_or(0, argmax) as i64
}

/// Feeds the last token and a draft. Returns the tokens that the model chooses, which are those of the draft that it
/// would have chosen and one more.
fn speculate(
    session: &mut KvSession,
    sample: Sample,
    last: i64,
    draft: &[i64],
) -> Result<Vec<i64>, SessionError> {
    session.begin(sample)?;
    let logits = session.step(&[(sample, &[&[last], draft].concat())])?;
    let chosen = |index| logits.after(sample, index).map_or(0, argmax) as i64;
    let accepted = (0..draft.len()).take_while(|&index| draft[index] == chosen(index)).count();
    session.accept(sample, 1 + accepted)?;
    Ok((0..=accepted).map(chosen).collect())
}

/// Continues the beams by this many tokens. Returns the tokens of the best one.
fn beam_search(session: &mut KvSession, beams: &[Sample], tokens: usize) -> Result<Vec<i64>, SessionError> {
    let (mut beams, mut texts) = (beams.to_vec(), vec![Vec::new(); beams.len()]);
    let mut scores = vec![0.0; beams.len()];
    let mut fed: Vec<i64> = beams.iter().map(|_| 1).collect();
    for _ in 0..tokens {
        let step: Vec<_> = beams.iter().copied().zip(fed.iter().map(std::slice::from_ref)).collect();
        let logits = session.step(&step)?;
        // Every beam with every token, the most likely first.
        let mut candidates = Vec::new();
        for (parent, &beam) in beams.iter().enumerate() {
            let row = logits.last(beam).unwrap_or_default();
            let sum = row.iter().map(|logit| logit.exp()).sum::<f32>().ln();
            candidates.extend(
                (0_i64..).zip(row).map(|(token, logit)| (scores[parent] + logit - sum, parent, token)),
            );
        }
        candidates.sort_by(|a, b| b.0.total_cmp(&a.0));
        candidates.truncate(beams.len());
        let parents: Vec<usize> = candidates.iter().map(|(_, parent, _)| *parent).collect();
        beams = session.reorder(&beams, &parents)?;
        texts = parents.iter().map(|&parent| texts[parent].clone()).collect();
        for (text, (_, _, token)) in texts.iter_mut().zip(&candidates) {
            text.push(*token);
        }
        scores = candidates.iter().map(|(score, ..)| *score).collect();
        fed = candidates.iter().map(|(_, _, token)| *token).collect();
    }
    Ok(texts.swap_remove(0))
}

#[test]
fn the_examples_run() {
    let folder = tempfile::tempdir().unwrap();
    let [kept, sampled, beams, loaded] = run(&static_llama(), &folder.path().join("prompt.kv")).unwrap();
    assert_eq!(kept, [106, 114, 228]);
    assert_eq!((sampled.len(), beams.len(), loaded.len()), (2, 4, 1));
    // The first copy continued with the same token.
    assert_eq!(loaded[0], sampled[0]);
}

/// The page shows parts of this file.
#[test]
fn the_page_shows_these_examples() {
    let lines = |text: &str| -> String { text.lines().map(|line| format!("{}\n", line.trim())).collect() };
    let (here, page) = (lines(include_str!("sessions.rs")), include_str!("../../../docs/sessions.md"));
    let blocks: Vec<_> =
        page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 3);
    for block in blocks {
        assert!(here.contains(&lines(block)), "{block}");
    }
}
