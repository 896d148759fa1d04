//! Tests `kvscatter run` with whole decoders and other models that run in an engine.

use kvscatter_onnx::Dimension::{self, Known, Symbolic};
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto, NodeProto, ValueInfoProto, encode};

use crate::support::{Folder, f32s, npy, npy_f32, npy_i64, with_token_types};

const STATIC: &str = "testdata/mobius-llama-static/model.onnx";
const GROWING: &str = "testdata/optimum-llama/model.onnx";
const CACHE: [Dimension<'_>; 4] = [Symbolic("batch"), Known(2), Symbolic("length"), Known(16)];
const SIZES: &str = "--dim batch=2 --dim sequence_len=3";

#[test]
fn a_whole_decoder() {
    let folder = Folder::with_testdata();
    insta::assert_snapshot!(folder.run(&format!("run {STATIC} {SIZES} --seed 7 --in-place -o logits=a.npy")));
    let text = folder.run(&format!("run {STATIC} {SIZES} --seed 7 --functional -o logits=b.npy")).passed();
    assert!(!text.contains("at the address of"), "{text}");
    assert_eq!(folder.read("a.npy"), folder.read("b.npy"));
    folder.run(&format!("run {STATIC} {SIZES} --seed 8 -o logits=c.npy")).passed();
    assert_ne!(folder.read("a.npy"), folder.read("c.npy"));
}

#[test]
fn json() {
    let folder = Folder::with_testdata();
    let document = folder.json(&format!("run {STATIC} {SIZES}"));
    assert_eq!(document[0]["engine"]["name"], "tract");
    assert_eq!(document[0]["nodes"], serde_json::json!([]));
    assert_eq!(document[0]["outputs"][1]["lies_in"], "key_cache.0");
    assert_eq!(document[0]["outputs"][0]["lies_in"], serde_json::Value::Null);
}

/// Checks that generated inputs agree with given ones. Positions and lengths follow from the indices, and
/// sizes from the tokens.
#[test]
fn the_rest_follows_from_what_is_given() {
    let folder = Folder::with_testdata();
    folder.write("at.npy", &npy_i64(&[5, 0]));
    let text = folder.run(&format!("run {STATIC} --dim sequence_len=3 -i write_indices=at.npy")).passed();
    assert!(text.contains("nonpad_kv_seqlen  int64 [2] = [8, 3]"), "{text}");
    assert!(text.contains("input_ids         int64 [2, 3]"), "{text}");
    // The rows are written at the given slots, and nothing else changes.
    folder.write("past.npy", &npy_f32(&[2, 64, 32], [0.5; 2 * 64 * 32]));
    let line = format!(
        "run {STATIC} --dim sequence_len=3 -i write_indices=at.npy -i key_cache.0=past.npy \
         -o updated_key_cache.0=present.npy"
    );
    folder.run(&line).passed();
    let present = f32s(&folder.read("present.npy"));
    let rows = present.chunks(32).enumerate();
    let written: Vec<usize> =
        rows.filter(|(_, row)| row.iter().any(|value| *value != 0.5)).map(|(row, _)| row).collect();
    assert_eq!(written, [5, 6, 7, 64, 65, 66]);
}

#[test]
fn an_input_of_unknown_meaning_must_be_given() {
    let folder = Folder::with_testdata();
    let converted = "testdata/genai-llama-gqa/static.onnx";
    let exported = with_token_types(&folder);
    folder.run(&format!("convert {exported} -o {converted} --max-seq 16")).passed();
    let run = format!("run {converted} --dim batch_size=1 --dim sequence_length=2");
    for line in [
        run.as_str(),
        &format!("generate {converted} --prompt-ids 5,7"),
        &format!("certify {converted} --engine tract"),
    ] {
        let refused = folder.run(line).refused();
        assert!(refused.contains("\"token_type_ids\""), "{line}: {refused}");
    }
    folder.write("types.npy", &npy("<i8", &[1, 2], &[0; 16]));
    let text = folder.run(&format!("{run} -i token_type_ids=types.npy")).passed();
    assert!(text.contains("token_type_ids"), "{text}");
}

/// Runs an export with growing caches as it is. No output is claimed to be in place. KVSCATTER_ORT_LIB names
/// ONNX Runtime.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn a_decoder_whose_caches_grow() {
    let folder = Folder::with_testdata();
    let sizes = "--dim batch_size=2 --dim sequence_length=3 --dim past_sequence_length=4";
    let text = folder.run(&format!("run {GROWING} {sizes} --engine ort")).passed();
    assert!(text.contains("attention_mask           int64 [2, 7]"), "{text}");
    assert!(text.contains("present.0.key    float [2, 2, 7, 16]"), "{text}");
    assert!(!text.contains("at the address of"), "{text}");
}

