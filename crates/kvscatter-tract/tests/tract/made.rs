//! Sessions of decoders with one layer and one head that this file builds. They have nodes that exporters do
//! not write, or not yet.

use kvscatter_session::{KvSession, SessionError, SessionOptions};
use kvscatter_tract::Tract;
use prost::Message;
use tract_onnx::pb::{ModelProto, NodeProto, TensorProto, tensor_proto::DataType};

use crate::support::{integer, model, node, value};

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const TOKENS: usize = 8;
const SIZE: usize = 4;

fn floats(name: &str, dims: &[usize]) -> TensorProto {
    let count = dims.iter().product::<usize>();
    // Irregular values, not all of them small.
    let values = (0..count).map(|index| ((index * 37 + 11) % 23) as f32 / 8.0 - 1.4);
    TensorProto {
        name: name.to_owned(),
        dims: dims.iter().map(|dim| *dim as i64).collect(),
        data_type: DataType::Float.into(),
        raw_data: values.flat_map(f32::to_le_bytes).collect(),
        ..TensorProto::default()
    }
}

/// Returns a decoder whose logits are computed from `y` by the nodes of `head`, which write `scored`.
fn decoder(head: Vec<NodeProto>) -> ModelProto {
    let mut nodes = vec![node("Gather", "embed", &["embeddings", "input_ids"], &["x"])];
    for part in ["key", "value"] {
        let (past, present) = (format!("{part}_cache.0"), format!("updated_{part}_cache.0"));
        let mut write =
            node("TensorScatter", &format!("write_{part}"), &[&past, "x", "write_indices"], &[&present]);
        write.attribute.push(integer("axis", 1));
        nodes.push(write);
    }
    let inputs = ["x", "updated_key_cache.0", "updated_value_cache.0", "", "", "", "nonpad_kv_seqlen"];
    let mut attention = node("Attention", "attend", &inputs, &["y"]);
    attention.attribute = ["is_causal", "q_num_heads", "kv_num_heads"].map(|name| integer(name, 1)).to_vec();
    nodes.push(attention);
    nodes.extend(head);
    nodes.push(node("MatMul", "score", &["scored", "weights"], &["logits"]));
    let cache = |name: &str| value(name, FLOAT, &["batch", "16", "4"]);
    let lengths = |name: &str| value(name, INT64, &["batch"]);
    let inputs = vec![
        value("input_ids", INT64, &["batch", "tokens"]),
        cache("key_cache.0"),
        cache("value_cache.0"),
        lengths("write_indices"),
        lengths("nonpad_kv_seqlen"),
    ];
    let outputs = vec![
        value("logits", FLOAT, &["batch", "scored", "8"]),
        cache("updated_key_cache.0"),
        cache("updated_value_cache.0"),
    ];
    let mut made = model(nodes, inputs, outputs);
    if let Some(graph) = &mut made.graph {
        graph.initializer = vec![floats("embeddings", &[TOKENS, SIZE]), floats("weights", &[SIZE, TOKENS])];
    }
    made
}

fn open(model: &ModelProto) -> Result<KvSession, SessionError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    KvSession::open(&Tract, &path, SessionOptions { batch: Some(2), ..SessionOptions::default() })
}

#[test]
fn a_model_that_scores_the_last_token_without_saying_so_scores_every_sample() {
    let last = || {
        let mut last = node("Gather", "last", &["y", "end"], &["scored"]);
        last.attribute.push(integer("axis", 1));
        let mut model = decoder(vec![last]);
        let end = TensorProto {
            name: "end".to_owned(),
            dims: vec![1],
            data_type: DataType::Int64.into(),
            raw_data: (-1_i64).to_le_bytes().to_vec(),
            ..TensorProto::default()
        };
        model.graph.as_mut().unwrap().initializer.push(end);
        model
    };
    let all = || decoder(vec![node("Identity", "all", &["y"], &["scored"])]);
    let logits = |model: &ModelProto| {
        let mut session = open(model).unwrap();
        let (first, second) = (session.add().unwrap(), session.add().unwrap());
        let mut all = Vec::new();
        for (one, two) in [(&[1, 2][..], &[3, 4, 5, 6][..]), (&[7, 1, 2], &[3])] {
            let logits = session.step(&[(first, one), (second, two)]).unwrap();
            all.extend([first, second].map(|sample| logits.last(sample).unwrap().to_vec()));
        }
        assert_eq!([first, second].map(|sample| session.cached_tokens(sample).unwrap()), [5, 5]);
        all
    };
    assert_eq!(logits(&last()), logits(&all()));
}

#[test]
fn a_past_that_something_else_reads_is_refused() {
    let model = decoder(vec![
        node("ReduceMax", "peek", &["key_cache.0"], &["most"]),
        node("Add", "add", &["y", "most"], &["scored"]),
    ]);
    let Err(SessionError::PastRead { input, reader }) = open(&model).map(|_| ()) else {
        panic!("it is read")
    };
    assert_eq!(input, "key_cache.0");
    assert!(reader.contains("\"peek\""), "{reader}");
}
