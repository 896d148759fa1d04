//! Tests the decoders of encoder-decoders.

use kvscatter_onnx::convert::{ConvertRefusal, convert};
use kvscatter_onnx::decoder::{EncoderPart, InputRole};
use kvscatter_onnx::{EncoderError, Model, join_encoder, unmerge};

use crate::support::{
    self, Nodes, assert_refused, counts, declare, decoder, first, graph_mut, insert, maker, reader, reroute,
};

const MAX_SEQ: usize = 24;
const T5: &str = "optimum-0.1-t5";
const MARIAN: &str = "optimum-0.1-marian";

fn load(folder: &str) -> Model {
    let path = support::testdata(&format!("decoders/{folder}/decoder_with_past_model.onnx"));
    Model::load(&path).unwrap()
}

/// Returns the inputs that an encoder computes.
fn from_encoder(model: &Model) -> Vec<(String, EncoderPart)> {
    decoder(model).from_encoder().map(|(value, part)| (value.name.to_owned(), part)).collect()
}

/// The parts of a decoder with two layers, as Optimum names them.
fn parts() -> Vec<(String, EncoderPart)> {
    let mut parts = vec![("encoder_attention_mask".to_owned(), EncoderPart::Mask)];
    for layer in 0..2 {
        for (name, part) in [("key", EncoderPart::Keys), ("value", EncoderPart::Values)] {
            parts.push((format!("past_key_values.{layer}.encoder.{name}"), part));
        }
    }
    parts
}

#[test]
fn inputs_from_an_encoder_stay_inputs() {
    for folder in [T5, MARIAN] {
        let model = load(folder);
        assert_eq!(from_encoder(&model), parts());
        let converted = convert(&model, MAX_SEQ).unwrap();
        assert_eq!((converted.report.caches.count, counts(&converted)), (4, (2, 2, 2)));
        assert_eq!(from_encoder(&converted.model), parts());
        assert!(decoder(&converted.model).caches.iter().all(|cache| cache.is_static()));
        assert!(converted.report.inputs.unknown.is_empty());
    }
}

/// The keys and values of the first step are outputs of a merged decoder, and the states are inputs. Neither is needed.
#[test]
fn a_merged_decoder_loses_the_states_of_the_encoder() {
    let path = support::testdata(&format!("decoders/{MARIAN}/decoder_model_merged.onnx"));
    let merged = Model::load(&path).unwrap();
    let unmerged = unmerge(&merged).unwrap().unwrap().model;
    let states = ("encoder_hidden_states".to_owned(), EncoderPart::States);
    assert!(from_encoder(&unmerged).contains(&states));
    let converted = convert(&unmerged, MAX_SEQ).unwrap();
    assert_eq!(from_encoder(&converted.model), parts());
}

#[test]
fn keys_that_every_step_computes_from_the_states_are_no_cache() {
    // One value is both keys and values, or is projected first.
    for (ty, keys) in [
        ("float[batch_size, encoder_length, 64]", "Identity(states)"),
        ("float[batch_size, encoder_length, 64]", "MatMul(states, 0.0[64, 64])"),
    ] {
        let mut model = support::load("optimum-llama");
        let tokens = "/model/embed_tokens/Gather_output_0";
        let nodes = format!(
            "keys = {keys}
            turned = Transpose(keys) {{perm=[0, 2, 1]}}
            seen = MatMul(Softmax(MatMul({tokens}, turned)), keys)"
        );
        support::extend(&mut model, &format!("states: {ty}"), &nodes, "");
        assert_eq!(from_encoder(&model), [("states".to_owned(), EncoderPart::States)]);
        assert_eq!(convert(&model, MAX_SEQ).unwrap().report.caches.count, 4);
    }
    assert_eq!(from_encoder(&support::load("optimum-llama")), []);
}

/// T5 has a number for each distance, which is no multiple of the distance.
#[test]
fn a_bias_by_distance_becomes_a_table() {
    let converted = convert(&load(T5), MAX_SEQ).unwrap();
    let bias = converted.model.metadata("kvscatter.bias").unwrap();
    assert_eq!(
        bias,
        "each head adds a number for the distance write_indices[b] + i - j to the score of visible slot j"
    );
    let graph = converted.model.graph().unwrap();
    let masks: Vec<_> =
        graph.nodes().iter().filter(|node| node.is("Attention")).filter_map(|node| node.input(3)).collect();
    // The last two attentions are those of the decoder. Both layers share one mask.
    assert_eq!(masks.len(), 2);
    assert_eq!(masks[0], masks[1]);
}

/// The bias grows with the length of the past, at once or beyond some length.
#[test]
fn a_bias_that_depends_on_more_than_the_distance_is_refused() {
    let mut model = load(T5);
    let graph = graph_mut(&mut model);
    let table = first(graph, "Log");
    let buckets = graph.node[table].output[0].clone();
    let picks = graph.node.iter().rposition(|node| {
        node.op_type.as_deref() == Some("Gather") && node.input[0].contains("relative_attention_bias")
    });
    let rows = graph.node[picks.unwrap()].output[0].clone();
    assert!(maker(graph, &buckets) < picks.unwrap());
    let length = "Cast(Shape(past_key_values.0.decoder.key) {start=2, end=3}) {to=float}";
    for fault in [
        format!("biased = Mul($, Add(Mul({length}, 0.01), 1.0))"),
        format!("biased = Mul($, Add(Cast(Greater({length}, 13.0)) {{to=float}}, 1.0))"),
    ] {
        let mut faulty = model.clone();
        let graph = graph_mut(&mut faulty);
        let reader = reader(graph, &rows);
        reroute(graph, &rows, "biased");
        insert(&mut faulty, reader, Nodes::parse(&fault.replace('$', &rows)));
        assert_refused!(convert(&faulty, MAX_SEQ), ConvertRefusal::Bias { .. });
    }
}

