//! Tests of tract as an engine. Caches that move into a run come back, even if the run fails.

use std::path::Path;

use kvscatter::ElementType;
use kvscatter_onnx::{Model, ModelFile};
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, Session, SessionError, Step, Tensor};
use kvscatter_tract::Tract;

use crate::support::{decoder, testdata};

fn file(path: &Path) -> ModelFile {
    Model::load(path).unwrap().file().unwrap()
}

/// Returns a session of `TensorScatter` over a cache of `[2, 1, 4, 5]`, which writes one row for each sample.
fn scatter() -> Box<dyn Session> {
    Tract.load(&file(&testdata("onnx-node/test_tensorscatter/model.onnx")), LoadOptions::default()).unwrap()
}

const CACHE: [usize; 4] = [2, 1, 4, 5];

fn rows(value: f32) -> Tensor {
    let mut rows = Tensor::zeros(ElementType::Float32, &[2, 1, 1, 5]).unwrap();
    rows.bytes_mut().chunks_exact_mut(4).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
    rows
}

/// Writes a row into each sample, and returns the address that the engine reports for the present.
fn write(
    session: &mut dyn Session,
    cache: &mut Tensor,
    value: f32,
    at: &[i64],
) -> Result<usize, SessionError> {
    let (rows, at) = (rows(value), Tensor::int64s(&[at.len()], at)?);
    let shared = vec![InPlaceCache { past: "past_cache", present: "present_cache", cache }];
    let inputs = vec![("update", &rows), ("write_indices", &at)];
    session.run(Step { inputs, shared, ..Step::default() }).map(|ran| ran.present_at[0])
}

/// Returns the first element of each row of a cache.
fn firsts(cache: &Tensor) -> Vec<f32> {
    let rows = cache.bytes().chunks_exact(20);
    rows.map(|row| f32::from_le_bytes([row[0], row[1], row[2], row[3]])).collect()
}

