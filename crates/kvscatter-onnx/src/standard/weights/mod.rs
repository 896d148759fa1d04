//! Expresses operators with quantized weights in operators of ONNX.
//!
//! `MatMulNBits` becomes `DequantizeLinear` and `MatMul`, and `GatherBlockQuantized` becomes `Gather` and
//! `DequantizeLinear` of the gathered rows. The quantized numbers, the scales and the zero points keep their
//! values, so that every dequantized weight is the same. `MatMulNBits` has a row for each column of its result.
//! The new weights are transposed, because ONNX Runtime makes the two nodes `MatMulNBits` again only then.
//!
//! A transposed weight that is in another file is [computed when the model is written](crate::weights).
//!
//! Any other operator stays, and so does a node of another form. Both are listed.

mod gather;
mod matmul;

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::drop_unused_imports;
use super::error::NoStandardForm;
use super::node::{Replacing, no_form};
use super::rule::MICROSOFT;
use crate::edit::Editor;
use crate::graph::DEFAULT_DOMAIN;
use crate::proto::TensorProto;
use crate::weights::{self, ComputedWeight, Transposition};
use crate::{Data, Graph, Model, Node, NodeLabel, OnnxError, external, tensor_proto};

/// The largest number of nodes between a weight and the node that reads it.
const MAX_STEPS: usize = 16;

/// What became of the operators that are not ONNX's.
#[derive(Clone, Debug, Default)]
pub struct StandardWeights {
    /// The number of nodes that were replaced, by operator.
    pub replaced: BTreeMap<String, usize>,
    /// The nodes that stay, because they have no form in operators of ONNX.
    pub kept: Vec<KeptOperator>,
}

/// A node whose operator is not one of ONNX, and the reason why it stays.
#[derive(Clone, Debug)]
pub struct KeptOperator {
    /// The node.
    pub node: NodeLabel,
    /// The reason.
    pub reason: NoStandardForm,
}

/// Replaces the nodes of a model that have quantized weights.
///
/// # Errors
/// * Returns the errors about tensors and external data, for a weight that cannot be read.
/// * Returns the errors of the editor.
pub(crate) fn replace(model: &mut Model) -> Result<StandardWeights, OnnxError> {
    let before = model.clone();
    let graph = before.graph()?;
    let mut result = StandardWeights::default();
    let mut computed = BTreeMap::new();
    let mut editor = Editor::new(model.proto_mut())?;
    let mut new = NewWeights {
        editor: &mut editor,
        has_folder: before.path().is_some(),
        computed: &mut computed,
        made: BTreeMap::new(),
    };
    let constants = Constants::of(&graph);
    for node in graph.nodes().iter().filter(|node| is_foreign(node)) {
        let replacing = Replacing { node: node.proto(), facts: &[] };
        let replaced = match (node.domain(), node.op_type()) {
            (MICROSOFT, "MatMulNBits") => matmul::replace(&mut new, &constants, &replacing),
            (MICROSOFT, "GatherBlockQuantized") => gather::replace(&mut new, &constants, &replacing),
            (_, op_type) => Err(no_form(op_type.escape_debug().to_string())),
        };
        match replaced {
            Ok(()) => {
                new.editor.remove_node(node.index());
                let count = result.replaced.entry(node.op_type().to_owned()).or_default();
                *count = count.saturating_add(1);
            }
            Err(OnnxError::NoStandardForm(reason)) => {
                result.kept.push(KeptOperator { node: node.label(), reason });
            }
            Err(error) => return Err(node.error_within(error)),
        }
    }
    editor.finish()?;
    drop_unused_imports(model.proto_mut());
    let used: Vec<_> = model.graph()?.initializers().keys().map(|&name| name.to_owned()).collect();
    computed.retain(|name, _| used.contains(name));
    model.set_computed(computed);
    Ok(result)
}

/// Returns `true` for an operator that ONNX does not define.
fn is_foreign(node: &Node<'_>) -> bool {
    !node.is_function() && (node.domain() != DEFAULT_DOMAIN || super::replaces(node))
}

/// A tensor in the model that no caller can replace.
#[derive(Clone, Copy)]
struct Constant<'m> {
    message: &'m TensorProto,
    element: ElementType,
    /// The number of bytes of its values.
    bytes: usize,
}

