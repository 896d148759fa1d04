//! Real exports, probed as the conversion probes them.

use std::path::PathBuf;

use kvscatter::ElementType;

use super::{Fold, Value, Values};
use crate::{Error, FoldError, Graph, Model};

const BATCH: usize = 2;
const PAST: usize = 7;
const NEW: usize = 3;

fn load(name: &str) -> Model {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata")).join(name);
    Model::load(&folder.join("model.onnx")).unwrap()
}

/// Two samples with seven positions in the past and three new ones; the second sample is padded by two on the left.
fn probe<'g, 'm>(graph: &'g Graph<'m>, external: Option<&'g crate::ExternalData>) -> Fold<'g, 'm> {
    let mut fold = Fold::new(graph, external);
    let ints =
        |shape: [usize; 2], values| Value::new(ElementType::Int64, shape.to_vec(), Some(values)).unwrap();
    for input in graph.inputs().unwrap() {
        let value = match input.name {
            "attention_mask" => {
                let mut mask = vec![1; BATCH * (PAST + NEW)];
                mask[PAST + NEW..][..2].fill(0);
                ints([BATCH, PAST + NEW], Values::Ints(mask))
            }
            "position_ids" => ints([BATCH, NEW], Values::Ints(vec![7, 8, 9, 5, 6, 7])),
            "input_ids" => Value::shaped(ElementType::Int64, vec![BATCH, NEW]).unwrap(),
            _ => Value::shaped(input.element, vec![BATCH, 2, PAST, 16]).unwrap(),
        };
        fold.set(input.name, value).unwrap();
    }
    fold
}

/// The values that nodes of this operator read as this input, which an operator of that kind may have made.
fn inputs_of<'m>(graph: &Graph<'m>, op_type: &str, slot: usize) -> Vec<&'m str> {
    graph.nodes().iter().filter(|node| node.is(op_type)).filter_map(|node| node.input(slot)).collect()
}

fn maker<'g, 'm>(graph: &'g Graph<'m>, value: &str) -> &'g crate::Node<'m> {
    graph.nodes().iter().find(|node| node.proto().output.iter().any(|output| output == value)).unwrap()
}

#[test]
fn an_additive_mask_is_known_to_the_last_bit() {
    let model = load("optimum-llama");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    let scores = inputs_of(&graph, "Softmax", 0);
    assert_eq!(scores.len(), 2);
    for sum in scores {
        let add = maker(&graph, sum);
        assert!(add.is("Add"));
        let mask = fold.value(add.input(1).unwrap()).unwrap();
        assert_eq!((mask.element, mask.shape.as_slice()), (ElementType::Float32, &[2, 1, 3, 10][..]));
        let drawn: String = mask
            .as_floats()
            .unwrap()
            .iter()
            .map(|&value| match value {
                0.0 => '.',
                f64::NEG_INFINITY => '#',
                other => panic!("{other}"),
            })
            .collect();
        let want = "........##".to_owned()
            + ".........#"
            + ".........."
            + "##......##"
            + "##.......#"
            + "##........";
        assert_eq!(drawn, want);
        assert_eq!(fold.shape(sum).unwrap(), [2, 4, 3, 10]);
    }
}

#[test]
fn a_boolean_mask_is_known() {
    let model = load("mobius-llama-dynamic");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    let masks = inputs_of(&graph, "Attention", 3);
    assert_eq!(masks.len(), 2);
    for name in masks {
        let mask = fold.value(name).unwrap();
        assert_eq!((mask.element, mask.shape.as_slice()), (ElementType::Bool, &[2, 1, 3, 10][..]));
        let row = |first: bool| [[first; 2].as_slice(), &[true; 8]].concat();
        let want = [row(true), row(true), row(true), row(false), row(false), row(false)].concat();
        assert_eq!(mask.as_bools().unwrap(), want);
    }
}

#[test]
fn every_shape_of_a_decoder_is_known() {
    for (name, values) in [("optimum-llama", 625), ("mobius-llama-dynamic", 59)] {
        let model = load(name);
        let graph = model.graph().unwrap();
        let mut fold = probe(&graph, None);
        let mut count = 0;
        for output in graph.nodes().iter().flat_map(|node| &node.proto().output) {
            fold.shape(output).unwrap();
            count += 1;
        }
        assert_eq!(count, values, "{name}");
        for output in graph.output_names() {
            let want: &[usize] = if output == "logits" { &[2, 3, 256] } else { &[2, 2, 10, 16] };
            assert_eq!(fold.shape(output).unwrap(), want, "{output}");
        }
    }
}

#[test]
fn weights_are_not_read_for_shapes() {
    // Every weight of this model lies in another file, and none is given.
    let model = load("mobius-llama-dynamic");
    let graph = model.graph().unwrap();
    let mut fold = probe(&graph, None);
    assert_eq!(fold.shape("logits").unwrap(), [2, 3, 256]);
    assert_eq!(fold.value("logits").unwrap().data, None);
    assert!(matches!(
        fold.value("model.rotary_emb.cos_cache").unwrap_err().root(),
        Error::ExternalWithoutFolder { .. }
    ));
}

#[test]
fn what_is_set_cuts_the_graph() {
    let model = load("optimum-llama");
    let graph = model.graph().unwrap();
    let mut fold = Fold::new(&graph, None);
    let error = fold.value("/model/Gather_output_0").unwrap_err();
    assert!(
        matches!(error.root(), Error::InputMissing { name } if name == "past_key_values.0.key"),
        "{error}"
    );
    let ints = |values: Vec<i64>| Value::new(ElementType::Int64, vec![], Some(Values::Ints(values))).unwrap();
    fold.set("/model/Gather_output_0", ints(vec![4])).unwrap();
    fold.set("/model/Gather_1_output_0", ints(vec![2])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [4, 5]);
    fold.set("/model/Gather_output_0", ints(vec![9])).unwrap();
    assert_eq!(fold.value("/model/Range_output_0").unwrap().as_ints().unwrap(), [9, 10]);
    assert!(matches!(fold.value("nothing").unwrap_err(), Error::ValueMissing { name } if name == "nothing"));
    let mismatched = Value { element: ElementType::Int64, shape: vec![2], data: Some(Values::Ints(vec![1])) };
    let error = fold.set("input_ids", mismatched).unwrap_err();
    assert!(matches!(error.root(), Error::Fold(FoldError::Values { got: 1, .. })), "{error}");
}
