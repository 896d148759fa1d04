//! The record of one run, with its inputs and its results.

use std::fmt;

use kvscatter::picture::Picture;
use kvscatter_onnx::Tensor;
use kvscatter_onnx::internal::eval::{NodeReport, Outcome as NodeOutcome};
use kvscatter_onnx::internal::test_dir::DataSet;

use crate::compare::{Mismatch, Tolerance, compare};
use crate::engines::EngineInfo;
use crate::error::CommandError;
use crate::values::Summary;

/// A call of the model and its results.
pub(super) struct RunRecord {
    /// The model or the data set that is run.
    pub(super) title: String,
    /// The engine that ran the model, or `None` if the command evaluated its nodes.
    pub(super) runtime: Option<EngineInfo>,
    pub(super) inputs: Vec<Input>,
    pub(super) result: RunResult,
    /// The caches that should have been written in place and were not.
    pub(super) not_in_place: Vec<String>,
    /// The result of the comparison with the expected outputs, if there are any.
    pub(super) check: Option<Result<(), Mismatch>>,
    /// The largest difference of equal values, or `None` if every bit must agree.
    pub(super) tolerance: Option<Tolerance>,
}

/// An input of the model.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) summary: Summary,
    pub(super) origin: Origin,
    /// The values, or `None` after the run has taken them.
    pub(super) tensor: Option<Tensor>,
}

/// The source of the values of an input.
pub(super) enum Origin {
    File(String),
    Seed(u64),
}

/// The results of a run.
pub(super) struct RunResult {
    /// The names and values of the outputs, in the order of the graph.
    pub(super) outputs: Vec<(String, Tensor)>,
    /// The input in whose memory each output lies.
    pub(super) lies_in: Vec<Option<String>>,
    /// The reports of the nodes that the command evaluated.
    pub(super) nodes: Vec<NodeReport>,
    /// The pictures of the writes, with the numbers of their nodes.
    pub(super) pictures: Vec<(usize, Picture)>,
}

impl RunRecord {
    /// Compares the outputs with the expected outputs of the data set, if it has any.
    pub(super) fn check(&mut self, set: &DataSet) -> Result<(), CommandError> {
        let expected = set.read_outputs()?;
        if !expected.is_empty() {
            let got: Vec<_> = self.result.outputs.iter().map(|(_, tensor)| tensor).collect();
            self.check = Some(compare(&got, &expected, self.tolerance).map_or(Ok(()), Err));
        }
        Ok(())
    }

    /// Returns whether all caches that must be in place are in place, and all outputs are as expected.
    pub(super) fn is_right(&self) -> bool {
        let claimed = |node: &&NodeReport| matches!(node.outcome, NodeOutcome::InPlace { .. });
        let proved = self.result.nodes.iter().filter(claimed).all(NodeReport::is_in_place);
        proved && self.not_in_place.is_empty() && !matches!(self.check, Some(Err(_)))
    }
}

impl Input {
    pub(super) fn new(name: &str, tensor: Tensor, origin: Origin) -> Self {
        Self { name: name.to_owned(), summary: Summary::new(&tensor), origin, tensor: Some(tensor) }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => f.write_str(file),
            Self::Seed(seed) => write!(f, "generated, seed {seed}"),
        }
    }
}