/// Another mask may mark padding, and one of which only the shape is read hides nothing. A known length is no obstacle.
#[test]
fn the_mask_of_an_encoder_is_found_by_its_name() {
    let role = |model: &Model, name: &str| {
        let inputs = decoder(model).inputs;
        inputs.into_iter().find(|input| input.value.name == name).unwrap().role
    };
    let mask = InputRole::Encoder(EncoderPart::Mask);
    let mut fixed = load(T5);
    support::fix_dim(&mut fixed, "encoder_sequence_length", 9);
    assert_eq!(role(&fixed, "encoder_attention_mask"), mask);
    let mut renamed = load(T5);
    let graph = graph_mut(&mut renamed);
    let declared = graph.input.iter_mut().filter_map(|input| input.name.as_mut());
    let read = graph.node.iter_mut().flat_map(|node| &mut node.input);
    for name in declared.chain(read).filter(|name| *name == "encoder_attention_mask") {
        "encoder_padding_mask".clone_into(name);
    }
    assert_eq!(role(&renamed, "encoder_padding_mask"), InputRole::Other);
    let mut unread = load(T5);
    insert(&mut unread, 0, Nodes::parse("ones = Cast(Equal(Shape(encoder_attention_mask), 0)) {to=int64}"));
    let graph = graph_mut(&mut unread);
    for name in graph.node.iter_mut().skip(3).flat_map(|node| &mut node.input) {
        if name == "encoder_attention_mask" {
            "ones".clone_into(name);
        }
    }
    assert_eq!(role(&unread, "encoder_attention_mask"), InputRole::Other);
    "input_ids".clone_into(&mut graph_mut(&mut unread).node[0].input[0]);
    assert_eq!(role(&unread, "encoder_attention_mask"), InputRole::Unread);
}

/// Older versions of Optimum give keys and values another symbol than the mask and the states.
#[test]
fn states_whose_shape_alone_is_read_have_the_length_of_the_mask() {
    for (length, role) in [
        ("encoder_sequence_length", InputRole::Encoder(EncoderPart::States)),
        ("other_length", InputRole::Other),
    ] {
        let mut model = load(T5);
        for (name, _) in parts().into_iter().skip(1) {
            declare(&mut model, &format!("{name}: float[batch_size, 4, encoder_sequence_length_out, 4]"));
        }
        let states = format!("states: float[batch_size, {length}, 16]");
        support::extend(&mut model, &states, "size = Shape(states)", "size: int64[3]");
        let states = decoder(&model).inputs.into_iter().find(|input| input.value.name == "states");
        assert_eq!(states.unwrap().role, role, "{length}");
        match role {
            InputRole::Other => assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::InputShape { .. }),
            _ => assert_eq!(convert(&model, MAX_SEQ).unwrap().report.caches.count, 4),
        }
    }
}

/// Returns Optimum's encoder, its decoder of the first step, and its decoder with a past.
fn models(folder: &str, first: &str) -> [Model; 3] {
    ["encoder_model.onnx", first, "decoder_with_past_model.onnx"]
        .map(|file| Model::load(&support::testdata(&format!("decoders/{folder}/{file}"))).unwrap())
}

#[test]
fn an_encoder_computes_all_that_a_decoder_takes() {
    for (folder, first) in [(T5, "decoder_model.onnx"), (MARIAN, "decoder_model_merged.onnx")] {
        let [encoder, first, decoder] = models(folder, first);
        let joined = join_encoder(&encoder, &first, &decoder).unwrap();
        let (before, after) = (encoder.graph().unwrap(), joined.graph().unwrap());
        assert!(before.input_names().eq(after.input_names()));
        // The mask is an input of the encoder.
        assert!(after.output_names().eq(parts().iter().skip(1).map(|(name, _)| name.as_str())), "{folder}");
        // Keys and values of two layers are a product, a shape and a permutation each, and the states are one value.
        let products = |model: &Model| support::count(model, "MatMul");
        assert_eq!(products(&joined), products(&encoder) + 4);
        let of_merged = join_encoder(&encoder, &first, &first);
        assert_eq!(of_merged.is_ok(), folder == MARIAN);
    }
}

#[test]
fn an_encoder_of_another_form_is_refused() {
    let [encoder, first, decoder] = models(T5, "decoder_model.onnx");
    assert_refused!(join_encoder(&encoder, &first, &support::load("optimum-llama")), EncoderError::Nothing);
    assert_refused!(join_encoder(&encoder, &decoder, &decoder), EncoderError::NotComputed { input } if input.ends_with("encoder.key"));
    let mut without_states = encoder.clone();
    graph_mut(&mut without_states).output.clear();
    let refused = join_encoder(&without_states, &first, &decoder);
    assert_refused!(refused, EncoderError::States { count: 0 });
    // The keys of the first layer depend on the tokens.
    let mut dependent = first.clone();
    let graph = graph_mut(&mut dependent);
    let turns = maker(graph, "present.0.encoder.key");
    graph.node[turns].input[0] = "scaled".to_owned();
    insert(&mut dependent, turns, Nodes::parse("scaled = Cast(input_ids) {to=float}"));
    assert_refused!(join_encoder(&encoder, &dependent, &decoder), EncoderError::Depends { input, .. } if input == "input_ids");
}
