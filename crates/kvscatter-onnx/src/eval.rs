//! Evaluation of models made of `TensorScatter` and the little plumbing around it: `Identity`, `Constant`, and
//! `Add` on integers.
//!
//! The cache is written in place wherever the graph allows it: the buffer of `past_cache` belongs to the
//! evaluation (the caller donated it, or a node made it) and nothing needs the old values afterwards. The
//! [`Report`] says so per node, with the addresses before and after and the bytes that moved.

mod add;
mod memory;
mod op;
mod placement;
mod report;
mod run;
mod types;

use std::collections::BTreeMap;

use kvscatter::WritePlan;

use crate::{DEFAULT_MEMORY_LIMIT, Graph, Model, Node, OnnxError, Tensor, ValueInfo, tensor_proto};

pub use report::{NodeReport, NotInPlace, Outcome, OutputCopy, Report, Use};

pub(crate) use memory::bytes;
pub(crate) use op::{ConstantValue, Op};
pub(crate) use types::{Bindings, TensorType, Types};

/// The most dimensions a value may have here: NumPy's limit.
pub const MAX_RANK: usize = 64;

/// A model whose every node can be evaluated, with its constants read.
#[derive(Clone, Debug)]
pub struct Evaluator<'m> {
    graph: Graph<'m>,
    inputs: Vec<ValueInfo<'m>>,
    outputs: Vec<ValueInfo<'m>>,
    ops: Vec<Op<'m>>,
    /// Initializers and the outputs of `Constant` nodes.
    constants: BTreeMap<&'m str, Tensor>,
    memory_limit: u64,
}

/// A value for a graph input.
#[derive(Clone, Debug)]
pub enum Feed<'a> {
    /// The caller keeps it, unchanged.
    Borrowed(&'a Tensor),
    /// The caller gives it up: a cache in it may be written in place, and comes back as an output at the same
    /// address. After an error it is gone.
    Donated(Tensor),
}

impl Feed<'_> {
    fn tensor(&self) -> &Tensor {
        match self {
            Self::Borrowed(tensor) => tensor,
            Self::Donated(tensor) => tensor,
        }
    }
}

/// Where `present_cache` may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In the buffer of `past_cache` wherever that is possible.
    #[default]
    Auto,
    /// In the buffer of `past_cache`; an error if a node cannot.
    InPlace,
    /// Always in a buffer of its own.
    Functional,
}

/// What an evaluation gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// The graph's outputs by name, in the graph's order.
    pub outputs: Vec<(String, Tensor)>,
    /// What each node did.
    pub report: Report,
}

impl<'m> Evaluator<'m> {
    /// Checks that every node can be evaluated, and reads the constants.
    ///
    /// # Errors
    /// Those of [`Graph::new`], [`Graph::inputs`] and [`tensor_proto::decode`]. Within [`OnnxError::InNode`], which
    /// names the node, its operator, domain and version: [`OnnxError::UnsupportedOperator`], [`OnnxError::Function`],
    /// [`OnnxError::OpsetTooOld`] (`TensorScatter` needs 24, `Add` 7), and the other variants of [`OnnxError`] on inputs,
    /// outputs and attributes.
    pub fn new(model: &'m Model) -> Result<Self, OnnxError> {
        let graph = model.graph()?;
        let ops = graph.nodes().iter().map(Op::parse).collect::<Result<Vec<_>, _>>()?;
        let external = model.external_data()?;
        let mut constants = BTreeMap::new();
        for (&name, &message) in graph.initializers() {
            let tensor = tensor_proto::decode(message.clone(), external.as_ref())?;
            constants.insert(name, tensor);
        }
        for (node, op) in graph.nodes().iter().zip(&ops) {
            if let Op::Constant { value, output } = op {
                let tensor = value.read(external.as_ref()).map_err(|error| node.error(error))?;
                constants.insert(output, tensor);
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

    /// Sets how many bytes of values an evaluation may allocate (results of `Add`, caches that are not written in
    /// place, and outputs that are copied), and how many bytes of inputs may be generated for it:
    /// [`DEFAULT_MEMORY_LIMIT`] otherwise. What is needed is known and compared before anything is computed.
    #[must_use]
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = bytes;
        self
    }

    /// The graph.
    #[must_use]
    pub fn graph(&self) -> &Graph<'m> {
        &self.graph
    }

    /// The graph's inputs that have no initializer, as declared: those that must be fed.
    pub fn required_inputs(&self) -> impl Iterator<Item = &ValueInfo<'m>> {
        self.inputs.iter().filter(|input| !self.constants.contains_key(input.name))
    }

    /// The graph's inputs, as declared.
    #[must_use]
    pub fn inputs(&self) -> &[ValueInfo<'m>] {
        &self.inputs
    }

    /// The graph's outputs, as declared.
    #[must_use]
    pub fn outputs(&self) -> &[ValueInfo<'m>] {
        &self.outputs
    }

    /// Evaluates the graph. Every type, shape and placement, and the memory needed, is checked before the first
    /// byte moves.
    ///
    /// # Errors
    /// About feeds: [`OnnxError::InputMissing`], [`OnnxError::InputUnknown`], [`OnnxError::ValueType`], [`OnnxError::ValueRank`],
    /// [`OnnxError::ValueDim`], [`OnnxError::SymbolConflict`], [`OnnxError::RankTooLarge`]; the same for outputs that are not
    /// what the graph declares. Within [`OnnxError::InNode`]: [`OnnxError::Operator`], [`OnnxError::AddType`],
    /// [`OnnxError::AddTypes`], [`OnnxError::Broadcast`], [`OnnxError::NotInPlace`]. And [`OnnxError::MemoryLimit`].
    pub fn run(
        &self,
        feeds: BTreeMap<&str, Feed<'_>>,
        placement: Placement,
    ) -> Result<Evaluation, OnnxError> {
        self.run_observed(feeds, placement, &mut |_, _| {})
    }

    /// [`run`](Self::run) that shows every `TensorScatter` node's plan to `observe`, just before it is executed.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_observed(
        &self,
        feeds: BTreeMap<&str, Feed<'_>>,
        placement: Placement,
        observe: &mut dyn FnMut(&Node<'m>, &WritePlan<'_>),
    ) -> Result<Evaluation, OnnxError> {
        run::run(self, feeds, placement, observe)
    }

    /// The types of all values, given those of the inputs that are fed.
    pub(crate) fn infer(&self, fed: &BTreeMap<&'m str, TensorType>) -> Result<Types<'m>, OnnxError> {
        let mut bindings = Bindings::default();
        let mut types = Types::default();
        for (&name, tensor) in &self.constants {
            types.add_value(name, TensorType::of(tensor))?;
        }
        for input in &self.inputs {
            if let Some(ty) = fed.get(input.name) {
                types.add_value(input.name, ty.clone())?;
            }
            let ty = types
                .get(input.name)
                .ok_or_else(|| OnnxError::InputMissing { name: input.name.to_owned() })?;
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

    pub(crate) fn limit(&self) -> u64 {
        self.memory_limit
    }

    pub(crate) fn ops(&self) -> &[Op<'m>] {
        &self.ops
    }

    pub(crate) fn constants(&self) -> &BTreeMap<&'m str, Tensor> {
        &self.constants
    }
}