/// Checks that both engines compute the same logits from the same inputs, and write the same rows in place.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn both_engines_agree() {
    let folder = Folder::with_testdata();
    for engine in ["tract", "ort"] {
        let line = format!("run {STATIC} {SIZES} --in-place --engine {engine} -o logits={engine}.npy");
        folder.run(&line).passed();
    }
    let logits = ["tract.npy", "ort.npy"].map(|name| f32s(&folder.read(name)));
    assert_eq!(logits[0].len(), 2 * 3 * 256);
    let worst = logits[0].iter().zip(&logits[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn test_directories_in_an_engine() {
    let folder = Folder::with_testdata();
    for case in ["test_tensorscatter", "test_tensorscatter_3d", "test_tensorscatter_circular"] {
        let text = folder.run(&format!("run testdata/onnx-node/{case} --engine tract --in-place")).passed();
        assert!(
            text.contains("present_cache  float") && text.contains("at the address of past_cache"),
            "{text}"
        );
        assert!(
            text.ends_with("pass  every output is as expected, within 1e-7 + 0.001 of each value\n"),
            "{text}"
        );
    }
    let line =
        "run testdata/onnx-node/test_tensorscatter_circular/model.onnx --engine tract --in-place --seed 7";
    folder.run(&format!("{line} -o present_cache=tract.npy")).passed();
    folder.run(&format!("{} -o present_cache=here.npy", line.replace("--engine tract", ""))).passed();
    assert_eq!(folder.read("tract.npy"), folder.read("here.npy"));
    folder.flip("testdata/onnx-node/test_tensorscatter/test_data_set_0/output_0.pb", 1, 0x40);
    let answer = folder.run("run testdata/onnx-node/test_tensorscatter --engine tract");
    assert_eq!(answer.code, Some(1), "{answer}");
    assert!(answer.stdout.contains("1 of 40 elements differ"), "{answer}");
    folder.run("run testdata/onnx-node/test_tensorscatter --engine tract --atol 1e30").passed();
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    folder.write("negative.npy", &npy_i64(&[5, -1]));
    folder.write("at.npy", &npy_i64(&[5, 0]));
    folder.write("far.npy", &npy_i64(&[5, 64]));
    folder.write("q.npy", &npy_f32(&[1, 2, 1, 16], [0.0; 32]));
    let (inputs, outputs) = (["q", "k", "v"], ["y", "present_k", "present_v"]);
    let values = |names: [&str; 3]| names.map(|name| ValueInfoProto::tensor(name, 1, &CACHE)).to_vec();
    let graph = GraphProto {
        input: values(inputs),
        output: values(outputs),
        node: vec![NodeProto::new("Attention", &inputs, &outputs)],
        ..GraphProto::default()
    };
    let no_past = encode(&ModelProto::new(10, &[("", 24)], graph)).unwrap();
    folder.write("no_past.onnx", &no_past);
    folder.check_transcript("run_decoder");
    assert!(!folder.path("out.npy").exists());
}
