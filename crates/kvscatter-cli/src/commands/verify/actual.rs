//! The files that another implementation has written for a data set.

use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::Tensor;
use kvscatter_onnx::internal::test_dir::DataSet;
use serde::Deserialize;

use super::finding::Finding;
use crate::files::{self, Location};
use crate::json_file;

const ANSWER: &str = "answer.json";
/// The largest size of `answer.json`. The messages of a runtime are much shorter.
const MAX_BYTES: u64 = 1 << 20;

/// The folder of a data set in OUT, and its `answer.json`.
pub(super) struct Actual {
    folder: PathBuf,
    /// The result of the call with a separate output, if `answer.json` contains it.
    pub(super) plain: Option<PlainCall>,
    /// The result of the call in place, if `answer.json` contains it.
    pub(super) in_place: Option<InPlaceCall>,
}

#[derive(Default, Deserialize)]
struct Document {
    plain: Option<PlainCall>,
    in_place: Option<InPlaceCall>,
}

/// The result of a call with a separate output.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PlainCall {
    pub(super) status: Status,
    #[serde(default)]
    pub(super) message: Option<String>,
}

/// The result of a call that may write into the memory of the past.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct InPlaceCall {
    pub(super) status: InPlaceStatus,
    #[serde(default)]
    pub(super) message: Option<String>,
    /// Whether the returned present is the buffer of the past.
    #[serde(default)]
    pub(super) same_memory: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Status {
    Returned,
    Refused,
    Crashed,
    Timeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum InPlaceStatus {
    Returned,
    Refused,
    Crashed,
    Timeout,
    NotPossible,
}

impl Actual {
    /// Reads the answer to a data set in the folder of a case in OUT.
    ///
    /// # Errors
    /// Returns [`Finding::TheirAnswer`] if there is an `answer.json` that cannot be read.
    pub(super) fn read(case: &Path, set: &DataSet) -> Result<Self, Finding> {
        let folder = case.join(set.folder.file_name().unwrap_or_default());
        let answer = json_file::read(&folder.join(ANSWER), MAX_BYTES);
        let Document { plain, in_place } =
            answer.map_err(|error| Finding::TheirAnswer(error.into()))?.unwrap_or_default();
        Ok(Self { folder, plain, in_place })
    }

    /// Returns whether there is a file of this output.
    pub(super) fn has_output(&self, output: usize) -> bool {
        self.find(&format!("output_{output}")).is_some()
    }

    /// Reads the expected number of outputs.
    ///
    /// # Errors
    /// Returns [`Finding::Missing`] or [`Finding::TheirFile`].
    pub(super) fn outputs(&self, expected: &[Tensor]) -> Result<Vec<Tensor>, Finding> {
        let read = |(output, expected): (usize, &Tensor)| {
            let name = format!("output_{output}");
            self.tensor(&name, expected.element())?.ok_or_else(|| self.missing(&name))
        };
        expected.iter().enumerate().map(read).collect()
    }

    /// Reads a tensor, if there is a file of this name. `hint` is the type of a `.npy` array that gives only its
    /// width.
    ///
    /// # Errors
    /// Returns [`Finding::TheirFile`].
    pub(super) fn tensor(&self, name: &str, hint: ElementType) -> Result<Option<Tensor>, Finding> {
        let Some(location) = self.find(name) else { return Ok(None) };
        files::read_hinted(&location, hint).map(Some).map_err(Finding::TheirFile)
    }

    /// Returns the finding that there is no file of this name.
    pub(super) fn missing(&self, name: &str) -> Finding {
        Finding::Missing { stem: self.folder.join(name) }
    }

    fn find(&self, name: &str) -> Option<Location> {
        let paths = ["pb", "npy"].map(|extension| self.folder.join(name).with_extension(extension));
        Location::of_path(paths.iter().find(|path| path.exists())?)
    }
}
