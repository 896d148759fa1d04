//! Tests of the engine with a real ONNX Runtime. They are ignored by default because the repository does not
//! contain it: `KVSCATTER_ORT_LIB=… cargo test -p kvscatter-onnxruntime -- --ignored`.

use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::{Model, ModelFile};
use kvscatter_onnxruntime::OnnxRuntime;
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, SessionError, Step, Tensor};

const CACHES: [(&str, &str); 4] = [
    ("key_cache.0", "updated_key_cache.0"),
    ("value_cache.0", "updated_value_cache.0"),
    ("key_cache.1", "updated_key_cache.1"),
    ("value_cache.1", "updated_value_cache.1"),
];

#[cfg(test)]
fn model() -> ModelFile {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static");
    Model::load(&folder.join("model.onnx")).unwrap().file().unwrap()
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn shared_memory_gives_the_same_caches_and_logits_as_memory_apart() {
    let engine = OnnxRuntime::load(None).unwrap();
    let mut session = engine.load(&model(), LoadOptions { threads: Some(1) }).unwrap();
    let caches = || CACHES.map(|_| Tensor::zeros(ElementType::Float32, &[2, 64, 32]).unwrap());
    let (mut shared, past, mut present) = (caches(), caches(), caches());
    let addresses: Vec<usize> = shared.iter().map(Tensor::address).collect();
    let int64s = |shape: &[usize], values: &[i64]| Tensor::int64s(shape, values).unwrap();
    let fed = [
        ("input_ids", int64s(&[2, 2], &[1, 2, 3, 4])),
        ("position_ids", int64s(&[2, 2], &[5, 6, 9, 10])),
        ("write_indices", int64s(&[2], &[5, 9])),
        ("nonpad_kv_seqlen", int64s(&[2], &[7, 11])),
    ];
    let inputs = || fed.iter().map(|(name, tensor)| (*name, tensor)).collect::<Vec<_>>();

    let in_place = session.run(Step {
        inputs: inputs(),
        shared: CACHES
            .iter()
            .zip(&mut shared)
            .map(|((past, present), cache)| InPlaceCache { past, present, cache })
            .collect(),
        returned: vec!["logits"],
        ..Step::default()
    });
    let in_place = in_place.unwrap();
    assert_eq!(in_place.present_at, addresses);
    assert_eq!(in_place.returned[0].shape(), [2, 2, 256]);

    let mut bound = inputs();
    bound.extend(CACHES.iter().zip(&past).map(|((name, _), cache)| (*name, cache)));
    let separate = session.run(Step {
        inputs: bound,
        outputs: CACHES.iter().zip(&mut present).map(|((_, name), cache)| (*name, cache)).collect(),
        returned: vec!["logits"],
        ..Step::default()
    });
    assert_eq!(separate.unwrap().returned[0].bytes(), in_place.returned[0].bytes());
    for (shared, present) in shared.iter().zip(&present) {
        let row = 32 * 4;
        let written = |slots: std::ops::Range<usize>| slots.start * row..slots.end * row;
        assert_eq!(shared.bytes(), present.bytes());
        assert!(shared.bytes()[written(0..5)].iter().all(|byte| *byte == 0));
        assert!(shared.bytes()[written(5..7)].iter().any(|byte| *byte != 0));
        assert!(shared.bytes()[written(7..64 + 9)].iter().all(|byte| *byte == 0));
        assert!(shared.bytes()[written(64 + 9..64 + 11)].iter().any(|byte| *byte != 0));
    }
    assert!(past.iter().all(|cache| cache.bytes().iter().all(|byte| *byte == 0)));
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn what_it_refuses_is_an_error_with_its_words() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.onnx");
    std::fs::write(&empty, []).unwrap();
    let refused = engine.load(&Model::load(&empty).unwrap().file().unwrap(), LoadOptions::default());
    assert!(
        matches!(refused.map(|_| ()), Err(SessionError::Load { message, .. }) if !message.contains('\n'))
    );
    let mut session = engine.load(&model(), LoadOptions::default()).unwrap();
    let refused = session.run(Step { returned: vec!["logits"], ..Step::default() });
    assert!(
        matches!(refused.map(|_| ()), Err(SessionError::Run { message, .. }) if message.contains("input"))
    );
}
