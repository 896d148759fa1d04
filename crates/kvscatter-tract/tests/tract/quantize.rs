//! Codes and scales of int8 caches: how they are written, and how attention reads them.

use kvscatter::ElementType;
use kvscatter::quantize::{MIN_SCALE, quantize_row};
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_oracle::cases::Random;
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, Session, SessionError, Step, Tensor};
use kvscatter_tract::Tract;
use tempfile::TempDir;
use tract_onnx::prelude::{IntoTValue, Tensor as Theirs, tensor1, tvec};

use crate::replay::narrow::{Narrow, narrow};
use crate::replay::protos::floats;
use crate::support::{model, node, plan, value, words};

const SIZE: usize = 8;

type Row = [f32; SIZE];

/// Returns finite rows with zeros, ties, the least and the largest numbers, and random ones.
fn rows() -> Vec<Row> {
    let tiny = f32::from_bits(1);
    let mut rows = vec![
        [0.0; SIZE],
        [-0.0, 0.0, tiny, -tiny, 1e-38, -1e-38, 0.0, 0.0],
        [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5],
        [f32::MAX, f32::MIN, 1.0, -1.0, 1e38, -1e38, 0.0, 3e36],
        [127.0 * 2.0_f32.powi(-101), 1e-30, -1e-30, 5e-31, 0.0, 2.0_f32.powi(-100), 2.0_f32.powi(-101), 0.0],
    ];
    let mut random = Random::new(7, 0);
    let mut number = || random.below(2_000_001) as f32 / 1_000_000.0 - 1.0;
    rows.extend((-10..10).map(|power| std::array::from_fn(|_| number() * 10.0_f32.powi(power))));
    rows
}

/// Returns a model that writes keys and values to int8 caches of one head. Two layers attend to them.
fn attending() -> Model {
    let scatter = |part: &str| NodeProto {
        attribute: vec![AttributeProto::int("axis", 2)],
        ..node("TensorScatter", part, &[&format!("past_{part}"), part, "at"], &[&format!("present_{part}")])
    };
    let inputs = ["query", "present_key", "present_value", "", "", "", "lengths"];
    let attend = |y: &str| node("Attention", y, &inputs, &[y]);
    let nodes = vec![scatter("key"), scatter("value"), attend("y"), attend("z")];
    let cached = |name: &str, slots: &str| value(name, 1, &["batch", "1", slots, "8"]);
    let inputs = vec![
        cached("past_key", "slots"),
        cached("past_value", "slots"),
        cached("key", "new"),
        cached("value", "new"),
        cached("query", "queries"),
        value("at", 7, &["batch"]),
        value("lengths", 7, &["batch"]),
    ];
    let presents = ["key", "value"].map(|part| cached(&format!("present_{part}"), "slots"));
    let outputs = presents.into_iter().chain(["y", "z"].map(|y| value(y, 1, &[]))).collect();
    narrow(Model::from_proto(model(nodes, inputs, outputs)), Narrow::Int8)
}

/// A loaded model with its caches: codes and scales of keys, and of values.
struct Loaded {
    session: Box<dyn Session>,
    caches: [Tensor; 4],
    _folder: TempDir,
}

const PORTS: [&str; 4] = ["key", "key_scale", "value", "value_scale"];

impl Loaded {
    fn new(engine: &dyn Engine, model: &Model, batch: usize, slots: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        let file = Model::load(&path).unwrap().file().unwrap();
        let session = engine.load(&file, LoadOptions::default()).unwrap();
        let zeros = |element, size| session.zeros(element, &[batch, 1, slots, size]).unwrap();
        let pair = || [zeros(ElementType::Int8, SIZE), zeros(ElementType::Float32, 1)];
        let [[key, key_scale], [value, value_scale]] = [pair(), pair()];
        Self { session, caches: [key, key_scale, value, value_scale], _folder: folder }
    }

