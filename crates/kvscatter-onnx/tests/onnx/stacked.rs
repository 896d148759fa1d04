//! Tests how caches with all layers are split.

use kvscatter_onnx::convert::convert;
use kvscatter_onnx::decoder::{EncoderPart, WriterStyle};
use kvscatter_onnx::{DecoderError, Dimension, Model, join_encoder, unstack};

use crate::support::{Nodes, count, counts, decoder, extend, graph_mut, insert, load, nodes_mut, testdata};

const SLOTS: usize = 16;

fn whisper(file: &str) -> Model {
    Model::load(&testdata(&format!("decoders/torchscript-2.15-whisper-stacked/{file}.onnx"))).unwrap()
}

#[test]
fn each_layer_becomes_a_cache() {
    let unstacked = unstack(&whisper("decoder")).unwrap().unwrap();
    let decoder = decoder(&unstacked.model);
    assert_eq!(unstacked.stacks.offset, "offset");
    let names: Vec<_> = decoder.inputs.iter().map(|input| input.value.name).collect();
    let own = ["k", "v"].map(|part| [0, 1].map(|layer| format!("in_n_layer_self_{part}_cache.{layer}")));
    let cross = ["k", "v"].map(|part| [0, 1].map(|layer| format!("n_layer_cross_{part}.{layer}")));
    assert_eq!(names, [vec!["tokens".to_owned()], own.concat(), cross.concat()].concat());
    let stacks = unstacked.stacks.stacks.iter().map(|stack| (stack.output.as_deref(), stack.length));
    let [k, v] = ["out_n_layer_self_k_cache", "out_n_layer_self_v_cache"];
    assert!(stacks.eq([(Some(k), Some(SLOTS)), (Some(v), Some(SLOTS)), (None, Some(5)), (None, Some(5))]));
    for cache in &decoder.caches {
        assert_eq!(cache.style, WriterStyle::Concat);
        let [batch, length, heads, size] = cache.past_shape[..] else { panic!("{:?}", cache.past_shape) };
        assert_eq!([heads, size], [4, 4].map(Dimension::Known));
        assert_eq!([batch, length], ["n_audio", "past_length"].map(Dimension::Symbolic));
    }
    let parts: Vec<_> = decoder.from_encoder().map(|(_, part)| part).collect();
    assert_eq!(parts, [[EncoderPart::Keys; 2], [EncoderPart::Values; 2]].concat());
    assert_eq!(count(&unstacked.model, "ScatterND"), 0);
}

#[test]
fn a_decoder_with_stacked_caches_is_converted() {
    let converted = convert(&whisper("decoder"), SLOTS).unwrap();
    let joined = join_encoder(&whisper("encoder"), &whisper("decoder"), &whisper("decoder")).unwrap();
    assert_eq!(counts(&converted), (2, 2, 2));
    let outputs: Vec<_> = joined.graph().unwrap().output_names().map(str::to_owned).collect();
    let taken = decoder(&converted.model);
    assert!(taken.from_encoder().map(|(input, _)| input.name).eq(&outputs), "{outputs:?}");
}

/// Lets the scatter with this number read a value that is computed from its operand, which is `$`.
fn change(number: usize, slot: usize, computed: &str) -> Model {
    let mut model = whisper("decoder");
    let graph = graph_mut(&mut model);
    let is_scatter = |index: &usize| graph.node[*index].op_type.as_deref() == Some("ScatterND");
    let index = (0..graph.node.len()).filter(is_scatter).nth(number).unwrap();
    let operand = std::mem::replace(&mut graph.node[index].input[slot], "changed".to_owned());
    insert(&mut model, index, Nodes::parse(&format!("changed = {}", computed.replace('$', &operand))));
    model
}

fn extended(nodes: &str) -> Model {
    let mut model = whisper("decoder");
    extend(&mut model, "", nodes, "other: float[a, b, c, d]");
    model
}

/// The scatters of the first layer write its keys, its values, and both back. Then come those of the second layer.
#[test]
fn another_use_of_a_layer_is_refused() {
    let keys_as_values = {
        let mut model = whisper("decoder");
        let mut scatters = nodes_mut(graph_mut(&mut model), "ScatterND").skip(2);
        let keys = scatters.next().unwrap().input[2].clone();
        scatters.next().unwrap().input[2] = keys;
        drop(scatters);
        model
    };
    let old_rows = {
        let mut model = whisper("decoder");
        let slots = nodes_mut(graph_mut(&mut model), "ScatterND").next().unwrap().input[0].clone();
        extend(&mut model, "", &format!("old = Neg({slots})"), "old: float[a, b, c]");
        model
    };
    let cases = [
        (change(0, 1, "Sub($, 1)"), "this node does not write the new rows after the old ones"),
        (change(0, 1, "Slice($, [0], [1], [1])"), "this node does not write the new rows after the old ones"),
        (change(2, 1, "Sub($, [1, 0, 0, 0])"), "this node does not write the layer back"),
        (change(6, 1, "Sub($, [0, 0, 1, 0])"), "this node does not write the layer back"),
        (change(2, 2, "Neg($)"), "no node writes the result of this node back"),
        (change(4, 0, "Neg($)"), "this node does not replace the last rows"),
        (change(0, 2, "Neg($)"), "the new rows are computed from the old ones or their shape"),
        (change(6, 0, "Neg($)"), "this node reads all layers"),
        (keys_as_values, "no node writes the result of this node back"),
        (old_rows, "another node reads the old rows"),
        (extended("other = Neg(in_n_layer_self_k_cache)"), "this node does not read one layer"),
        (extended("other = Neg(out_n_layer_self_k_cache)"), "this node does not read one layer"),
        (extended("other = Neg(n_layer_cross_v)"), "this node does not read one layer"),
        (extended("other = Gather(n_layer_cross_v, [0])"), "this node does not read one layer"),
    ];
    for (index, (model, expected)) in cases.into_iter().enumerate() {
        match unstack(&model) {
            Err(error) => match error.cause() {
                Some(DecoderError::Stacked { reason, .. }) => assert_eq!(*reason, expected, "{index}"),
                _ => panic!("{index}: {error}"),
            },
            Ok(unstacked) => panic!("{index}: {unstacked:?}"),
        }
    }
}

#[test]
fn other_decoders_are_not_changed() {
    assert!(unstack(&whisper("encoder")).unwrap().is_none());
    assert!(unstack(&load("decoders/torch-2.15-llama-static")).unwrap().is_none());
}
