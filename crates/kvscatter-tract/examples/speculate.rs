//! Speculative decoding on a running batch, in pure Rust. There are more prompts than batch indices, the
//! prompts have different lengths, and every sample has a different number of drafted tokens in each step.
//!
//! ```sh
//! cargo run --release -p kvscatter-tract --example speculate
//! ```
//!
//! A draft is copied from the text after the previous occurrence of the last two tokens ("prompt lookup"), so
//! no second model is needed. One step verifies the whole draft. The model's logits after every drafted token
//! show how many tokens of the draft the model would have chosen. The sample keeps these and undoes the others, which
//! moves no byte of a linear cache. The result has the same tokens as decoding one by one. Only the
//! number of steps differs, which this program prints.

use std::collections::VecDeque;
use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

use kvscatter_session::{KvSession, Sample, SessionError, SessionOptions, argmax};
use kvscatter_tract::Tract;

/// The size of the batch, the number of tokens generated for each prompt, and the maximum number of drafted
/// tokens of a sample in a step.
const PLACES: usize = 2;
const TOKENS: usize = 40;
const DRAFTED: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let model = env::args_os().nth(1).map_or_else(static_llama, PathBuf::from);
    let prompts = vec![vec![5, 9, 200, 17, 33], vec![101, 7], vec![1, 2, 3, 1, 2]];
    let one_by_one = decode(&model, &prompts, 0)?;
    let drafted = decode(&model, &prompts, DRAFTED)?;
    for (prompt, tokens) in prompts.iter().zip(&drafted.texts) {
        println!("{prompt:?} -> {:?}", tokens.get(prompt.len()..).unwrap_or_default());
    }
    println!("one by one {} steps, with drafts {}", one_by_one.steps, drafted.steps);
    if one_by_one.texts != drafted.texts {
        return Err("drafts have changed the tokens".into());
    }
    Ok(())
}

fn static_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static/model.onnx")
}

/// The prompts with their continuations, and the number of steps.
struct Decoded {
    texts: Vec<Vec<i64>>,
    steps: usize,
}

/// A sample of the batch, with its prompt and the tokens generated so far. After its first step, all tokens
/// except the last are in the cache.
struct Running {
    prompt: usize,
    sample: Sample,
    text: Vec<i64>,
    end: usize,
}

fn decode(model: &Path, prompts: &[Vec<i64>], drafted: usize) -> Result<Decoded, SessionError> {
    let options = SessionOptions { batch: Some(PLACES), ..SessionOptions::default() };
    let mut session = KvSession::open(&Tract, model, options)?;
    let mut decoded = Decoded { texts: vec![Vec::new(); prompts.len()], steps: 0 };
    let mut waiting: VecDeque<_> = prompts.iter().cloned().enumerate().collect();
    let mut running: Vec<Running> = Vec::new();
    while !(waiting.is_empty() && running.is_empty()) {
        while running.len() < session.batch()
            && let Some((prompt, text)) = waiting.pop_front()
        {
            let end = text.len() + TOKENS;
            running.push(Running { prompt, sample: session.add()?, text, end });
        }
        step(&mut session, &mut running, drafted)?;
        decoded.steps += 1;
        for done in running.extract_if(.., |sample| sample.text.len() >= sample.end) {
            session.remove(done.sample)?;
            decoded.texts[done.prompt] = done.text;
        }
    }
    Ok(decoded)
}

/// Runs the model once. Each sample gets its tokens that are not in the cache yet, and a draft. It keeps the tokens of
/// the draft that the model would have chosen, and one more token, which the next step feeds.
fn step(session: &mut KvSession, running: &mut [Running], drafted: usize) -> Result<(), SessionError> {
    let mut fed = Vec::new();
    for it in running.iter() {
        let new = &it.text[session.cached_tokens(it.sample)?..];
        // All tokens of the draft and one more may be accepted. They must not exceed the requested number.
        let draft = draft(&it.text, drafted.min(it.end - it.text.len() - 1));
        fed.push((it.sample, [new, draft].concat(), new.len()));
        session.begin(it.sample)?;
    }
    let tokens: Vec<_> = fed.iter().map(|(sample, tokens, _)| (*sample, tokens.as_slice())).collect();
    let logits = session.step(&tokens)?;
    for (it, (sample, tokens, new)) in running.iter_mut().zip(&fed) {
        let chosen = |index| logits.after(*sample, index).map_or(0, argmax) as i64;
        let accepted = (*new..tokens.len()).take_while(|&index| tokens[index] == chosen(index - 1)).count();
        session.accept(*sample, new + accepted)?;
        it.text.extend((new - 1..new + accepted).map(chosen));
    }
    Ok(())
}

/// Returns the text after the latest earlier occurrence of the last two tokens.
fn draft(text: &[i64], most: usize) -> &[i64] {
    let Some((before, last)) = text.split_last_chunk::<2>() else { return &[] };
    let seen = text[..before.len() + 1].windows(2).rposition(|pair| pair == last);
    let follows = seen.map_or(&[][..], |at| &text[at + 2..]);
    &follows[..most.min(follows.len())]
}

#[test]
fn drafts_take_fewer_steps_to_the_same_tokens() {
    let prompts = [vec![5, 9, 200, 17, 33], vec![101, 7], vec![1, 2, 3, 1, 2]];
    let one_by_one = decode(&static_llama(), &prompts, 0).unwrap();
    let drafted = decode(&static_llama(), &prompts, DRAFTED).unwrap();
    assert_eq!(one_by_one.texts, drafted.texts);
    assert!(drafted.steps < one_by_one.steps, "{} and {}", drafted.steps, one_by_one.steps);
}

#[test]
fn a_draft_is_what_followed_before() {
    assert_eq!(draft(&[1, 2, 3, 4, 1, 2], 2), [3, 4]);
    assert_eq!(draft(&[1, 2, 7, 1, 2, 8, 9, 1, 2], 9), [8, 9, 1, 2]);
    assert_eq!(draft(&[5, 5, 5], 4), [5]);
    for (text, most) in [(&[1, 2, 3][..], 4), (&[1], 4), (&[1, 2, 1, 2], 0)] {
        assert!(draft(text, most).is_empty(), "{text:?}");
    }
}
