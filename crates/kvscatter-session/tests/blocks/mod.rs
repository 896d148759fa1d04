//! Sessions of any engine whose tokens are in blocks.

use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::Decoder;
use kvscatter_session::{
    Engine, Feed, Interface, KvSession, LoadOptions, Logits, Sample, SessionOptions, Step, Tensor, to_f32,
};

/// Compares a session with the decoder with growing caches, whose samples get all tokens in one step with the same ids.
/// The logits may differ by `tolerance`.
pub(crate) fn compare(engine: &dyn Engine, growing: &Path, model: &Path, tolerance: f32) {
    let alone = |tokens: &[i64], ids: &[i64]| logits_of_growing(engine, growing, tokens, ids);
    let check = |logits: &Logits, sample: Sample, expected: &[Vec<f32>]| {
        for (token, expected) in expected.iter().enumerate() {
            let got = logits.after(sample, token).unwrap();
            let off = got.iter().zip(expected).map(|(got, expected)| (got - expected).abs());
            assert!(
                off.clone().all(|off| off <= tolerance),
                "{sample}, token {token}: {:?}",
                off.max_by(f32::total_cmp)
            );
        }
    };
    let texts: [(&[i64], &[i64]); 3] = [
        (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], &[-1, 0, 0, 0, 0, -1, 1, 1, -1, -1, 2, 2]),
        (&[11, 12, 13, 3, 8], &[5, 5, 4, 4, -1]),
        (&[9, 2, 6], &[-1; 3]),
    ];
    let expected = texts.map(|(tokens, ids)| alone(tokens, ids));
    assert_ne!(expected[0], alone(texts[0].0, &[-1; 12]));
    let options = SessionOptions { batch: Some(4), ..SessionOptions::default() };
    let mut session = KvSession::open(engine, model, options).unwrap();
    let [first, second, third] = [0, 1, 2].map(|_| session.add().unwrap());
    let part = |text: usize, from: usize, to: usize| (&texts[text].0[from..to], &texts[text].1[from..to]);
    let ((tokens, ids), (text, is_text)) = (part(0, 0, 5), part(2, 0, 2));
    let logits = session.step_with_blocks(&[(first, tokens, ids), (third, text, is_text)]).unwrap();
    check(&logits, first, &expected[0][..5]);
    check(&logits, third, &expected[2][..2]);
    let ((tokens, ids), (other, other_ids), (text, is_text)) = (part(0, 5, 9), part(1, 0, 5), part(2, 2, 3));
    let given = [(first, tokens, ids), (second, other, other_ids), (third, text, is_text)];
    let logits = session.step_with_blocks(&given).unwrap();
    check(&logits, first, &expected[0][5..9]);
    check(&logits, second, &expected[1]);
    check(&logits, third, &expected[2][2..]);
    // Later tokens are text, and their blocks may have the ids of earlier ones.
    let (text, block) = (part(0, 9, 10).0, part(0, 10, 12).0);
    check(&session.step(&[(first, text)]).unwrap(), first, &expected[0][9..10]);
    check(&session.step_with_blocks(&[(first, block, &[0, 0])]).unwrap(), first, &expected[0][10..]);
}

/// Returns the logits after each token of a decoder with growing caches.
fn logits_of_growing(engine: &dyn Engine, path: &Path, tokens: &[i64], ids: &[i64]) -> Vec<Vec<f32>> {
    let model = Model::load(path).unwrap();
    let graph = model.graph().unwrap();
    let interface = Interface::new(&model, &Decoder::from_graph(&graph).unwrap()).unwrap();
    let mut session = engine.load(&model.file().unwrap(), LoadOptions::default()).unwrap();
    let width = tokens.len();
    let mut inputs =
        Feed::next(&[0], width).tensors(&interface, |_, position| tokens[position], width).unwrap();
    let given = inputs.iter_mut().find(|(name, _)| name == "block_sequence_ids").unwrap();
    given.1 = Tensor::integers(ElementType::Int64, &[1, width], ids).unwrap();
    let zeros = |length| {
        let caches = interface.caches.iter();
        caches.map(|port| Tensor::zeros(port.element, &port.shape(1, length)).unwrap()).collect::<Vec<_>>()
    };
    let (pasts, mut presents) = (zeros(0), zeros(width));
    let pasts = interface.caches.iter().zip(&pasts).map(|(port, past)| (port.past.as_str(), past));
    let presents = interface.caches.iter().zip(&mut presents);
    let step = Step {
        inputs: inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).chain(pasts).collect(),
        outputs: presents.map(|(port, present)| (port.present.as_str(), present)).collect(),
        returned: vec![&interface.logits],
        ..Step::default()
    };
    let logits = session.run(step).unwrap().returned.remove(0);
    let logits = to_f32(logits.element(), logits.bytes()).unwrap();
    logits.chunks(logits.len() / width).map(<[f32]>::to_vec).collect()
}
