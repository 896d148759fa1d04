//! Tests the tables, the JSON and the hazards of `kvscatter inspect`, and models that are not decoders.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};

use crate::support::Folder;

fn folder() -> Folder {
    Folder::with_testdata()
}

/// Makes a new folder with a changed model of the test data as `model.onnx`.
fn changed(name: &str, change: impl FnOnce(&mut GraphProto)) -> Folder {
    let folder = folder();
    folder.change(&format!("testdata/{name}/model.onnx"), "model.onnx", change);
    folder
}

fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto::new(op_type, inputs, &[output])
}

fn writer<'g>(graph: &'g mut GraphProto, past: &str) -> &'g mut NodeProto {
    let reads =
        |node: &&mut NodeProto| node.op_type.as_deref() == Some("TensorScatter") && node.input[0] == past;
    graph.node.iter_mut().find(reads).unwrap()
}

fn dims(values: &mut [ValueInfoProto], name: &str, axis: usize, size: DimValue) {
    let value = values.iter_mut().find(|value| value.name.as_deref() == Some(name)).unwrap();
    let tensor = match value.r#type.get_or_insert_default().value.as_mut() {
        Some(TypeValue::TensorType(tensor)) => Some(tensor),
        _ => None,
    };
    let tensor = tensor.unwrap();
    tensor.shape.get_or_insert_default().dim[axis].value = Some(size);
}

#[test]
fn decoders_and_models_that_are_none() {
    let folder = folder();
    let change = |name: &str, copy: &str, change: &dyn Fn(&mut GraphProto)| {
        folder.change(&format!("testdata/{name}/model.onnx"), copy, change);
    };
    change("optimum-llama", "not_fed_back.onnx", &|graph| {
        graph.output.retain(|output| output.name.as_deref() != Some("present.1.value"));
    });
    change("optimum-llama", "no_cache.onnx", &|graph| {
        graph.output.retain(|output| output.name.as_deref() == Some("logits"));
        graph.node.retain(|node| node.op_type.as_deref() == Some("Shape") && node.input[0] == "input_ids");
        graph.output[0].name = Some("input_ids".to_owned());
    });
    change("optimum-llama", "contradiction.onnx", &|graph| {
        dims(&mut graph.output, "present.0.key", 1, DimValue::DimValue(4));
    });
    change("mobius-llama-dynamic", "no_growth.onnx", &|graph| {
        dims(&mut graph.output, "present.1.key", 2, DimValue::DimParam("past_sequence_len".to_owned()));
    });
    change("mobius-llama-static", "cycle.onnx", &|graph| {
        graph.node.push(node("Neg", &["b"], "a"));
        graph.node.push(node("Neg", &["a"], "b"));
    });
    folder.write("garbage.onnx", &[0xff; 64]);
    folder.write("model.gguf", b"GGUF\x03\0\0\0\x24\x01\0\0");
    folder.write("empty.onnx", b"");
    let safetensors = [&64_u64.to_le_bytes()[..], b"{\"x\":{\"dtype\":\"F32\"}}"].concat();
    folder.write("model.safetensors", &safetensors);
    folder.check_transcript("inspect");
}

#[test]
fn another_size_is_not_named_where_none_helps() {
    let copied = changed("optimum-llama", |graph| {
        let at = graph.node.iter().position(|node| node.output[0] == "present.0.key").unwrap();
        graph.node[at].output[0] = "joined".to_owned();
        graph.node.insert(at + 1, node("Neg", &["joined"], "present.0.key"));
    });
    let copied = copied.run("inspect model.onnx").passed();
    assert!(copied.contains("cannot be made static: node ") && !copied.contains("--max-seq"), "{copied}");
}

/// The states of an encoder become keys and values of the decoder.
#[test]
fn an_input_that_an_encoder_computes() {
    let decoder = changed("optimum-llama", |graph| {
        let mut states = graph.input[0].clone();
        states.name = Some("states".to_owned());
        let cache = graph.input.iter().find(|input| input.name.as_deref() == Some("past_key_values.0.key"));
        states.r#type = cache.unwrap().r#type.clone();
        graph.input.push(states);
        graph.node.extend([
            node("MatMul", &["past_key_values.0.key", "states"], "products"),
            node("Softmax", &["products"], "weights"),
            node("MatMul", &["weights", "states"], "attended"),
        ]);
    });
    let text = decoder.run("inspect model.onnx").passed();
    let row = text.lines().find(|line| line.starts_with("states ")).unwrap();
    assert!(row.contains("from an encoder"), "{text}");
    let error = decoder.run("convert model.onnx -o out.onnx --max-seq 8").refused();
    assert!(error.contains("input \"states\" comes from an encoder"), "{error}");
}

