//! Random histories of decoders with rings, for any engine. A reference has linear caches with a mask.

use std::ops::ControlFlow;
use std::path::Path;

use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::AttributeProto;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{
    Engine, GenerateOptions, Generated, Generator, KvSession, SessionError, SessionOptions,
};

use super::compare;

/// The window of a layer with one.
const WINDOW: i64 = 3;

/// The tokens that a linear cache has room for, which is several turns of every ring.
const MAX_SEQ: usize = 48;

/// Runs random histories, with rings of all layers or of the first one, and with several sizes.
pub(crate) fn check_histories(engine: &dyn Engine, decoder: &Path, histories: usize) {
    for (layers, chunk, rewind) in [(1, 3, 2), (2, 1, 0), (2, 4, 1)] {
        let folder = tempfile::tempdir().unwrap();
        let model = with_windows(decoder, layers);
        let rings = WindowedCaches::Ring { chunk: Some(chunk), rewind };
        let [ring, linear] =
            [("ring.onnx", rings), ("linear.onnx", WindowedCaches::Mask)].map(|(name, windowed)| {
                let converted = convert(&model, ConvertOptions::new(MAX_SEQ).windowed(windowed)).unwrap();
                let caches = if windowed == rings { 2 * layers } else { 0 };
                assert_eq!(converted.report.caches.rings.values().sum::<usize>(), caches);
                let path = folder.path().join(name);
                converted.model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
                path
            });
        compare(engine, [&ring, &linear], None, histories, 1e-4);
        let (plain, drafted) = (generate(engine, &linear, 0), generate(engine, &ring, 6));
        assert_eq!(drafted.samples, plain.samples);
        // A run of a ring with a chunk of 1 has one token.
        assert_eq!(drafted.drafted > 0, chunk > 1, "{drafted:?}");
    }
}

/// Continues two prompts, with drafts of up to `most` tokens.
fn generate(engine: &dyn Engine, model: &Path, most: usize) -> Generated {
    let prompts = [vec![2; 6], vec![223, 181, 181, 181, 188, 10, 181, 188, 10]];
    let mut generator = Generator::open(engine, model, 2, SessionOptions::default()).unwrap();
    generator.draft(most);
    let greedy = GenerateOptions { max_new_tokens: Some(38), chunk: 8, ..GenerateOptions::default() };
    generator.generate(&prompts, &greedy, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A truncation beyond the rewind is an error that names the limit, and one to 0 starts over.
pub(crate) fn check_truncation(engine: &dyn Engine, decoder: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let rings = WindowedCaches::Ring { chunk: Some(2), rewind: 2 };
    let converted = convert(&with_windows(decoder, 2), ConvertOptions::new(MAX_SEQ).windowed(rings)).unwrap();
    let path = folder.path().join("ring.onnx");
    converted.model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let mut session = KvSession::open(engine, &path, SessionOptions::default()).unwrap();
    let sample = session.add().unwrap();
    let tokens: Vec<i64> = (0..20).collect();
    session.step(&[(sample, &tokens)]).unwrap();
    // 6 slots contain the positions 14 to 19. The query at position 16 sees 14.
    let error = session.truncate(sample, 15).unwrap_err();
    assert!(matches!(error, SessionError::TruncateRing { to: 15, cached: 20, least: 16, .. }), "{error}");
    assert_eq!(session.cached_tokens(sample).unwrap(), 20);
    session.truncate(sample, 16).unwrap();
    let again = session.step(&[(sample, &tokens[16..])]).unwrap().last(sample).unwrap().to_vec();
    session.truncate(sample, 0).unwrap();
    let over = session.step(&[(sample, &tokens)]).unwrap();
    assert_eq!(over.last(sample).unwrap(), again);
}

/// Returns a decoder with growing caches whose first layers have a window.
fn with_windows(decoder: &Path, layers: usize) -> Model {
    let mut model = Model::load(decoder).unwrap();
    let nodes = model.proto_mut().graph.get_or_insert_default().node.iter_mut();
    for node in nodes.filter(|node| node.op_type.as_deref() == Some("Attention")).take(layers) {
        node.attribute.push(AttributeProto::int("left_window_size", WINDOW - 1));
    }
    model
}
