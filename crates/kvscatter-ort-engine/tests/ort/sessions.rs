//! Running batches of exported and converted decoders.

use std::ops::ControlFlow;

use kvscatter_onnx::convert::convert;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto};
use kvscatter_onnx::{Model, WeightTransfer};
use kvscatter_ort_engine::OnnxRuntime;
use kvscatter_session::{GenerateOptions, Generator, KvSession, SessionError, SessionOptions};

use crate::blocks;
use crate::poison::nan_spares_earlier_tokens;
use crate::poisoned_decoder::poisoned;
use crate::replay::protos::value;
use crate::replay::{compare, rings, tiny};
use crate::testdata;

#[test]
#[ignore = "needs ONNX Runtime"]
fn an_exported_static_decoder_scores_each_sample_as_alone() {
    let engine = OnnxRuntime::load(None).unwrap();
    compare(&engine, [&testdata("mobius-llama-static"); 2], None, 10, 1e-4);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn converted_decoders_score_each_sample_as_alone() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["optimum-llama", "mobius-llama-dynamic"] {
        let converted = convert(&Model::load(&testdata(name)).unwrap(), 24).unwrap();
        let path = folder.path().join(format!("{name}.onnx"));
        converted.model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        compare(&engine, [&path; 2], None, 10, 1e-4);
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn rings_score_each_sample_as_linear_caches_do() {
    let engine = OnnxRuntime::load(None).unwrap();
    rings::check_histories(&engine, &testdata("mobius-llama-dynamic"), 10);
    rings::check_truncation(&engine, &testdata("mobius-llama-dynamic"));
}

/// `GroupQueryAttention` writes the caches of these models: an export, the same with lengths as inputs, and the
/// same with windows. Only ONNX Runtime 1.32 and later has an attribute with which the operator refuses padding.
#[test]
#[ignore = "needs ONNX Runtime"]
fn caches_of_an_operator_score_each_sample_as_alone() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let operator = |name: &str, change: &dyn Fn(&mut GraphProto)| {
        let mut model = Model::load(&testdata("genai-llama-gqa")).unwrap();
        change(model.proto_mut().graph.get_or_insert_default());
        let path = folder.path().join(format!("{name}.onnx"));
        model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        path
    };
    let window = |graph: &mut GraphProto| set_attribute(graph, "local_window_size", 5);
    let models =
        [testdata("genai-llama-gqa"), operator("lengths", &take_lengths), operator("window", &window)];
    for model in models {
        compare(&engine, [&model; 2], Some(24), 10, 1e-4);
    }
    let refuses_padding = operator("refuses_padding", &|graph| {
        window(graph);
        set_attribute(graph, "sliding_window_cache", 1);
    });
    let options = SessionOptions { capacity: Some(24), ..SessionOptions::default() };
    match KvSession::open(&engine, &refuses_padding, options) {
        Ok(_) => compare(&engine, [&refuses_padding; 2], Some(24), 10, 1e-4),
        Err(SessionError::Load { message, .. }) => {
            assert!(message.contains("sliding_window_cache"), "{message}")
        }
        Err(error) => panic!("{error}"),
    }
}

/// Sets an attribute of every `GroupQueryAttention`.
fn set_attribute(graph: &mut GraphProto, name: &str, value: i64) {
    for node in operators(graph) {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some(name));
        node.attribute.push(AttributeProto::int(name, value));
    }
}

/// Replaces the input `attention_mask` by the two inputs that it is reduced to.
fn take_lengths(graph: &mut GraphProto) {
    graph.node.retain(|node| !node.name.as_deref().unwrap_or_default().contains("attn_mask_subgraph"));
    graph.input.retain(|input| input.name.as_deref() != Some("attention_mask"));
    const INT32: i32 = 6;
    graph.input.extend([value("lengths", INT32, &["batch_size"]), value("total", INT32, &[])]);
    for node in operators(graph) {
        for (input, name) in [(5, "lengths"), (6, "total")] {
            node.input[input] = name.to_owned();
        }
    }
}

