//! Running batches in a fake engine. Samples are added, extended, truncated and removed, and each gets the
//! same logits as in a batch without other samples.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

mod blocks;
mod decoders;
#[path = "../../kvscatter-certify/tests/fake/mod.rs"]
#[expect(dead_code, reason = "most faults are planted in certificates only")]
mod fake;
mod poison;
mod token_types;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use decoders::{GROWING, OPERATOR, STATIC, changed, find, greedy, ignore_event, model, tensor};
use fake::{Fake, Fault};
use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};
use kvscatter_session::{
    End, Event, GenerateOptions, Generator, KvSession, Sample, Sampling, SessionError, SessionOptions,
    SessionSetting, argmax,
};
use token_types::add_token_types;

const CAPACITY: usize = 64;

fn session(batch: usize) -> KvSession {
    with_fault(batch, Fault::None)
}

fn with_fault(batch: usize, fault: Fault) -> KvSession {
    KvSession::open(&Fake(fault), model(STATIC), sized(batch)).unwrap()
}

fn sized(batch: usize) -> SessionOptions {
    SessionOptions { batch: Some(batch), capacity: Some(CAPACITY), ..SessionOptions::default() }
}

/// Returns the error of opening a model. Its check returns the same error.
fn refused(path: &Path, options: SessionOptions) -> SessionError {
    let error = KvSession::open(&Fake(Fault::None), path, options).map(|_| ()).unwrap_err();
    let checked = KvSession::check_model(&Model::load(path).unwrap(), options).unwrap_err();
    assert_eq!(checked.to_string(), error.to_string());
    error
}

/// Returns the nodes of an operator.
fn nodes<'g>(graph: &'g mut GraphProto, operator: &str) -> impl Iterator<Item = &'g mut NodeProto> {
    graph.node.iter_mut().filter(move |node| node.op_type.as_deref() == Some(operator))
}

/// Returns a generator for this number of prompts.
fn generator(name: &str, prompts: usize) -> Generator {
    decoders::generator(&Fake(Fault::None), model(name), prompts)
}

/// Returns the logits after each of these tokens in a separate session.
fn alone(tokens: &[i64]) -> Vec<Vec<f32>> {
    let mut session = session(1);
    let sample = session.add().unwrap();
    let logits = session.step(&[(sample, tokens)]).unwrap();
    (0..tokens.len()).map(|token| logits.after(sample, token).unwrap().to_vec()).collect()
}

#[test]
fn full_samples_keep_their_rows_while_others_go_on() {
    let mut session = session(2);
    let (full, other) = (session.add().unwrap(), session.add().unwrap());
    let tokens: Vec<i64> = (0..64).collect();
    session.step(&[(full, &tokens)]).unwrap();
    let before: Vec<Vec<u8>> = (0..4).map(|index| rows(&session, index, full)).collect();
    session.step(&[(other, &tokens[..40])]).unwrap();
    for (index, before) in before.iter().enumerate() {
        assert!(rows(&session, index, full) == *before, "cache {index}");
    }
    session.truncate(full, 63).unwrap();
    let logits = session.step(&[(full, &tokens[63..])]).unwrap();
    assert_eq!(logits.last(full).unwrap(), alone(&tokens)[63]);
}

/// Returns the bytes of a sample in a cache of `[batch, capacity, row]`.
fn rows(session: &KvSession, index: usize, sample: Sample) -> Vec<u8> {
    let bytes = session.cache(index).unwrap().bytes();
    let of_sample = bytes.len() / session.batch();
    bytes[sample.batch_index() * of_sample..][..of_sample].to_vec()
}

