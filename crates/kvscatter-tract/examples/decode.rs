//! Measures the cost of a token of a whole decoder for larger capacities at the same length.
//!
//! `cargo run --release -p kvscatter-tract --example decode`
//!
//! The example compares two exports of one small Llama. One has `Attention` with `nonpad_kv_seqlen`, which
//! reads only the valid rows of a cache. The other is converted twice, once to `Attention` with a mask of all
//! slots, and once with attention as the exported nodes, which multiply every slot. Times are medians of
//! steps. The steps alternate between the capacities, and each feeds the same token at the same length.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kvscatter_onnx::convert::{ConvertOptions, convert};
use kvscatter_onnx::proto::ValueInfoProto;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as Size;
use kvscatter_onnx::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{KvSession, Sample, SessionOptions};
use kvscatter_tract::Tract;

const CAPACITIES: [usize; 5] = [128, 512, 2048, 8192, 32768];

/// The number of cached tokens.
const LENGTH: usize = 100;

const STEPS: usize = 200;

/// The capacity that the static export declares.
const DECLARED: i64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    println!("microseconds a token, {LENGTH} tokens in the cache, batch 1; median of {STEPS}");
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>14}",
        "capacity", "Attention", "converted", "all slots", "written, bytes"
    );
    let mut attention = sessions(|capacity| declared(capacity, folder.path()))?;
    let mut of_convert = sessions(|capacity| converted(capacity, false, folder.path()))?;
    let mut all_slots = sessions(|capacity| converted(capacity, true, folder.path()))?;
    let times = [time(&mut attention)?, time(&mut of_convert)?, time(&mut all_slots)?];
    let [exported, of_convert, all_slots] = times;
    let rows = CAPACITIES.iter().zip(exported).zip(of_convert).zip(all_slots).zip(&attention);
    for ((((capacity, exported), of_convert), all_slots), (session, _)) in rows {
        assert_eq!(session.bytes_copied(), 0, "a cache was copied");
        println!(
            "{capacity:>9} {exported:>12.1} {of_convert:>12.1} {all_slots:>12.1} {:>14}",
            session.bytes_written()
        );
    }
    Ok(())
}

/// Returns a session for each capacity, with the tokens in its cache.
fn sessions(
    model: impl Fn(usize) -> Result<PathBuf, Box<dyn Error>>,
) -> Result<Vec<(KvSession, Sample)>, Box<dyn Error>> {
    let mut sessions = Vec::new();
    for capacity in CAPACITIES {
        let mut session = KvSession::open(&Tract, model(capacity)?, SessionOptions::default())?;
        let sample = session.add()?;
        session.prefill(&[(sample, &[7; LENGTH])], LENGTH)?;
        sessions.push((session, sample));
    }
    Ok(sessions)
}

/// Returns the median time of a step of each session, in microseconds.
fn time(sessions: &mut [(KvSession, Sample)]) -> Result<Vec<f64>, kvscatter_session::SessionError> {
    let mut times = vec![Vec::with_capacity(STEPS); sessions.len()];
    for _ in 0..STEPS {
        for ((session, sample), times) in sessions.iter_mut().zip(&mut times) {
            let start = Instant::now();
            session.step(&[(*sample, &[9])])?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            session.truncate(*sample, LENGTH)?;
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}

/// Writes the static export with larger caches and returns its path.
fn declared(capacity: usize, folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let mut model = Model::load(&testdata("mobius-llama-static"))?;
    let capacity = i64::try_from(capacity)?;
    if let Some(graph) = model.proto_mut().graph.as_option_mut() {
        graph.value_info.clear();
        graph.input.iter_mut().chain(&mut graph.output).for_each(|value| declare(value, capacity));
    }
    save(&model, folder, &format!("static-{capacity}"))
}

/// Replaces the capacity in a shape.
fn declare(value: &mut ValueInfoProto, capacity: i64) {
    let Some(TypeValue::TensorType(tensor)) = value.r#type.as_option_mut().and_then(|of| of.value.as_mut())
    else {
        return;
    };
    for dimension in tensor.shape.as_option_mut().into_iter().flat_map(|shape| &mut shape.dim) {
        if dimension.value == Some(Size::DimValue(DECLARED)) {
            dimension.value = Some(Size::DimValue(capacity));
        }
    }
}

/// Writes the other export with static caches, and returns its path.
fn converted(capacity: usize, keep_attention: bool, folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let options = ConvertOptions::new(capacity).keep_attention(keep_attention);
    let converted = convert(&Model::load(&testdata("optimum-llama"))?, options)?;
    save(&converted.model, folder, &format!("converted-{capacity}-{keep_attention}"))
}

fn save(model: &Model, folder: &Path, name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let path = folder.join(name).join("model.onnx");
    std::fs::create_dir_all(folder.join(name))?;
    model.save_with_weights(&path, WeightTransfer::Copy)?;
    Ok(path)
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(name).join("model.onnx")
}
