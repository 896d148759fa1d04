//! Compares the throughput of saving, of loading and of fingerprints with that of `cp`.
//!
//! ```sh
//! KVSCATTER_SPEED=/folder cargo test --release -p kvscatter-session --lib -- --ignored --nocapture speed
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use kvscatter::ElementType;
use kvscatter_onnx::proto::tensor_proto::DataLocation;
use kvscatter_onnx::proto::{
    GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
};
use kvscatter_onnx::{Fingerprint, Model};

use super::{SavedFile, SavedKind, SavedSample, SavedTensor, write};

const LAYERS: usize = 32;
const HEADS: usize = 8;
const TOKENS: usize = 4096;
const HEAD_SIZE: usize = 128;
/// The number of slots of a cache.
const CAPACITY: usize = 5000;
const REPETITIONS: usize = 9;

/// A sample of 32 layers with 8 heads of 128 float16 elements and 4096 tokens, which takes 537 MB.
fn sample() -> SavedSample {
    let tensor = |index| SavedTensor {
        name: format!("past_key_values.{index}"),
        element: ElementType::Float16,
        shape: vec![1, HEADS, TOKENS, HEAD_SIZE],
        kind: SavedKind::Linear { axis: 2 },
    };
    let tensors = (0..2 * LAYERS).map(tensor).collect();
    SavedSample { model: Fingerprint::from_bits(1), tokens: vec![7; TOKENS], tensors }
}

#[test]
#[ignore = "takes half a minute and 1.8 GB, and measures"]
fn compared_with_cp() {
    let folder = std::env::var_os("KVSCATTER_SPEED").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).unwrap();
    let [path, copy] = ["saved", "copy"].map(|name| folder.path().join(name));
    let sample = sample();
    let part = CAPACITY * HEAD_SIZE * 2;
    let run = TOKENS * HEAD_SIZE * 2;
    let runs = || (0..HEADS).map(|head| head * part..head * part + run);
    let mut caches = vec![vec![0_u8; HEADS * part]; 2 * LAYERS];
    for (index, byte) in caches.iter_mut().flatten().enumerate() {
        *byte = u8::try_from(index % 251).unwrap();
    }
    let save = |path: &Path| {
        let values = |index: usize, visit: &mut dyn FnMut(&[u8]) -> std::io::Result<()>| {
            runs().try_for_each(|run| visit(&caches[index][run]))
        };
        write(path, &sample, &values).unwrap();
    };
    let mut loaded = caches.clone();
    save(&path);
    let len = fs::metadata(&path).unwrap().len();
    let mut times = [const { Vec::new() }; 5];
    for _ in 0..REPETITIONS {
        let mut timed = |index: usize, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            times[index].push(start.elapsed().as_secs_f64());
        };
        // Both replace an existing file or none.
        fs::remove_file(&copy).unwrap_or_default();
        timed(0, &mut || assert!(Command::new("cp").args([&path, &copy]).status().unwrap().success()));
        fs::remove_file(&path).unwrap();
        timed(1, &mut || save(&path));
        let mut file = SavedFile::open(&path).unwrap();
        timed(2, &mut || file.verify().unwrap());
        let mut read = |file: &mut SavedFile| {
            loaded
                .iter_mut()
                .enumerate()
                .for_each(|(index, cache)| file.read(index, 0, cache, runs()).unwrap());
        };
        timed(3, &mut || read(&mut file));
        timed(4, &mut || {
            let mut file = SavedFile::open(&path).unwrap();
            file.verify().unwrap();
            read(&mut file);
        });
    }
    assert!(loaded == caches);
    for (name, times) in ["cp", "save", "verify", "read", "load (open, verify, read)"].iter().zip(&mut times)
    {
        times.sort_by(f64::total_cmp);
        let rate = |time: f64| len as f64 / time / 1e6;
        let [worst, median, best] = [REPETITIONS - 1, REPETITIONS / 2, 0].map(|at| rate(times[at]));
        println!("{name:26} {median:6.0} MB/s ({worst:.0} to {best:.0})");
    }
}

#[test]
#[ignore = "takes 2 GB, and measures"]
fn of_a_fingerprint() {
    const TENSORS: usize = 32;
    const BYTES: usize = 64 << 20;
    let folder = std::env::var_os("KVSCATTER_SPEED").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder).unwrap();
    let [path, data] = ["model.onnx", "data"].map(|name| folder.path().join(name));
    let bytes: Vec<u8> = (0..TENSORS * BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
    fs::write(&data, &bytes).unwrap();
    drop(bytes);
    let tensor = |index: usize| {
        let entry = |(key, value): (&str, String)| StringStringEntryProto {
            key: Some(key.to_owned()),
            value: Some(value),
            ..StringStringEntryProto::default()
        };
        let places = [
            ("location", "data".to_owned()),
            ("offset", (index * BYTES).to_string()),
            ("length", BYTES.to_string()),
        ];
        TensorProto {
            name: Some(format!("weight {index}")),
            data_type: Some(2),
            dims: vec![i64::try_from(BYTES).unwrap()],
            data_location: Some(DataLocation::EXTERNAL),
            external_data: places.map(entry).to_vec(),
            ..TensorProto::default()
        }
    };
    let graph = GraphProto { initializer: (0..TENSORS).map(tensor).collect(), ..GraphProto::default() };
    let opset = OperatorSetIdProto { version: Some(24), ..OperatorSetIdProto::default() };
    let proto = ModelProto { opset_import: vec![opset], graph: graph.into(), ..ModelProto::default() };
    Model::from_proto(proto).save(&path).unwrap();
    for _ in 0..REPETITIONS {
        let file = Model::load(&path).unwrap().file().unwrap();
        let start = Instant::now();
        file.fingerprint().unwrap();
        let rate = (TENSORS * BYTES) as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("fingerprint {rate:6.0} MB/s");
    }
}
