//! Loads a model's file as a plan.

use std::path::Path;
use std::sync::Arc;

use kvscatter_onnx::ModelFile;
use kvscatter_session::LoadOptions;
use tract_onnx::pb::{GraphProto, ModelProto};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::*;

use super::session::TractSession;
use super::weights::Weights;
use super::{fuse, prune, rotary};
use crate::lay_out::lay_out;

/// Loads a model with its external data.
pub(super) fn load(file: &ModelFile, options: LoadOptions) -> TractResult<TractSession> {
    let mut onnx = tract_onnx::onnx();
    onnx.provider = Arc::new(Weights::new(file)?);
    crate::register(&mut onnx);
    let mut proto = onnx.proto_model_for_path(file.path())?;
    let graph = proto.graph.as_mut().context("the file has no graph")?;
    ensure!(!graph.output.is_empty(), "the graph has no output");
    prune::prune(graph);
    prune::check(graph, &onnx)?;
    fuse::fuse(graph, &mut onnx);
    prune::prune(graph);
    rotary::pick_rows(graph);
    let outputs = graph.output.iter().map(|output| output.name.clone()).collect();
    let model = parse(&onnx, &proto, file.path())?;
    let inputs = model.inputs.iter().map(|outlet| model.node(outlet.node).name.clone()).collect();
    let executor = options.threads.filter(|threads| *threads > 1).map(multithread::Executor::multithread);
    let run = RunOptions { executor, ..RunOptions::default() };
    let mut model = model.into_typed()?.into_decluttered()?;
    lay_out(&mut model)?;
    let plan = model.into_optimized()?.into_runnable_with_options(&run)?;
    TractSession::new(&plan, inputs, outputs)
}

/// Parses the model, and gives a name to each dimension that has none.
fn parse(onnx: &tract_onnx::Onnx, proto: &ModelProto, path: &Path) -> TractResult<InferenceModel> {
    let folder = path.parent().and_then(Path::to_str).context("the folder's name is not UTF-8")?;
    let parsed = onnx.parse(proto, Some(folder))?;
    if let Some(input) = parsed.unresolved_inputs.first() {
        bail!("no node, input or initializer is named {input:?}");
    }
    let mut model = parsed.model;
    // The names are counted here because `new_with_prefix` tries every number from 0 for each name.
    let mut names = (0_usize..).map(|number| format!("dim_{number}"));
    for index in 0..model.inputs.len() {
        let mut fact = model.input_fact(index)?.clone();
        if fact.shape.is_open() {
            let name = proto.graph.as_ref().and_then(|graph: &GraphProto| graph.input.get(index));
            bail!("input {:?} does not declare its rank", name.map_or("", |input| &input.name));
        }
        let known = fact.shape.dims().map(|dim| dim.concretize());
        let mut unnamed = || {
            let name = names.find(|name| model.symbols.get(name).is_none());
            TDim::from(model.symbols.sym(&name.unwrap_or_default()))
        };
        let dims = known.map(|dim| dim.unwrap_or_else(&mut unnamed));
        let dims: TVec<TDim> = dims.collect();
        fact.shape = ShapeFactoid::from(dims);
        model.set_input_fact(index, fact)?;
    }
    Ok(model)
}
