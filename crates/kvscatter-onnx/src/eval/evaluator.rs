//! Models that can be evaluated.

use std::collections::BTreeMap;

use super::op::Op;
use super::types::{Bindings, TensorType, Types};
use crate::proto::TensorProto;
use crate::{DEFAULT_MEMORY_LIMIT, EvalError, Graph, Model, OnnxError, Tensor, ValueInfo, tensor_proto};

/// A model whose nodes can all be evaluated, with its constants read.
#[derive(Clone, Debug)]
pub struct Evaluator<'m> {
    pub(super) graph: Graph<'m>,
    pub(super) inputs: Vec<ValueInfo<'m>>,
    pub(super) outputs: Vec<ValueInfo<'m>>,
    pub(crate) ops: Vec<Op<'m>>,
    /// The initializers and the outputs of `Constant` nodes.
    pub(crate) constants: BTreeMap<&'m str, Tensor>,
    pub(crate) memory_limit: u64,
}

impl<'m> Evaluator<'m> {
    /// Creates an evaluator after checking that every node can be evaluated, and reads the constants.
    ///
    /// # Errors
    /// * Returns the errors of [`Model::graph`] and [`Graph::inputs`].
    /// * Returns [`OnnxError::InTensor`] if a constant cannot be read.
    /// * Returns [`EvalError::UnsupportedOperator`] or [`EvalError::Function`] for a node that cannot be
    ///   evaluated.
    /// * Returns [`GraphError`](crate::GraphError) for an operator set below 24 (`TensorScatter`) or 7 (`Add`), and for
    ///   invalid inputs, outputs and attributes.
    ///
    /// Errors about a node are wrapped in [`OnnxError::InNode`], which names the node, its operator, domain
    /// and version.
    pub fn new(model: &'m Model) -> Result<Self, OnnxError> {
        let graph = model.graph()?;
        let ops = graph.nodes().iter().map(Op::parse).collect::<Result<Vec<_>, _>>()?;
        let external = model.external_data()?;
        let mut constants = graph.tensors(external.as_ref())?;
        for (node, op) in graph.nodes().iter().zip(&ops) {
            if let Op::Constant { value, output } = op {
                let tensor = tensor_proto::decode(TensorProto::clone(value), external.as_ref());
                constants.insert(output, tensor.map_err(|error| node.error(error))?);
            }
        }
        Ok(Self {
            inputs: graph.inputs()?,
            outputs: graph.outputs()?,
            graph,
            ops,
            constants,
            memory_limit: DEFAULT_MEMORY_LIMIT,
        })
    }

    /// Sets the maximum number of bytes of values that an evaluation may allocate. The default is
    /// [`DEFAULT_MEMORY_LIMIT`].
    ///
    /// Results of `Add`, caches that are not written in place, copied outputs and inputs that are generated
    /// for this evaluator count towards the limit. The limit is checked before anything is computed.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// Returns the graph.
    #[must_use]
    pub fn graph(&self) -> &Graph<'m> {
        &self.graph
    }

    /// Returns the declarations of the inputs that a caller must feed, because they have no initializer.
    pub fn required_inputs(&self) -> impl Iterator<Item = &ValueInfo<'m>> {
        self.inputs.iter().filter(|input| !self.constants.contains_key(input.name))
    }

    /// Returns the declarations of all inputs of the graph.
    #[must_use]
    pub fn inputs(&self) -> &[ValueInfo<'m>] {
        &self.inputs
    }

    /// Returns the declarations of the outputs of the graph.
    #[must_use]
    pub fn outputs(&self) -> &[ValueInfo<'m>] {
        &self.outputs
    }

    /// Infers the types of all values from those of the fed inputs.
    pub(crate) fn infer(&self, fed: &BTreeMap<&'m str, TensorType>) -> Result<Types<'m>, OnnxError> {
        let mut bindings = Bindings::default();
        let mut types = Types::default();
        for (&name, tensor) in &self.constants {
            types.add_value(name, TensorType::from_tensor(tensor))?;
        }
        for input in &self.inputs {
            if let Some(ty) = fed.get(input.name) {
                types.add_value(input.name, ty.clone())?;
            }
            let ty = types
                .get(input.name)
                .ok_or_else(|| EvalError::InputMissing { name: input.name.to_owned() })?;
            bindings.check(input, ty)?;
        }
        for (node, op) in self.graph.nodes().iter().zip(&self.ops) {
            types.add_node(op).map_err(|error| node.error(error))?;
        }
        for output in &self.outputs {
            if let Some(ty) = types.get(output.name) {
                bindings.check(output, ty)?;
            }
        }
        Ok(types)
    }
}
