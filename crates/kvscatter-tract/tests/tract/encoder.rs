//! Encoder-decoders in tract.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::convert::convert;
use kvscatter_onnx::{Model, WeightTransfer, join_encoder};
use kvscatter_session::{
    Encoder, EncoderOutputs, GenerateOptions, Generator, KvSession, LoadOptions, Logits, Sample,
    SessionError, SessionOptions, Tensor, by_name,
};
use kvscatter_tract::Tract;

use crate::support::testdata;

const SLOTS: usize = 24;

/// The texts that the encoder reads. Their lengths differ.
const TEXTS: [&[i64]; 3] = [&[5, 9, 17, 3, 40], &[8, 2], &[33, 21, 60, 7, 11, 4, 52]];

/// An exported encoder-decoder, with its conversion.
struct Made {
    exported: PathBuf,
    decoder: PathBuf,
    encoder: PathBuf,
    _folder: tempfile::TempDir,
}

impl Made {
    fn new(name: &str, first: &str) -> Self {
        let in_export = |file: &str| testdata(&format!("decoders/optimum-0.1-{name}/{file}"));
        let exported = in_export("decoder_with_past_model.onnx");
        let [model, first, encoder] = [exported.clone(), in_export(first), in_export("encoder_model.onnx")]
            .map(|path| Model::load(&path).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let [to_decoder, to_encoder] = ["decoder.onnx", "encoder.onnx"].map(|file| folder.path().join(file));
        let converted = convert(&model, SLOTS).unwrap().model;
        converted.save_with_weights(&to_decoder, WeightTransfer::Copy).unwrap();
        let joined = join_encoder(&encoder, &first, &model).unwrap();
        joined.save_with_weights(&to_encoder, WeightTransfer::Copy).unwrap();
        Self { exported, decoder: to_decoder, encoder: to_encoder, _folder: folder }
    }

    fn t5() -> Self {
        Self::new("t5", "decoder_model.onnx")
    }

    fn session(&self, batch: usize) -> KvSession {
        let options = SessionOptions { batch: Some(batch), ..SessionOptions::default() };
        KvSession::open(&Tract, &self.decoder, options).unwrap()
    }

    /// Returns what the encoder computes for a text.
    fn encoded(&self, session: &KvSession, text: &[i64]) -> EncoderOutputs {
        let mut encoder =
            Encoder::open(&Tract, &self.encoder, session.interface(), LoadOptions::default()).unwrap();
        let shape = [1, text.len()];
        let ids = Tensor::int64s(&shape, text).unwrap();
        let mask = Tensor::int64s(&shape, &vec![1; text.len()]).unwrap();
        encoder.run(&[("input_ids", &ids), ("attention_mask", &mask)]).unwrap()
    }
}

/// Adds a sample that attends to a text.
fn added(session: &mut KvSession, outputs: &EncoderOutputs) -> Sample {
    let sample = session.add().unwrap();
    session.set_encoder_outputs(sample, &by_name(outputs)).unwrap();
    sample
}

fn last(logits: &Logits, sample: Sample) -> Vec<f32> {
    logits.last(sample).unwrap().to_vec()
}

/// Rows of one run may take different ways through tract's products of matrices.
fn are_near(some: &[f32], others: &[f32]) -> bool {
    some.iter().zip(others).all(|(some, other)| (some - other).abs() < 1e-5)
}

/// All texts run in one batch, and the encoder's outputs are as long as the longest.
#[test]
fn a_batch_of_texts_has_the_tokens_of_the_exported_decoder() {
    for made in [Made::t5(), Made::new("marian", "decoder_model_merged.onnx")] {
        let session = made.session(1);
        let texts = || TEXTS.map(|text| made.encoded(&session, text));
        let options = GenerateOptions { max_new_tokens: Some(SLOTS - 1), ..GenerateOptions::default() };
        let generate = |generator: &mut Generator, texts: Vec<EncoderOutputs>| {
            let prompts = vec![vec![0]; texts.len()];
            generator.set_encoder_outputs(texts);
            generator.generate(&prompts, &options, &mut |_| ControlFlow::Continue(())).unwrap().samples
        };
        let mut growing = Generator::open(&Tract, &made.exported, 1, SessionOptions::default()).unwrap();
        let alone: Vec<_> = texts().into_iter().flat_map(|text| generate(&mut growing, vec![text])).collect();
        let mut generator = Generator::open(&Tract, &made.decoder, 3, SessionOptions::default()).unwrap();
        assert_eq!(generate(&mut generator, texts().into()), alone);
        // The next texts take the place of these.
        let turned = texts().into_iter().rev().collect();
        assert_eq!(generate(&mut generator, turned), alone.iter().rev().cloned().collect::<Vec<_>>());
        assert_ne!(alone[0], alone[1]);
        let refused = generator.generate(&[vec![0]], &options, &mut |_| ControlFlow::Continue(()));
        assert!(matches!(refused, Err(SessionError::EncoderTexts { texts: 3, prompts: 1 })));
    }
}

/// Copies attend to the same text, a saved sample keeps its text, and a longer text beside it changes no logit.
#[test]
fn copies_and_saved_samples_keep_their_text() {
    let made = Made::t5();
    let mut session = made.session(3);
    let [short, long] = [TEXTS[1], TEXTS[2]].map(|text| made.encoded(&session, text));
    let sample = added(&mut session, &short);
    session.step(&[(sample, &[0, 6])]).unwrap();
    let copy = session.fork(sample, 1).unwrap()[0];
    let bytes = session.memory().encoder;
    let other = added(&mut session, &long);
    assert!(session.memory().encoder > bytes);
    let logits = session.step(&[(sample, &[9]), (copy, &[9]), (other, &[9])]).unwrap();
    assert_eq!(last(&logits, sample), last(&logits, copy));
    assert_ne!(last(&logits, sample), last(&logits, other));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.kv");
    session.save(sample, &path).unwrap();
    let expected = last(&session.step(&[(sample, &[30])]).unwrap(), sample);
    let beams = session.reorder(&[copy, other], &[1, 1]).unwrap();
    let logits = session.step(&[(beams[0], &[2]), (beams[1], &[2])]).unwrap();
    assert!(are_near(&last(&logits, beams[0]), &last(&logits, beams[1])));
    session.remove(sample).unwrap();
    let loaded = session.load(&path).unwrap();
    assert_eq!(last(&session.step(&[(loaded, &[30])]).unwrap(), loaded), expected);
    let mut alone = made.session(1);
    let loaded = alone.load(&path).unwrap();
    let got = last(&alone.step(&[(loaded, &[30])]).unwrap(), loaded);
    assert!(are_near(&got, &expected));
}

#[test]
fn outputs_of_another_encoder_are_refused_and_change_nothing() {
    let made = Made::t5();
    let mut session = made.session(2);
    let outputs = made.encoded(&session, TEXTS[0]);
    let sample = session.add().unwrap();
    let missing = session.step(&[(sample, &[0])]);
    assert!(
        matches!(&missing, Err(SessionError::EncoderMissing { input, .. }) if input == "encoder_attention_mask")
    );
    let key = "past_key_values.1.encoder.key";
    let wide = Tensor::zeros(ElementType::Float32, &[1, 4, 5, 8]).unwrap();
    let short = Tensor::zeros(ElementType::Float32, &[1, 4, 4, 4]).unwrap();
    let two = Tensor::zeros(ElementType::Float32, &[2, 4, 5, 4]).unwrap();
    let empty = Tensor::zeros(ElementType::Float32, &[1, 4, 0, 4]).unwrap();
    let integers = Tensor::zeros(ElementType::Int64, &[1, 4, 5, 4]).unwrap();
    for wrong in [&wide, &short, &two, &empty, &integers] {
        let mut outputs = by_name(&outputs);
        outputs.iter_mut().filter(|(name, _)| *name == key).for_each(|(_, tensor)| *tensor = wrong);
        let refused = session.set_encoder_outputs(sample, &outputs);
        assert!(
            matches!(&refused, Err(SessionError::EncoderShape { input, .. }) if input == key),
            "{refused:?}"
        );
    }
    let without = by_name(&outputs).into_iter().filter(|(name, _)| *name != key).collect::<Vec<_>>();
    let refused = session.set_encoder_outputs(sample, &without);
    assert!(matches!(refused, Err(SessionError::EncoderOutputMissing { input }) if input == key));
    for output in ["states", key] {
        let more = [by_name(&outputs), vec![(output, &wide)]].concat();
        let refused = session.set_encoder_outputs(sample, &more);
        assert!(matches!(refused, Err(SessionError::EncoderOutput { output: named, .. }) if named == output));
    }
    assert!(matches!(session.step(&[(sample, &[0])]), Err(SessionError::EncoderMissing { .. })));
    session.set_encoder_outputs(sample, &by_name(&outputs)).unwrap();
    let expected = last(&session.step(&[(sample, &[0])]).unwrap(), sample);
    let other = made.encoded(&session, TEXTS[2]);
    let changed = session.set_encoder_outputs(sample, &by_name(&other));
    assert!(matches!(changed, Err(SessionError::EncoderChanged { tokens: 1, .. })));
    session.truncate(sample, 0).unwrap();
    assert_eq!(last(&session.step(&[(sample, &[0])]).unwrap(), sample), expected);
    // A new sample at the same batch index has no text.
    session.remove(sample).unwrap();
    let next = session.add().unwrap();
    assert!(matches!(session.step(&[(next, &[0])]), Err(SessionError::EncoderMissing { .. })));
}

#[test]
fn inputs_that_an_encoder_does_not_take_are_refused() {
    let made = Made::t5();
    let session = made.session(1);
    let mut encoder =
        Encoder::open(&Tract, &made.encoder, session.interface(), LoadOptions::default()).unwrap();
    let [ids, two] = [[1, 3], [2, 3]].map(|shape| Tensor::zeros(ElementType::Int64, &shape).unwrap());
    let floats = Tensor::zeros(ElementType::Float32, &[1, 3]).unwrap();
    for (name, inputs) in [
        ("attention_mask", vec![("input_ids", &ids)]),
        ("input_ids", vec![("input_ids", &two), ("attention_mask", &ids)]),
        ("attention_mask", vec![("input_ids", &ids), ("attention_mask", &floats)]),
        ("features", vec![("input_ids", &ids), ("attention_mask", &ids), ("features", &ids)]),
    ] {
        let refused = encoder.run(&inputs);
        assert!(matches!(&refused, Err(SessionError::EncoderInput { input, .. }) if input == name), "{name}");
    }
    let mask = Tensor::zeros(ElementType::Int64, &[1, 2]).unwrap();
    let refused = encoder.run(&[("input_ids", &ids), ("attention_mask", &mask)]);
    let is_length = |error: &SessionError| {
        matches!(error, SessionError::EncoderMaskLength { mask, got: 2, input, expected: 3 }
            if mask == "attention_mask" && input == "input_ids")
    };
    assert!(refused.as_ref().is_err_and(is_length), "{refused:?}");
    let exported = testdata("decoders/optimum-0.1-t5/encoder_model.onnx");
    let refused = Encoder::open(&Tract, exported, session.interface(), LoadOptions::default());
    assert!(matches!(refused, Err(SessionError::EncoderOutputMissing { .. })));
}
