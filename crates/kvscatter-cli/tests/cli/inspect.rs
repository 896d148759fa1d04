//! Tests the tables, the JSON and the hazards of `kvscatter inspect`, and models that are not decoders.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto};
use serde_json::json;

use crate::support::{Folder, dims};

/// A change of a model.
type Change = fn(&mut GraphProto);

/// Changed models: the model of the test data, the name of the copy, and the change.
const CHANGED: [(&str, &str, Change); 13] = [
    ("optimum-llama", "not_fed_back.onnx", |graph| {
        graph.output.retain(|output| output.name.as_deref() != Some("present.1.value"));
    }),
    ("optimum-llama", "no_cache.onnx", |graph| {
        graph.output.retain(|output| output.name.as_deref() == Some("logits"));
        graph.node.retain(|node| node.op_type.as_deref() == Some("Shape") && node.input[0] == "input_ids");
        graph.output[0].name = Some("input_ids".to_owned());
    }),
    ("optimum-llama", "contradiction.onnx", |graph| {
        dims(value(&mut graph.output, "present.0.key"))[1].value = Some(DimValue::DimValue(4));
    }),
    ("mobius-llama-dynamic", "no_growth.onnx", |graph| {
        let size = DimValue::DimParam("past_sequence_len".to_owned());
        dims(value(&mut graph.output, "present.1.key"))[2].value = Some(size);
    }),
    ("mobius-llama-static", "cycle.onnx", |graph| {
        graph.node.extend([node("Neg", &["b"], "a"), node("Neg", &["a"], "b")]);
    }),
    ("optimum-llama", "copied.onnx", |graph| {
        let at = writer_of(graph, "present.0.key");
        graph.node[at].output[0] = "joined".to_owned();
        graph.node.insert(at + 1, node("Neg", &["joined"], "present.0.key"));
    }),
    ("optimum-llama", "reversed.onnx", |graph| {
        let at = writer_of(graph, "present.0.key");
        graph.node[at].input.reverse();
    }),
    // The states of an encoder become keys and values of the decoder.
    ("optimum-llama", "states.onnx", |graph| {
        let cache = value(&mut graph.input, "past_key_values.0.key").clone();
        graph.input.push(ValueInfoProto { name: Some("states".to_owned()), ..cache });
        graph.node.extend([
            node("MatMul", &["past_key_values.0.key", "states"], "products"),
            node("Softmax", &["products"], "weights"),
            node("MatMul", &["weights", "states"], "attended"),
        ]);
    }),
    ("optimum-llama", "layers.onnx", |graph| {
        for (layer, part) in (2..32).flat_map(|layer| ["key", "value"].map(|part| (layer, part))) {
            let [past, present] = ["past_key_values", "present"]
                .map(|side| (format!("{side}.0.{part}"), format!("{side}.{layer}.{part}")));
            for (values, (from, to)) in [(&mut graph.input, &past), (&mut graph.output, &present)] {
                let copy = value(values, from).clone();
                values.push(ValueInfoProto { name: Some(to.clone()), ..copy });
            }
            let mut join = graph.node[writer_of(graph, &present.0)].clone();
            (join.input[0], join.output[0]) = (past.1, present.1);
            graph.node.push(join);
        }
    }),
    ("optimum-llama", "open.onnx", |graph| {
        for value in graph.input.iter_mut().chain(&mut graph.output) {
            if let [_, _, _, head] = dims(value).as_mut_slice() {
                head.value = Some(DimValue::DimParam("head".to_owned()));
            }
        }
    }),
    ("mobius-llama-static", "wrong.onnx", |graph| {
        // A conversion and its reverse copy the whole cache twice.
        let index = writer_of(graph, "updated_key_cache.0");
        graph.node[index].input[0] = "twice".to_owned();
        graph
            .node
            .splice(index..index, [node("Neg", &["key_cache.0"], "once"), node("Neg", &["once"], "twice")]);
        // The cache is a ring, but the mask does not support rings.
        let index = writer_of(graph, "updated_value_cache.0");
        graph.node[index].attribute.push(AttributeProto::string("mode", "circular"));
        let index = writer_of(graph, "updated_key_cache.1");
        graph.node[index].input[2] = "nonpad_kv_seqlen".to_owned();
        graph.node.extend([
            node("ReduceSum", &["value_cache.1"], "old_sum"),
            node("ReduceSum", &["updated_value_cache.1"], "sum"),
            node("TensorScatter", &["updated_key_cache.1", "key_cache.1"], "again"),
        ]);
    }),
    // The plugin does not take a cache of the size of the window.
    ("genai-llama-gqa", "testdata/genai-llama-gqa/window_cache.onnx", |graph| {
        let index = writer_of(graph, "/model/layers.0/attn/GroupQueryAttention/output_0");
        graph.node[index].attribute.push(AttributeProto::int("sliding_window_cache", 1));
    }),
    // Names come from strangers, and control characters in them must not reach the terminal.
    ("mobius-llama-static", "names.onnx", |graph| {
        let nodes = graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        let values = graph.input.iter_mut().chain(&mut graph.output).filter_map(|value| value.name.as_mut());
        nodes.chain(values).for_each(|name| *name = name.replace("key_cache", "\x1b[2Jkey\n"));
    }),
];

