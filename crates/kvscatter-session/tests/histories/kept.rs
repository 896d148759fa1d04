//! Random calls of a generator that keeps its samples. Each must generate the tokens of a new generator, also after
//! errors and interruptions.

use std::ops::ControlFlow;

use kvscatter_oracle::cases::Random;
use kvscatter_session::{Event, GenerateOptions, Generated, Generator, SessionError, SessionOptions};

use super::exact::Exact;
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

fn calls(model: &models::Made) -> Counts {
    let mut counts = Counts::default();
    for seed in 0..20 {
        let random = &mut Random::new(42, seed);
        let plan = Plan::default();
        let open = |plan: &Plan| {
            let engine = Exact(plan.clone());
            Generator::open(&engine, model.path(), BATCH, SessionOptions::default()).unwrap()
        };
        let mut generator = open(&plan);
        generator.draft(random.below(4));
        let capacity = generator.capacity().unwrap();
        let mut texts: Vec<Vec<i64>> = Vec::new();
        for _ in 0..10 {
            let prompts: Vec<_> =
                (0..random.between(1, BATCH)).map(|_| prompt(random, &texts, capacity)).collect();
            let room = capacity + 1 - prompts.iter().map(Vec::len).max().unwrap();
            let options = GenerateOptions {
                max_new_tokens: if random.below(9) == 0 {
                    None
                } else {
                    Some(random.between(1, room.min(6)))
                },
                eos: if random.below(4) == 0 { vec![1] } else { Vec::new() },
                chunk: random.between(1, 5),
                ..GenerateOptions::default()
            };
            let fresh =
                open(&Plan::default()).generate(&prompts, &options, &mut |_| ControlFlow::Continue(()));
            let fresh = fresh.unwrap().samples;
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
                assert_eq!(reused + kept.prompt_tokens, tokens, "{seed} {kept:?}");
            }
            counts.stopped += usize::from(kept.samples != fresh);
            for (((prompt, kept), reused), fresh) in
                prompts.iter().zip(&kept.samples).zip(&kept.reused).zip(&fresh)
            {
                assert!(*reused < prompt.len());
                assert_eq!(kept[..], fresh[..kept.len()], "{seed} {prompt:?}");
            }
            assert!(stop != usize::MAX || kept.samples == fresh, "{seed}");
            (counts.reused, counts.tokens) = (counts.reused + reused, counts.tokens + tokens);
            texts = prompts
                .iter()
                .zip(&kept.samples)
                .map(|(prompt, sample)| [&prompt[..], sample].concat())
                .collect();
        }
    }
    assert!(counts.failed > 10 && counts.stopped > 10, "{counts:?}");
    counts
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
