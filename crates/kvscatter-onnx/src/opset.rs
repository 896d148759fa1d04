//! Newer operator sets: a model of the default domain's version 11 or later is rewritten for version 24.
//!
//! What changed between the versions is taken from the operators' own schemas (onnx 1.23,
//! `onnx.defs.get_all_schemas_with_history()`). Most operators only gained types and attributes whose defaults keep
//! the old meaning; `adapt` rewrites the others, and refuses what has no equal.

mod adapt;
mod operators;

use std::collections::BTreeSet;

use crate::OnnxError;
use crate::edit::names::{Names, subgraphs_mut};
use crate::graph::{DEFAULT_DOMAIN, full_domain, in_node, label};
use crate::proto::{FunctionProto, ModelProto, NodeProto, OperatorSetIdProto};

use adapt::Adapter;

/// The oldest operator set whose models are brought to a newer one.
const MIN_VERSION: i64 = 11;

/// The newest operator set that the tables here know.
const MOST: i64 = 24;

/// The newest operator set there is (onnx 1.23).
const MAX_VERSION: i64 = 28;

/// The file format's version that came with operator set 24.
const IR_VERSION: i64 = 11;

/// Brings the default domain of a model and of the functions it defines to the operator set `to`, 18 to 24. One that
/// is as new already stays as it is, and other domains are not touched.
///
/// # Errors
/// [`OnnxError::OpsetTooOld`] below 11, [`OnnxError::OpsetTooNew`] above 28. Within [`OnnxError::InNode`]: [`OnnxError::OperatorUnknown`] for an operator that the
/// model's own operator set does not have, [`OnnxError::OperatorChanged`] for one whose meaning at `to` is another one.
/// The model is then half changed.
pub(crate) fn upgrade(model: &mut ModelProto, to: i64) -> Result<(), OnnxError> {
    let to = to.min(MOST);
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
        Scope { adapter: Adapter::new(from, to, names), functions: &functions }.upgrade(&mut graph.node)?;
    }
    model.functions.iter_mut().try_for_each(|function| upgrade_function(function, to, &functions))?;
    model.ir_version = Some(model.ir_version.unwrap_or_default().max(IR_VERSION));
    Ok(())
}

fn upgrade_function(
    function: &mut FunctionProto,
    to: i64,
    functions: &BTreeSet<String>,
) -> Result<(), OnnxError> {
    let Some(from) = raise(&mut function.opset_import, to)? else { return Ok(()) };
    let names = Names::of_function(function);
    Scope { adapter: Adapter::new(from, to, names), functions }.upgrade(&mut function.node)
}

/// Imports `to`; returns what was imported before, if that was older.
fn raise(imports: &mut Vec<OperatorSetIdProto>, to: i64) -> Result<Option<i64>, OnnxError> {
    let default = imports.iter_mut().find(|import| full_domain(import.domain.as_deref()) == DEFAULT_DOMAIN);
    let Some(import) = default else {
        imports.push(OperatorSetIdProto { version: Some(to), ..OperatorSetIdProto::default() });
        return Ok(None);
    };
    match import.version.replace(to).unwrap_or_default() {
        version if version < MIN_VERSION => Err(OnnxError::OpsetTooOld { version, min: MIN_VERSION }),
        version if version > MAX_VERSION => Err(OnnxError::OpsetTooNew { version, max: MAX_VERSION }),
        version if version < to => Ok(Some(version)),
        version => {
            import.version = Some(version);
            Ok(None)
        }
    }
}

/// Nodes whose values see each other: a graph with its subgraphs, or a function.
struct Scope<'f> {
    adapter: Adapter,
    /// Functions of the model that have an operator's name in the default domain: they come first.
    functions: &'f BTreeSet<String>,
}

impl Scope<'_> {
    fn upgrade(&mut self, nodes: &mut Vec<NodeProto>) -> Result<(), OnnxError> {
        let mut upgraded = Vec::with_capacity(nodes.len());
        for (index, mut node) in std::mem::take(nodes).into_iter().enumerate() {
            subgraphs_mut(&mut node).try_for_each(|graph| self.upgrade(&mut graph.node))?;
            let op_type = node.op_type.as_deref().unwrap_or_default();
            let is_default = full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN;
            if is_default && !self.functions.contains(op_type) {
                let place = label(index, &node, Some(self.adapter.from()));
                upgraded.extend(self.adapt(node).map_err(|error| in_node(place, error))?);
            } else {
                upgraded.push(node);
            }
        }
        *nodes = upgraded;
        Ok(())
    }

    fn adapt(&mut self, node: NodeProto) -> Result<Vec<NodeProto>, OnnxError> {
        let version = self.adapter.from();
        if operators::exists(node.op_type.as_deref().unwrap_or_default(), version) {
            self.adapter.adapt(node)
        } else {
            Err(OnnxError::OperatorUnknown { version })
        }
    }
}

#[cfg(test)]
mod tests;
