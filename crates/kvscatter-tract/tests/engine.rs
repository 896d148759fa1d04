//! tract as an engine: what moves into a run comes back, after one that failed too.

use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_session::{Engine, Error, Options, Session, Shared, Step, Tensor};
use kvscatter_tract::Tract;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// `TensorScatter` of `[4, 1, 4, 5]`… as the test folder has it: past, update, indices.
fn scatter() -> Box<dyn Session> {
    Tract.load(&testdata("onnx-node/test_tensorscatter/model.onnx"), Options::default()).unwrap()
}

fn rows(value: f32) -> Tensor {
    let mut rows = Tensor::zeros(ElementType::Float32, &[4, 1, 1, 5]).unwrap();
    rows.bytes_mut().chunks_exact_mut(4).for_each(|bytes| bytes.copy_from_slice(&value.to_le_bytes()));
    rows
}

fn run(
    session: &mut dyn Session,
    cache: &mut Tensor,
    rows: &Tensor,
    at: &Tensor,
) -> Result<Vec<usize>, Error> {
    let shared = vec![Shared { past: "past_cache", present: "present_cache", cache }];
    let inputs = vec![("update", rows), ("write_indices", at)];
    session.run(Step { inputs, shared, ..Step::default() }).map(|ran| ran.present_at)
}

#[test]
fn debug_shapes() {
    let session = scatter();
    let _ = session;
}
