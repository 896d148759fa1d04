//! Running batches of exported and converted decoders in tract.

use std::path::Path;
use std::sync::Arc;

use kvscatter_onnx::Model;
use kvscatter_session::{KvSession, SessionError, SessionOptions};
use kvscatter_tract::Tract;

use crate::blocks;
use crate::narrow_caches::narrowed;
use crate::poison::nan_spares_earlier_tokens;
use crate::poisoned_decoder::poisoned;
use crate::replay::compare;
use crate::replay::narrow::Narrow;
use crate::replay::rings::{check_histories, check_truncation};
use crate::replay::tiny;
use crate::support::{converted, decoder};

#[test]
fn an_exported_static_decoder_scores_each_sample_as_alone() {
    compare(&Tract, [&decoder("mobius-llama-static"); 2], None, 4, 1e-4);
}

#[test]
fn converted_decoders_score_each_sample_as_alone() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["optimum-llama", "mobius-llama-dynamic"] {
        compare(&Tract, [&converted(name, 24, folder.path()); 2], None, 4, 1e-4);
    }
}

#[test]
fn rings_score_each_sample_as_linear_caches_do() {
    check_histories(&Tract, &decoder("mobius-llama-dynamic"), 6);
}

#[test]
fn a_ring_is_truncated_by_its_rewind_and_no_further() {
    check_truncation(&Tract, &decoder("mobius-llama-dynamic"));
}

#[test]
fn nan_of_a_later_token_spares_earlier_tokens() {
    let folder = poisoned(13);
    let model = folder.path().join("model.onnx");
    nan_spares_earlier_tokens(&Tract, &model, None, 13, 1e-4);
    let halves = narrowed(&Model::load(&model).unwrap(), Narrow::Float16, folder.path());
    nan_spares_earlier_tokens(&Tract, &halves, None, 13, 1e-4);
    let made = tiny::linear();
    let mut model = Model::load(made.subject().model).unwrap();
    let tensors = &mut model.proto_mut().graph.get_or_insert_default().initializer;
    let embeddings = tensors.iter_mut().find(|tensor| tensor.name.as_deref() == Some("embeddings")).unwrap();
    let values = Arc::make_mut(embeddings.raw_data.as_mut().unwrap());
    let row = values.len() / 16;
    values[13 * row..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let int8 = narrowed(&model, Narrow::Int8, folder.path());
    nan_spares_earlier_tokens(&Tract, &int8, None, 13, 1e-4);
}

#[test]
fn tokens_of_a_block_see_each_other() {
    let [growing, converted] = tiny::in_blocks();
    blocks::compare(&Tract, growing.subject().model, converted.subject().model, 1e-5);
}

/// A file that an earlier version has written stays readable.
#[test]
fn a_saved_sample_of_version_1_is_continued() {
    let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
    let mut session = KvSession::open(&Tract, decoder("mobius-llama-static"), options).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/saved/version-1.kv");
    let (loaded, fed) = (session.load(path).unwrap(), session.add().unwrap());
    assert_eq!(session.tokens(loaded).unwrap(), [5, 9, 200]);
    session.step(&[(fed, &[5, 9, 200])]).unwrap();
    let logits = session.step(&[(loaded, &[17]), (fed, &[17])]).unwrap();
    let [loaded, fed] = [loaded, fed].map(|sample| logits.last(sample).unwrap());
    assert!(loaded.iter().zip(fed).all(|(loaded, fed)| (loaded - fed).abs() < 1e-4));
}

#[test]
fn codes_and_scales_count_as_memory_of_their_layer() {
    // A row has 4 elements in each of two caches, and 24 slots.
    for (to, bytes) in [(Narrow::Float16, 4 * 2), (Narrow::Int8, 4 + 4)] {
        let made = tiny::linear().narrow(to);
        let session = KvSession::open(&Tract, made.subject().model, SessionOptions::default()).unwrap();
        let memory = session.memory();
        assert_eq!((memory.per_token, &*memory.layers), (4 * bytes, &[2 * 24 * bytes; 2][..]), "{to:?}");
        assert_eq!(memory.total, memory.caches.iter().map(|cache| cache.bytes).sum::<u64>());
        assert!(memory.caches.iter().all(|cache| cache.past.contains(&format!(".{}.", cache.layer))));
    }
}

#[test]
fn a_sample_that_was_saved_with_another_type_of_caches_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sample.kv");
    let made = [tiny::linear(), tiny::linear().narrow(Narrow::Float16), tiny::linear().narrow(Narrow::Int8)];
    let mut sessions = made
        .each_ref()
        .map(|made| KvSession::open(&Tract, made.subject().model, SessionOptions::default()).unwrap());
    for saves in 0..sessions.len() {
        let sample = sessions[saves].add().unwrap();
        sessions[saves].step(&[(sample, &[1, 2, 3])]).unwrap();
        sessions[saves].save(sample, &path).unwrap();
        sessions[saves].remove(sample).unwrap();
        for (loads, session) in sessions.iter_mut().enumerate() {
            match session.load(&path) {
                Ok(sample) => {
                    assert_eq!(loads, saves);
                    session.remove(sample).unwrap();
                }
                Err(error) => {
                    assert!(loads != saves && matches!(error, SessionError::SavedModel { .. }), "{error}")
                }
            }
        }
    }
}

/// tract has no bfloat16.
#[test]
fn caches_of_bfloat16_are_refused_by_the_name_of_the_type() {
    let made = tiny::linear().narrow(Narrow::BFloat16);
    let opened = KvSession::open(&Tract, made.subject().model, SessionOptions::default());
    let Err(SessionError::Load { message, .. }) = opened else { panic!("tract has no bfloat16") };
    assert_eq!(message, "node \"past_key_values.0.key\" (input): tract does not have bfloat16");
}
