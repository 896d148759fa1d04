//! Where a run's inputs come from.

use std::collections::BTreeMap;

use kvscatter_onnx::eval::Evaluator;
use kvscatter_onnx::test_dir::DataSet;
use kvscatter_onnx::{Tensor, generate};

use super::{Run, unique};
use crate::error::Error;
use crate::files;
use crate::values::Summary;

/// An input of the model.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) summary: Summary,
    pub(super) origin: Origin,
    /// Until it is given to the evaluation.
    pub(super) tensor: Option<Tensor>,
    /// Where its values lie, once it is given.
    pub(super) address: Option<usize>,
}

/// Who made an input.
pub(super) enum Origin {
    File(String),
    Seed(u64),
}

/// The inputs given on the command line, and generated ones for the rest.
pub(super) fn gather(args: &Run, evaluator: &Evaluator<'_>) -> Result<Vec<Input>, Error> {
    let mut given = read_given(args, evaluator)?;
    let missing = evaluator.required_inputs().any(|input| !given.contains_key(input.name));
    let mut generated = if missing {
        let dims = dims(args, evaluator, &given);
        generate::inputs_within(evaluator, &dims, args.seed, generate::DEFAULT_MEMORY_LIMIT)
            .map_err(open_size)?
    } else {
        BTreeMap::new()
    };
    let mut inputs = Vec::new();
    for input in evaluator.inputs() {
        if let Some((tensor, origin)) = given.remove(input.name) {
            inputs.push(Input::new(input.name, tensor, origin));
        } else if let Some(tensor) = generated.remove(input.name) {
            inputs.push(Input::new(input.name, tensor, Origin::Seed(args.seed)));
        }
    }
    Ok(inputs)
}

/// The inputs of a data set, in the graph's order.
pub(super) fn of_data_set(set: &DataSet, evaluator: &Evaluator<'_>) -> Result<Vec<Input>, Error> {
    let (want, got) = (evaluator.inputs().len(), set.inputs.len());
    if got > want {
        return Err(kvscatter_onnx::Error::TestFileCount { what: "input", want, got }.into());
    }
    let tensors = set.read_inputs()?;
    let files = set.inputs.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy());
    let named = evaluator.inputs().iter().zip(tensors).zip(files);
    Ok(named
        .map(|((input, tensor), file)| Input::new(input.name, tensor, Origin::File(file.into_owned())))
        .collect())
}

/// The library's complaint in the command's own words.
fn open_size(error: kvscatter_onnx::Error) -> Error {
    match error {
        kvscatter_onnx::Error::DimMissing { name, dim } => Error::OpenSize { name, dim },
        error => error.into(),
    }
}

fn read_given(args: &Run, evaluator: &Evaluator<'_>) -> Result<BTreeMap<String, (Tensor, Origin)>, Error> {
    unique("--input", &args.inputs)?;
    let mut given = BTreeMap::new();
    for asked in &args.inputs {
        let name = asked.name.clone();
        let Some(input) = evaluator.inputs().iter().find(|input| input.name == name) else {
            return Err(kvscatter_onnx::Error::InputUnknown { name }.into());
        };
        // A .npy file may tell no more than the type's width, and the model knows the type.
        let tensor = files::read(&asked.location, Some(input.element))?;
        given.insert(name, (tensor, Origin::File(asked.location.to_string())));
    }
    Ok(given)
}

/// The sizes of open dimensions: as asked for, and else as in the inputs that are given.
fn dims(
    args: &Run,
    evaluator: &Evaluator<'_>,
    given: &BTreeMap<String, (Tensor, Origin)>,
) -> BTreeMap<String, usize> {
    let mut dims: BTreeMap<_, _> = args.dims.iter().map(|dim| (dim.name.clone(), dim.size)).collect();
    for input in evaluator.required_inputs() {
        let shape = given.get(input.name).map(|(tensor, _)| tensor.shape());
        for (axis, &size) in shape.into_iter().flatten().enumerate() {
            if let Some(key) = input.dim_key(axis) {
                dims.entry(key).or_insert(size);
            }
        }
    }
    dims
}

impl Input {
    fn new(name: &str, tensor: Tensor, origin: Origin) -> Self {
        Self {
            name: name.to_owned(),
            summary: Summary::of(&tensor),
            origin,
            tensor: Some(tensor),
            address: None,
        }
    }
}
