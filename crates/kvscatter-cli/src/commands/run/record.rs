//! One run: its inputs and its results.

use std::fmt;

use kvscatter::picture::Picture;
use kvscatter_onnx::Tensor;
use kvscatter_onnx::eval::{NodeReport, Outcome as NodeOutcome};
use kvscatter_onnx::test_dir::DataSet;

use crate::compare::{Mismatch, Tolerance, compare};
use crate::engines::EngineInfo;
use crate::error::CommandError;
use crate::values::Summary;

/// One call of the model.
pub(super) struct RunRecord {
    /// What is run.
    pub(super) title: String,
    /// The engine that ran it, if it was one.
    pub(super) runtime: Option<EngineInfo>,
    pub(super) inputs: Vec<Input>,
    pub(super) result: RunResult,
    /// Caches that had to be in place and are not.
    pub(super) not_in_place: Vec<String>,
    /// The expected outputs' verdict, if there are any.
    pub(super) check: Option<Result<(), Mismatch>>,
    /// The largest difference that counts as equal; `None` if every bit counts.
    pub(super) tolerance: Option<Tolerance>,
}

/// An input of the model.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) summary: Summary,
    pub(super) origin: Origin,
    /// `None` after it was given to the run.
    pub(super) tensor: Option<Tensor>,
}

/// Where the values of an input come from.
pub(super) enum Origin {
    File(String),
    Seed(u64),
}

/// The results of a run.
pub(super) struct RunResult {
    /// In the graph's order.
    pub(super) outputs: Vec<(String, Tensor)>,
    /// For each output, the input whose memory it is in.
    pub(super) lies_in: Vec<Option<String>>,
    /// What each node did, where it was evaluated here.
    pub(super) nodes: Vec<NodeReport>,
    /// The writes, by the number of their node.
    pub(super) pictures: Vec<(usize, Picture)>,
}

impl RunRecord {
    /// Compares the outputs with those that the data set expects, if it has any.
    pub(super) fn check(&mut self, set: &DataSet) -> Result<(), CommandError> {
        let expected = set.read_outputs()?;
        if !expected.is_empty() {
            let got: Vec<_> = self.result.outputs.iter().map(|(_, tensor)| tensor).collect();
            self.check = Some(compare(&got, &expected, self.tolerance).map_or(Ok(()), Err));
        }
        Ok(())
    }

    /// Returns whether every cache that had to be in place is, and every output is as expected.
    pub(super) fn is_right(&self) -> bool {
        let claimed = |node: &&NodeReport| matches!(node.outcome, NodeOutcome::InPlace { .. });
        let proved = self.result.nodes.iter().filter(claimed).all(NodeReport::is_in_place);
        proved && self.not_in_place.is_empty() && !matches!(self.check, Some(Err(_)))
    }
}

impl Input {
    pub(super) fn new(name: &str, tensor: Tensor, origin: Origin) -> Self {
        Self { name: name.to_owned(), summary: Summary::of(&tensor), origin, tensor: Some(tensor) }
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
