//! Random calls of a generator that keeps its samples. Each must generate what the tokens alone determine, also after
//! errors and interruptions.

use std::ops::ControlFlow;

use kvscatter_oracle::cases::Random;
use kvscatter_session::{
    End, Event, GenerateOptions, Generated, Generator, Interface, KvSession, SessionError, SessionOptions,
};

use super::decoders::{generator, greedy};
use super::exact::{Exact, Expected};
use super::models;
use super::random::faults::{Fault, Plan};

const BATCH: usize = 3;
const FAULTS: [Fault; 3] = [Fault::Refuses, Fault::FailsLate, Fault::WrongShape];

/// What happened in the calls of one model.
#[derive(Debug, Default)]
struct Counts {
    /// The tokens that were reused, and those that the prompts had.
    reused: usize,
    tokens: usize,
    failed: usize,
    stopped: usize,
}

#[test]
fn kept_samples_generate_the_tokens_of_new_ones() {
    let linear = calls(&models::linear(48));
    assert!(linear.reused * 3 > linear.tokens, "{linear:?}");
    for (windows, sizes, _) in models::RINGS {
        let rings = calls(&models::rings(windows, sizes));
        assert!(rings.reused > 0, "{windows:?} {rings:?}");
    }
    let states = calls(&models::with_state());
    assert!(states.reused > 0 && states.reused < linear.reused, "{states:?} {linear:?}");
}

/// A copy of a sample has fewer rows of a ring than the sample itself.
#[test]
fn a_copy_that_cannot_be_truncated_is_computed_again() {
    let model = models::rings(&[3], (48, 6, 0));
    let engine = Exact(Plan::default());
    let session = KvSession::open(&engine, model.path(), SessionOptions::default()).unwrap();
    let text: Vec<i64> = (0..20).collect();
    let options = greedy(3);
    let reused = (1..20).map(|length| {
        let mut generator = generator(&engine, model.path(), BATCH);
        generate(&mut generator, std::slice::from_ref(&text), &options, usize::MAX).unwrap();
        let prompts = [[&text[..], &[100]].concat(), [&text[..length], &[101]].concat()];
        let generated = generate(&mut generator, &prompts, &options, usize::MAX).unwrap();
        for (prompt, sample) in prompts.iter().zip(&generated.samples) {
            assert_eq!(*sample, expected(prompt, &options, session.interface(), 48).0, "{length}");
        }
        assert_eq!(generated.reused[0], 20);
        generated.reused[1]
    });
    assert!(reused.eq([0; 19]));
}

fn calls(model: &models::Made) -> Counts {
    let mut counts = Counts::default();
    let plan = Plan::default();
    let engine = Exact(plan.clone());
    let session = KvSession::open(&engine, model.path(), SessionOptions::default()).unwrap();
    let mut generator = generator(&engine, model.path(), BATCH);
    let capacity = generator.capacity().unwrap();
    let (random, mut texts) = (&mut Random::new(42, 0), Vec::new());
    for call in 0..80 {
        generator.draft(random.below(4));
        let prompts: Vec<_> =
            (0..random.between(1, BATCH)).map(|_| prompt(random, &texts, capacity)).collect();
        let room = capacity + 1 - prompts.iter().map(Vec::len).max().unwrap();
        let options = GenerateOptions {
            max_new_tokens: if random.below(9) == 0 { None } else { Some(random.between(1, room.min(6))) },
            eos: if random.below(4) == 0 { vec![1] } else { Vec::new() },
            chunk: random.between(1, 5),
            ..GenerateOptions::default()
        };
        if random.below(5) == 0 {
            plan.set(random.below(6), FAULTS[random.below(FAULTS.len())]);
        }
        let stop = if random.below(5) == 0 { random.below(6) } else { usize::MAX };
        let kept = generate(&mut generator, &prompts, &options, stop);
        plan.clear();
        let Ok(kept) = kept else {
            counts.failed += 1;
            continue;
        };
        let tokens = prompts.iter().map(Vec::len).sum::<usize>();
        let reused = kept.reused.iter().sum::<usize>();
        if kept.samples.iter().all(|sample| !sample.is_empty()) {
            assert_eq!(reused + kept.prompt_tokens, tokens, "{call} {kept:?}");
        }
        for (((prompt, sample), reused), end) in
            prompts.iter().zip(&kept.samples).zip(&kept.reused).zip(&kept.ends)
        {
            assert!(*reused < prompt.len());
            let (expected, reason) = expected(prompt, &options, session.interface(), capacity);
            assert_eq!(sample[..], expected[..sample.len()], "{call} {prompt:?}");
            match end {
                End::Stopped => counts.stopped += 1,
                _ => assert_eq!((sample.len(), *end), (expected.len(), reason), "{call} {prompt:?}"),
            }
            assert!(stop != usize::MAX || *end != End::Stopped, "{call}");
        }
        (counts.reused, counts.tokens) = (counts.reused + reused, counts.tokens + tokens);
        texts = prompts
            .iter()
            .zip(&kept.samples)
            .map(|(prompt, sample)| [&prompt[..], sample].concat())
            .collect();
    }
    assert!(counts.failed > 3 && counts.stopped > 3, "{counts:?}");
    counts
}

/// Returns the more likely one of the tokens 0 and 1.
fn best(scores: &[u8; 8]) -> i64 {
    let (logits, _) = scores.as_chunks();
    let [a, b] = [0, 1].map(|token| f32::from_le_bytes(logits[token]));
    i64::from(b > a)
}

/// Returns what a prompt determines.
fn expected(
    prompt: &[i64],
    options: &GenerateOptions,
    interface: &Interface,
    capacity: usize,
) -> (Vec<i64>, End) {
    let (mut text, mut tokens) = (Expected::default(), Vec::new());
    text.extend(interface, prompt);
    loop {
        let token = best(text.scores.last().unwrap());
        tokens.push(token);
        if options.eos.contains(&token) {
            return (tokens, End::Eos);
        } else if options.max_new_tokens == Some(tokens.len()) {
            return (tokens, End::Length);
        } else if prompt.len() + tokens.len() > capacity {
            return (tokens, End::Full);
        }
        text.extend(interface, &[token]);
    }
}

/// Returns a new prompt, or an earlier text, whole or cut, with new tokens after it.
fn prompt(random: &mut Random, texts: &[Vec<i64>], capacity: usize) -> Vec<i64> {
    let mut prompt = Vec::new();
    if let Some(text) = texts.get(random.below(4)).filter(|text| text.len() + 5 <= capacity) {
        let length = if random.below(2) == 0 { text.len() } else { random.below(text.len()) };
        prompt.extend_from_slice(&text[..length]);
    }
    let least = usize::from(prompt.is_empty());
    prompt.extend((0..random.between(least, 5)).map(|_| random.below(200) as i64));
    prompt
}

/// Generates, and ends the generation at the event with this number.
fn generate(
    generator: &mut Generator,
    prompts: &[Vec<i64>],
    options: &GenerateOptions,
    stop: usize,
) -> Result<Generated, SessionError> {
    let mut events = 0;
    let mut before = 0;
    generator.generate(prompts, options, &mut |event| {
        if let Event::Prefill { done, total } = event {
            assert!(done < total && (events == 0 || before < done), "{before} {done} {total}");
            before = done;
        }
        events += 1;
        if events > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
}
