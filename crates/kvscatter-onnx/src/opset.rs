//! Upgrades a model to operator set 24 of the default domain, from version 11 or later.
//!
//! The tables follow the schemas of the operators (onnx 1.23, `onnx.defs.get_all_schemas_with_history()`).
//! Most operators only gained types, or attributes whose defaults keep the old meaning. The `adapt` module
//! rewrites other operators of decoders, and returns an error for the rest.

mod adapt;
mod operators;

use std::collections::BTreeSet;

use crate::edit::Origins;
use crate::graph::{DEFAULT_DOMAIN, full_domain, in_node, label};
use crate::names::{Names, subgraphs_mut};
use crate::proto::{FunctionProto, ModelProto, NodeProto, OperatorSetIdProto};
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
        let mut scope = Scope { adapter: Adapter::new(from, to, names), functions: &functions };
        origins = Some(scope.upgrade(&mut graph.node)?);
    }
    model.functions.iter_mut().try_for_each(|function| upgrade_function(function, to, &functions))?;
    model.ir_version = Some(model.ir_version.unwrap_or_default().max(IR_VERSION));
    Ok(origins)
}

fn upgrade_function(
    function: &mut FunctionProto,
    to: i64,
    functions: &BTreeSet<String>,
) -> Result<(), OnnxError> {
    let Some(from) = raise(&mut function.opset_import, to)? else { return Ok(()) };
    let names = Names::of_function(function);
    Scope { adapter: Adapter::new(from, to, names), functions }.upgrade(&mut function.node)?;
    Ok(())
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

/// A set of nodes that can use each other's values: a graph with its subgraphs, or a function.
struct Scope<'f> {
    adapter: Adapter,
    /// The model's functions in the default domain. A function takes precedence over an operator of the same
    /// name.
    functions: &'f BTreeSet<String>,
}

impl Scope<'_> {
    fn upgrade(&mut self, nodes: &mut Vec<NodeProto>) -> Result<Origins, OnnxError> {
        let mut upgraded = Vec::with_capacity(nodes.len());
        let mut origins = Vec::with_capacity(nodes.len());
        for (index, mut node) in std::mem::take(nodes).into_iter().enumerate() {
            subgraphs_mut(&mut node).try_for_each(|graph| self.upgrade(&mut graph.node).map(|_| ()))?;
            let op_type = node.op_type.as_deref().unwrap_or_default();
            let is_default = full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN;
            if is_default && !self.functions.contains(op_type) {
                let place = label(index, &node, Some(self.adapter.from()));
                upgraded.extend(self.adapt(node).map_err(|error| in_node(place, error))?);
            } else {
                upgraded.push(node);
            }
            origins.resize(upgraded.len(), Some(index));
        }
        *nodes = upgraded;
        Ok(Origins::new(origins))
    }

    fn adapt(&mut self, node: NodeProto) -> Result<Vec<NodeProto>, OnnxError> {
        let version = self.adapter.from();
        if operators::exists(node.op_type.as_deref().unwrap_or_default(), version) {
            self.adapter.adapt(node)
        } else {
            Err(GraphError::OperatorUnknown { version }.into())
        }
    }
}

#[cfg(test)]
mod tests;
