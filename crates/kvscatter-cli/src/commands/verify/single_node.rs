//! The only node of a graph, with the tensors that it reads.

use std::collections::BTreeMap;

use kvscatter_onnx::internal::eval::check_declared;
use kvscatter_onnx::{Graph, GraphError, Model, Node, OnnxError, Tensor};

use super::rejection::{NodeFault, Rejection};

/// The only node of a graph, with the values of the graph's inputs and initializers.
pub(super) struct SingleNode<'a> {
    pub(super) node: &'a Node<'a>,
    values: &'a BTreeMap<String, Tensor>,
}

/// Computes the outputs of a node. The results are those of the node's outputs in order. An output that the node
/// does not have may be `None`.
pub(super) type Compute = fn(&SingleNode<'_>) -> Result<Vec<Option<Tensor>>, NodeFault>;

/// Evaluates a graph with one node on the inputs of a data set. Returns the graph's outputs.
///
/// # Errors
/// Returns the errors of the node, and an [`OnnxError`] if an input or an output does not match its declaration.
pub(super) fn evaluate(
    model: &Model,
    graph: &Graph<'_>,
    node: &Node<'_>,
    inputs: Vec<(String, Tensor)>,
    compute: Compute,
) -> Result<Vec<Tensor>, Rejection> {
    let initializers = model.initializers()?.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    let mut values: BTreeMap<_, _> = initializers.chain(inputs).collect();
    let (declared, of_outputs) = (graph.inputs()?, graph.outputs()?);
    check_declared(declared.iter().filter_map(|info| Some((info, values.get(info.name)?))))?;
    let computed = compute(&SingleNode { node, values: &values })
        .map_err(|fault| Rejection::InNode { node: Box::new(node.label()), fault })?;
    for (slot, tensor) in computed.into_iter().enumerate() {
        if let (Some(name), Some(tensor)) = (node.output(slot), tensor) {
            values.insert(name.to_owned(), tensor);
        }
    }
    let all = declared.iter().chain(&of_outputs);
    check_declared(all.filter_map(|info| Some((info, values.get(info.name)?))))?;
    let output = |name: &str| {
        values
            .get(name)
            .cloned()
            .ok_or_else(|| OnnxError::from(GraphError::ValueMissing { name: name.to_owned() }).into())
    };
    graph.output_names().map(output).collect()
}

impl<'a> SingleNode<'a> {
    /// Returns an input, or `None` if it is absent.
    pub(super) fn input(&self, slot: usize) -> Option<&'a Tensor> {
        self.values.get(self.node.input(slot)?)
    }

    /// Returns an input that the operator requires.
    pub(super) fn required(&self, slot: usize) -> Result<&'a Tensor, OnnxError> {
        self.input(slot).ok_or(GraphError::InputAbsent { index: slot }.into())
    }

    /// Checks the number of the node's inputs. Absent inputs in the middle are counted.
    pub(super) fn check_inputs(&self, min: usize, max: usize) -> Result<(), OnnxError> {
        let got = self.node.inputs().len();
        if (min..=max).contains(&got) { Ok(()) } else { Err(GraphError::InputCount { min, max, got }.into()) }
    }
}