const WINDOWED: &str = "testdata/decoders/optimum-0.1-mistral-window/model.onnx";

fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto::new(op_type, inputs, &[output])
}

fn value<'v>(values: &'v mut [ValueInfoProto], name: &str) -> &'v mut ValueInfoProto {
    values.iter_mut().find(|value| value.name.as_deref() == Some(name)).unwrap()
}

/// Returns the index of the node that computes a value.
fn writer_of(graph: &GraphProto, value: &str) -> usize {
    graph.node.iter().position(|node| node.output[0] == value).unwrap()
}

#[test]
fn decoders_and_models_that_are_none() {
    let folder = Folder::with_testdata();
    folder.write("garbage.onnx", &[0xff; 64]);
    folder.write("model.gguf", b"GGUF\x03\0\0\0\x24\x01\0\0");
    folder.write("empty.onnx", b"");
    let safetensors = [&64_u64.to_le_bytes()[..], b"{\"x\":{\"dtype\":\"F32\"}}"].concat();
    folder.write("model.safetensors", &safetensors);
    folder.check_transcript("inspect");
}

#[test]
fn models_that_were_changed() {
    let folder = Folder::with_testdata();
    for (model, copy, change) in CHANGED {
        folder.change(&format!("testdata/{model}/model.onnx"), copy, change);
    }
    folder.run(&format!("convert {WINDOWED} -o rings.onnx --max-seq 64 --chunk 3 --rewind 2")).passed();
    // The mask counts slots, as if the caches were no rings.
    folder.change("rings.onnx", "slots.onnx", |graph| {
        let ages = graph.node.iter_mut().find(|node| node.op_type.as_deref() == Some("Mod")).unwrap();
        ages.op_type = Some("Sub".to_owned());
    });
    folder.check_transcript("inspect_changed");

    let ring = |capacity, window, chunk, rewind, hazard| {
        let reader = json!({"index": 158, "name": "attention", "operator": "Attention"});
        json!({
            "cache": "past_key_values.0.key", "reader": reader, "capacity": capacity, "window": window,
            "chunk": chunk, "rewind": rewind, "hazard": hazard,
        })
    };
    let windowed = format!("{WINDOWED} --batch 2 --length 64");
    let window = |cache: &str| json!({"cache": cache, "window": 4});
    let windows = [window("past_key_values.0.key"), window("past_key_values.1.key")];
    let left = json!([{
        "node": {
            "index": 11, "name": "/model/layers.0/attn/GroupQueryAttention", "operator": "GroupQueryAttention",
        },
        "message": "sliding_window_cache = 1: must be 0",
    }]);
    for (line, pointer, expected) in [
        (
            "testdata/genai-llama-gqa/window_cache.onnx",
            "/group_query_nodes",
            json!({"nodes": 2, "in_plugin": 1, "left": left}),
        ),
        ("layers.onnx", "/caches/63/past", json!("past_key_values.31.value")),
        ("open.onnx --dim head=16", "/total/bytes_per_token", json!(512)),
        ("rings.onnx", "/rings/0", ring(Some(8), Some(4), Some(3), Some(2), None)),
        ("slots.onnx", "/rings/0", ring(None, None, None, None, Some("ring-mask"))),
        (
            "testdata/decoders/optimum-1.18-gpt2-merged/model.onnx",
            "/merged",
            json!({"input": "use_cache_branch", "value": true}),
        ),
        (
            windowed.as_str(),
            "/convert",
            json!({
                "max_seq": 64, "refused": null, "windows": windows, "linear_bytes": 16384, "ring_bytes": 9984,
            }),
        ),
    ] {
        let document = folder.json(&format!("inspect {line}"));
        assert_eq!(document.pointer(pointer), Some(&expected), "{line}");
    }
}

#[test]
fn json() {
    let answer = Folder::with_testdata()
        .run("inspect testdata/mobius-llama-static/model.onnx --target tensorrt --json --batch 2");
    assert_eq!(answer.code, Some(1));
    let mut short = answer.document();
    for list in ["caches", "inputs", "hazards", "tensorrt"] {
        let list = short[list].as_array_mut().unwrap();
        assert!(list.len() >= 4, "{list:?}");
        list.truncate(1);
    }
    insta::assert_snapshot!(serde_json::to_string_pretty(&short).unwrap());
}