/// Returns the engine's message.
fn refused<T>(result: Result<T, SessionError>) -> String {
    match result.map(|_| ()) {
        Err(SessionError::Run { message, .. } | SessionError::Load { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cache_of_the_engines_is_written_where_it_lies() {
    let mut session = scatter();
    let mut cache = session.zeros(ElementType::Float32, &CACHE).unwrap();
    let address = cache.address();
    for step in 0..4_u8 {
        let at = i64::from(step);
        let present = write(&mut *session, &mut cache, f32::from(step) + 1.0, &[at, 3 - at]).unwrap();
        assert_eq!((present, cache.address()), (address, address));
    }
    assert_eq!(firsts(&cache), [1.0, 2.0, 3.0, 4.0, 4.0, 3.0, 2.0, 1.0]);
}

#[test]
fn a_cache_in_other_memory_is_copied_and_the_address_says_so() {
    let mut session = scatter();
    let mut cache = Tensor::zeros(ElementType::Float32, &CACHE).unwrap();
    let address = cache.address();
    let present = write(&mut *session, &mut cache, 1.0, &[0, 3]).unwrap();
    assert_ne!(present, address);
    assert_eq!(cache.address(), address);
    assert_eq!(firsts(&cache), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn after_a_bad_index_the_cache_is_back_and_as_it_was() {
    let mut session = scatter();
    let mut cache = session.zeros(ElementType::Float32, &CACHE).unwrap();
    let address = cache.address();
    write(&mut *session, &mut cache, 1.0, &[1, 2]).unwrap();
    for at in [[0, 4], [-1, 0], [i64::MAX, 0]] {
        let message = refused(write(&mut *session, &mut cache, 9.0, &at));
        assert!(message.contains("(TensorScatter): ") && !message.contains('\n'), "{message}");
        assert_eq!(cache.address(), address);
        assert_eq!(firsts(&cache), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    }
    assert_eq!(write(&mut *session, &mut cache, 2.0, &[0, 0]).unwrap(), address);
    assert_eq!(firsts(&cache), [2.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1.0, 0.0]);
}

#[test]
fn a_step_that_does_not_fit_is_refused_with_the_name_and_the_cache_is_back() {
    let mut session = scatter();
    let mut cache = session.zeros(ElementType::Float32, &CACHE).unwrap();
    let address = cache.address();
    let mut larger = session.zeros(ElementType::Float32, &[2, 1, 5, 5]).unwrap();
    let mut halves = session.zeros(ElementType::Float16, &CACHE).unwrap();
    for cache in [&mut larger, &mut halves] {
        let message = refused(write(&mut *session, cache, 1.0, &[0, 0]));
        assert!(message.starts_with("cache \"past_cache\"") && !message.contains('\n'), "{message}");
    }
    let message = refused(write(&mut *session, &mut cache, 1.0, &[0, 0, 0]));
    assert!(message.starts_with("input \"write_indices\": "), "{message}");
    let (rows, at) = (rows(1.0), Tensor::int64s(&[2], &[0, 0]).unwrap());
    for (inputs, present, message) in [
        (vec![("update", &rows)], "present_cache", "input \"write_indices\" is given 0 times"),
        (vec![("update", &rows), ("at", &at)], "present_cache", "it has no input \"at\""),
        (vec![("update", &rows), ("write_indices", &at)], "present", "it has no output \"present\""),
    ] {
        let shared = vec![InPlaceCache { past: "past_cache", present, cache: &mut cache }];
        assert_eq!(refused(session.run(Step { inputs, shared, ..Step::default() })), message);
    }
    assert_eq!(cache.address(), address);
    assert_eq!(firsts(&cache), [0.0; 8]);
}

#[test]
fn requested_outputs_are_returned_or_written_to_the_callers_memory() {
    let mut session = scatter();
    let cache = Tensor::zeros(ElementType::Float32, &CACHE).unwrap();
    let (rows, at) = (rows(1.0), Tensor::int64s(&[2], &[0, 1]).unwrap());
    let inputs = || vec![("past_cache", &cache), ("update", &rows), ("write_indices", &at)];
    let expected = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    let ran =
        session.run(Step { inputs: inputs(), returned: vec!["present_cache"], ..Step::default() }).unwrap();
    assert_eq!(firsts(&ran.returned[0]), expected);
    let mut present = Tensor::zeros(ElementType::Float32, &CACHE).unwrap();
    let outputs = vec![("present_cache", &mut present)];
    session.run(Step { inputs: inputs(), outputs, ..Step::default() }).unwrap();
    assert_eq!(firsts(&present), expected);
    assert_eq!(firsts(&cache), [0.0; 8], "the past was read only");
}

/// A plan shares an input in tract's memory only until its run ends. Neither results nor later writes reach
/// the other side.
#[test]
fn an_input_of_the_engines_is_read_where_it_lies() {
    let mut session = scatter();
    let mut cache = session.zeros(ElementType::Float32, &CACHE).unwrap();
    let address = cache.address();
    let (rows, good) = (rows(1.0), Tensor::int64s(&[2], &[0, 1]).unwrap());
    let bad = Tensor::int64s(&[2], &[0, 4]).unwrap();
    let mut results = vec![];
    for at in [&good, &bad, &good] {
        let inputs = vec![("past_cache", &cache), ("update", &rows), ("write_indices", at)];
        let ran = session.run(Step { inputs, returned: vec!["present_cache"], ..Step::default() });
        assert!(cache.bytes().chunks(4).all(|value| value == [0; 4] || value == 5_f32.to_le_bytes()));
        cache.bytes_mut()[..4].copy_from_slice(&5_f32.to_le_bytes());
        assert_eq!(cache.address(), address, "the plan still shares the memory");
        results.push(ran.ok().map(|mut ran| firsts(&ran.returned.remove(0))));
    }
    let present = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    assert_eq!(results, [Some(present.to_vec()), None, Some(present.to_vec())]);
    assert_eq!(firsts(&cache), [5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

/// tract itself would open files by their paths. kvscatter reads them through the handle of the checked
/// folder and refuses a file that has become a pipe or a link since the check.
#[cfg(unix)]
#[test]
fn weights_that_are_exchanged_after_the_check_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let weights = folder.path().join("model.onnx.data");
    let source = decoder("mobius-llama-static");
    std::fs::copy(&source, &path).unwrap();
    std::fs::copy(source.with_file_name("model.onnx.data"), &weights).unwrap();
    let file = file(&path);
    assert!(Tract.load(&file, LoadOptions::default()).is_ok());
    std::fs::remove_file(&weights).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&weights).status().unwrap().success());
    let message = refused(Tract.load(&file, LoadOptions::default()));
    assert!(message.contains("model.onnx.data: not a regular file"), "{message}");
    std::fs::remove_file(&weights).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &weights).unwrap();
    let message = refused(Tract.load(&file, LoadOptions::default()));
    assert!(message.contains("/dev/zero"), "{message}");
}

#[test]
fn a_model_that_does_not_load_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    for bytes in [&[][..], &[0x3a, 0x02, 0x0a, 0x00]] {
        std::fs::write(&path, bytes).unwrap();
        let message = refused(Tract.load(&file(&path), LoadOptions::default()));
        assert!(!message.is_empty() && !message.contains('\n'), "{message}");
    }
    // Packed keys and values are not known.
    let message = refused(Tract.load(&file(&decoder("genai-llama-gqa")), LoadOptions::default()));
    assert!(
        message.starts_with("node \"/model/layers.0/attn/GroupQueryAttention\" (GroupQueryAttention): ")
            && !message.contains('\n'),
        "{message}"
    );
}
