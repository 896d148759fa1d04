//! Tests what `kvscatter convert` writes, prints and refuses. A refusal leaves no file.

use kvscatter_onnx::internal::proto::{GraphProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Dimension, Model};
use kvscatter_session::{KvSession, SessionError, SessionOptions};

use crate::support::{Folder, with_token_types};

const CONCAT: &str = "testdata/optimum-llama/model.onnx";
const ATTENTION: &str = "testdata/mobius-llama-dynamic/model.onnx";

#[test]
fn answers() {
    let folder = Folder::with_testdata();
    with_token_types(&folder);
    folder.change(CONCAT, "capped.onnx", cap_scores);
    folder.check_transcript("convert");
    assert_eq!(folder.read("out/model.onnx.data"), folder.read(&format!("{ATTENTION}.data")));
}

/// Caps the scores of the first layer at 1.
fn cap_scores(graph: &mut GraphProto) {
    let scores = "/model/layers.0/self_attn/MatMul_output_0";
    let at = graph.node.iter().position(|node| node.input.iter().any(|input| input == scores)).unwrap();
    let input = graph.node[at].input.iter_mut().find(|input| *input == scores).unwrap();
    *input = "capped".to_owned();
    let cap = NodeProto { name: Some("cap".to_owned()), ..NodeProto::new("Tanh", &[scores], &["capped"]) };
    graph.node.insert(at, cap);
}

/// The graph shows that an input contains embeddings, but sessions have no table of them.
#[test]
fn a_refusal_of_sessions_is_reported_with_their_reason() {
    let folder = Folder::with_testdata();
    let [model, changed] =
        ["model", "embeddings"].map(|name| format!("testdata/genai-llama-gqa/{name}.onnx"));
    folder.change(&model, &changed, |graph| {
        let reads_tokens = |node: &&mut NodeProto| node.input.iter().any(|name| name == "input_ids");
        let table = graph.node.iter_mut().find(reads_tokens).unwrap();
        (table.op_type, table.input) = (Some("Identity".to_owned()), vec!["inputs_embeds".to_owned()]);
        let tokens = graph.input.iter_mut().find(|input| input.name.as_deref() == Some("input_ids")).unwrap();
        let [batch, length] = ["batch_size", "sequence_length"].map(Dimension::Symbolic);
        *tokens = ValueInfoProto::tensor("inputs_embeds", 1, &[batch, length, Dimension::Known(64)]);
    });
    let line = "convert testdata/genai-llama-gqa/embeddings.onnx -o testdata/genai-llama-gqa/static.onnx --max-seq 16";
    let document = folder.json(line);
    let converted = Model::load(&folder.path("testdata/genai-llama-gqa/static.onnx")).unwrap();
    let error = KvSession::check_model(&converted, SessionOptions::default()).unwrap_err();
    assert!(matches!(error, SessionError::Embeddings { .. }), "{error}");
    assert_eq!(document["refusal"], error.to_string());
    let text = folder.run(line).passed();
    assert!(text.contains("KvSession and generate refuse this model: "), "{text}");
}

#[test]
fn states_are_named_with_the_outputs_that_return_their_columns() {
    let folder = Folder::with_testdata();
    let convert = "convert testdata/decoders/transformers-lfm2/model.onnx --max-seq 16 -o";
    let text = folder.run(&format!("{convert} text.onnx")).passed();
    assert!(text.contains("an output such as \"present_conv.0.columns\" returns its columns"), "{text}");
    let states = &folder.run(&format!("{convert} document.onnx --json")).document()["states"];
    assert_eq!(states[1]["past"], "past_conv.2");
    assert_eq!(states[1]["columns"], "present_conv.2.columns");
}

#[test]
fn cache_types() {
    let folder = Folder::with_testdata();
    for name in ["int8", "ring", "half"] {
        std::fs::create_dir(folder.path(name)).unwrap();
    }
    folder.check_transcript("cache_types");
    assert_eq!(folder.names(""), ["half", "int8", "ring", "testdata"]);

    let document = folder.json("inspect int8/model.onnx");
    let caches = document["caches"].as_array().unwrap();
    assert_eq!(caches.len(), 4);
    for cache in caches {
        let past = cache["past"].as_str().unwrap();
        assert_eq!((&cache["type"], &cache["scales"]["type"]), (&"int8".into(), &"float".into()));
        assert_eq!(cache["scales"]["past"], format!("{past}_scale"));
        // Two heads, each with 16 codes and a scale, in 32 slots.
        assert_eq!((&cache["bytes_per_token"], &cache["bytes"]), (&40.into(), &1280.into()));
    }
    assert_eq!(document["total"]["bytes"], 4 * 1280);

    let line = "convert testdata/genai-llama-gqa/model.onnx -o int8/again.onnx --max-seq 32 --cache-type";
    let narrow = &folder.json(&format!("{line} int8"))["narrow"];
    assert_eq!(
        (&narrow["cache_type"], &narrow["caches"], &narrow["rotated"]),
        (&"int8".into(), &4.into(), &2.into())
    );
    assert_eq!(narrow["scales"].as_object().unwrap().len(), 4);
    assert_eq!(folder.json(&format!("{line} float32")).get("narrow"), None);
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    folder.check_transcript("convert_refusals");
    std::fs::remove_file(folder.path(&format!("{ATTENTION}.data"))).unwrap();
    let error = folder.run(&format!("convert {ATTENTION} -o out.onnx --max-seq 64")).refused();
    assert!(error.contains("model.onnx.data: No such file or directory"), "{error}");
    assert_eq!(folder.names(""), ["testdata"]);
}