#[test]
fn errors_come_before_anything_is_written() {
    let mut session = session(2);
    let (first, second) = (session.add().unwrap(), session.add().unwrap());
    let tokens: Vec<i64> = (0..60).collect();
    session.step(&[(first, &tokens), (second, &tokens[..3])]).unwrap();
    let before: Vec<Vec<u8>> = (0..4).map(|index| session.cache(index).unwrap().bytes().to_vec()).collect();
    let cases: [(Given<'_>, &str); 7] = [
        (
            &[(second, &[1]), (first, &[1, 2, 3, 4, 5])],
            "sample 0: 60 + 5 tokens exceed the capacity of 64 tokens",
        ),
        (&[(second, &[1, 256])], "sample 1: token 1 is 256, which the model does not have: it has 0 to 255"),
        (&[(second, &[-1])], "sample 1: token 0 is -1, which the model does not have: it has 0 to 255"),
        (&[(second, &[1]), (second, &[2])], "sample 1 is listed twice"),
        (&[(second, &[])], "sample 1 has no tokens: at least 1 is needed"),
        (&[], "no sample is given tokens"),
        (&[(foreign(), &[1])], "sample 0 is not in this batch: it was removed, or never added here"),
    ];
    for (given, expected) in cases {
        assert_eq!(session.step(given).unwrap_err().to_string(), expected);
        assert_eq!(session.prefill(given, 2).unwrap_err().to_string(), expected);
    }
    assert!(matches!(session.prefill(&[(second, &[1])], 0), Err(SessionError::NoChunk)));
    assert!(matches!(session.add(), Err(SessionError::BatchFull { batch: 2 })));
    for (index, before) in before.iter().enumerate() {
        assert!(session.cache(index).unwrap().bytes() == before, "cache {index}");
    }
    assert_eq!([session.cached_tokens(first).unwrap(), session.cached_tokens(second).unwrap()], [60, 3]);
}

/// The samples and tokens of a step.
type Given<'a> = &'a [(Sample, &'a [i64])];

/// Returns a sample of another session.
fn foreign() -> Sample {
    session(1).add().unwrap()
}

/// This engine multiplies masked rows by zero, which would spread a NaN.
#[test]
fn nan_in_removed_rows_changes_no_logits() {
    let mut session = with_fault(2, Fault::NanInPadding);
    let (long, short) = (session.add().unwrap(), session.add().unwrap());
    let ragged = session.step(&[(long, &[1, 2, 3, 4]), (short, &[5])]).unwrap();
    // This engine writes NaN into padding rows for any input.
    assert!(ragged.last(short).unwrap().iter().all(|score| score.is_nan()));
    // The rows of padding have no effect.
    assert_eq!(session.step(&[(short, &[6])]).unwrap().last(short).unwrap(), alone(&[5, 6])[1]);
    // The rows of a removed sample and of a free batch index have no effect.
    session.step(&[(long, &[7, 8])]).unwrap();
    session.remove(short).unwrap();
    session.step(&[(long, &[9, 10])]).unwrap();
    let next = session.add().unwrap();
    assert_eq!(next.batch_index(), short.batch_index());
    assert_eq!(session.step(&[(next, &[3])]).unwrap().last(next).unwrap(), alone(&[3])[0]);
    let all = [1, 2, 3, 4, 7, 8, 9, 10, 11];
    assert_eq!(session.step(&[(long, &[11])]).unwrap().last(long).unwrap(), alone(&all)[8]);
}

#[test]
fn nan_of_a_later_token_spares_earlier_tokens() {
    for name in [STATIC, OPERATOR] {
        let engine = Fake(Fault::NanToken);
        poison::nan_spares_earlier_tokens(&engine, &model(name), Some(CAPACITY), 13, 0.0);
    }
}

#[test]
fn a_copy_is_counted() {
    let mut session = with_fault(2, Fault::Copied);
    let sample = session.add().unwrap();
    session.step(&[(sample, &[1])]).unwrap();
    // A run covers the samples that have tokens.
    assert_eq!(session.bytes_copied(), session.memory().total / 2);
}

#[test]
fn memory_is_counted_by_cache_layer_and_token() {
    let memory = session(3).memory();
    assert_eq!((memory.total, memory.per_token), (4 * 3 * 64 * 32 * 4, 4 * 32 * 4));
    assert_eq!(memory.layers, [2 * 3 * 64 * 32 * 4; 2]);
    assert_eq!(memory.caches.iter().map(|cache| cache.layer).collect::<Vec<_>>(), [0, 0, 1, 1]);
}

#[test]
fn missing_inputs_of_a_model_are_refused() {
    let refused = |name, options| refused(&model(name), options);
    let options = SessionOptions::default();
    assert!(matches!(refused(GROWING, options), SessionError::NotStatic { .. }));
    assert!(matches!(refused(OPERATOR, options), SessionError::CapacityOpen));
    // Its positions are those of all samples.
    let scattered = refused("decoders/torch-2.15-llama-static", options);
    assert!(matches!(&scattered, SessionError::Scattered { op_type, .. } if op_type == "ScatterND"));
    assert!(scattered.to_string().contains("kvscatter inspect shows"), "{scattered}");
    let refused = |options| refused(STATIC, options);
    let other = SessionOptions { capacity: Some(65), ..options };
    assert!(matches!(
        refused(other),
        SessionError::SizeFixed { setting: SessionSetting::Capacity, fixed: 64, got: 65 }
    ));
    assert!(matches!(refused(SessionOptions { batch: Some(0), ..options }), SessionError::Empty { .. }));
    for batch in [1 << 20, usize::MAX] {
        let error = refused(SessionOptions { batch: Some(batch), ..options });
        assert!(matches!(error, SessionError::MemoryLimit { .. }), "{batch}");
    }
}

#[test]
fn all_kinds_of_caches_generate_what_scores_say() {
    let prompts = [vec![1, 2, 3], vec![200, 7, 9]];
    let greedy = GenerateOptions { chunk: 2, ..greedy(9) };
    let generate = |name, chunk| {
        let mut seen = Vec::new();
        let greedy = GenerateOptions { chunk, ..greedy.clone() };
        let options = SessionOptions::default();
        let mut generator =
            Generator::open_for(&Fake(Fault::None), model(name), &prompts, &greedy, options).unwrap();
        let generated = generator.generate(&prompts, &greedy, &mut |event| {
            if let Event::Tokens(new) = event {
                seen.push(new.progress().tokens);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(seen, (1..=9).collect::<Vec<_>>());
        generated.unwrap()
    };
    let by_scores = prompts.clone().map(|mut tokens| {
        for _ in 0..9 {
            tokens.push(argmax(alone(&tokens).last().unwrap()) as i64);
        }
        tokens.split_off(3)
    });
    for chunk in [1, 2, 100] {
        for name in [STATIC, GROWING, OPERATOR] {
            let generated = generate(name, chunk);
            assert_eq!(generated.samples, by_scores, "{name} {chunk}");
            assert_eq!((generated.steps, generated.decoded, generated.prompt_tokens), (8, 16, 6));
        }
    }
    let row = 4 * 32 * 4;
    assert_eq!(generate(STATIC, 2).written_per_step, 2 * row);
    assert_eq!(generate(OPERATOR, 2).written_per_step, 2 * row);
    assert_eq!(generate(GROWING, 2).written_per_step, 2 * (3 + 8) * row);
}

/// Prompts that continue a saved prompt generate what they generate with it in front.
#[test]
fn a_saved_prompt_is_continued() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("prompt.kvs");
    let greedy = GenerateOptions { chunk: 2, ..greedy(5) };
    let (engine, options) = (Fake(Fault::None), SessionOptions::default());
    let open = |name, prompts| Generator::open(&engine, model(name), prompts, options).unwrap();
    let prefix = vec![200, 7, 9, 4];
    let mut first = open(STATIC, 1);
    assert_eq!(first.prefix(), 0);
    first.save_prompt(&saved);
    first.generate(std::slice::from_ref(&prefix), &greedy, &mut ignore_event).unwrap();

    let prompts = [vec![1, 2, 3], vec![5]];
    let after = |name, prompts: &[Vec<i64>], greedy: &GenerateOptions| {
        Generator::open_after(&engine, model(name), &saved, prompts, greedy, options)
    };
    let mut generator = after(STATIC, &prompts, &greedy).unwrap();
    assert_eq!((generator.prefix(), generator.vocabulary(), generator.growth()), (4, Some(256), None));
    assert_eq!(generator.memory().map(|memory| memory.total), Some(4 * 2 * 64 * 32 * 4));
    let continued = generator.generate(&prompts, &greedy, &mut ignore_event).unwrap().samples;
    let whole = prompts.clone().map(|prompt| [prefix.clone(), prompt].concat());
    assert_eq!(continued, open(STATIC, 2).generate(&whole, &greedy, &mut ignore_event).unwrap().samples);

    // The saved tokens take slots too.
    let message = |tokens| {
        let greedy = GenerateOptions { chunk: 2, ..decoders::greedy(tokens) };
        let mut generator = after(STATIC, &prompts, &greedy).unwrap();
        let generated = generator.generate(&prompts, &greedy, &mut ignore_event);
        generated.map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(message(58), Ok(()));
    let refused =
        "prompt 0: 7 tokens and 59 to be generated exceed the capacity of 64 tokens; 58 can be generated";
    assert_eq!(message(59), Err(refused.to_owned()));
    assert!(matches!(after(GROWING, &prompts, &greedy), Err(SessionError::SavedUseless)));
}

/// An adapter could replace such an initializer. A session uses the value of the file, which identifies the model.
#[test]
fn the_value_of_an_initializer_that_is_an_input_is_a_part_of_the_model() {
    let of_value = |value: f32| {
        changed(STATIC, |graph| {
            let like = find(&mut graph.input, "key_cache.0").clone();
            graph.input.push(ValueInfoProto { name: Some("adapter".to_owned()), ..like });
            graph.initializer.push(TensorProto {
                name: Some("adapter".to_owned()),
                dims: vec![1, 64, 32],
                data_type: Some(1),
                raw_data: Some(value.to_le_bytes().repeat(64 * 32).into()),
                ..TensorProto::default()
            });
        })
    };
    let [(folder, path), (_other_folder, other)] = [of_value(1.0), of_value(2.0)];
    let open = |path| KvSession::open(&Fake(Fault::None), path, sized(1)).unwrap();
    let mut session = open(&path);
    assert!(session.interface().feeds.iter().all(|feed| feed.name != "adapter"));
    let sample = session.add().unwrap();
    session.step(&[(sample, &[1, 2])]).unwrap();
    let saved = folder.path().join("saved");
    session.save(sample, &saved).unwrap();
    assert!(matches!(open(&other).load(&saved), Err(SessionError::SavedModel { .. })));
    open(&path).load(&saved).unwrap();
}

#[test]
fn a_prompt_is_saved_alone_and_from_static_caches() {
    let folder = tempfile::tempdir().unwrap();
    let save = |name, prompts: &[Vec<i64>], path: PathBuf| {
        let greedy = greedy(1);
        let mut generator = generator(name, prompts.len());
        generator.save_prompt(&path);
        let done = generator.generate(prompts, &greedy, &mut ignore_event).map(|_| ());
        assert_eq!(path.is_file(), done.is_ok());
        done
    };
    let path = folder.path().join("prompt.kvs");
    let several = save(STATIC, &[vec![1], vec![2]], path.clone());
    assert!(matches!(several, Err(SessionError::SavePrompts { prompts: 2 })));
    assert!(matches!(save(GROWING, &[vec![1]], path.clone()), Err(SessionError::SavedUseless)));
    assert!(matches!(save(STATIC, &[vec![1]], folder.path().to_owned()), Err(SessionError::Saved(_))));
    save(STATIC, &[vec![1]], path).unwrap();

    // A call that ends before its prompt is in the caches saves nothing, and the next one does not either.
    let path = folder.path().join("interrupted.kvs");
    let mut generator = generator(STATIC, 1);
    let greedy = GenerateOptions { chunk: 2, ..greedy(1) };
    generator.save_prompt(&path);
    let mut interrupt = |event: Event<'_>| match event {
        Event::Prefill { done: 2, .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let prompt = [vec![1, 2, 3]];
    let interrupted = generator.generate(&prompt, &greedy, &mut interrupt).unwrap();
    assert_eq!((interrupted.saved, interrupted.prompt_tokens), (None, 2));
    assert_eq!((interrupted.samples, interrupted.ends), (vec![vec![]], vec![End::Stopped]));
    assert_eq!(generator.generate(&prompt, &greedy, &mut ignore_event).unwrap().saved, None);
    assert!(!path.exists());
    generator.save_prompt(&path);
    assert_eq!(generator.generate(&prompt, &greedy, &mut ignore_event).unwrap().saved, Some(3));
    assert!(path.is_file());
}

#[test]
fn a_capacity_that_is_open_becomes_what_the_longest_sample_takes() {
    let greedy = greedy(9);
    let open = |name, prompts: &[Vec<i64>], options| {
        Generator::open_for(&Fake(Fault::None), model(name), prompts, &greedy, options)
    };
    let capacity = |name, prompts: &[Vec<i64>], options| open(name, prompts, options).unwrap().capacity();
    let options = SessionOptions::default();
    let given = SessionOptions { capacity: Some(40), ..options };
    let prompts = [vec![1], vec![1, 2, 3]];
    assert_eq!(capacity(OPERATOR, &prompts, options), Some(11));
    assert_eq!(capacity(OPERATOR, &prompts, given), Some(40));
    assert_eq!(capacity(STATIC, &prompts, options), Some(64));
    assert_eq!(capacity(GROWING, &prompts, options), None);
    assert!(matches!(open(OPERATOR, &[], options), Err(SessionError::NoPrompts)));
    let empty = open(OPERATOR, &[vec![]], options).unwrap().generate(&[vec![]], &greedy, &mut ignore_event);
    assert!(matches!(empty, Err(SessionError::PromptEmpty { prompt: 0 })));
}

#[test]
fn a_sample_ends_after_its_end_token_and_the_others_go_on() {
    let open = |name| generator(name, 2);
    let prompts = [vec![1, 2, 3], vec![200, 7, 9]];
    let greedy = greedy(9);
    let whole = open(STATIC).generate(&prompts, &greedy, &mut ignore_event).unwrap().samples;
    let eos = whole[0][3];
    let cut = |tokens: &[i64]| {
        let end = tokens.iter().position(|token| *token == eos).map_or(tokens.len(), |end| end + 1);
        tokens[..end].to_vec()
    };
    for name in [STATIC, GROWING] {
        let greedy = GenerateOptions { eos: vec![eos], ..greedy.clone() };
        let ended = open(name).generate(&prompts, &greedy, &mut ignore_event).unwrap().samples;
        assert_eq!(ended, [cut(&whole[0]), cut(&whole[1])], "{name}");
    }
}

#[test]
fn a_generation_that_is_stopped_ends_with_what_there_is() {
    let generate = |stop: usize| {
        let mut generator = generator(STATIC, 1);
        let greedy = greedy(9);
        let mut stop_at = |event: Event<'_>| match event {
            Event::Tokens(new) if new.progress().tokens == stop => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        generator.generate(&[vec![1, 2, 3]], &greedy, &mut stop_at).unwrap()
    };
    let whole = generate(10);
    for stop in [1, 4, 9] {
        let stopped = generate(stop);
        assert_eq!(stopped.samples[0], whole.samples[0][..stop]);
        assert_eq!((stopped.steps, stopped.decoded), (stop - 1, stop - 1));
    }
}

#[test]
fn a_chat_computes_only_its_new_tokens() {
    for name in [STATIC, OPERATOR, GROWING] {
        let capacity = (name != GROWING).then_some(CAPACITY);
        let options = SessionOptions { capacity, ..SessionOptions::default() };
        let open = || Generator::open(&Fake(Fault::None), model(name), 2, options).unwrap();
        let greedy = GenerateOptions { chunk: 2, ..greedy(4) };
        let mut kept = open();
        let mut turn = |prompts: &[Vec<i64>], reused: &[usize]| {
            let generated = kept.generate(prompts, &greedy, &mut ignore_event).unwrap();
            let fresh = open().generate(prompts, &greedy, &mut ignore_event).unwrap();
            assert_eq!(generated.samples, fresh.samples, "{name} {prompts:?}");
            let reused = if name == GROWING { &vec![0; prompts.len()] } else { reused };
            assert_eq!(generated.reused, reused, "{name} {prompts:?}");
            let tokens = prompts.iter().map(Vec::len).sum::<usize>();
            assert_eq!(generated.prompt_tokens, tokens - reused.iter().sum::<usize>());
            [&prompts[0], generated.samples[0].as_slice()].concat()
        };
        let text = turn(&[vec![1, 2, 3]], &[0]);
        let second = [&text[..], &[9, 8]].concat();
        // The last generated token is not in the cache.
        turn(std::slice::from_ref(&second), &[6]);
        // The logits after the last token are needed again.
        let text = turn(std::slice::from_ref(&second), &[8]);
        let edited = [&text[..5], &[50]].concat();
        turn(std::slice::from_ref(&edited), &[5]);
        // Two prompts continue one sample, of which the first also continues the other prompt.
        let branches = [[&edited[..], &[7]].concat(), [&edited[..2], &[60, 61, 62, 63, 64]].concat()];
        turn(&branches, &[6, 2]);
        // The prompts have other places, and one is new.
        turn(&[branches[1].clone(), vec![100; 7]], &[6, 0]);
    }
}

/// This engine multiplies masked rows by zero, so the NaN of token 13 reaches the rows before it.
#[test]
fn a_prompt_of_nan_is_not_kept() {
    let greedy = greedy(3);
    let open = || decoders::generator(&Fake(Fault::NanToken), model(STATIC), 1);
    let mut generator = open();
    let refused = generator.generate(&[vec![1, 2, 3, 13]], &greedy, &mut ignore_event);
    assert!(matches!(refused, Err(SessionError::NotANumber { prompt: 0 })));
    let good = [vec![1, 2, 3, 4]];
    let after = generator.generate(&good, &greedy, &mut ignore_event).unwrap();
    assert_eq!(after.samples, open().generate(&good, &greedy, &mut ignore_event).unwrap().samples);
}

#[test]
fn prompts_that_continue_a_saved_prompt_reuse_it_in_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("prompt.kvs");
    let greedy = greedy(3);
    let options = SessionOptions::default();
    let mut first = Generator::open(&Fake(Fault::None), model(STATIC), 1, options).unwrap();
    first.save_prompt(&saved);
    first.generate(&[vec![200, 7, 9, 4]], &greedy, &mut ignore_event).unwrap();
    let prompts = [vec![1, 2], vec![3]];
    let mut after =
        Generator::open_after(&Fake(Fault::None), model(STATIC), &saved, &prompts, &greedy, options).unwrap();
    let once = after.generate(&prompts, &greedy, &mut ignore_event).unwrap();
    assert_eq!((once.reused.as_slice(), once.prompt_tokens), (&[4, 4][..], 3));
    let again = after.generate(&prompts, &greedy, &mut ignore_event).unwrap();
    assert_eq!((again.samples, again.reused.as_slice()), (once.samples, &[5, 4][..]));
}

#[test]
fn events_have_the_progress_and_the_new_tokens() {
    let prompts = [vec![1, 2, 3, 4, 5], vec![200, 7, 9]];
    let options = GenerateOptions { chunk: 2, ..greedy(6) };
    for name in [STATIC, GROWING] {
        let prompts = if name == GROWING { [prompts[0].clone(), vec![9; 5]] } else { prompts.clone() };
        let mut generator = generator(name, 2);
        let (mut parts, mut streamed) = (Vec::new(), [Vec::new(), Vec::new()]);
        let generated = generator.generate(&prompts, &options, &mut |event| {
            match event {
                Event::Prefill { done, total } => parts.push((done, total)),
                Event::Tokens(mut new) => {
                    (0..2).for_each(|prompt| streamed[prompt].extend_from_slice(new.tokens(prompt)));
                    assert_eq!(new.end(0), (streamed[0].len() == 6).then_some(End::Length));
                    // The last of three tokens is dropped.
                    if streamed[1].len() == 3 && !new.tokens(1).is_empty() {
                        new.stop(1, 0);
                        assert_eq!((new.end(1), new.progress().samples), (Some(End::Stopped), 1));
                    }
                }
            }
            ControlFlow::Continue(())
        });
        let generated = generated.unwrap();
        let parts_of = if name == GROWING { [(0, 10), (4, 10), (8, 10)] } else { [(0, 8), (4, 8), (7, 8)] };
        assert_eq!(parts, parts_of, "{name}");
        assert_eq!(generated.samples[0], streamed[0], "{name}");
        assert_eq!(generated.samples[1], streamed[1][..2], "{name}");
        assert_eq!(generated.ends, [End::Length, End::Stopped]);
        // An interrupted prefill keeps what it has computed.
        let new = prompts.clone().map(|prompt| [&[50], prompt.as_slice()].concat());
        let mut events = 0;
        let stopped = generator.generate(&new, &options, &mut |_| {
            events += 1;
            if events == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let stopped = stopped.unwrap();
        assert_eq!((stopped.samples, stopped.ends), (vec![vec![]; 2], vec![End::Stopped; 2]));
        assert_eq!((stopped.prompt_tokens, stopped.steps), (4, 0));
        let whole = generator.generate(&new, &options, &mut ignore_event).unwrap();
        assert_eq!(whole.reused, if name == GROWING { [0, 0] } else { [2, 2] });
    }
}

#[test]
fn a_sample_without_a_limit_ends_with_an_end_token_or_the_cache() {
    let mut generator = generator(STATIC, 1);
    let mut generate = |prompt: &[i64], options: &GenerateOptions| {
        let generated = generator.generate(&[prompt.to_vec()], options, &mut ignore_event)?;
        Ok::<_, SessionError>((generated.samples[0].clone(), generated.ends[0]))
    };
    let options = GenerateOptions::default();
    let prompt = vec![1; 60];
    let (tokens, end) = generate(&prompt, &options).unwrap();
    assert_eq!((tokens.len(), end), (5, End::Full));
    let eos = GenerateOptions { eos: vec![tokens[0]], ..options.clone() };
    assert_eq!(generate(&prompt, &eos).unwrap(), (tokens[..1].to_vec(), End::Eos));
    let whole = [prompt, tokens].concat();
    assert_eq!(generate(&whole[..64], &options).unwrap(), (whole[64..].to_vec(), End::Full));
    let refused = generate(&whole, &options).unwrap_err().to_string();
    assert_eq!(refused, "prompt 0: 65 tokens exceed the capacity of 64 tokens");
    assert_eq!(generate(&whole[..64], &options).unwrap().1, End::Full);
    // Nothing determines a capacity.
    let (engine, sizes) = (Fake(Fault::None), SessionOptions::default());
    let open = Generator::open_for(&engine, model(OPERATOR), &[vec![1]], &options, sizes);
    assert!(matches!(open, Err(SessionError::CapacityOpen)));
}

/// The fake engine computes the same logits for a sample in a batch as alone.
#[test]
fn a_sampled_text_depends_on_the_seed_and_its_prompt_alone() {
    let generate = |prompts: &[&[i64]], seed| {
        let sampling = Some(Sampling { temperature: 3.0, seed, ..Sampling::default() });
        let options = GenerateOptions { sampling, ..greedy(12) };
        let prompts: Vec<_> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
        let mut generator = generator(STATIC, 4);
        generator.generate(&prompts, &options, &mut ignore_event).unwrap().samples
    };
    let (a, b): (&[i64], &[i64]) = (&[1, 2, 3], &[200, 7]);
    let (alone, together) = (generate(&[a], 5), generate(&[b, a, a, b], 5));
    assert_eq!(together[1], alone[0]);
    assert_eq!(together[0], generate(&[b], 5)[0]);
    assert_ne!(together[1], together[2]);
    assert_ne!(generate(&[a], 6), alone);
    assert_eq!(generate(&[a], 5), alone);
}

#[test]
fn a_penalty_changes_the_tokens() {
    let generate = |repetition_penalty| {
        let options = GenerateOptions { repetition_penalty, ..greedy(20) };
        let mut generator = generator(STATIC, 1);
        let mut samples = generator.generate(&[vec![9, 9, 9]], &options, &mut ignore_event).unwrap().samples;
        let mut tokens = samples.remove(0);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    let penalised = generate(1e9);
    assert!(generate(1.0).len() < 20);
    assert!(penalised.len() == 20 && !penalised.contains(&9), "{penalised:?}");
}

#[test]
fn prompts_that_cannot_be_continued_are_refused() {
    let none = Generator::open(&Fake(Fault::None), model(STATIC), 0, SessionOptions::default());
    assert!(matches!(none, Err(SessionError::NoPrompts)));
    let message_of = |name, prompts: &[Vec<i64>], options| {
        let generated = generator(name, 2).generate(prompts, &options, &mut ignore_event);
        generated.map(|_| ()).unwrap_err().to_string()
    };
    let cases: [(&str, &[Vec<i64>], usize, &str); 5] = [
        (STATIC, &[vec![1], vec![]], 1, "prompt 1 is empty: at least one token is needed"),
        (
            STATIC,
            &[vec![1, 300]],
            1,
            "prompt 0: token 1 is 300, which the model does not have: it has 0 to 255",
        ),
        (
            STATIC,
            &[vec![1; 60]],
            6,
            "prompt 0: 60 tokens and 6 to be generated exceed the capacity of 64 tokens; 5 can be generated",
        ),
        (
            GROWING,
            &[vec![1], vec![1, 2]],
            1,
            "prompts of 1 and 2 tokens: a cache that grows takes one length; kvscatter inspect shows whether it can be made static",
        ),
        (STATIC, &[vec![1], vec![1], vec![1]], 1, "the batch of 2 is full"),
    ];
    for (name, prompts, tokens, message) in cases {
        assert_eq!(message_of(name, prompts, greedy(tokens)), message);
    }
    for eos in [256, 1_000_000, -5] {
        let message = format!("eos[1] is {eos}, which the model does not have: it has 0 to 255");
        let options = GenerateOptions { eos: vec![255, eos], ..greedy(1) };
        assert_eq!(message_of(STATIC, &[vec![1]], options), message);
    }
    assert!(generator(STATIC, 1).generate(&[vec![1; 60]], &greedy(5), &mut ignore_event).is_ok());
}

#[test]
fn a_sample_may_fill_the_cache_while_another_gets_all_its_tokens() {
    let mut generator = generator(STATIC, 2);
    generator.fill_cache();
    let greedy = greedy(6);
    let generated = generator.generate(&[vec![1; 60], vec![1]], &greedy, &mut ignore_event).unwrap();
    assert_eq!(generated.samples.iter().map(Vec::len).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(generated.ends, [End::Full, End::Length]);
    let refused = generator.generate(&[vec![1; 65]], &greedy, &mut ignore_event).unwrap_err();
    let SessionError::PromptTooLong { tokens: 65, generated: 1, capacity: 64, .. } = refused else {
        panic!("{refused}")
    };
}

#[test]
fn caches_that_grow_stay_within_the_limit() {
    let row = 4 * 32 * 4;
    let options = SessionOptions { memory: 5 * row, ..SessionOptions::default() };
    let generate = |prompt: usize, max_new_tokens| {
        let mut generator = Generator::open(&Fake(Fault::None), model(GROWING), 1, options).unwrap();
        let options = GenerateOptions { max_new_tokens, ..GenerateOptions::default() };
        let generated = generator.generate(&[vec![1; prompt]], &options, &mut ignore_event);
        generated.map(|generated| (generated.samples[0].len(), generated.ends[0]))
    };
    assert_eq!(generate(3, Some(3)).unwrap(), (3, End::Length));
    assert_eq!(generate(3, Some(4)).unwrap(), (3, End::Full));
    assert_eq!(generate(5, None).unwrap(), (1, End::Full));
    let refused = generate(6, None);
    assert!(
        matches!(refused, Err(SessionError::MemoryLimit { needed: Some(needed), .. }) if needed == 6 * row)
    );
}

#[test]
fn a_transaction_goes_back_unless_it_is_committed() {
    let mut session = session(2);
    let (first, second) = (session.add().unwrap(), session.add().unwrap());
    session.step(&[(first, &[1, 2]), (second, &[3])]).unwrap();
    let cached = |session: &KvSession| [first, second].map(|sample| session.cached_tokens(sample).unwrap());
    let begun = |session: &KvSession| [first, second].map(|sample| session.begun(sample).unwrap());
    let mut dropped = session.transaction(&[first, second]).unwrap();
    dropped.step(&[(first, &[4]), (second, &[5, 6])]).unwrap();
    assert_eq!((cached(&dropped), begun(&dropped)), ([3, 3], [Some(2), Some(1)]));
    drop(dropped);
    assert_eq!((cached(&session), begun(&session)), ([2, 1], [None, None]));
    let mut kept = session.transaction(&[first, second]).unwrap();
    let logits = kept.step(&[(first, &[4]), (second, &[5, 6])]).unwrap();
    assert_eq!(logits.last(second).unwrap(), alone(&[3, 5, 6])[2]);
    kept.commit_all();
    assert_eq!((cached(&session), begun(&session)), ([3, 3], [None, None]));
    // If one point cannot be set, none is.
    session.begin(second).unwrap();
    let refused = session.begin_all(&[first, second]);
    assert!(matches!(refused, Err(SessionError::Begun { sample }) if sample == second));
    assert_eq!(begun(&session), [None, Some(3)]);
}

#[test]
fn a_copy_leaves_no_row_of_a_sample_that_was_removed() {
    let mut session = session(2);
    let (kept, removed) = (session.add().unwrap(), session.add().unwrap());
    let tokens: Vec<i64> = (0..40).collect();
    session.step(&[(kept, &[1, 2, 3]), (removed, &tokens)]).unwrap();
    session.remove(removed).unwrap();
    let children = session.reorder(&[kept], &[0, 0]).unwrap();
    for index in 0..4 {
        let [parent, child] = [0, 1].map(|child| rows(&session, index, children[child]));
        let of_tokens = 3 * child.len() / CAPACITY;
        assert!(child[..of_tokens] == parent[..of_tokens], "cache {index}");
        assert!(child[of_tokens..].iter().all(|byte| *byte == 0), "cache {index}");
    }
}

/// An engine may run a second reader of a past before or after the write.
#[test]
fn a_past_that_something_else_reads_is_refused() {
    for operator in ["Identity", "Erf", "TensorScatter"] {
        let mut past = String::new();
        let (_folder, path) = changed(STATIC, |graph| {
            let mut node = nodes(graph, "TensorScatter").next().unwrap().clone();
            past.clone_from(&node.input[0]);
            if operator != "TensorScatter" {
                node = NodeProto { input: vec![past.clone()], ..NodeProto::default() };
            }
            (node.op_type, node.name) = (Some(operator.to_owned()), Some("second".to_owned()));
            node.output = vec!["second".to_owned()];
            graph.node.push(node);
            let of_past = find(&mut graph.input, &past).clone();
            graph.output.push(ValueInfoProto { name: Some("second".to_owned()), ..of_past });
        });
        match refused(&path, sized(1)) {
            SessionError::PastRead { input, reader } => {
                assert_eq!(input, past);
                assert!(reader.contains("second"), "{reader}");
            }
            other => panic!("{operator}: {other}"),
        }
    }
}

/// Fixes the batch of all inputs and outputs.
fn fix_batch(graph: &mut GraphProto, batch: i64) {
    for value in graph.input.iter_mut().chain(&mut graph.output) {
        for dimension in &mut tensor(value).shape.get_or_insert_default().dim {
            if matches!(&dimension.value, Some(DimValue::DimParam(name)) if name == "batch") {
                dimension.value = Some(DimValue::DimValue(batch));
            }
        }
    }
}

#[test]
fn a_model_with_a_fixed_batch_takes_as_many_prompts_or_fewer() {
    let greedy = GenerateOptions { chunk: 2, ..greedy(3) };
    for name in [STATIC, GROWING] {
        let (_folder, path) = changed(name, |graph| fix_batch(graph, 2));
        let (engine, prompts) = (Fake(Fault::None), [vec![1, 2], vec![3, 4]]);
        for count in 1..=2 {
            let generate = |path: &Path| {
                let mut generator = decoders::generator(&engine, path, count);
                generator.generate(&prompts[..count], &greedy, &mut ignore_event).unwrap().samples
            };
            assert_eq!(generate(&path), generate(&model(name)), "{name}, {count} prompts");
        }
        let opened = Generator::open(&engine, path, 3, SessionOptions::default());
        let refused = opened.map(|_| ()).unwrap_err();
        assert!(
            matches!(refused, SessionError::SizeFixed { setting: SessionSetting::Batch, fixed: 2, got: 3 }),
            "{name}: {refused}"
        );
    }
}

#[test]
fn caches_that_the_engine_copies_are_counted() {
    let greedy = greedy(3);
    let copied = |fault, name: &str| {
        let mut generator = decoders::generator(&Fake(fault), model(name), 1);
        generator.generate(&[vec![1, 2]], &greedy, &mut ignore_event).unwrap().copied
    };
    assert_eq!(copied(Fault::None, STATIC), 0);
    assert_eq!(copied(Fault::None, GROWING), 0);
    // A prompt and two steps, 4 caches of 64 slots with 32 float32 numbers.
    assert_eq!(copied(Fault::Copied, STATIC), 3 * 4 * 64 * 32 * 4);
}

#[test]
fn going_back_takes_no_memory_without_rings_and_states() {
    let mut session = session(1);
    let sample = session.add().unwrap();
    session.step(&[(sample, &[1, 2])]).unwrap();
    session.begin(sample).unwrap();
    session.step(&[(sample, &[3])]).unwrap();
    assert_eq!(session.memory().undo, 0);
}

/// Positions and flags would give wrong tokens without an error.
#[test]
fn an_input_of_unknown_meaning_is_refused_by_name() {
    let types = changed(OPERATOR, add_token_types);
    let (_folder, path) = types;
    let error = refused(&path, sized(1));
    assert!(matches!(&error, SessionError::InputUnknown { input } if input == "token_type_ids"), "{error}");
}

/// The samples, tokens and ids of a step.
type InBlocks<'a> = &'a [(Sample, &'a [i64], &'a [i64])];

/// Returns a model with an input for ids of blocks, `[batch, slots]`.
fn with_block_ids(name: &str) -> (tempfile::TempDir, PathBuf) {
    changed(name, |graph| {
        let tokens = find(&mut graph.input, "input_ids").clone();
        let mut blocks = ValueInfoProto { name: Some("block_sequence_ids".to_owned()), ..tokens };
        let slots = match name {
            STATIC => DimValue::DimValue(CAPACITY as i64),
            _ => DimValue::DimParam("slots".to_owned()),
        };
        tensor(&mut blocks).shape.get_or_insert_default().dim[1].value = Some(slots);
        graph.input.push(blocks);
        // The fake engine reads the ids.
        graph.node.insert(0, NodeProto::new("Abs", &["block_sequence_ids"], &["blocks"]));
    })
}

#[test]
fn tokens_of_a_block_see_each_other() {
    let ((_static, path), (_growing, growing)) = (with_block_ids(STATIC), with_block_ids(GROWING));
    blocks::compare(&Fake(Fault::None), &growing, &path, 0.0);
}

#[test]
fn wrong_ids_of_blocks_are_refused_before_anything_is_written() {
    let (_folder, path) = with_block_ids(STATIC);
    let mut session = KvSession::open(&Fake(Fault::None), &path, sized(2)).unwrap();
    let (first, second) = (session.add().unwrap(), session.add().unwrap());
    session.step(&[(first, &[1, 2])]).unwrap();
    session.begin(second).unwrap();
    let before: Vec<Vec<u8>> = (0..4).map(|index| session.cache(index).unwrap().bytes().to_vec()).collect();
    let cases: [(InBlocks<'_>, &str); 7] = [
        (
            &[(first, &[3], &[0, 0])],
            "sample 0 has 1 tokens and 2 ids of blocks: each token needs one, -1 for text",
        ),
        (
            &[(first, &[3], &[])],
            "sample 0 has 1 tokens and 0 ids of blocks: each token needs one, -1 for text",
        ),
        (
            &[(first, &[3, 4], &[0, -2])],
            "sample 0: the block of token 1 is -2, but ids are at least 0, or -1 for text",
        ),
        (
            &[(first, &[3, 4, 5], &[0, 1, 0])],
            "sample 0: token 2 is in block 0, which ended before: blocks must be consecutive tokens",
        ),
        (
            &[(first, &[3, 4, 5], &[0, -1, 0])],
            "sample 0: token 2 is in block 0, which ended before: blocks must be consecutive tokens",
        ),
        (
            &[(first, &[3], &[-1]), (second, &[3, 4], &[1, 1])],
            "sample 1 has begun already: commit it or roll it back first",
        ),
        (&[(first, &[], &[])], "sample 0 has no tokens: at least 1 is needed"),
    ];
    for (given, expected) in cases {
        assert_eq!(session.step_with_blocks(given).unwrap_err().to_string(), expected);
    }
    for (index, before) in before.iter().enumerate() {
        assert!(session.cache(index).unwrap().bytes() == before, "cache {index}");
    }
    assert_eq!([first, second].map(|sample| session.cached_tokens(sample).unwrap()), [2, 0]);
    // Text of a sample that has begun has no ids that could be lost.
    session.step_with_blocks(&[(second, &[3, 4], &[-1, -1])]).unwrap();
    let mut without = self::session(1);
    let sample = without.add().unwrap();
    let error = without.step_with_blocks(&[(sample, &[1], &[-1])]).unwrap_err();
    assert!(matches!(error, SessionError::NoBlockIds), "{error}");
}

/// A model that takes one token in a run would split a block.
#[test]
fn a_block_is_not_split() {
    let (folder, path) = with_block_ids(STATIC);
    let mut model = Model::load(&path).unwrap();
    let graph = model.proto_mut().graph.get_or_insert_default();
    let one = Some(DimValue::DimValue(1));
    tensor(find(&mut graph.input, "input_ids")).shape.get_or_insert_default().dim[1].value = one;
    let path = folder.path().join(STATIC).join("decode.onnx");
    model.save_with_weights(&path, kvscatter_onnx::WeightTransfer::Copy).unwrap();
    let mut session = KvSession::open(&Fake(Fault::None), &path, sized(1)).unwrap();
    let sample = session.add().unwrap();
    let error = session.step_with_blocks(&[(sample, &[1, 2, 3], &[-1, 0, 0])]).unwrap_err();
    assert!(matches!(error, SessionError::BlockSplit { index: 2, id: 0, .. }), "{error}");
    assert_eq!(session.cached_tokens(sample).unwrap(), 0);
    session.step_with_blocks(&[(sample, &[1, 2, 3], &[-1, 0, 1])]).unwrap();
}

#[test]
fn an_input_that_no_node_reads_changes_nothing() {
    let (_folder, path) = changed(STATIC, |graph| {
        let tokens = find(&mut graph.input, "input_ids").clone();
        graph.input.push(ValueInfoProto { name: Some("unread".to_owned()), ..tokens });
    });
    let mut session = KvSession::open(&Fake(Fault::None), &path, sized(1)).unwrap();
    let sample = session.add().unwrap();
    let logits = session.step(&[(sample, &[1, 2, 3])]).unwrap();
    assert_eq!(logits.last(sample).unwrap(), alone(&[1, 2, 3])[2]);
}

/// The indices that are computed from the input are its numbers.
#[test]
fn an_input_that_only_the_indices_are_computed_from_is_fed_as_the_indices() {
    let (_folder, path) = changed(STATIC, |graph| {
        nodes(graph, "TensorScatter").for_each(|node| node.input[2] = "computed".to_owned());
        graph.node.insert(0, NodeProto::new("Max", &["write_indices", "write_indices"], &["computed"]));
    });
    let mut session = KvSession::open(&Fake(Fault::None), path, sized(1)).unwrap();
    let sample = session.add().unwrap();
    session.step(&[(sample, &[1, 2])]).unwrap();
    let logits = session.step(&[(sample, &[3])]).unwrap();
    assert_eq!(logits.last(sample).unwrap(), alone(&[1, 2, 3])[2]);
}

/// ONNX Runtime refuses padding if `sliding_window_cache` is 1.
#[test]
fn an_operator_that_refuses_padding_gets_none() {
    let (_folder, path) = changed(OPERATOR, |graph| {
        nodes(graph, "GroupQueryAttention").for_each(|node| {
            node.attribute.push(AttributeProto::int("sliding_window_cache", 1));
        });
    });
    let step = |path: PathBuf| {
        let mut session = KvSession::open(&Fake(Fault::RefusesPadding), path, sized(2)).unwrap();
        let (long, short) = (session.add().unwrap(), session.add().unwrap());
        session.step(&[(long, &[1, 2, 3]), (short, &[4, 5])]).map(|_| ())
    };
    assert!(matches!(step(model(OPERATOR)), Err(SessionError::Run { .. })));
    step(path).unwrap();
}