    /// Writes keys and values of each sample from a slot on. Returns what each query of ones scores, with this many
    /// valid slots, and whether every present has the address of its past.
    fn run(
        &mut self,
        [key, value]: [&[Row]; 2],
        at: &[i64],
        lengths: &[i64],
    ) -> Result<(Vec<f32>, bool), SessionError> {
        let batch = at.len();
        let [key, value] = [key, value].map(|rows| tensor(batch, rows));
        let query = tensor(batch, &vec![[1.0; SIZE]; batch]);
        let [at, lengths] = [at, lengths].map(|of| Tensor::int64s(&[batch], of).unwrap());
        let before: Vec<usize> = self.caches.iter().map(Tensor::address).collect();
        let names = PORTS.map(|port| (format!("past_{port}"), format!("present_{port}")));
        let caches = self.caches.iter_mut().zip(&names);
        let shared = caches.map(|(cache, (past, present))| InPlaceCache { past, present, cache }).collect();
        let inputs =
            [("key", &key), ("value", &value), ("query", &query), ("at", &at), ("lengths", &lengths)]
                .to_vec();
        let ran = self.session.run(Step { inputs, shared, returned: vec!["y", "z"], ..Step::default() })?;
        assert_eq!(ran.returned[0].bytes(), ran.returned[1].bytes());
        Ok((floats_of(&ran.returned[0]), ran.present_at == before))
    }

    /// Returns the codes and the bits of the scale of each slot, of keys and of values.
    fn rows(&self) -> [Vec<(Vec<i8>, u32)>; 2] {
        let rows = |codes: &Tensor, scales: &Tensor| {
            let codes = codes.bytes().chunks_exact(SIZE);
            let codes = codes.map(|row| row.iter().map(|code| code.cast_signed()).collect());
            codes.zip(floats_of(scales).into_iter().map(f32::to_bits)).collect()
        };
        let [key, key_scale, value, value_scale] = &self.caches;
        [rows(key, key_scale), rows(value, value_scale)]
    }
}

fn tensor(batch: usize, rows: &[Row]) -> Tensor {
    let mut tensor = Tensor::zeros(ElementType::Float32, &[batch, 1, rows.len() / batch, SIZE]).unwrap();
    let bytes = rows.iter().flatten().flat_map(|x| x.to_le_bytes());
    tensor.bytes_mut().copy_from_slice(&bytes.collect::<Vec<_>>());
    tensor
}

