//! Evaluates whole models for programs that compare their outputs with those of a runtime.

use std::collections::BTreeMap;

use super::{Fold, Value};
use crate::{Model, OnnxError, Tensor};

/// Computes values of a model from tensors for its inputs, and returns the elements of each in row-major order. They
/// are `None` if they are not floats, or if this module cannot compute them.
///
/// # Errors
/// Returns an error if the model is not valid, or if an operator does not accept its inputs.
pub fn floats<'n>(
    model: &Model,
    inputs: &BTreeMap<&str, Tensor>,
    names: impl IntoIterator<Item = &'n str>,
) -> Result<Vec<Option<Vec<f64>>>, OnnxError> {
    let graph = model.graph()?;
    let mut fold = Fold::new(&graph, None);
    for (name, tensor) in inputs {
        fold.set(name, Value::from_tensor(tensor)?)?;
    }
    names.into_iter().map(|name| Ok(fold.value(name)?.as_floats().map(<[f64]>::to_vec))).collect()
}
