//! Tests results of engines that no decoder should return. Each causes a distinct error and leaves the
//! lengths unchanged.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that panics fails its test")]

mod conv_state;
mod decoders;

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Dimension, ModelFile};
use kvscatter_session::{
    Engine, Event, GenerateOptions, Generator, KvSession, LoadOptions, Memory, Sampling, Session,
    SessionError, SessionOptions, Step, StepOutput, Tensor, argmax, engine_label,
};
use tempfile::TempDir;

use decoders::{GROWING, OPERATOR, STATIC, changed, find, generator, greedy, ignore_event, model, tensor};

/// An engine that computes nothing. A function of the test returns the results of a run for a number of
/// samples and tokens.
#[derive(Clone, Copy)]
struct Answers(fn(&mut Step<'_>, usize, usize) -> Result<Vec<Tensor>, SessionError>);

impl Engine for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }

    fn version(&self) -> &'static str {
        "1"
    }

    fn device(&self) -> &'static str {
        "CPU"
    }

    fn load(&self, _: &ModelFile, _: LoadOptions) -> Result<Box<dyn Session>, SessionError> {
        Ok(Box::new(*self))
    }
}

impl Session for Answers {
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        let bytes = vec![0; element.storage_len(shape).unwrap()];
        Tensor::of_memory(element, shape, Box::new(Losable(bytes)))
    }

    fn run(&mut self, mut step: Step<'_>) -> Result<StepOutput, SessionError> {
        let tokens = step.inputs.iter().find(|(name, _)| *name == "input_ids").unwrap().1;
        let &[batch, width] = tokens.shape() else { panic!("tokens of {:?}", tokens.shape()) };
        let returned = self.0(&mut step, batch, width)?;
        let present_at = step.shared.iter().map(|shared| shared.cache.address()).collect();
        Ok(StepOutput { returned, present_at, elapsed: Duration::ZERO })
    }
}

/// Memory that an engine can lose.
struct Losable(Vec<u8>);

