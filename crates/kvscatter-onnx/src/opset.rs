//! Upgrades a model to operator set 24 of the default domain, from version 11 or later.
//!
//! The tables follow the schemas of the operators (onnx 1.23, `onnx.defs.get_all_schemas_with_history()`).
//! Most operators only gained types, or attributes whose defaults keep the old meaning. The `adapt` module
//! rewrites other operators of decoders, and returns an error for the rest.

mod adapt;
mod operators;

use std::collections::BTreeSet;

use crate::edit::Origins;
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::names::Names;
use crate::proto::{ModelProto, OperatorSetIdProto};
use crate::{GraphError, OnnxError};

use adapt::Adapter;

/// The oldest operator set that can be upgraded.
const MIN_VERSION: i64 = 11;

/// The newest operator set in the tables of this module, and the first with `TensorScatter`. Converted models
/// have it.
pub(crate) const NEWEST: i64 = 24;

/// The newest operator set that exists (onnx 1.23).
const MAX_VERSION: i64 = 28;

/// The version of the file format that introduced operator set 24.
const IR_VERSION: i64 = 11;

/// Upgrades the default domain of a model and of its functions to the operator set `to`, from 18 to 24.
///
/// Imports that are already at least as new are not changed, and neither are other domains. Returns where the nodes of
/// the graph come from, or `None` if they are not changed.
///
/// # Errors
/// If an error is returned, the model is only partly changed.
///
/// * Returns [`GraphError::OpsetTooOld`] below version 11 and [`GraphError::OpsetTooNew`] above version 28.
/// * Returns [`GraphError::OperatorUnknown`], wrapped in [`OnnxError::InNode`], for an operator that the
///   model's own operator set does not have.
/// * Returns [`GraphError::OperatorChanged`], wrapped in [`OnnxError::InNode`], for an operator whose meaning
///   at `to` is different.
pub(crate) fn upgrade(model: &mut ModelProto, to: i64) -> Result<Option<Origins>, OnnxError> {
    let mut origins = None;
    let to = to.min(NEWEST);
    let functions: BTreeSet<_> = model
        .functions
        .iter()
        .filter(|function| full_domain(function.domain.as_deref()) == DEFAULT_DOMAIN)
        .map(|function| function.name.clone().unwrap_or_default())
        .collect();
    if let Some(from) = raise(&mut model.opset_import, to)?
        && let Some(graph) = model.graph.as_option_mut()
    {
        let names = Names::of_graph(graph);
        origins = Some(Adapter::new(from, to, names, &functions).upgrade(&mut graph.node)?);
    }
    for function in &mut model.functions {
        if let Some(from) = raise(&mut function.opset_import, to)? {
            let names = Names::of_function(function);
            Adapter::new(from, to, names, &functions).upgrade(&mut function.node)?;
        }
    }
    model.ir_version = Some(model.ir_version.unwrap_or_default().max(IR_VERSION));
    Ok(origins)
}

/// Imports version `to` if the imported version is older. Returns the older version in that case.
fn raise(imports: &mut Vec<OperatorSetIdProto>, to: i64) -> Result<Option<i64>, OnnxError> {
    let default = imports.iter_mut().find(|import| full_domain(import.domain.as_deref()) == DEFAULT_DOMAIN);
    let Some(import) = default else {
        imports.push(OperatorSetIdProto { version: Some(to), ..OperatorSetIdProto::default() });
        return Ok(None);
    };
    match import.version.replace(to).unwrap_or_default() {
        version if version < MIN_VERSION => Err(GraphError::OpsetTooOld { version, min: MIN_VERSION }.into()),
        version if version > MAX_VERSION => Err(GraphError::OpsetTooNew { version, max: MAX_VERSION }.into()),
        version if version < to => Ok(Some(version)),
        version => {
            import.version = Some(version);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests;