fn operators(graph: &mut GraphProto) -> impl Iterator<Item = &mut NodeProto> {
    graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("GroupQueryAttention"))
}

/// Attention multiplies masked rows by zero, so they must not contain NaN.
#[test]
#[ignore = "needs ONNX Runtime"]
fn nan_in_removed_rows_changes_no_logits() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = poisoned(13);
    let model = folder.path().join("model.onnx");
    let mut session = KvSession::open(&engine, &model, SessionOptions::default()).unwrap();
    let score = |session: &mut KvSession, sample, token| {
        session.step(&[(sample, &[token])]).unwrap().last(sample).unwrap().to_vec()
    };
    let fresh = session.add().unwrap();
    let expected = [1, 2].map(|token| score(&mut session, fresh, token));
    session.remove(fresh).unwrap();
    let bad = session.add().unwrap();
    assert_eq!(score(&mut session, bad, 1), expected[0]);
    let logits = session.step(&[(bad, &[13, 5])]).unwrap();
    assert!(logits.last(bad).unwrap().iter().all(|score| score.is_nan()));
    session.truncate(bad, 1).unwrap();
    assert_eq!(score(&mut session, bad, 2), expected[1], "cut");
    session.step(&[(bad, &[13, 13])]).unwrap();
    session.remove(bad).unwrap();
    let next = session.add().unwrap();
    assert_eq!(score(&mut session, next, 1), expected[0], "removed");
}

/// Padding repeats a token of its sample, so the NaN of another token cannot reach the sample.
#[test]
#[ignore = "needs ONNX Runtime"]
fn padding_repeats_a_token_of_its_sample() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = poisoned(0);
    let options = SessionOptions { batch: Some(2), ..SessionOptions::default() };
    let mut session = KvSession::open(&engine, folder.path().join("model.onnx"), options).unwrap();
    let (long, short) = (session.add().unwrap(), session.add().unwrap());
    let ragged = session.step(&[(long, &[1, 2, 3, 4]), (short, &[5, 6])]).unwrap();
    session.remove(long).unwrap();
    let alone = session.add().unwrap();
    let logits = session.step(&[(alone, &[5, 6])]).unwrap();
    for token in 0..2 {
        let (got, expected) = (ragged.after(short, token).unwrap(), logits.after(alone, token).unwrap());
        let worst =
            got.iter().zip(expected).map(|(got, expected)| (got - expected).abs()).fold(0.0, f32::max);
        assert!(got.iter().all(|score| score.is_finite()) && worst <= 1e-4, "token {token}: off by {worst}");
    }
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn nan_of_a_later_token_spares_earlier_tokens() {
    let engine = OnnxRuntime::load(None).unwrap();
    let folder = poisoned(13);
    nan_spares_earlier_tokens(&engine, &folder.path().join("model.onnx"), None, 13, 1e-4);
}

#[test]
#[ignore = "needs ONNX Runtime"]
fn tokens_of_a_block_see_each_other() {
    let [growing, converted] = tiny::in_blocks();
    let engine = OnnxRuntime::load(None).unwrap();
    blocks::compare(&engine, growing.subject().model, converted.subject().model, 1e-5);
}

/// All of these decoders have the same weights. The last declares no head size, which follows from its
/// weights.
#[test]
#[ignore = "needs ONNX Runtime"]
fn exports_of_one_decoder_generate_the_same_tokens() {
    let engine = OnnxRuntime::load(None).unwrap();
    let prompts = [vec![1, 2, 3], vec![200, 7, 9]];
    let greedy = GenerateOptions { max_new_tokens: Some(20), chunk: 2, ..GenerateOptions::default() };
    let [first, others @ ..] =
        ["mobius-llama-static", "mobius-llama-dynamic", "optimum-llama", "genai-llama-gqa"].map(|name| {
            let options = SessionOptions::default();
            let mut generator =
                Generator::open_for(&engine, testdata(name), &prompts, &greedy, options).unwrap();
            generator.generate(&prompts, &greedy, &mut |_| ControlFlow::Continue(())).unwrap().samples
        });
    assert!(others.iter().all(|samples| *samples == first), "{first:?} {others:?}");
}
