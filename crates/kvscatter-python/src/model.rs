//! ONNX models, evaluated by `kvscatter-onnx`.
//!
//! Values are exchanged as ONNX's raw data: dense, little-endian, with packed 4-bit elements. The Python
//! module converts them from and to NumPy arrays.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::internal::eval::{Evaluation, Evaluator, Feed, Placement};
use kvscatter_onnx::{Data, EvalError, Model, NodeLabel, OnnxError, Tensor, TensorProtoError};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use self_cell::self_cell;

use crate::error::ArgumentNames;
use crate::lazy::Lazy;

self_cell!(
    /// A model with the evaluator that borrows it.
    struct EvaluableModel {
        owner: Model,
        #[covariant]
        dependent: Evaluator,
    }
);

/// A model in which every node can be evaluated.
#[pyclass(frozen, module = "kvscatter._native")]
pub(crate) struct OnnxModel(EvaluableModel);

/// The values of an input.
#[derive(FromPyObject)]
enum InputValues<'py> {
    Bytes(PyReadonlyArray1<'py, u8>),
    Strings(Vec<Vec<u8>>),
}

/// The values of an output.
#[derive(IntoPyObject)]
enum OutputValues<'py> {
    Bytes(Bound<'py, PyArray1<u8>>),
    Strings(Vec<Bound<'py, PyBytes>>),
}

#[pymethods]
impl OnnxModel {
    /// Reads a model from bytes. Such a model has no folder for external data.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        py.detach(|| Self::prepare(Model::from_bytes(bytes)?)).map_err(|error| raise(py, error))
    }

    /// Reads a model from a file, with its external data in the same folder.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| Self::prepare(Model::load(&path)?)).map_err(|error| raise(py, error))
    }

    /// Returns the inputs in order: their names, and whether they are required because they have no
    /// initializer.
    fn inputs(&self) -> Vec<(&str, bool)> {
        let evaluator = self.0.borrow_dependent();
        let is_required = |name: &str| evaluator.required_inputs().any(|input| input.name == name);
        evaluator.inputs().iter().map(|input| (input.name, is_required(input.name))).collect()
    }

    /// Returns the names of the outputs, in order.
    fn outputs(&self) -> Vec<&str> {
        self.0.borrow_dependent().outputs().iter().map(|output| output.name).collect()
    }

    /// Evaluates the model. `feeds` are the names, NumPy type names, shapes and values of the inputs. The
    /// values are copied. The outputs are copies too, in the graph's order and without names.
    fn run<'py>(
        &self,
        py: Python<'py>,
        feeds: Vec<(String, String, Vec<usize>, InputValues<'py>)>,
    ) -> PyResult<Vec<(&'static str, Vec<usize>, OutputValues<'py>)>> {
        let (mut names, mut tensors) = (Vec::new(), Vec::new());
        for (name, element, shape, values) in feeds {
            tensors.push(tensor(&element, shape, values).map_err(|error| raise(py, error))?);
            names.push(name);
        }
        let evaluation = py.detach(|| {
            // These are already copies, so the cache may be written in place.
            let donated = tensors.into_iter().map(Feed::Donated);
            let feeds: BTreeMap<_, _> = names.iter().map(String::as_str).zip(donated).collect();
            self.0.borrow_dependent().run(feeds, Placement::Auto)
        });
        let Evaluation { outputs, .. } = evaluation.map_err(|error| raise(py, error))?;
        Ok(outputs.into_iter().map(|(_, tensor)| python_tensor(py, tensor)).collect())
    }
}

impl OnnxModel {
    fn prepare(model: Model) -> Result<Self, OnnxError> {
        EvaluableModel::try_new(model, |model| Evaluator::new(model)).map(Self)
    }
}

fn tensor(element: &str, shape: Vec<usize>, values: InputValues<'_>) -> Result<Tensor, OnnxError> {
    let element = ElementType::from_name(element).ok_or(TensorProtoError::UndefinedType)?;
    let data = match values {
        InputValues::Bytes(bytes) => Data::Bytes(bytes.as_array().to_vec()),
        InputValues::Strings(strings) => Data::Strings(strings),
    };
    Ok(Tensor::new(element, shape, data)?)
}

fn python_tensor(py: Python<'_>, tensor: Tensor) -> (&'static str, Vec<usize>, OutputValues<'_>) {
    let (element, shape, data) = tensor.into_parts();
    let values = match data {
        Data::Bytes(bytes) => OutputValues::Bytes(PyArray1::from_vec(py, bytes)),
        Data::Strings(strings) => {
            OutputValues::Strings(strings.iter().map(|string| PyBytes::new(py, string)).collect())
        }
    };
    (element.numpy_name(), shape, values)
}

/// Creates a `ModelError`. An error of the operator itself becomes the core's exception, with the `ModelError`
/// as its cause.
#[cold]
fn raise(py: Python<'_>, error: OnnxError) -> PyErr {
    static CLASS: Lazy<Py<PyType>> = Lazy::new();
    let about = |error: &OnnxError| {
        let fields = PyDict::new(py);
        set_fields(error, &fields)?;
        let class = CLASS.import(py, "kvscatter.errors", "ModelError")?;
        class.call((error.to_string(), error.kind()), Some(&fields)).map(PyErr::from_value)
    };
    let raised = about(&error).unwrap_or_else(|error| error);
    match error.cause::<kvscatter::Error>() {
        Some(broken) => {
            let operator = ArgumentNames::Functional.raise(py, *broken);
            operator.set_cause(py, Some(raised));
            operator
        }
        None => raised,
    }
}

/// Sets the fields that identify the place of the error and the value that it is about.
fn set_fields(error: &OnnxError, fields: &Bound<'_, PyDict>) -> PyResult<()> {
    match error {
        OnnxError::InFile { path, cause } => {
            static PATH: Lazy<Py<PyType>> = Lazy::new();
            let class = PATH.import(fields.py(), "pathlib", "Path")?;
            fields.set_item("file", class.call1((path.as_os_str(),))?)?;
            set_fields(cause, fields)
        }
        OnnxError::InTensor { name, cause } => {
            fields.set_item("tensor", name)?;
            set_fields(cause, fields)
        }
        OnnxError::InNode { node, cause } => {
            let NodeLabel { index, name, op_type, .. } = &**node;
            fields.set_item("node", index)?;
            fields.set_item("node_name", name)?;
            fields.set_item("op_type", op_type)?;
            set_fields(cause, fields)
        }
        cause => match cause.cause() {
            Some(
                EvalError::InputMissing { name }
                | EvalError::InputUnknown { name }
                | EvalError::ValueType { name, .. }
                | EvalError::ValueRank { name, .. }
                | EvalError::ValueDim { name, .. }
                | EvalError::SymbolConflict { name, .. }
                | EvalError::RankTooLarge { name, .. },
            ) => fields.set_item("value_name", name),
            Some(EvalError::MemoryLimit { needed, limit }) => {
                fields.set_item("needed", needed)?;
                fields.set_item("limit", limit)
            }
            _ => Ok(()),
        },
    }
}
