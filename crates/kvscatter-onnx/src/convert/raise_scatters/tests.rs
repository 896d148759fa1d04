//! Compares whole caches, and what is read with them, before and after a scatter became `TensorScatter`.
#![expect(clippy::arithmetic_side_effects, reason = "the sizes of these decoders are small")]

use kvscatter::ElementType;
use kvscatter::spec::onnx::TensorScatter;

use super::step::ScatteredDecoder;
use super::write::Write;
use super::{proof, proved};
use crate::convert::refusal::ConvertRefusal;
use crate::decoder::Decoder;
use crate::fold::{Fold, Value, Values, to_float};
use crate::support::{graph_mut, load, nodes_mut};
use crate::{Graph, Model, opset};

/// Returns the real exports in operator set 24.
fn exports() -> [Model; 2] {
    ["decoders/torch-2.15-llama-static", "decoders/torchscript-2.15-llama-static"].map(|name| {
        let mut model = load(name);
        opset::upgrade(model.proto_mut(), opset::NEWEST).unwrap();
        model
    })
}

/// Returns the writes of a decoder, and the setting of its steps.
fn found<'m>(graph: &Graph<'m>, decoder: &Decoder<'m>) -> (Vec<Write<'m>>, ScatteredDecoder<'m>) {
    let writes: Vec<_> = decoder.caches.iter().map(|cache| Write::new(graph, cache).unwrap()).collect();
    let setting = ScatteredDecoder::new(graph, decoder, &writes[0], 16).unwrap();
    (writes, setting)
}

/// Paints all caches and their new rows with numbers that all differ.
fn paint<'m>(writes: &[Write<'m>], fold: &mut Fold<'m>) {
    let mut first = 0;
    for name in writes.iter().flat_map(|write| [write.past, write.rows.0]) {
        let shape = fold.shape(name).unwrap().to_vec();
        let end = first + shape.iter().product::<usize>();
        let numbers = Values::Floats((first..end).map(to_float).collect());
        fold.set(name, Value::new(ElementType::Float32, shape, Some(numbers)).unwrap()).unwrap();
        first = end;
    }
}

/// Returns the cache that `TensorScatter` writes, as the core writes it.
fn written(graph: &Graph<'_>, fold: &mut Fold<'_>, write: &Write<'_>) -> Value {
    let (scatter, _) = graph.producer(write.present).unwrap();
    assert!(scatter.is("TensorScatter") && scatter.input(0) == Some(write.past));
    let [mut past, update, indices] =
        [0, 1, 2].map(|slot| fold.value(scatter.input(slot).unwrap()).unwrap().clone());
    let prepared = TensorScatter::new().axis(scatter.int("axis").unwrap().unwrap());
    let prepared = prepared.prepare(ElementType::Float64, past.shape.as_slice(), update.shape.as_slice());
    let Some(Values::Floats(cache)) = &mut past.data else { panic!("painted") };
    let done =
        prepared.unwrap().write(cache, update.as_floats().unwrap(), indices.as_ints().unwrap()).unwrap();
    assert_eq!(done.skipped, 0);
    past
}

/// Returns the elements of a sample.
fn row(value: &Value, sample: usize) -> &[f64] {
    let elements = value.as_floats().unwrap();
    elements.chunks(elements.len() / value.shape[0]).nth(sample).unwrap()
}

#[test]
fn whole_caches_of_ragged_batches_are_those_of_the_export() {
    for model in exports() {
        let graph = model.graph().unwrap();
        let decoder = Decoder::from_graph(&graph).unwrap();
        let (writes, setting) = found(&graph, &decoder);
        let (raised, ..) = proved(&model, &graph, &setting, &writes).unwrap();
        let raised_graph = raised.graph().unwrap();
        for step in setting.steps() {
            let mut after = Fold::new(&raised_graph, None);
            setting.feed_raised(&step, "write_indices", &mut after).unwrap();
            paint(&writes, &mut after);
            for (sample, start) in setting.samples(&step) {
                let mut before = Fold::new(&graph, None);
                setting.feed_exported(&step, start, &mut before).unwrap();
                paint(&writes, &mut before);
                for write in &writes {
                    let present = written(&raised_graph, &mut after, write);
                    let exported = before.value(write.present).unwrap();
                    assert_eq!(exported.shape, present.shape);
                    assert_eq!(row(exported, sample.index), row(&present, sample.index), "{sample:?}");
                }
            }
        }
    }
}

#[test]
fn a_fault_in_the_masks_or_angles_of_samples_is_found() {
    let [model, _] = exports();
    let graph = model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let (writes, setting) = found(&graph, &decoder);
    let compared = |raised: &Model| {
        let (step, raised_graph) = (&setting.steps()[0], raised.graph().unwrap());
        let mut after = Fold::new(&raised_graph, None);
        setting.feed_raised(step, "write_indices", &mut after).unwrap();
        setting.samples(step).try_for_each(|(sample, start)| {
            let mut before = Fold::new(&graph, None);
            setting.feed_exported(step, start, &mut before).unwrap();
            proof::check_values(
                &graph,
                &raised_graph,
                &super::ExportedNames::new(),
                sample,
                [&mut before, &mut after],
            )
        })
    };
    let (raised, ..) = proved(&model, &graph, &setting, &writes).unwrap();
    compared(&raised).unwrap();
    for (op_type, other) in [("LessOrEqual", "Less"), ("Cos", "Sin"), ("And", "Or")] {
        let mut faulty = raised.clone();
        let node = nodes_mut(graph_mut(&mut faulty), op_type).next().unwrap();
        node.op_type = Some(other.to_owned());
        let error = compared(&faulty).unwrap_err();
        assert!(matches!(error.cause(), Some(ConvertRefusal::LengthDependence { .. })), "{op_type}: {error}");
    }
}
