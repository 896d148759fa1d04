//! Decoders of the test data with narrow caches, compared with the same decoders with float32 caches.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter::quantize::{dequantize_row, rotate_row, rotation_block};
use kvscatter_onnx::convert::{CacheType, ConvertOptions, convert};
use kvscatter_onnx::decoder::Decoder;
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_session::{
    Engine, Feed, InPlaceCache, Interface, KvSession, LoadOptions, SessionOptions, Step, Tensor, to_f32,
};
use kvscatter_tract::Tract;

use crate::replay::narrow::{Narrow, narrow};
use crate::support::{converted, decoder};

const CAPACITY: usize = 24;
const TOKENS: [i64; 12] = [5, 9, 200, 17, 3, 11, 250, 1, 7, 2, 2, 101];

/// Saves a converted decoder with narrow caches.
pub(crate) fn narrowed(model: &Model, to: Narrow, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{to:?}")).join("model.onnx");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    narrow(model.clone(), to).save_with_weights(&path, WeightTransfer::Copy).unwrap();
    path
}

/// Feeds the tokens in chunks. Returns the caches of the first layer, whose rows depend on one token each.
fn first_layer(model: &Path, chunks: &[usize]) -> BTreeMap<String, Tensor> {
    let model = Model::load(model).unwrap();
    let graph = model.graph().unwrap();
    let mut interface = Interface::new(&model, &Decoder::from_graph(&graph).unwrap()).unwrap();
    interface.settle(None).unwrap();
    let mut session = Tract.load(&model.file().unwrap(), LoadOptions::default()).unwrap();
    let zeros = interface.caches.iter().map(|port| session.zeros(port.element, &port.shape(1, CAPACITY)));
    let mut caches = zeros.collect::<Result<Vec<_>, _>>().unwrap();
    let mut fed = 0;
    for width in chunks {
        let inputs = Feed::next(&[fed], *width).tensors(&interface, |_, position| TOKENS[position], CAPACITY);
        let inputs = inputs.unwrap();
        let ports = interface.caches.iter().zip(&mut caches);
        let step = Step {
            inputs: inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect(),
            shared: ports
                .map(|(port, cache)| InPlaceCache { past: &port.past, present: &port.present, cache })
                .collect(),
            ..Step::default()
        };
        session.run(step).unwrap();
        fed += width;
    }
    let ports = interface.caches.iter().zip(caches);
    ports.filter(|(port, _)| port.layer == 0).map(|(port, cache)| (port.past.clone(), cache)).collect()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    to_f32(tensor.element(), tensor.bytes()).unwrap().into_owned()
}

#[test]
fn stored_rows_differ_from_the_given_ones_by_half_a_step_and_chunks_store_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let float = converted("mobius-llama-dynamic", CAPACITY, folder.path());
    let int8 = narrowed(&Model::load(&float).unwrap(), Narrow::Int8, folder.path());
    let given = first_layer(&float, &[12]);
    let [whole, chunked] = [&[12][..], &[5, 1, 6]].map(|chunks| first_layer(&int8, chunks));
    for (name, whole) in &whole {
        assert_eq!(whole.bytes(), chunked[name].bytes(), "{name}");
    }
    for (name, given) in given {
        let (codes, scales) = (&whole[&name], floats(&whole[&format!("{name}_scale")]));
        assert_eq!((codes.element(), codes.shape()), (ElementType::Int8, given.shape()));
        let (size, values) = (given.shape()[3], floats(&given));
        let codes = codes.bytes().iter().map(|code| code.cast_signed()).collect::<Vec<i8>>();
        for (row, (given, codes)) in values.chunks(size).zip(codes.chunks(size)).enumerate() {
            let (mut given, mut stored, scale) = (given.to_vec(), vec![0.0; size], scales[row]);
            assert_eq!(scale > 0.0, row % CAPACITY < TOKENS.len());
            // A product with the matrix has other sums than a fast transform.
            let rounding = if name.ends_with("key") && rotation_block(size).is_some() { 1e-5 } else { 0.0 };
            if rounding > 0.0 {
                rotate_row(&mut given);
            }
            dequantize_row(codes, scale, &mut stored);
            let most = scale * (0.5 + 2.0_f32.powi(-16) + rounding);
            let is_near = |(given, stored): (&f32, &f32)| (given - stored).abs() <= most;
            assert!(given.iter().zip(&stored).all(is_near), "{name} {row}: {given:?} {stored:?}");
        }
    }
}

/// Feeds samples of different lengths in chunks and steps. Returns the last logits of both.
fn last_logits(model: &Path) -> Vec<f32> {
    let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
    let mut session = KvSession::open(&Tract, model, options).unwrap();
    let (long, short) = (session.add().unwrap(), session.add().unwrap());
    session.prefill(&[(long, &TOKENS), (short, &TOKENS[..4])], 5).unwrap();
    session.truncate(long, 8).unwrap();
    let logits = session.step(&[(long, &[3]), (short, &[200, 9])]).unwrap();
    assert_eq!(session.bytes_copied(), 0);
    [long, short].map(|sample| logits.last(sample).unwrap()).concat()
}

#[test]
fn decoders_with_narrow_caches_are_in_place_and_score_nearly_as_with_float32_caches() {
    let folder = tempfile::tempdir().unwrap();
    let float = converted("mobius-llama-dynamic", CAPACITY, folder.path());
    let expected = last_logits(&float);
    let most = expected.iter().fold(0.0_f32, |most, logit| most.max(logit.abs()));
    for (to, tolerance) in [(Narrow::Float16, 1e-3), (Narrow::Int8, 1e-2)] {
        let logits = last_logits(&narrowed(&Model::load(&float).unwrap(), to, folder.path()));
        let differences = logits.iter().zip(&expected).map(|(got, expected)| (got - expected).abs() / most);
        let worst = differences.fold(0.0_f32, f32::max);
        // No difference at all would mean that the caches are float32.
        assert!((1e-6..tolerance).contains(&worst), "{to:?}: {worst}");
    }
}

/// Only the fused node stores NaN in the scale of a row with NaN.
#[test]
fn the_nodes_that_convert_writes_are_fused() {
    let folder = tempfile::tempdir().unwrap();
    let options = ConvertOptions::new(CAPACITY).caches(Some(CacheType::Int8), true);
    let mut model = convert(&Model::load(&decoder("mobius-llama-dynamic")).unwrap(), options).unwrap().model;
    let graph = model.proto_mut().graph.get_or_insert_default();
    let lookup = graph.node.iter().find(|node| node.op_type.as_deref() == Some("Gather")).unwrap();
    let table = lookup.input[0].clone();
    let embedded = graph.initializer.iter().find(|tensor| tensor.name.as_ref() == Some(&table)).unwrap();
    assert_eq!(embedded.dims, [256, 64]);
    let entry = |key: &str| {
        let entry = embedded.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
        entry.and_then(|entry| entry.value.clone()).unwrap()
    };
    let (file, offset) = (folder.path().join(entry("location")), entry("offset").parse::<usize>().unwrap());
    let path = folder.path().join("model.onnx");
    model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let mut weights = std::fs::read(&file).unwrap();
    weights[offset + 64 * 4 * TOKENS[2] as usize..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, weights).unwrap();
    for (name, cache) in first_layer(&path, &[12]).iter().filter(|(name, _)| name.ends_with("_scale")) {
        let is_nan = floats(cache).into_iter().map(f32::is_nan);
        assert!(is_nan.enumerate().all(|(row, is_nan)| is_nan == (row % CAPACITY == 2)), "{name}");
    }
}
