//! Everything that the commands do with a model, in the order in which they do it.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;
use kvscatter_onnx::check_rings;
use kvscatter_onnx::convert::{CacheType, ConvertOptions, ConvertOutcome, RingSize, WindowedCaches, convert};
use kvscatter_onnx::decoder::{CostAt, Decoder};
use kvscatter_onnx::internal::declared::{self, Declared};
use kvscatter_onnx::internal::eval::{Evaluator, Feed, NodeReport, Outcome, Placement};
use kvscatter_onnx::internal::{CachePath, random_inputs, tensor_proto};
use kvscatter_onnx::{EvalError, Graph, LowerTarget, Model, RuntimeVersion, Tensor, lower, unmerge};

use crate::bounds::{Bounds, Meter, Refusal};

const STRUCTURE: Bounds = Bounds::STRUCTURE;
const REWRITE: Bounds = Bounds::REWRITE;
const LOWER: Bounds = Bounds::LOWER;
const EVALUATION: Bounds = Bounds::EVALUATION;

/// The number of bytes that one evaluation may allocate.
const MEMORY_LIMIT: u64 = 4 << 20;

/// Saves a model under a name.
pub(crate) type Save<'s> = &'s dyn Fn(&Model, &str) -> Result<(), Refusal>;

/// Runs every pass on a model. The seed chooses options.
pub(crate) fn run(meter: &mut Meter<'_>, model: Model, seed: u64, save: Save<'_>) {
    meter.pass("write again", STRUCTURE, || write_again(&model));
    meter.pass("tensors", STRUCTURE, || tensors(&model));
    evaluate(meter, &model);

    let unmerged = meter.pass("unmerge", REWRITE, || unmerge(&model)?.ok_or(Refusal::Nothing));
    let decoder = unmerged.map_or(model, |unmerged| unmerged.model);
    inspect(meter, &decoder);
    if seed.is_multiple_of(8) {
        // This is a conversion to many slots, which takes a second.
        meter.pass("advice", EVALUATION, || match ConvertOutcome::near(&decoder, 2048) {
            ConvertOutcome::Convert { .. } => Ok(()),
            ConvertOutcome::Refused { cause, .. } => Err(cause.into()),
        });
    }
    cache_paths(meter, &decoder);
    lowered(meter, save, &decoder, "lower");
    for (name, options) in conversions(seed) {
        let converted = meter.pass(name, EVALUATION, || Ok(convert(&decoder, options)?));
        let Some(converted) = converted else { continue };
        meter.pass("save a converted model", REWRITE, || save(&converted.model, "converted.onnx"));
        meter.pass("inspect a converted model", EVALUATION, || ask(&converted.model));
        lowered(meter, save, &converted.model, "lower a converted model");
    }
}

/// Returns the options of the conversions of one file, with their names.
fn conversions(seed: u64) -> Vec<(&'static str, ConvertOptions)> {
    let usual = ConvertOptions::new(24);
    let other = match seed % 8 {
        0 => ("convert with attention kept", usual.keep_attention(true)),
        1 => ("convert for an old runtime", usual.onnxruntime(RuntimeVersion::WITH_SCATTER)),
        2 => ("convert with masks", usual.windowed(WindowedCaches::Mask)),
        3 => ("convert with small rings", usual.windowed(WindowedCaches::Ring { chunk: Some(1), rewind: 0 })),
        4 => ("convert with impossible rings", usual.windowed(huge_rings())),
        5 => ("convert to one slot", ConvertOptions::new(1)),
        6 => ("convert to many slots", ConvertOptions::new(1 << 40)),
        _ => ("convert to no slots", ConvertOptions::new(0)),
    };
    let narrow = match seed % 3 {
        0 => usual.caches(Some(CacheType::Float16), true),
        rotated => usual.caches(Some(CacheType::Int8), rotated == 1),
    };
    vec![("convert", usual), other, ("convert to a narrower type", narrow)]
}

fn huge_rings() -> WindowedCaches {
    WindowedCaches::Ring { chunk: Some(usize::MAX), rewind: usize::MAX }
}

fn write_again(model: &Model) -> Result<(), Refusal> {
    let bytes = model.to_bytes()?;
    same(Model::from_bytes(&bytes)?.to_bytes()?, bytes);
    Ok(())
}