/// The constants of a graph by name.
struct Constants<'g, 'm> {
    graph: &'g Graph<'m>,
    /// The nodes that only change the shape of a tensor, by the name of their output.
    reshapes: BTreeMap<&'m str, &'g Node<'m>>,
}

impl<'g, 'm> Constants<'g, 'm> {
    fn of(graph: &'g Graph<'m>) -> Self {
        let is_reshape = |node: &&Node<'m>| {
            ["Constant", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"]
                .iter()
                .any(|it| node.is(it))
        };
        let reshapes = graph.nodes().iter().filter(is_reshape);
        Self { graph, reshapes: reshapes.filter_map(|node| Some((node.output(0)?, node))).collect() }
    }

    /// Returns the constant at an input of a node. The shape may have been changed on the way.
    ///
    /// # Errors
    /// Returns [`NoStandardForm`] if the input is not a constant.
    fn at(&self, it: &Replacing<'_>, slot: usize, name: &str) -> Result<Constant<'m>, OnnxError> {
        let message = self.source(it.input(slot)?);
        let message = message.ok_or_else(|| no_form(format!("{name} that is not a constant")))?;
        let (element, _, bytes) = tensor_proto::extent(message)
            .map_err(|error| error.in_tensor(message.name.as_deref().unwrap_or_default()))?;
        Ok(Constant { message, element, bytes })
    }

    fn source(&self, value: &str) -> Option<&'m TensorProto> {
        let mut value = value;
        for _ in 0..MAX_STEPS {
            if self.graph.input_names().any(|input| input == value) {
                return None;
            }
            if let Some(&tensor) = self.graph.initializers().get(value) {
                return Some(tensor);
            }
            let node = self.reshapes.get(value)?;
            if node.is("Constant") {
                return node.attribute("value")?.t.as_option();
            }
            value = node.input(0)?;
        }
        None
    }
}

/// The graph in which nodes are replaced, and the new weights.
struct NewWeights<'e, 'p> {
    editor: &'e mut Editor<'p>,
    /// Whether the folder of the model's external data is known.
    has_folder: bool,
    computed: &'e mut BTreeMap<String, ComputedWeight>,
    /// The names of the new weights, which several nodes may share.
    made: BTreeMap<(String, String), String>,
}

impl NewWeights<'_, '_> {
    /// Adds the transposed values of a constant as an initializer of this type, or reuses the same weight.
    fn transposed(
        &mut self,
        constant: &Constant<'_>,
        it: Transposition,
        element: ElementType,
    ) -> Result<String, OnnxError> {
        let name = constant.message.name.as_deref().unwrap_or_default();
        let key = (name.to_owned(), format!("{element} {it:?}"));
        if let Some(made) = self.made.get(&key).filter(|_| !name.is_empty()) {
            return Ok(made.clone());
        }
        let dims = [it.columns(), it.rows()].map(|size| i64::try_from(size).unwrap_or(i64::MAX));
        let mut message = TensorProto {
            data_type: Some(element.onnx_code()),
            dims: dims.to_vec(),
            ..TensorProto::default()
        };
        let computed = ComputedWeight::new(constant.message, it);
        if computed.is_none() {
            let tensor = tensor_proto::decode(constant.message.clone(), None)?;
            let Data::Bytes(bytes) = tensor.data() else { return Err(OnnxError::ExternalStrings) };
            let values = weights::transposed(bytes, &it).map_err(|error| error.in_tensor(name))?;
            message.raw_data = Some(values);
        } else if !self.has_folder {
            let location = external::location(&constant.message.external_data)?.to_owned();
            return Err(OnnxError::ExternalWithoutFolder { location }.in_tensor(name));
        }
        let hint = if name.is_empty() { "weight" } else { name };
        let made = self.editor.initializer(&format!("{hint}_transposed"), message);
        if let Some(computed) = computed {
            self.computed.insert(made.clone(), computed);
        }
        self.made.insert(key, made.clone());
        Ok(made)
    }
}

/// Returns an attribute that must be a positive number.
fn positive(it: &Replacing<'_>, name: &str, default: i64) -> Result<usize, OnnxError> {
    let value = it.int(name, default)?;
    let size = usize::try_from(value).ok().filter(|size| *size > 0);
    size.ok_or_else(|| no_form(format!("{name} = {value}")))
}

#[cfg(test)]
mod tests;