fn floats_of(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Returns the codes and the bits of the scale that the core stores for a row.
fn quantised(row: &Row) -> (Vec<i8>, u32) {
    let mut codes = vec![0; SIZE];
    let scale = quantize_row(row, &mut codes);
    (codes, scale.to_bits())
}

/// Writes rows as keys, and in reverse order as values. The first slot stays empty.
fn check_codes(engine: &dyn Engine) {
    let (rows, reversed) = (rows(), rows().into_iter().rev().collect::<Vec<_>>());
    let slots = rows.len() + 1;
    let mut loaded = Loaded::new(engine, &attending(), 1, slots);
    loaded.run([&rows, &reversed], &[1], &[slots as i64]).unwrap();
    for (stored, given) in loaded.rows().iter().zip([rows, reversed]) {
        assert_eq!(stored[0], (vec![0; SIZE], 0));
        assert_eq!(stored[1..], given.iter().map(quantised).collect::<Vec<_>>());
    }
}

#[test]
fn finite_rows_have_the_codes_and_scales_of_the_core() {
    check_codes(&Tract);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn finite_rows_have_the_same_codes_and_scales_in_onnx_runtime() {
    check_codes(&OnnxRuntime::load(None).unwrap());
}

/// Runs the same model as tract reads it, with all its nodes. It quantises as ONNX's operators do.
#[test]
fn fused_nodes_compute_what_the_nodes_of_the_file_compute() {
    let (keys, values) = (rows()[12..18].to_vec(), rows()[14..20].to_vec());
    let mut fused = Loaded::new(&Tract, &attending(), 2, 5);
    let (y, in_place) = fused.run([&keys, &values], &[0, 1], &[3, 4]).unwrap();
    assert!(in_place);
    let plan = plan(attending().proto().clone()).unwrap();
    let floats =
        |rows: &[Row], shape: [usize; 4]| Theirs::from_shape(&shape, &rows.concat()).unwrap().into_tvalue();
    let codes = || Theirs::zero::<i8>(&[2, 1, 5, SIZE]).unwrap().into_tvalue();
    let scales = || Theirs::zero::<f32>(&[2, 1, 5, 1]).unwrap().into_tvalue();
    let ran = plan.run(tvec![
        codes(),
        codes(),
        floats(&keys, [2, 1, 3, SIZE]),
        floats(&values, [2, 1, 3, SIZE]),
        floats(&[[1.0; SIZE]; 2], [2, 1, 1, SIZE]),
        tensor1(&[0_i64, 1]).into_tvalue(),
        tensor1(&[3_i64, 4]).into_tvalue(),
        scales(),
        scales(),
    ]);
    let ran = ran.unwrap();
    let order = [0, 4, 1, 5];
    for (cache, output) in fused.caches.iter().zip(order) {
        assert_eq!(cache.bytes(), ran[output].as_bytes());
    }
    let expected = ran[2].try_as_plain_ram().unwrap().as_slice::<f32>().unwrap();
    let most = expected.iter().fold(0.0_f32, |most, y| most.max(y.abs()));
    assert!(
        y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() <= 1e-6 * most),
        "{y:?} {expected:?}"
    );
}

/// Keys and values of the first slots are as in the file's nodes, whose constants differ from those of the core.
#[test]
fn nodes_of_another_form_are_not_fused() {
    for (constant, scale) in [("kv_min_scale", 0.25_f32), ("kv_scale_factor", 1.0 / 64.0)] {
        let mut changed = attending();
        let graph = changed.proto_mut().graph.get_or_insert_default();
        let number = graph.initializer.iter_mut().find(|of| of.name.as_deref() == Some(constant)).unwrap();
        *number = floats(constant, &[], [scale]);
        let mut loaded = Loaded::new(&Tract, &changed, 1, 2);
        loaded.run([&[[1.0; SIZE]], &[[0.0; SIZE]]], &[0], &[1]).unwrap();
        let [keys, values] = loaded.rows();
        let expected = match constant {
            "kv_min_scale" => [(4, 0.25), (0, 0.25)],
            _ => [(64, 1.0 / 64.0), (0, MIN_SCALE)],
        };
        let expected = expected.map(|(code, scale): (i8, f32)| (vec![code; SIZE], scale.to_bits()));
        assert_eq!([&keys[0], &values[0]], [&expected[0], &expected[1]]);
    }
}

#[test]
fn values_that_are_computed_from_the_keys_in_the_cache_are_written_after_these() {
    let mut changed = attending();
    let nodes = &mut changed.proto_mut().graph.get_or_insert_default().node;
    let first = nodes.iter().position(|node| node.input[0] == "value").unwrap();
    for input in nodes.iter_mut().flat_map(|node| &mut node.input).filter(|input| *input == "value") {
        "sum".clone_into(input);
    }
    nodes.insert(first, node("Add", "sum", &["value", "past_key.values"], &["sum"]));
    let mut loaded = Loaded::new(&Tract, &changed, 1, 1);
    let (y, in_place) = loaded.run([&[[1.0; SIZE]], &[[2.0; SIZE]]], &[0], &[1]).unwrap();
    assert_eq!((y, in_place), (vec![3.0; SIZE], true));
}

/// One node of the file reads the cache twice, and two nodes write codes and scales as they do in the file.
#[test]
fn one_cache_can_have_keys_and_values() {
    let mut changed = attending();
    let nodes = &mut changed.proto_mut().graph.get_or_insert_default().node;
    for attention in nodes.iter_mut().filter(|node| node.op_type.as_deref() == Some("Attention")) {
        attention.input[1] = attention.input[2].clone();
    }
    let mut loaded = Loaded::new(&Tract, &changed, 1, 1);
    let (y, in_place) = loaded.run([&[[1.0; SIZE]], &[[2.0; SIZE]]], &[0], &[1]).unwrap();
    assert_eq!((y, in_place), (vec![2.0; SIZE], true));
    assert_eq!(loaded.rows()[0], [quantised(&[1.0; SIZE])]);
}

/// A row with NaN is read as NaN, and only where it is seen.
#[test]
fn nan_is_kept_in_the_scale_and_hidden_slots_have_no_influence() {
    let mut loaded = Loaded::new(&Tract, &attending(), 1, 20);
    let (good, mut bad) = ([0.5; SIZE], [0.5; SIZE]);
    bad[3] = f32::NAN;
    let (y, _) = loaded.run([&[good, bad], &[good, bad]], &[0], &[1]).unwrap();
    assert_eq!(y, [0.5; SIZE]);
    for rows in loaded.rows() {
        assert_eq!((&rows[1].0, f32::from_bits(rows[1].1).is_nan()), (&vec![0; SIZE], true));
    }
    let (y, _) = loaded.run([&[good], &[good]], &[2], &[3]).unwrap();
    assert!(y.iter().all(|y| y.is_nan()), "{y:?}");
    let (y, _) = loaded.run([&[good], &[good]], &[1], &[3]).unwrap();
    assert_eq!(y, [0.5; SIZE]);
}

#[test]
fn after_a_bad_index_all_four_caches_are_back_and_as_they_were() {
    let mut loaded = Loaded::new(&Tract, &attending(), 2, 3);
    let rows = &rows()[10..14];
    loaded.run([rows, rows], &[0, 1], &[2, 3]).unwrap();
    let before: Vec<(usize, Vec<u8>)> =
        loaded.caches.iter().map(|cache| (cache.address(), cache.bytes().to_vec())).collect();
    let Err(SessionError::Run { message, .. }) = loaded.run([rows, rows], &[0, 2], &[2, 3]) else {
        panic!("slot 3 does not exist")
    };
    assert!(message.starts_with("node \"make_present_key\" (TensorScatter): write_indices[1]"), "{message}");
    let after = loaded.caches.iter().map(|cache| (cache.address(), cache.bytes().to_vec()));
    assert_eq!(after.collect::<Vec<_>>(), before);
}

/// Returns a node that quantises `x`, `[2, 3]`, to int8.
fn quantise(inputs: &[&str], attributes: &[(&str, i64)]) -> NodeProto {
    let attribute = attributes.iter().map(|(name, value)| AttributeProto::int(name, *value)).collect();
    NodeProto { attribute, ..node("QuantizeLinear", "quantise", inputs, &["y"]) }
}

#[test]
fn blocks_other_than_rows_are_refused_with_the_sizes() {
    let y = || vec![value("y", 3, &[])];
    let inputs = |scale: &[&str]| vec![value("x", 1, &["2", "3"]), value("scale", 1, scale)];
    let int8 = [("axis", 1), ("block_size", 3), ("output_dtype", 3)];
    let refused = |node: NodeProto, scale: &[&str]| words(plan(model(vec![node], inputs(scale), y())));
    assert_eq!(refused(quantise(&["x", "scale"], &int8), &["2", "1"]), "nothing went wrong");
    for (scale, changed) in
        [(&["2", "3"], ("axis", 1)), (&["2", "1"], ("axis", 0)), (&["2", "1"], ("block_size", 2))]
    {
        let attributes = int8.map(|of| if of.0 == changed.0 { changed } else { of });
        let message = refused(quantise(&["x", "scale"], &attributes), scale);
        let named = format!("a block must be a whole row, got block_size {}", attributes[1].1);
        assert!(message.contains(&named), "{message}");
    }
    let uint8 = quantise(&["x", "scale"], &[("axis", 1), ("block_size", 3)]);
    assert!(refused(uint8, &["2", "1"]).contains("only with output_dtype int8"));
    let shifted = quantise(&["x", "scale", "x"], &int8);
    assert!(refused(shifted, &["2", "1"]).contains("only without a zero point"));
}

/// A scale of all elements, which tract's own operator takes.
#[test]
fn scales_without_blocks_are_still_read_by_tract() {
    let mut made = model(
        vec![quantise(&["x", "scale"], &[])],
        vec![value("x", 1, &["2", "3"])],
        vec![value("y", 2, &[])],
    );
    made.graph.get_or_insert_default().initializer.push(floats("scale", &[], [0.5]));
    let x = Theirs::from_shape(&[2, 3], &[0.0_f32, 0.5, 1.0, 300.0, 0.25, 0.75]).unwrap();
    let y = plan(made).unwrap().run(tvec![x.into()]).unwrap();
    assert_eq!(y[0].as_bytes(), [0, 1, 2, 255, 0, 2]);
}
