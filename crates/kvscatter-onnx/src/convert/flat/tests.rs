//! Plants faults in the new nodes.

use super::sites::{FlatCache, PASS, readers};
use super::{flatten_caches, proof};
use crate::convert::pass::Subject;
use crate::convert::probes::Padding;
use crate::convert::{CacheLayout, ConvertOptions, ConvertRefusal, convert};
use crate::decoder::Decoder;
use crate::edit::Editor;
use crate::proto::GraphProto;
use crate::support::{first, graph_mut, load, maker};
use crate::{Model, OnnxError};

/// Makes the caches of a decoder flat, changes the result, and checks it.
fn checked(change: impl FnOnce(&mut GraphProto)) -> Result<String, OnnxError> {
    let model = convert(&load("optimum-llama"), 16).unwrap().model;
    let graph = model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let options = ConvertOptions::new(16).layout(CacheLayout::Flat);
    let subject =
        Subject { model: &model, graph: &graph, decoder: &decoder, options, padding: Padding::Anywhere };
    assert!(flatten_caches(&subject).unwrap().is_some());
    let mut fold = subject.small_step().unwrap();
    let caches = decoder.caches.iter().map(|cache| FlatCache::new(cache, &mut fold));
    let caches = caches.collect::<Result<Vec<_>, _>>().unwrap();
    let (readers, _) = readers(&graph, &caches, &mut fold).unwrap();
    let mut flat: Model = model.clone();
    let mut editor = Editor::new(flat.proto_mut()).unwrap();
    let rows: Vec<_> = caches.iter().map(|cache| cache.write(&mut editor).unwrap()).collect();
    readers.iter().for_each(|reader| reader.write(&mut editor).unwrap());
    editor.finish().unwrap();
    change(graph_mut(&mut flat));
    let operators = &flat.proto().opset_import;
    proof::check(&graph, &flat.graph().unwrap(), (&caches, &rows), &readers, &mut fold, operators)
}

#[test]
fn other_nodes_are_refused() {
    type Change = (&'static str, fn(&mut GraphProto));
    let changes: [Change; 4] = [
        ("rows in another order", |graph| {
            let rows = graph.node[maker(graph, "present.0.key")].input[1].clone();
            let flat = maker(graph, &rows);
            let transposed = maker(graph, &graph.node[flat].input[0]);
            graph.node[transposed].attribute[0].ints = vec![0, 2, 3, 1];
        }),
        ("queries in another order", |graph| {
            let attention = first(graph, "Attention");
            let flat = maker(graph, &graph.node[attention].input[0]);
            let transposed = maker(graph, &graph.node[flat].input[0]);
            graph.node[transposed].attribute[0].ints = vec![0, 2, 3, 1];
        }),
        ("values as keys", |graph| {
            let attention = first(graph, "Attention");
            graph.node[attention].input.swap(1, 2);
        }),
        ("no mask", |graph| {
            let attention = first(graph, "Attention");
            graph.node[attention].input[3].clear();
        }),
    ];
    checked(|_| {}).unwrap();
    for (name, change) in changes {
        let Err(error) = checked(change) else { panic!("{name}") };
        let is_named =
            matches!(error.cause(), Some(ConvertRefusal::PassDiffers { pass, .. }) if *pass == PASS);
        assert!(is_named, "{name}: {error}");
    }
}
