//! Runs of the engine itself.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto};
use kvscatter_onnx::{Model, ModelFile};
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, Session, SessionError, Step, Tensor};

use crate::replay::protos::{floats, value};
use crate::testdata;

const CACHES: [(&str, &str); 4] = [
    ("key_cache.0", "updated_key_cache.0"),
    ("value_cache.0", "updated_value_cache.0"),
    ("key_cache.1", "updated_key_cache.1"),
    ("value_cache.1", "updated_value_cache.1"),
];

fn model() -> ModelFile {
    Model::load(&testdata("mobius-llama-static")).unwrap().file().unwrap()
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

/// A session keeps the bindings of its last run. Each run here has other tensors, or the same tensors with other
/// values. Runs that fail are in between.
#[test]
#[ignore = "needs ONNX Runtime"]
fn a_run_reads_and_writes_the_tensors_of_its_own_step() {
    let engine = OnnxRuntime::load(None).unwrap();
    let load = || engine.load(&model(), LoadOptions { threads: Some(1) }).unwrap();
    let int64s = |shape: &[usize], values: &[i64]| Tensor::int64s(shape, values).unwrap();
    let run = |session: &mut dyn Session, caches: &mut [Tensor], tokens: &Tensor, at: i64| {
        let positions = int64s(&[2, 1], &[at, at]);
        let (indices, lengths) = (int64s(&[2], &[at, at]), int64s(&[2], &[at + 1, at + 1]));
        let names = ["input_ids", "position_ids", "write_indices", "nonpad_kv_seqlen"];
        let shared = CACHES.iter().zip(caches);
        let step = Step {
            inputs: names.into_iter().zip([tokens, &positions, &indices, &lengths]).collect(),
            shared: shared.map(|((past, present), cache)| InPlaceCache { past, present, cache }).collect(),
            returned: vec!["logits"],
            ..Step::default()
        };
        session.run(step).map(|mut ran| ran.returned.remove(0))
    };
    let zeros = || CACHES.map(|_| Tensor::zeros(ElementType::Float32, &[2, 64, 32]).unwrap());
    let (mut kept, mut session) = (zeros(), load());
    let mut tokens = int64s(&[2, 1], &[0, 0]);
    let mut all = Vec::new();
    for at in 0..4 {
        if at == 1 {
            let other_type = Tensor::integers(ElementType::Int32, &[2, 1], &[1, 1]).unwrap();
            assert!(run(session.as_mut(), &mut kept, &other_type, at).is_err());
            let other_names = Step { returned: vec!["logits"], ..Step::default() };
            assert!(session.run(other_names).is_err());
            let twice = Step { returned: vec!["logits", "logits"], ..Step::default() };
            let Err(SessionError::Run { message, .. }) = session.run(twice) else { panic!("it ran") };
            assert_eq!(message, "two tensors have the name \"logits\"");
        }
        if at == 2 {
            kept = kept.map(|cache| {
                let mut moved = Tensor::zeros(ElementType::Float32, cache.shape()).unwrap();
                moved.bytes_mut().copy_from_slice(cache.bytes());
                moved
            });
        }
        tokens.bytes_mut()[0] = 7 + at as u8;
        let logits = run(session.as_mut(), &mut kept, &tokens, at).unwrap();
        all.push((logits.bytes().to_vec(), logits));
    }
    // Logits that the caller has kept are not overwritten.
    assert!(all.iter().all(|(copy, logits)| copy == logits.bytes()));

    let mut expected = zeros();
    for (at, (logits, _)) in all.iter().enumerate() {
        let tokens = int64s(&[2, 1], &[7 + at as i64, 0]);
        let alone = run(load().as_mut(), &mut expected, &tokens, at as i64).unwrap();
        assert_eq!(alone.bytes(), logits, "step {at}");
    }
    assert!(kept.iter().zip(&expected).all(|(kept, expected)| kept.bytes() == expected.bytes()));
}

/// ONNX Runtime returns an input that is an output in the memory of the input.
#[test]
#[ignore = "needs ONNX Runtime"]
fn outputs_do_not_share_memory_with_inputs() {
    const FLOAT: i32 = 1;
    let names = ["given", "weights"];
    let graph = GraphProto {
        name: Some("returns".to_owned()),
        input: vec![value("given", FLOAT, &["2"])],
        initializer: vec![floats("weights", &[2], [3.0, 4.0])],
        output: names.map(|name| value(name, FLOAT, &["2"])).to_vec(),
        ..GraphProto::default()
    };
    let model = Model::from_proto(ModelProto::new(10, &[("", 21)], graph));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save(&path).unwrap();
    let engine = OnnxRuntime::load(None).unwrap();
    let file = Model::load(&path).unwrap().file().unwrap();
    let mut session = engine.load(&file, LoadOptions::default()).unwrap();
    let given = Tensor::integers(ElementType::Float32, &[2], &[1, 2]).unwrap();
    let step = Step { inputs: vec![("given", &given)], returned: names.to_vec(), ..Step::default() };
    let mut returned = session.run(step).unwrap().returned;
    for (tensor, expected) in returned.iter().zip([[1, 2], [3, 4]]) {
        let expected = Tensor::integers(ElementType::Float32, &[2], &expected).unwrap();
        assert_eq!(tensor.bytes(), expected.bytes());
    }
    assert_ne!(returned[0].address(), given.address());
    returned.iter_mut().for_each(|tensor| tensor.bytes_mut().fill(0));
    // A returned tensor can be an input.
    let step = Step { inputs: vec![("given", &returned[0])], returned: names.to_vec(), ..Step::default() };
    let again = session.run(step).unwrap().returned;
    assert_eq!(again[0].bytes(), [0; 8]);
    drop((session, returned));
    assert_eq!(again[1].bytes(), Tensor::integers(ElementType::Float32, &[2], &[3, 4]).unwrap().bytes());
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn refusals_are_errors_with_the_runtimes_message() {
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