#[test]
fn a_decoder_that_was_merged() {
    let folder = folder();
    let line = "inspect testdata/decoders/optimum-1.18-gpt2-merged/model.onnx --length 32";
    insta::assert_snapshot!(folder.run(line).passed());
    let json = folder.json(line);
    assert_eq!(json["merged"], serde_json::json!({"input": "use_cache_branch", "value": true}));
}

#[test]
fn json() {
    let folder = folder();
    let answer =
        folder.run("inspect testdata/mobius-llama-static/model.onnx --target tensorrt --json --batch 2");
    assert_eq!(answer.code, Some(1));
    let json = answer.document();
    assert_eq!(json["caches"].as_array().unwrap().len(), 4);
    assert_eq!(json["tensorrt"].as_array().unwrap().len(), 4);
    let mut short = json.clone();
    for list in ["caches", "inputs", "hazards", "tensorrt"] {
        short[list].as_array_mut().unwrap().truncate(1);
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&short).unwrap());
}

/// Checks that keys, values and layers of a large model take a few lines, and that JSON lists all of them.
#[test]
fn many_layers_are_folded() {
    let renamed = |values: &[ValueInfoProto], from: &str, to: &str| {
        let value = values.iter().find(|value| value.name.as_deref() == Some(from)).unwrap().clone();
        ValueInfoProto { name: Some(to.to_owned()), ..value }
    };
    let folder = changed("optimum-llama", |graph| {
        for (layer, part) in (2..32).flat_map(|layer| ["key", "value"].map(|part| (layer, part))) {
            let [past, present] = ["past_key_values", "present"]
                .map(|side| (format!("{side}.0.{part}"), format!("{side}.{layer}.{part}")));
            graph.input.push(renamed(&graph.input, &past.0, &past.1));
            graph.output.push(renamed(&graph.output, &present.0, &present.1));
            let mut join = graph.node.iter().find(|node| node.output[0] == present.0).unwrap().clone();
            join.input[0] = past.1;
            join.output[0] = present.1;
            graph.node.push(join);
        }
    });
    insta::assert_snapshot!(folder.run("inspect model.onnx --length 4096").passed());
    assert_eq!(folder.json("inspect model.onnx")["caches"].as_array().unwrap().len(), 64);
}

#[test]
fn everything_wrong_at_once() {
    let folder = changed("mobius-llama-static", |graph| {
        // A conversion and its reverse copy the whole cache twice.
        writer(graph, "key_cache.0").input[0] = "twice".to_owned();
        let at = graph.node.iter().position(|node| node.op_type.as_deref() == Some("TensorScatter")).unwrap();
        let there_and_back = [node("Neg", &["key_cache.0"], "once"), node("Neg", &["once"], "twice")];
        graph.node.splice(at..at, there_and_back);
        // The cache is a ring, but the mask does not support rings.
        writer(graph, "value_cache.0").attribute.push(AttributeProto::string("mode", "circular"));
        writer(graph, "key_cache.1").input[2] = "nonpad_kv_seqlen".to_owned();
        graph.node.push(node("ReduceSum", &["value_cache.1"], "old_sum"));
        graph.node.push(node("ReduceSum", &["updated_value_cache.1"], "sum"));
        graph.node.push(node("TensorScatter", &["updated_key_cache.1", "key_cache.1"], "again"));
    });
    let answer = folder.run("inspect model.onnx --target tensorrt");
    assert_eq!(answer.code, Some(1));
    insta::assert_snapshot!(answer);
}

#[test]
fn sizes_that_the_model_leaves_open() {
    let open = |graph: &mut GraphProto| {
        for layer in 0..2 {
            for what in ["key", "value"] {
                let head = || DimValue::DimParam("head".to_owned());
                dims(&mut graph.input, &format!("past_key_values.{layer}.{what}"), 3, head());
                dims(&mut graph.output, &format!("present.{layer}.{what}"), 3, head());
            }
        }
    };
    let folder = changed("optimum-llama", open);
    let text = folder.run("inspect model.onnx").passed();
    assert!(
        text.contains("the costs depend on sizes that the model leaves open: give --dim head=N\n"),
        "{text}"
    );
    let error = folder.run("inspect model.onnx --dim heads=16").refused();
    assert!(error.contains("--dim heads: the costs depend only on head, --batch and --length"), "{error}");
    assert_eq!(folder.json("inspect model.onnx --dim head=16")["total"]["bytes_per_token"], 512);
}

