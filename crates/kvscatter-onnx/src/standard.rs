//! Expresses operators of ONNX Runtime in operators of ONNX.
//!
//! Exporters for ONNX Runtime write operators of the domain `com.microsoft`, and other engines refuse them.
//! Each operator in the [table](form::standard_form) becomes standard nodes that compute the same. A cache that
//! `GroupQueryAttention` or `MultiHeadAttention` writes is then appended by `Attention`, so that the
//! [conversion](crate::convert) can make it static like any other.
//!
//! Before a node is replaced, a [proof](proof) evaluates it and the new nodes on the same random values. The
//! models of the operators in `fold` are written from their documentation. Nodes with the same attributes,
//! shapes and types are proved once. A node that has no standard form, or whose proof fails, is an error that
//! names the node. A node that reads a value of unknown shape stays as it is.

mod activation;
mod attention;
mod error;
mod form;
mod group_query;
mod matmul;
mod multi_head;
mod node;
mod norm;
mod proof;
mod rotary;
mod sunk;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use form::{StandardForm, standard_form};
use node::{Replacing, StandardEditor};
use proof::FormProofs;

use crate::decoder::Decoder;
use crate::edit::{Editor, Origins};
use crate::fold::{Fold, Value};
use crate::graph::{DEFAULT_DOMAIN, full_domain};
use crate::proto::ModelProto;
use crate::{Dimension, Graph, Node, OnnxError};

pub use error::NoStandardForm;

/// Returns `true` if [`standardize`] replaces a node.
pub(crate) fn replaces(node: &Node<'_>) -> bool {
    standard_form(node).is_some()
}

/// What was replaced in a decoder.
pub(crate) struct Standardized<'m> {
    /// The number of nodes of each operator.
    pub(crate) replaced: BTreeMap<&'m str, usize>,
    pub(crate) origins: Origins,
}

/// Replaces the nodes of a decoder, whose graph is that of `model`. The fold must have been fed with a small
/// step of the decoder.
///
/// The sizes of caches that follow from the operators' attributes are declared.
///
/// # Errors
/// * Returns [`NoStandardForm`] or an error of the evaluation, wrapped in [`OnnxError::InNode`].
/// * Returns the errors of the editor.
pub(crate) fn standardize<'m>(
    model: &mut ModelProto,
    graph: &Graph<'m>,
    decoder: &Decoder<'m>,
    fold: &mut Fold<'m>,
) -> Result<Standardized<'m>, OnnxError> {
    let mut editor = Editor::new(model)?;
    for cache in &decoder.caches {
        declare(&mut editor, cache.past, &cache.past_shape, &cache.known_shape)?;
        let present = cache.present_info.shape.as_deref().unwrap_or_default();
        declare(&mut editor, cache.present, present, &cache.known_shape)?;
    }
    let mut standard = StandardEditor::new(&mut editor);
    let mut proofs = FormProofs::new();
    let mut replaced = BTreeMap::new();
    for node in graph.nodes() {
        let Some(form) = standard_form(node) else { continue };
        let is_replaced = replace(&mut standard, &mut proofs, (node, &form), graph, fold);
        if is_replaced.map_err(|error| node.error_within(error))? {
            let count = replaced.entry(node.op_type()).or_default();
            *count = usize::saturating_add(*count, 1);
        }
    }
    let origins = editor.finish()?;
    drop_unused_imports(model);
    drop_declared_constants(model);
    Ok(Standardized { replaced, origins })
}

/// Replaces a node after a proof. Returns `false` if an input of the node is open.
fn replace<'m>(
    standard: &mut StandardEditor<'_, '_>,
    proofs: &mut FormProofs,
    (node, form): (&Node<'m>, &StandardForm),
    graph: &Graph<'m>,
    fold: &mut Fold<'m>,
) -> Result<bool, OnnxError> {
    group_query::check_positions(node, graph)?;
    // A node with an open input, as in a mixture of experts, cannot be proved. It stays.
    let Some(facts) = facts(node, fold)? else { return Ok(false) };
    let replacing = Replacing { node: *node, facts: &facts };
    // The proof evaluates nodes that the file does not have.
    proofs.prove(form, &replacing).map_err(OnnxError::into_root)?;
    standard.editor.replacing(node.index());
    (form.replace)(standard, &replacing)?;
    Ok(true)
}

/// Returns what is known about each input of a node, or `None` if an input is open.
fn facts(node: &Node<'_>, fold: &mut Fold<'_>) -> Result<Option<Vec<Option<Value>>>, OnnxError> {
    let mut facts = Vec::new();
    for slot in 0..node.proto().input.len() {
        facts.push(match node.input(slot) {
            None => None,
            Some(name) => match fold.known(name)? {
                None => return Ok(None),
                Some(value) => Some(value.clone()),
            },
        });
    }
    Ok(Some(facts))
}

/// Declares the dimensions that are known but not declared.
fn declare(
    editor: &mut Editor<'_>,
    name: &str,
    declared: &[Dimension<'_>],
    known: &[Dimension<'_>],
) -> Result<(), OnnxError> {
    let dims: Vec<_> = declared
        .iter()
        .zip(known)
        .map(|(&declared, &known)| match (declared, known) {
            (Dimension::Symbolic(_) | Dimension::Unknown, Dimension::Known(_)) => known,
            _ => declared,
        })
        .collect();
    if dims == declared { Ok(()) } else { editor.set_dims(name, &dims) }
}

/// Drops the declarations of constants, whose types and shapes follow from their nodes. ONNX Runtime GenAI
/// declares them with other shapes, and onnx's checker refuses such a model.
fn drop_declared_constants(model: &mut ModelProto) {
    let Some(graph) = model.graph.as_option_mut() else { return };
    let constants = graph.node.iter().filter(|node| node.op_type.as_deref() == Some("Constant"));
    let constants: BTreeSet<_> = constants.filter_map(|node| node.output.first().cloned()).collect();
    graph.value_info.retain(|value| value.name.as_ref().is_none_or(|name| !constants.contains(name)));
}

/// Drops the imports of domains that no node uses any more.
fn drop_unused_imports(model: &mut ModelProto) {
    let mut used = BTreeSet::new();
    let functions = model.functions.iter().flat_map(|function| &function.node);
    for node in model.graph.node.iter().chain(functions) {
        used.insert(full_domain(node.domain.as_deref()).to_owned());
        // The nodes of subgraphs are not followed: they keep every import.
        if node.attribute.iter().any(|it| it.g.is_set() || !it.graphs.is_empty()) {
            return;
        }
    }
    model.opset_import.retain(|import| {
        let domain = full_domain(import.domain.as_deref());
        domain == DEFAULT_DOMAIN || used.contains(domain)
    });
}
