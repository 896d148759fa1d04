//! Every pass of the crate over a model. A pass may also return an error.

use std::collections::BTreeMap;

use kvscatter_onnx::convert::{check_rings, convert};
use kvscatter_onnx::decoder::{CostAt, Decoder};
use kvscatter_onnx::eval::{Evaluator, Feed, Placement};
use kvscatter_onnx::{CachePath, LowerTarget, Model, lower, random_inputs, unmerge};

type Pass = (&'static str, fn(&Model));

pub(crate) const ALL: &[Pass] = &[
    ("bytes", bytes),
    ("graph", graph),
    ("decoder", decoder),
    ("hazards", hazards),
    ("rings", rings),
    ("tensorrt", tensorrt),
    ("cache paths", cache_paths),
    ("lower to ScatterElements", |model| drop(lower(model, LowerTarget::ScatterElements))),
    ("lower to ScatterND", |model| drop(lower(model, LowerTarget::ScatterNd))),
    ("convert", |model| drop(convert(model, 64))),
    ("unmerge", |model| drop(unmerge(model))),
    ("evaluate", evaluate),
    ("files", |model| drop(model.external_files())),
    ("fingerprint", fingerprint),
];

fn fingerprint(model: &Model) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    model.save(&path).unwrap();
    if let Ok(file) = Model::load(&path).and_then(|model| model.file()) {
        let _ = file.fingerprint();
    }
}

fn bytes(model: &Model) {
    let _ = Model::from_bytes(&model.to_bytes().unwrap());
}

fn graph(model: &Model) {
    if let Ok(graph) = model.graph() {
        let _ = (graph.inputs(), graph.outputs());
    }
}

/// Finds the decoder of a model and the costs of its caches.
fn decoder(model: &Model) {
    let Ok(graph) = model.graph() else { return };
    let Ok(decoder) = Decoder::of(&graph) else { return };
    let dims = BTreeMap::new();
    for cache in &decoder.caches {
        let at = CostAt { batch: 2, length: 7, capacity: 9, dims: &dims };
        let _ = (cache.cost(&at), cache.open_dims(&dims), cache.fixed_capacity());
    }
}

fn hazards(model: &Model) {
    let Ok(graph) = model.graph() else { return };
    let Ok(decoder) = Decoder::of(&graph) else { return };
    for hazard in decoder.hazards() {
        let _ = (hazard.to_string(), hazard.kind(), hazard.cache(), hazard.node());
    }
}

fn rings(model: &Model) {
    let Ok(graph) = model.graph() else { return };
    let Ok(decoder) = Decoder::of(&graph) else { return };
    let _ = check_rings(model, &graph, &decoder);
}

fn tensorrt(model: &Model) {
    let Ok(graph) = model.graph() else { return };
    let Ok(decoder) = Decoder::of(&graph) else { return };
    for refusal in decoder.tensorrt_refusals() {
        let _ = refusal.to_string();
    }
}

fn cache_paths(model: &Model) {
    let _ = CachePath::of(model);
}

fn evaluate(model: &Model) {
    let Ok(evaluator) = Evaluator::new(model) else { return };
    let sizes = ["batch", "tokens", "past"].map(|dim| (dim.to_owned(), 1)).into();
    let Ok(inputs) = random_inputs::missing_inputs(&evaluator, &BTreeMap::new(), &sizes, 0) else { return };
    let feeds = inputs.iter().map(|(name, tensor)| (name.as_str(), Feed::Donated(tensor.clone())));
    let _ = evaluator.run(feeds.collect(), Placement::Auto);
}
