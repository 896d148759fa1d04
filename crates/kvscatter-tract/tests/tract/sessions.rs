//! Running batches of exported and converted decoders in tract.

use std::path::Path;

use kvscatter_session::{KvSession, SessionOptions};
use kvscatter_tract::Tract;

use crate::poison::nan_spares_earlier_tokens;
use crate::poisoned_decoder::poisoned;
use crate::replay::compare;
use crate::replay::rings::{check_histories, check_truncation};
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
    nan_spares_earlier_tokens(&Tract, &folder.path().join("model.onnx"), None, 13, 1e-4);
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
