//! Codes and scales of int8 caches: the same in tract, in ONNX Runtime and in the core.

use kvscatter::ElementType;
use kvscatter::quantize::quantize_row;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto};
use kvscatter_onnx::{Model, ModelFile, WeightTransfer};
use kvscatter_oracle::cases::Random;
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{Engine, InPlaceCache, LoadOptions, Step, Tensor};
use kvscatter_tract::Tract;
use tempfile::TempDir;
use tract_onnx::prelude::tvec;

use crate::replay::narrow::{Narrow, narrow};
use crate::support::{model, node, plan, value, words};

const SIZE: usize = 8;

/// Returns finite rows with zeros, ties, the least and the largest numbers, and random ones.
fn rows() -> Vec<[f32; SIZE]> {
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

/// Saves a model that writes rows to an int8 cache of one head.
fn saved() -> (TempDir, ModelFile) {
    let scatter = NodeProto {
        attribute: vec![AttributeProto::int("axis", 2)],
        ..node("TensorScatter", "write", &["past", "rows", "at"], &["present"])
    };
    let inputs = vec![
        value("past", 1, &["batch", "1", "slots", "8"]),
        value("rows", 1, &["batch", "1", "new", "8"]),
        value("at", 7, &["batch"]),
    ];
    let cached = model(vec![scatter], inputs, vec![value("present", 1, &["batch", "1", "slots", "8"])]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let narrow = narrow(Model::from_proto(cached), Narrow::Int8);
    narrow.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    let file = Model::load(&path).unwrap().file().unwrap();
    (folder, file)
}

fn tensor(shape: [usize; 4], rows: &[[f32; SIZE]]) -> Tensor {
    let mut tensor = Tensor::zeros(ElementType::Float32, &shape).unwrap();
    tensor
        .bytes_mut()
        .copy_from_slice(&rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>());
    tensor
}

/// Writes rows to the first slots. Returns each row's codes and the bits of its scale.
fn written(engine: &dyn Engine, rows: &[[f32; SIZE]]) -> Vec<(Vec<i8>, u32)> {
    let (_folder, file) = saved();
    let mut session = engine.load(&file, LoadOptions::default()).unwrap();
    let shape = |size| [1, 1, rows.len() + 1, size];
    let mut codes = session.zeros(ElementType::Int8, &shape(SIZE)).unwrap();
    let mut scales = session.zeros(ElementType::Float32, &shape(1)).unwrap();
    let (rows, at) = (tensor([1, 1, rows.len(), SIZE], rows), Tensor::int64s(&[1], &[1]).unwrap());
    let shared = vec![
        InPlaceCache { past: "past", present: "present", cache: &mut codes },
        InPlaceCache { past: "past_scale", present: "present_scale", cache: &mut scales },
    ];
    let inputs = vec![("rows", &rows), ("at", &at)];
    session.run(Step { inputs, shared, ..Step::default() }).unwrap();
    let codes =
        codes.bytes().chunks_exact(SIZE).map(|row| row.iter().map(|code| code.cast_signed()).collect());
    let scales = scales.bytes().as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    codes.zip(scales).skip(1).collect()
}

fn expected(rows: &[[f32; SIZE]]) -> Vec<(Vec<i8>, u32)> {
    let quantised = |row: &[f32; SIZE]| {
        let mut codes = vec![0; SIZE];
        let scale = quantize_row(row, &mut codes);
        (codes, scale.to_bits())
    };
    rows.iter().map(quantised).collect()
}

#[test]
fn finite_rows_have_the_codes_and_scales_of_the_core() {
    assert_eq!(written(&Tract, &rows()), expected(&rows()));
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn finite_rows_have_the_same_codes_and_scales_in_onnx_runtime() {
    assert_eq!(written(&OnnxRuntime::load(None).unwrap(), &rows()), expected(&rows()));
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
    made.graph.get_or_insert_default().initializer.push(crate::replay::tiny::floats("scale", &[], [0.5]));
    let x =
        tract_onnx::prelude::Tensor::from_shape(&[2, 3], &[0.0_f32, 0.5, 1.0, 300.0, 0.25, 0.75]).unwrap();
    let y = plan(made).unwrap().run(tvec![x.into()]).unwrap();
    assert_eq!(y[0].as_bytes(), [0, 1, 2, 255, 0, 2]);
}
