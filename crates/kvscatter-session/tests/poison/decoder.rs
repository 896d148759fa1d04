//! A decoder with a token whose embedding is NaN.

use std::path::Path;

/// Returns a folder with the exported static decoder, in which the embedding of a token is NaN.
pub(crate) fn poisoned(token: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/mobius-llama-static/model.onnx");
    std::fs::copy(&from, folder.path().join("model.onnx")).unwrap();
    let mut values = std::fs::read(from.with_file_name("model.onnx.data")).unwrap();
    // The embedding, [256, 64], is at the beginning of the file.
    let row = &mut values[token * 64 * 4..(token + 1) * 64 * 4];
    row.as_chunks_mut().0.iter_mut().for_each(|value| *value = f32::NAN.to_le_bytes());
    std::fs::write(folder.path().join("model.onnx.data"), values).unwrap();
    folder
}