impl Memory for Losable {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Returns logits of this shape, in which token 7 is the most likely.
fn logits(shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let values: Vec<i64> = (0..count).map(|index| i64::from(index % 256 == 7)).collect();
    Tensor::integers(ElementType::Float32, shape, &values).unwrap()
}

fn open(engine: Answers) -> KvSession {
    let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
    KvSession::open(&engine, model(STATIC), options).unwrap()
}

#[test]
fn an_engine_is_named_with_its_plugin() {
    assert_eq!(Answers(|_, _, _| Ok(vec![])).plugin(), None);
    assert_eq!(engine_label("answers", "1", None), "answers 1");
    assert_eq!(engine_label("answers", "1", Some("kvscatter 2")), "answers 1 with plugin kvscatter 2");
}

#[test]
fn logits_of_another_shape_or_type_are_an_error() {
    let answers: [(Answers, &[usize]); 5] = [
        (Answers(|_, batch, _| Ok(vec![logits(&[batch, 256])])), &[2, 256]),
        (Answers(|_, batch, width| Ok(vec![logits(&[batch + 1, width, 256])])), &[3, 3, 256]),
        (Answers(|_, batch, width| Ok(vec![logits(&[batch, width + 1, 256])])), &[2, 4, 256]),
        (Answers(|_, batch, width| Ok(vec![logits(&[batch, width, 0])])), &[2, 3, 0]),
        (Answers(|_, _, _| Ok(vec![logits(&[])])), &[]),
    ];
    for (answer, expected) in answers {
        let mut session = open(answer);
        let sample = session.add().unwrap();
        let error = session.step(&[(sample, &[1, 2, 3])]).unwrap_err();
        let SessionError::LogitsShape { output, shape, batch, width } = &error else { panic!("{error}") };
        assert_eq!((output.as_str(), shape.as_slice(), *batch, *width), ("logits", expected, 2, 3));
        assert_eq!(session.cached_tokens(sample).unwrap(), 0);
    }
    let integers =
        |_: &mut Step<'_>, batch, width| Ok(vec![Tensor::zeros(ElementType::Int64, &[batch, width, 256])?]);
    let mut session = open(Answers(integers));
    let sample = session.add().unwrap();
    let error = session.step(&[(sample, &[1])]).unwrap_err();
    assert!(matches!(error, SessionError::LogitsElement { element: ElementType::Int64, .. }), "{error}");
    let mut session = open(Answers(|_, _, _| Ok(vec![])));
    let sample = session.add().unwrap();
    assert!(matches!(session.step(&[(sample, &[1])]), Err(SessionError::NoLogits)));
}

#[test]
fn a_lost_cache_is_an_error_and_its_session_still_answers() {
    let mut session = open(Answers(|step, batch, width| {
        if width > 1 {
            return Ok(vec![logits(&[batch, width, 256])]);
        }
        let lost = &mut step.shared[1];
        lost.cache.memory_mut::<Losable>().unwrap().0.clear();
        Err(SessionError::CacheLost { cache: lost.past.to_owned() })
    }));
    let (full, other) = (session.add().unwrap(), session.add().unwrap());
    session.step(&[(full, &[1; 64])]).unwrap();
    for _ in 0..2 {
        // The rows of the full sample are saved, and restored in the caches that still exist.
        let error = session.step(&[(other, &[1])]).unwrap_err();
        assert!(
            matches!(&error, SessionError::CacheLost { cache, .. } if cache == "value_cache.0"),
            "{error}"
        );
        assert_eq!((session.cached_tokens(full).unwrap(), session.cached_tokens(other).unwrap()), (64, 0));
    }
    session.truncate(full, 3).unwrap();
    session.remove(other).unwrap();
    session.add().unwrap();
    assert_eq!(session.cache(1).unwrap().bytes(), [0_u8; 0]);
}

#[test]
fn rows_of_a_failed_run_are_zero_when_the_sample_runs_again() {
    let mut session = open(Answers(|step, batch, width| {
        if width == 1 {
            return Ok(vec![logits(&[batch, 1, 256])]);
        }
        // Slots 1 and 2 of the first sample, in caches of [batch, capacity, 32].
        for shared in &mut step.shared {
            let rows = shared.cache.bytes_mut()[32 * 4..3 * 32 * 4].as_chunks_mut().0;
            rows.iter_mut().for_each(|value| *value = f32::NAN.to_le_bytes());
        }
        Err(SessionError::Run { engine: "answers 1".to_owned(), message: "no".to_owned() })
    }));
    let sample = session.add().unwrap();
    session.step(&[(sample, &[1])]).unwrap();
    assert!(matches!(session.step(&[(sample, &[2, 3])]), Err(SessionError::Run { .. })));
    let is_zero = |session: &KvSession| session.cache(3).unwrap().bytes().iter().all(|byte| *byte == 0);
    assert!(!is_zero(&session));
    session.step(&[(sample, &[4])]).unwrap();
    assert!(is_zero(&session));
}

#[test]
fn padding_repeats_a_sample_s_last_token() {
    let mut session = open(Answers(|step, batch, width| {
        assert_eq!(fed(step, "input_ids"), [5, 6, 7, 8, 9, 9]);
        assert_eq!(fed(step, "position_ids"), [0, 1, 2, 0, 1, 0]);
        Ok(vec![logits(&[batch, width, 256])])
    }));
    let (long, short) = (session.add().unwrap(), session.add().unwrap());
    session.step(&[(long, &[5, 6, 7]), (short, &[8, 9])]).unwrap();
}

/// Returns the values of an int64 input.
fn fed(step: &Step<'_>, name: &str) -> Vec<i64> {
    let tensor = step.inputs.iter().find(|(input, _)| *input == name).unwrap().1;
    tensor.bytes().as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
}

#[test]
fn tokens_are_refused_before_the_run_that_they_would_be_fed_to() {
    let engine = Answers(|step, batch, width| {
        let tokens = step.inputs.iter().find(|(name, _)| *name == "input_ids").unwrap().1;
        assert_eq!(tokens.bytes(), 1_i32.to_le_bytes());
        step.shared[0].cache.bytes_mut().fill(1);
        Ok(vec![logits(&[batch, width, 256])])
    });
    let (_folder, file) = changed(STATIC, |graph| {
        tensor(find(&mut graph.input, "input_ids")).elem_type = Some(ElementType::Int32.onnx_code());
        tensor(find(&mut graph.output, "logits")).shape.as_option_mut().unwrap().dim[2].value = None;
    });
    let mut session = KvSession::open(&engine, &file, SessionOptions::default()).unwrap();
    let sample = session.add().unwrap();
    let error = session.prefill(&[(sample, &[1, 1 << 40])], 1).unwrap_err();
    assert!(matches!(error, SessionError::InputType { element: ElementType::Int32, .. }), "{error}");
    assert!(session.cache(0).unwrap().bytes().iter().all(|byte| *byte == 0));
    // The first run shows the size of the vocabulary, so the step fails before the second run.
    assert_eq!(session.vocabulary(), None);
    let error = session.prefill(&[(sample, &[1, 300])], 1).unwrap_err();
    assert!(matches!(error, SessionError::TokenUnknown { index: 1, vocabulary: Some(256), .. }), "{error}");
    assert_eq!((session.vocabulary(), session.cached_tokens(sample).unwrap()), (Some(256), 0));
}

#[test]
fn a_capacity_that_an_input_cannot_be_fed_with_is_refused() {
    let (_folder, file) = changed(STATIC, |graph| {
        tensor(find(&mut graph.input, "position_ids")).elem_type = Some(ElementType::Int32.onnx_code());
        for name in ["key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"] {
            tensor(find(&mut graph.input, name)).shape.as_option_mut().unwrap().dim[1].value = None;
        }
    });
    let engine = Answers(|_, batch, width| Ok(vec![logits(&[batch, width, 256])]));
    let open = |capacity| {
        let options = SessionOptions { capacity, memory: 1 << 20, ..SessionOptions::default() };
        KvSession::open(&engine, &file, options).map(|session| session.capacity())
    };
    assert!(matches!(open(Some(1 << 31)), Err(SessionError::InputType { element: ElementType::Int32, .. })));
    assert!(matches!(open(Some((1 << 31) - 1)), Err(SessionError::MemoryLimit { .. })));
    assert!(matches!(open(None), Err(SessionError::CapacityOpen)));
    assert_eq!(open(Some(9)).unwrap(), 9);
}

#[test]
fn a_state_of_open_size_is_refused() {
    let (_folder, file) = changed(STATIC, |graph| {
        for (values, name) in [(&mut graph.input, "past.conv"), (&mut graph.output, "present.conv")] {
            let state = values.iter().find(|value| value.name.as_deref() != Some("input_ids")).unwrap();
            values.push(ValueInfoProto { name: Some(name.to_owned()), ..state.clone() });
        }
        // The exporter imports the domain of the operator already.
        graph.node.push(conv_state::node());
    });
    let engine = Answers(|_, batch, width| Ok(vec![logits(&[batch, width, 256])]));
    let opened = KvSession::open(&engine, &file, SessionOptions::default());
    let error = opened.map(|session| session.capacity()).unwrap_err();
    assert!(matches!(&error, SessionError::SizeOpen { input, axis: 1 } if input == "past.conv"), "{error}");
}

#[test]
fn columns_of_another_shape_or_type_are_an_error() {
    let (_folder, file) = changed(STATIC, |graph| {
        conv_state::add(graph);
        let mut join = NodeProto::new("Concat", &["past.conv", "channels"], &["columns"]);
        join.attribute.push(AttributeProto::int("axis", 2));
        graph.node.push(join);
        let dims = [Dimension::Symbolic("batch"), Dimension::Known(256), Dimension::Unknown];
        graph.output.push(ValueInfoProto::tensor("columns", 1, &dims));
    });
    let answers = [
        (Answers(|_, batch, width| Ok(vec![logits(&[batch, width, 256])])), vec![]),
        (
            Answers(|_, batch, width| {
                let wrong = Tensor::zeros(ElementType::Float32, &[2, 256, 2 + width])?;
                Ok(vec![logits(&[batch, width, 256]), wrong])
            }),
            vec![2, 256, 4],
        ),
        (
            Answers(|_, batch, width| {
                let wrong = Tensor::zeros(ElementType::Int32, &[2, 256, 3 + width])?;
                Ok(vec![logits(&[batch, width, 256]), wrong])
            }),
            vec![2, 256, 5],
        ),
    ];
    for (answer, got) in answers {
        let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
        let mut session = KvSession::open(&answer, &file, options).unwrap();
        let sample = session.add().unwrap();
        session.begin(sample).unwrap();
        let error = session.step(&[(sample, &[1, 2])]).unwrap_err();
        let SessionError::ColumnsShape { output, shape, expected, .. } = &error else { panic!("{error}") };
        assert_eq!((output.as_str(), shape, expected.as_slice()), ("columns", &got, &[2, 256, 5][..]));
        assert_eq!(session.cached_tokens(sample).unwrap(), 0);
    }
}

#[test]
fn scores_that_are_no_numbers_choose_no_token() {
    // NaN for the second prompt.
    let engine = Answers(|_, batch, width| {
        let mut logits = logits(&[batch, width, 256]);
        let second = width * 256 * 4;
        let nan = logits.bytes_mut()[second..2 * second].as_chunks_mut().0;
        nan.iter_mut().for_each(|value| *value = f32::NAN.to_le_bytes());
        Ok(vec![logits])
    });
    for name in [STATIC, GROWING] {
        let generate = |prompts: &[Vec<i64>]| {
            let greedy = GenerateOptions { chunk: 8, ..greedy(3) };
            generator(&engine, model(name), 2).generate(prompts, &greedy, &mut ignore_event)
        };
        let refused = generate(&[vec![1, 2], vec![3, 4]]);
        assert!(matches!(refused, Err(SessionError::NotANumber { prompt: 1 })), "{name}");
        assert_eq!(generate(&[vec![1, 2]]).unwrap().samples, [[7, 7, 7]], "{name}");
    }
}

#[test]
fn a_model_of_one_token_a_step_takes_its_prompts_so() {
    let engine = Answers(|_, batch, width| {
        assert_eq!(width, 1);
        Ok(vec![logits(&[batch, 1, 256])])
    });
    for name in [STATIC, GROWING] {
        let (_folder, file) = decode_only(name);
        let greedy = GenerateOptions { chunk: 8, ..greedy(3) };
        let prompts = [vec![1, 2, 3], vec![4, 5, 6]];
        let generated = generator(&engine, file, 2).generate(&prompts, &greedy, &mut ignore_event).unwrap();
        assert_eq!(generated.samples, [[7, 7, 7]; 2], "{name}");
        // Each prompt has three tokens, and two tokens were generated. The last of them is not fed.
        let slots = if name == GROWING { 5 } else { 1 };
        assert_eq!(generated.written_per_step, 2 * slots * 4 * 32 * 4, "{name}");
    }
}

/// Writes the model after it has been changed to take one token of each sample in every step.
fn decode_only(name: &str) -> (TempDir, PathBuf) {
    changed(name, |graph| {
        for name in ["input_ids", "position_ids"] {
            let shape = tensor(find(&mut graph.input, name)).shape.as_option_mut().unwrap();
            shape.dim[1].value = Some(DimValue::DimValue(1));
        }
    })
}

/// Returns the token at a position of a text that repeats itself with changes.
fn written(position: i64) -> i64 {
    if position % 17 == 16 { 200 + position % 50 } else { position % 6 }
}

thread_local! {
    /// Whether [`next_written`] refuses to verify drafts.
    static REFUSES_DRAFTS: Cell<bool> = const { Cell::new(false) };
}

/// The most likely token after a position is that of the text. Without positions, each token is followed by the next of
/// six.
fn next_written(step: &mut Step<'_>, batch: usize, width: usize) -> Result<Vec<Tensor>, SessionError> {
    // The first prompt has 20 tokens, and drafts have up to 4.
    assert!(width <= 5 || width == 20, "{width}");
    if REFUSES_DRAFTS.get() && (2..=5).contains(&width) {
        return Err(SessionError::Run { engine: "answers 1".to_owned(), message: "no".to_owned() });
    }
    let positions = step.inputs.iter().find(|(name, _)| *name == "position_ids");
    let next: Vec<i64> = match positions {
        Some(_) => fed(step, "position_ids").iter().map(|position| written(position + 1)).collect(),
        None => fed(step, "input_ids").iter().map(|token| (token + 1) % 6).collect(),
    };
    let values: Vec<i64> =
        next.iter().flat_map(|next| (0..256).map(move |token| i64::from(token == *next))).collect();
    Ok(vec![Tensor::integers(ElementType::Float32, &[batch, width, 256], &values)?])
}

#[test]
fn drafts_change_the_steps_and_not_the_tokens() {
    let generate = |name, lengths: &[i64], draft, eos: &[i64], sampling| {
        let capacity = (name != GROWING).then_some(64);
        let options = SessionOptions { capacity, ..SessionOptions::default() };
        let mut generator =
            Generator::open(&Answers(next_written), model(name), lengths.len(), options).unwrap();
        generator.draft(draft);
        let greedy = GenerateOptions { eos: eos.to_vec(), chunk: 20, sampling, ..greedy(40) };
        let prompts: Vec<_> = lengths.iter().map(|end| (0..*end).map(written).collect()).collect();
        let mut seen = Vec::new();
        let generated = generator.generate(&prompts, &greedy, &mut |event| {
            if let Event::Tokens(new) = event {
                seen.push(new.progress().tokens);
            }
            ControlFlow::Continue(())
        });
        assert!(seen.is_sorted_by(|a, b| a < b) && seen.first() == Some(&1), "{seen:?}");
        let generated = generated.unwrap();
        assert!(!eos.is_empty() || seen.last() == Some(&40));
        (generated.samples, generated.steps, generated.decoded, generated.drafted, generated.accepted)
    };
    for (name, lengths) in [(STATIC, [20, 7].as_slice()), (OPERATOR, &[20]), (GROWING, &[20, 20])] {
        // Most drawn tokens are the most likely ones.
        for seed in 0..4 {
            let sampling = Some(Sampling { temperature: 0.15, seed, ..Sampling::default() });
            let [plain, drafted] = [0, 4].map(|draft| generate(name, lengths, draft, &[], sampling));
            assert_eq!(drafted.0, plain.0, "{name} {seed}");
            assert!(name == GROWING || drafted.4 > 0, "{name} {seed} {drafted:?}");
        }
        let generate = |draft, eos: &[i64]| generate(name, lengths, draft, eos, None);
        let plain = generate(0, &[]);
        assert_eq!((plain.1, plain.2, plain.3, plain.4), (39, 39 * lengths.len(), 0, 0), "{name}");
        let drafted = generate(4, &[]);
        assert_eq!((&drafted.0, drafted.2), (&plain.0, plain.2), "{name}");
        assert_eq!(generate(4, &[]), drafted, "{name}");
        match name {
            GROWING => assert_eq!(drafted, plain),
            _ => assert!(drafted.1 < 35 && drafted.3 > drafted.4 && drafted.4 > 10, "{name} {drafted:?}"),
        }
        // A token that ends its sample is the last, also among accepted tokens.
        for eos in plain.0[0].iter().skip(20) {
            let drafted = generate(4, &[*eos]);
            assert_eq!(drafted.0, generate(0, &[*eos]).0, "{name} {eos}");
            assert!(lengths.len() > 1 || drafted.2 == drafted.1 + drafted.4, "{name} {eos} {drafted:?}");
        }
    }
}

/// The most likely token after each one is that of the text, whose position only the state knows.
fn next_by_state(step: &mut Step<'_>, batch: usize, width: usize) -> Result<Vec<Tensor>, SessionError> {
    let past = step.inputs.iter().find(|(name, _)| *name == "past.conv").unwrap().1;
    let of_sample = past.len() / batch;
    let counts: Vec<i64> =
        past.bytes().chunks(of_sample).map(|of| i64::from_le_bytes(*of.first_chunk().unwrap())).collect();
    let present = step.outputs.iter_mut().find(|(name, _)| *name == "present.conv").unwrap();
    for (count, of) in counts.iter().zip(present.1.bytes_mut().chunks_mut(of_sample)) {
        of[..8].copy_from_slice(&(count + width as i64).to_le_bytes());
    }
    let next = counts.iter().flat_map(|count| (1..=width as i64).map(move |column| written(count + column)));
    let values: Vec<i64> =
        next.flat_map(|next| (0..256).map(move |token| i64::from(token == next))).collect();
    Ok(vec![Tensor::integers(ElementType::Float32, &[batch, width, 256], &values)?])
}

#[test]
fn states_beside_growing_caches_are_carried_and_begin_with_zeros() {
    let (_folder, file) = changed(GROWING, conv_state::add);
    let mut generator = generator(&Answers(next_by_state), &file, 2);
    let prompt: Vec<i64> = (0..20).map(written).collect();
    for _ in 0..2 {
        let prompts = [prompt.clone(), prompt.clone()];
        let generated = generator.generate(&prompts, &greedy(40), &mut ignore_event).unwrap();
        assert_eq!(generated.samples, vec![(20..60).map(written).collect::<Vec<_>>(); 2]);
    }
}

#[test]
fn drafts_that_are_rejected_leave_the_states_of_the_tokens_before_them() {
    let (_folder, file) = changed(STATIC, conv_state::add);
    let prompts: [Vec<i64>; 1] = [(0..20).map(written).collect()];
    let [plain, drafted] = [0, 4].map(|draft| {
        let mut generator = generator(&Answers(next_by_state), &file, 1);
        generator.draft(draft);
        generator.generate(&prompts, &greedy(40), &mut ignore_event).unwrap()
    });
    assert_eq!(plain.samples[0], (20..60).map(written).collect::<Vec<_>>());
    assert_eq!((&drafted.samples, drafted.decoded), (&plain.samples, plain.decoded));
    assert!(drafted.drafted > drafted.accepted && drafted.accepted > 5, "{drafted:?}");
    assert!(drafted.steps < plain.steps, "{drafted:?}");
}

#[test]
fn a_generator_goes_on_after_a_step_with_drafts_has_failed() {
    let open = || {
        let mut generator = generator(&Answers(next_written), model(STATIC), 2);
        generator.draft(4);
        generator
    };
    let prompts = [(0..20).map(written).collect(), (0..7).map(written).collect()];
    let mut generator = open();
    let generate = |generator: &mut Generator| generator.generate(&prompts, &greedy(40), &mut ignore_event);
    REFUSES_DRAFTS.set(true);
    assert!(matches!(generate(&mut generator), Err(SessionError::Run { .. })));
    REFUSES_DRAFTS.set(false);
    let again = generate(&mut generator).unwrap();
    assert_eq!((again.samples, again.reused), (generate(&mut open()).unwrap().samples, vec![19, 6]));
}

/// A padded run would return the logits of padding, whose position is 0.
#[test]
fn logits_of_the_last_column_are_those_of_each_sample_s_last_token() {
    let mut session = open(Answers(|step, batch, width| {
        let positions = fed(step, "position_ids");
        let last = positions.chunks(width).map(|positions| positions[width - 1]);
        let values: Vec<i64> =
            last.flat_map(|last| (0..256).map(move |token| i64::from(token == last))).collect();
        Ok(vec![Tensor::integers(ElementType::Float32, &[batch, 1, 256], &values)?])
    }));
    let (first, second) = (session.add().unwrap(), session.add().unwrap());
    for (one, two, expected) in [(&[1, 2][..], &[3, 4, 5, 6][..], [1, 3]), (&[7, 1, 2], &[3], [4, 4])] {
        let logits = session.step(&[(first, one), (second, two)]).unwrap();
        assert_eq!([first, second].map(|sample| argmax(logits.last(sample).unwrap())), expected);
    }
}

/// The first run with several tokens shows that such a model cannot verify drafts.
#[test]
fn a_model_that_returns_the_last_logits_only_has_no_drafts() {
    let last = Answers(|step, batch, width| {
        let tokens = fed(step, "input_ids");
        let next = |tokens: &[i64]| tokens.last().map_or(0, |token| (token + 1) % 6);
        let values: Vec<i64> = tokens
            .chunks(width)
            .flat_map(|tokens| (0..256).map(move |token| i64::from(token == next(tokens))))
            .collect();
        Ok(vec![Tensor::integers(ElementType::Float32, &[batch, 1, 256], &values)?])
    });
    let generate = |draft| {
        let mut generator = generator(&last, model(STATIC), 1);
        generator.draft(draft);
        let greedy = GenerateOptions { chunk: 20, ..greedy(40) };
        let generated = generator.generate(&[vec![0]], &greedy, &mut ignore_event).unwrap();
        (generated.samples, generated.steps, generated.drafted, generated.accepted)
    };
    assert_eq!(generate(4), generate(0));
}

/// A model whose queries see their own row. In a run, the NaN of token 13 reaches all rows of its sample.
fn nan_in_runs(step: &mut Step<'_>, batch: usize, width: usize) -> Result<Vec<Tensor>, SessionError> {
    WIDTHS.with_borrow_mut(|widths| widths.push(width));
    let tokens = fed(step, "input_ids");
    let mut logits = Tensor::zeros(ElementType::Float32, &[batch, width, 256])?;
    let (all, _) = logits.bytes_mut().as_chunks_mut();
    for (fed, logits) in tokens.chunks(width).zip(all.chunks_mut(width * 256)) {
        for (token, logits) in fed.iter().zip(logits.chunks_mut(256)) {
            logits[0] = if fed.contains(&13) { f32::NAN } else { *token as f32 }.to_le_bytes();
        }
    }
    Ok(vec![logits])
}

thread_local! {
    /// The widths of the runs of [`nan_in_runs`].
    static WIDTHS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn a_step_with_nan_repeats_what_nan_may_have_reached() {
    let (_folder, single) = decode_only(STATIC);
    let whole = model(STATIC);
    let lists: [&[i64]; 2] = [&[1, 2, 3, 4], &[5, 13, 6, 13, 7]];
    // The sample and the token that an error names, which are the first with NaN by itself.
    for (model, lists, widths, named) in [
        // Several tokens of NaN, and a sample without them.
        (&whole, lists, vec![5, 4, 1, 1, 1, 1, 1], (1, 1)),
        (&whole, [&[1, 13], &[13, 2]], vec![2, 1, 1], (1, 0)),
        // A token that is alone in its run is NaN by itself.
        (&whole, [&[13], &[13]], vec![1], (0, 0)),
        (&single, lists, vec![1; 5], (1, 1)),
    ] {
        WIDTHS.take();
        let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
        let mut session = KvSession::open(&Answers(nan_in_runs), model, options).unwrap();
        let samples = [session.add().unwrap(), session.add().unwrap()];
        let given = [(samples[0], lists[0]), (samples[1], lists[1])];
        let logits = session.step(&given).unwrap();
        assert_eq!(WIDTHS.take(), widths, "{lists:?}");
        for (sample, list) in given {
            for (index, token) in list.iter().enumerate() {
                let got = logits.after(sample, index).unwrap()[0];
                assert!(got == *token as f32 || (*token == 13 && got.is_nan()), "{list:?} {index}: {got}");
            }
        }
        // All runs write a row of each sample in four caches, for every token.
        let rows = 2 * widths.iter().sum::<usize>() as u64;
        assert_eq!(session.bytes_written(), rows * 4 * 32 * 4, "{lists:?}");
        let options = SessionOptions { refuse_nan: true, ..options };
        let mut session = KvSession::open(&Answers(nan_in_runs), model, options).unwrap();
        let samples = [session.add().unwrap(), session.add().unwrap()];
        let refused = session.step(&[(samples[0], lists[0]), (samples[1], lists[1])]).unwrap_err();
        let SessionError::NanLogits { sample, index } = refused else { panic!("{refused}") };
        assert_eq!((sample, index), (samples[named.0], named.1), "{lists:?}");
    }
}
