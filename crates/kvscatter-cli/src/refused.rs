//! `refused.json`: the reason why the inputs of a test directory must be refused.

mod rule;

use std::path::Path;

use kvscatter_onnx::test_dir::REFUSED;
use kvscatter_oracle::Refusal;
use serde::{Deserialize, Serialize};

use crate::error::CommandError;
use crate::{files, json_file};

pub(crate) use rule::RefusedRule;

/// The largest size of the file. A larger file is not a `refused.json`.
const MAX_BYTES: u64 = 1 << 16;

/// The reason why a case must be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    /// The rule, for programs.
    pub(crate) kind: RefusedRule,
    /// The rule and the numbers that break it, for people.
    pub(crate) reason: String,
}

impl Refused {
    /// Reads the file in this folder, if there is one.
    ///
    /// # Errors
    /// Returns [`files::FileError`] if the file exists and cannot be read.
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, CommandError> {
        let path = folder.join(REFUSED);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = files::read_bytes(&path, MAX_BYTES)?;
        serde_json::from_slice(&bytes).map(Some).map_err(|cause| CommandError::Json { path, cause })
    }

    /// Writes the file into this folder.
    ///
    /// # Errors
    /// Returns [`files::FileError`] if the file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), CommandError> {
        json_file::write(&folder.join(REFUSED), self)
    }

    /// Converts the oracle's refusal.
    ///
    /// # Errors
    /// Returns [`CommandError::NotTensorScatter`] if the rule belongs to another operator.
    pub(crate) fn from_oracle(refusal: &Refusal) -> Result<Self, CommandError> {
        let (kind, reason) = match *refusal {
            Refusal::TypesDiffer { cache, update } => {
                (RefusedRule::TypesDiffer, format!("past_cache is {cache}, update is {update}"))
            }
            Refusal::Mode { ref name } => {
                (RefusedRule::Mode, format!("mode {name:?} is neither linear nor circular"))
            }
            Refusal::CacheRank { rank } => {
                (RefusedRule::Rank, format!("past_cache has {rank} dimensions, must have at least 2"))
            }
            Refusal::UpdateRank { rank } => (
                RefusedRule::RankMismatch,
                format!("update has {rank} dimensions, must have as many as past_cache"),
            ),
            Refusal::Axis { axis, rank } => (
                RefusedRule::Axis,
                format!("axis {axis} is not a sequence dimension of a cache of rank {rank}"),
            ),
            Refusal::Dimension { dimension, cache, update } => (
                RefusedRule::Dimension,
                format!("dimension {dimension} is {update} in update, must be {cache} as in past_cache"),
            ),
            Refusal::UpdateTooLong { capacity, rows } => (
                RefusedRule::UpdateTooLong,
                format!("update has {rows} rows, more than the capacity of {capacity} of past_cache"),
            ),
            Refusal::IndexCount { argument, given, needed } => (
                RefusedRule::IndexCount,
                format!("{argument} has {given} values, must have {needed}, one for each sample"),
            ),
            Refusal::NegativeStart { sample, start } => {
                (RefusedRule::NegativeStart, format!("write_indices[{sample}] = {start} is negative"))
            }
            Refusal::OutOfRange { sample, start, rows, capacity } => (
                RefusedRule::OutOfRange,
                format!(
                    "write_indices[{sample}] = {start}: {start} + {rows} rows exceed the capacity of {capacity}"
                ),
            ),
            _ => return Err(CommandError::NotTensorScatter { what: format!("{refusal:?}") }),
        };
        Ok(Self { kind, reason })
    }
}