/// Reads every initializer.
fn tensors(model: &Model) -> Result<(), Refusal> {
    model.graph()?;
    let external = model.external_data()?;
    let mut last = Ok(());
    for message in model.proto().graph.as_option().map_or(&[][..], |graph| &graph.initializer) {
        match tensor_proto::decode(message.clone(), external.as_ref()) {
            Ok(tensor) => read_back(&tensor)?,
            Err(error) => last = Err(error.into()),
        }
    }
    last
}

/// Writes a tensor in both forms and reads it again.
pub(crate) fn read_back(tensor: &Tensor) -> Result<(), Refusal> {
    same(&tensor_proto::decode(tensor_proto::encode("", tensor), None)?, tensor);
    // Only raw data can store bits of a bool other than 0 and 1.
    if tensor.element() != ElementType::Bool {
        same(&tensor_proto::decode(tensor_proto::encode_typed("", tensor), None)?, tensor);
    }
    Ok(())
}

fn evaluate(meter: &mut Meter<'_>, model: &Model) {
    let bounds = EVALUATION;
    let evaluator = meter.pass("prepare an evaluation", STRUCTURE, || Ok(Evaluator::new(model)?));
    let Some(evaluator) = evaluator.map(|it| it.memory_limit(MEMORY_LIMIT)) else { return };
    let dims = open_dims(&evaluator);
    let inputs = meter.pass("make inputs", bounds, || {
        let inputs = random_inputs::missing_inputs(&evaluator, &BTreeMap::new(), &dims, 1)?;
        let given: BTreeMap<_, _> =
            inputs.iter().step_by(2).map(|(name, tensor)| (name.as_str(), tensor)).collect();
        if let Ok(rest) = random_inputs::missing_inputs(&evaluator, &given, &dims, 2) {
            assert_eq!(rest.len() + given.len(), inputs.len());
            assert!(rest.iter().all(|(name, tensor)| inputs[name].shape() == tensor.shape()));
        }
        Ok(inputs)
    });
    let Some(inputs) = inputs else { return };
    let feeds = |donated: bool| {
        let feed =
            |tensor| if donated { Feed::Donated(Clone::clone(tensor)) } else { Feed::Borrowed(tensor) };
        inputs.iter().map(move |(name, tensor)| (name.as_str(), feed(tensor))).collect()
    };
    for (name, wrong) in wrong_feeds(&inputs) {
        meter.pass(name, bounds, || Ok(evaluator.run(wrong, Placement::Auto).map(|_| ())?));
    }
    meter.pass("evaluate", bounds, || {
        let done = evaluator.run(feeds(false), Placement::Functional)?;
        for place in [Placement::Auto, Placement::InPlace] {
            match evaluator.run(feeds(true), place) {
                Ok(other) => {
                    same(&other.outputs, &done.outputs);
                    let is_moved = |node: &&NodeReport| matches!(node.outcome, Outcome::InPlace { .. });
                    assert!(other.report.nodes.iter().filter(is_moved).all(NodeReport::is_in_place));
                }
                Err(error) => assert!(matches!(error.cause(), Some(EvalError::NotInPlace { .. })), "{error}"),
            }
        }
        Ok(())
    });
}

/// Returns inputs of which one is missing, one has the name of another, and all have the values of others.
fn wrong_feeds(inputs: &BTreeMap<String, Tensor>) -> [(&'static str, BTreeMap<&str, Feed<'_>>); 3] {
    let names = || inputs.keys().map(String::as_str);
    let fed = |tensor| Feed::Borrowed(tensor);
    let rotated = names().zip(inputs.values().cycle().skip(1).map(fed)).collect();
    let missing = names().zip(inputs.values().map(fed)).skip(1).collect();
    let renamed = ["unknown"].into_iter().chain(names().skip(1)).zip(inputs.values().map(fed)).collect();
    [
        ("evaluate without an input", missing),
        ("evaluate with an unknown input", renamed),
        ("evaluate with others", rotated),
    ]
}

fn open_dims(evaluator: &Evaluator<'_>) -> BTreeMap<String, usize> {
    let axes = evaluator.required_inputs().flat_map(|input| {
        let rank = input.shape.iter().flatten().count();
        (0..rank).filter_map(|axis| input.dim_key(axis))
    });
    axes.map(|key| (key.clone(), if key == "slots" { 16 } else { key.len() % 4 })).collect()
}

