//! Tests what `kvscatter convert` writes, prints and refuses. A refusal leaves no file.

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::proto::NodeProto;
use kvscatter_onnx::internal::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_session::{KvSession, SessionError, SessionOptions};

use crate::support::{Folder, with_token_types};

const CONCAT: &str = "testdata/optimum-llama/model.onnx";
const ATTENTION: &str = "testdata/mobius-llama-dynamic/model.onnx";

#[test]
fn answers() {
    let folder = Folder::with_testdata();
    folder.check_transcript("convert");
    assert_eq!(folder.read("out/model.onnx.data"), folder.read(&format!("{ATTENTION}.data")));
}

#[test]
fn passes_are_explained() {
    let folder = Folder::with_testdata();
    let text = folder.run(&format!("convert {CONCAT} -o static.onnx --max-seq 64 --explain")).passed();
    let tables = text.find("\nPass").unwrap();
    insta::assert_snapshot!(&text[tables..]);
}

#[test]
fn an_input_of_unknown_meaning_is_reported() {
    let folder = Folder::with_testdata();
    let beside = with_token_types(&folder);
    let line = format!("convert {beside} -o testdata/genai-llama-gqa/static.onnx --max-seq 16");
    let text = folder.run(&line).passed();
    assert!(text.contains("refuse this model: input \"token_type_ids\""), "{text}");
    let document = folder.json(&line);
    assert_eq!(document["unknown_inputs"], serde_json::json!(["token_type_ids"]));
    assert!(document["refusal"].as_str().unwrap().contains("token_type_ids"));
    let text = folder.run(&format!("inspect {beside}")).passed();
    assert!(text.lines().any(|line| line.contains("token_type_ids") && line.contains("other")), "{text}");
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
        tokens.name = Some("inputs_embeds".to_owned());
        let Some(TypeValue::TensorType(tensor)) = &mut tokens.r#type.get_or_insert_default().value else {
            panic!()
        };
        tensor.elem_type = Some(1);
        let size = Dimension { value: Some(DimValue::DimValue(64)), ..Dimension::default() };
        tensor.shape.get_or_insert_default().dim.push(size);
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
fn a_decoder_that_was_merged() {
    let folder = Folder::with_testdata();
    let line = "convert testdata/decoders/optimum-1.18-gpt2-merged/model.onnx -o static.onnx --max-seq 32";
    let text = folder.run(line).passed();
    insta::assert_snapshot!(text.lines().take(8).collect::<Vec<_>>().join("\n"));
    let json = folder.json(line);
    assert_eq!(json["merged"], serde_json::json!({"input": "use_cache_branch", "value": true}));
}

/// The scores of the first layer are capped at 1.
#[test]
fn attention_with_a_cap() {
    let folder = Folder::with_testdata();
    folder.change(CONCAT, "capped.onnx", |graph| {
        let scores = "/model/layers.0/self_attn/MatMul_output_0".to_owned();
        let at = graph.node.iter().position(|node| node.input.contains(&scores)).unwrap();
        let mut cap = graph.node[at].clone();
        cap.name = Some("cap".to_owned());
        cap.op_type = Some("Tanh".to_owned());
        cap.input = vec![scores.clone()];
        cap.output = vec!["capped".to_owned()];
        for input in graph.node[at].input.iter_mut().filter(|input| **input == scores) {
            *input = "capped".to_owned();
        }
        graph.node.insert(at, cap);
    });
    let converted = folder.run("convert capped.onnx -o static.onnx --max-seq 64 --onnxruntime 1.26").passed();
    insta::assert_snapshot!(converted.lines().take(6).collect::<Vec<_>>().join("\n"));
    let converted = folder.run("convert capped.onnx -o static.onnx --max-seq 64").passed();
    assert!(!converted.contains("Kept") && converted.contains("ONNX Runtime 1.27"), "{converted}");
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