#[test]
fn a_style_that_is_unknown() {
    let folder = changed("optimum-llama", |graph| {
        let join = graph.node.iter_mut().find(|node| node.output[0] == "present.0.key").unwrap();
        join.input.reverse();
    });
    let text = folder.run("inspect model.onnx").passed();
    assert!(text.starts_with("model.onnx: 4 caches, written by Concat and unknown\n"), "{text}");
    assert!(text.contains("\npast_key_values.0.key: the new rows come before the old ones\n"), "{text}");
}

/// Inspects the output of `lower`. Its nodes do not show which rows are written, and the capacity is that of
/// the model.
#[test]
fn a_cache_that_is_lowered() {
    let folder = folder();
    let line = "lower testdata/mobius-llama-static/model.onnx --to scatter-nd -o lowered/model.onnx";
    std::fs::create_dir(folder.path("lowered")).unwrap();
    folder.run(line).passed();
    let text = folder.run("inspect lowered/model.onnx").passed();
    assert!(text.contains("4 caches, written by ScatterND (unknown)"), "{text}");
    assert!(text.contains("1 sample, 64 slots, 1 new token a step"), "{text}");
}

/// Inspects the output of `convert` for a growing cache.
#[test]
fn a_cache_that_is_converted() {
    let folder = folder();
    std::fs::create_dir(folder.path("static")).unwrap();
    for model in ["optimum-llama", "mobius-llama-dynamic"] {
        let line = format!("convert testdata/{model}/model.onnx -o static/{model}.onnx --max-seq 64");
        folder.run(&line).passed();
        let text = folder.run(&format!("inspect static/{model}.onnx --target tensorrt")).passed();
        assert!(text.contains("4 caches, written by TensorScatter\n"), "{text}");
        assert!(text.contains("pass  TensorRT turns 4 TensorScatter nodes"), "{text}");
    }
}

const WINDOWED: &str = "testdata/decoders/optimum-0.1-mistral-window/model.onnx";

#[test]
fn a_sliding_window() {
    let folder = folder();
    insta::assert_snapshot!(folder.run(&format!("inspect {WINDOWED} --batch 2 --length 64")).passed());
    let json = folder.json(&format!("inspect {WINDOWED} --batch 2 --length 64"));
    let window = |cache: &str| serde_json::json!({"cache": cache, "window": 4});
    let expected = serde_json::json!({
        "max_seq": 64,
        "refused": null,
        "windows": [window("past_key_values.0.key"), window("past_key_values.1.key")],
        "linear_bytes": 16384,
        "ring_bytes": 9984,
    });
    assert_eq!(json["convert"], expected);
    // No ring of this window is smaller than 16 slots.
    let text = folder.run(&format!("inspect {WINDOWED} --length 16")).passed();
    assert!(text.contains("Rings are not used: a ring of 39 slots (W - 1 + chunk + rewind)"), "{text}");
}

/// Inspects rings that `convert` made, and the same rings with a mask that counts slots.
#[test]
fn rings() {
    let folder = folder();
    folder.run(&format!("convert {WINDOWED} -o model.onnx --max-seq 64 --chunk 3 --rewind 2")).passed();
    insta::assert_snapshot!(folder.run("inspect model.onnx").passed());
    let first_of_four = || {
        let rings = folder.json("inspect model.onnx")["rings"].clone();
        assert_eq!(rings.as_array().unwrap().len(), 4);
        ["cache", "capacity", "window", "chunk", "rewind", "hazard"].map(|key| rings[0][key].clone())
    };
    let expected = serde_json::json!(["past_key_values.0.key", 8, 4, 3, 2, null]);
    assert_eq!(serde_json::json!(first_of_four()), expected);
    folder.change("model.onnx", "model.onnx", |graph| {
        let ages = graph.node.iter_mut().find(|node| node.op_type.as_deref() == Some("Mod")).unwrap();
        ages.op_type = Some("Sub".to_owned());
    });
    let text = folder.run("inspect model.onnx").passed();
    insta::assert_snapshot!(text.lines().find(|line| line.contains("ring-mask")).unwrap());
    let expected = serde_json::json!(["past_key_values.0.key", null, null, null, null, "ring-mask"]);
    assert_eq!(serde_json::json!(first_of_four()), expected);
}

/// Checks that control characters in names, which come from strangers, do not reach the terminal.
#[test]
fn nothing_in_a_name_reaches_the_terminal() {
    let folder = changed("mobius-llama-static", |graph| {
        for name in graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
            *name = name.replace("key_cache", "\x1b[2Jkey\n");
        }
        for value in graph.input.iter_mut().chain(&mut graph.output) {
            value.name = value.name.as_ref().map(|name| name.replace("key_cache", "\x1b[2Jkey\n"));
        }
    });
    let text = folder.run("inspect model.onnx").passed();
    assert!(!text.contains('\x1b') && text.contains("\\u{1b}[2Jkey"), "{text}");
}