fn inspect(meter: &mut Meter<'_>, model: &Model) {
    meter.pass("graph", STRUCTURE, || {
        let graph = model.graph()?;
        Ok((graph.inputs()?.len(), graph.outputs()?.len()))
    });
    let found = meter.pass("find caches", STRUCTURE, || {
        let graph = model.graph()?;
        let decoder = Decoder::from_graph(&graph)?;
        let dims = BTreeMap::new();
        for cache in &decoder.caches {
            let at = CostAt { batch: 3, length: 1 << 40, capacity: usize::MAX, dims: &dims };
            let _ = (cache.cost(&at), cache.open_dims(&dims), cache.fixed_capacity());
            assert!(cache.axis < cache.past_shape.len());
            assert_eq!(cache.past_shape.len(), cache.known_shape.len());
        }
        Ok(())
    });
    if found.is_none() {
        return;
    }
    about(meter, "hazards", STRUCTURE, model, |_, decoder| {
        let hazards = decoder.hazards();
        for hazard in &hazards {
            let _ = (hazard.kind(), hazard.node(), hazard.cache());
        }
        texts(hazards)
    });
    about(meter, "refusals of TensorRT", STRUCTURE, model, |_, decoder| texts(decoder.tensorrt_refusals()));
    about(meter, "declared attention", EVALUATION, model, |graph, decoder| {
        let declared =
            Declared { file: "config.json".to_owned(), window: Some(4), alibi: true, context: Some(16) };
        texts(declared::hazards(model, graph, decoder, &declared))
    });
    about(meter, "rings", EVALUATION, model, |graph, decoder| {
        let _ = RingSize::of_model(model).map_err(|error| one_line(&error.to_string()));
        let rings = check_rings(model, graph, decoder).into_iter();
        rings
            .map(|ring| ring.outcome.map_or_else(|hazard| hazard.to_string(), |size| size.to_string()))
            .collect()
    });
}

/// Runs a pass that returns texts about a decoder. Each must be one line.
fn about(
    meter: &mut Meter<'_>,
    name: &str,
    bounds: Bounds,
    model: &Model,
    texts: impl FnOnce(&Graph<'_>, &Decoder<'_>) -> Vec<String>,
) {
    meter.pass(name, bounds, || {
        let graph = model.graph()?;
        let texts = texts(&graph, &Decoder::from_graph(&graph)?);
        texts.iter().for_each(|text| one_line(text));
        if texts.is_empty() { Err(Refusal::Nothing) } else { Ok(()) }
    });
}

fn texts(values: Vec<impl ToString>) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// Asks what `inspect` asks, of a model that was made here.
fn ask(model: &Model) -> Result<(), Refusal> {
    let graph = model.graph()?;
    let decoder = Decoder::from_graph(&graph)?;
    let _ = (decoder.hazards(), decoder.tensorrt_refusals(), check_rings(model, &graph, &decoder));
    Ok(())
}

fn cache_paths(meter: &mut Meter<'_>, model: &Model) {
    let paths = meter.pass("cache paths", REWRITE, || {
        let paths = CachePath::from_model(model)?;
        let mut found = Vec::new();
        for path in paths {
            match path {
                Ok(path) => found.push(path),
                Err(error) => one_line(&error.to_string()),
            }
        }
        if found.is_empty() { Err(Refusal::Nothing) } else { Ok(found) }
    });
    for path in paths.iter().flatten().take(2) {
        meter.pass("graph of a cache path", STRUCTURE, || Ok(path.model.graph().map(|_| ())?));
    }
}

fn lowered(meter: &mut Meter<'_>, save: Save<'_>, model: &Model, name: &str) {
    for target in [LowerTarget::ScatterElements, LowerTarget::ScatterNd] {
        let made = meter.pass(name, LOWER, || Ok(lower(model, target)?));
        let Some(made) = made else { continue };
        meter.pass("save a lowered model", LOWER, || {
            let graph = made.model.graph()?;
            let names: BTreeSet<_> = graph.nodes().iter().map(|node| node.op_type()).collect();
            assert!(
                made.scatters > 0 && !graph.nodes().iter().any(|node| node.is("TensorScatter")),
                "{names:?}"
            );
            save(&made.model, "lowered.onnx")
        });
    }
}

#[track_caller]
fn one_line(text: &str) {
    assert!(!text.is_empty() && !text.contains('\n'), "{text:?} is not one line");
}

#[track_caller]
pub(crate) fn same<T: PartialEq>(left: T, right: T) {
    assert!(left == right, "two results that must be equal differ");
}
