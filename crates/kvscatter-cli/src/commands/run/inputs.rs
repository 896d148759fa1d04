//! Collects the inputs of a run.

use std::collections::BTreeMap;

use kvscatter_onnx::internal::test_dir::DataSet;
use kvscatter_onnx::{EvalError, Graph, OnnxError, Tensor};

use super::args::Run;
use super::record::{Input, Origin};
use super::subject::Subject;
use crate::commands::named::unique;
use crate::error::CommandError;
use crate::files;

/// Returns the inputs of the command line, and generated values for all other inputs.
pub(super) fn gather(args: &Run, subject: &Subject<'_>) -> Result<Vec<Input>, CommandError> {
    let mut given = read_given(args, subject)?;
    let tensors = given.iter().map(|(name, (tensor, _))| (name.as_str(), tensor)).collect();
    let dims = args.dims.iter().map(|dim| (dim.name.clone(), dim.size)).collect();
    let mut generated = subject.missing_inputs(&tensors, &dims, args.seed)?;
    let mut inputs = Vec::new();
    for input in subject.inputs() {
        if let Some((tensor, origin)) = given.remove(input.name) {
            inputs.push(Input::new(input.name, tensor, origin));
        } else if let Some(tensor) = generated.remove(input.name) {
            inputs.push(Input::new(input.name, tensor, Origin::Seed(args.seed)));
        }
    }
    Ok(inputs)
}

/// Returns the inputs of a data set in the order of the graph.
pub(super) fn of_data_set(set: &DataSet, graph: &Graph<'_>) -> Result<Vec<Input>, CommandError> {
    let tensors = set.read_inputs(graph)?;
    let files = set.inputs.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    let named = tensors.into_iter().zip(files);
    Ok(named
        .map(|((name, tensor), file)| Input::new(&name, tensor, Origin::File(file.into_owned())))
        .collect())
}

fn read_given(args: &Run, subject: &Subject<'_>) -> Result<BTreeMap<String, (Tensor, Origin)>, CommandError> {
    unique("--input", args.inputs.iter().map(|input| &input.name))?;
    unique("--dim", args.dims.iter().map(|dim| &dim.name))?;
    let inputs: BTreeMap<_, _> = subject.inputs().iter().map(|input| (input.name, input)).collect();
    let mut given = BTreeMap::new();
    for asked in &args.inputs {
        let name = asked.name.clone();
        let Some(input) = inputs.get(name.as_str()) else {
            return Err(OnnxError::from(EvalError::InputUnknown { name }).into());
        };
        // A .npy file may give only the width of the type. The model has the type.
        let tensor = files::read(&asked.location, Some(input.element))?;
        given.insert(name, (tensor, Origin::File(asked.location.to_string())));
    }
    Ok(given)
}
