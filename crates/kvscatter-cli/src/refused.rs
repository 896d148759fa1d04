//! `refused.json`: the reason why the inputs of a test directory must be refused.

pub(crate) mod of_oracle;
mod rule;

use std::path::Path;

use kvscatter_onnx::internal::test_dir::REFUSED;
use kvscatter_oracle::Refusal;
use serde::{Deserialize, Serialize};

use crate::error::CommandError;
use crate::json_file;

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
    pub(crate) fn read(folder: &Path) -> Result<Option<Self>, CommandError> {
        json_file::read(&folder.join(REFUSED), MAX_BYTES)
    }

    /// Writes the file into this folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), CommandError> {
        json_file::write(&folder.join(REFUSED), self)
    }

    /// Converts the oracle's refusal.
    ///
    /// # Errors
    /// Returns [`CommandError::NotTensorScatter`] if the rule belongs to another operator.
    pub(crate) fn from_oracle(refusal: &Refusal) -> Result<Self, CommandError> {
        let reason = match *refusal {
            Refusal::TypesDiffer { cache, update } => {
                format!("past_cache is {cache}, update is {update}")
            }
            Refusal::Mode { ref name } => {
                format!("mode {name:?} is neither linear nor circular")
            }
            Refusal::CacheRank { rank } => {
                format!("past_cache has {rank} dimensions, must have at least 2")
            }
            Refusal::UpdateRank { rank } => {
                format!("update has {rank} dimensions, must have as many as past_cache")
            }
            Refusal::Axis { axis, rank } => {
                format!("axis {axis} is not a sequence dimension of a cache of rank {rank}")
            }
            Refusal::Dimension { dimension, cache, update } => {
                format!("dimension {dimension} is {update} in update, must be {cache} as in past_cache")
            }
            Refusal::UpdateTooLong { capacity, rows } => {
                format!("update has {rows} rows, more than the capacity of {capacity} of past_cache")
            }
            Refusal::IndexCount { argument, given, needed } => {
                format!("{argument} has {given} values, must have {needed}, one for each sample")
            }
            Refusal::NegativeStart { sample, start } => {
                format!("write_indices[{sample}] = {start} is negative")
            }
            Refusal::OutOfRange { sample, start, rows, capacity } => format!(
                "write_indices[{sample}] = {start}: {start} + {rows} rows exceed the capacity of {capacity}"
            ),
            _ => return Err(CommandError::NotTensorScatter { what: format!("{refusal:?}") }),
        };
        Ok(Self { kind: of_oracle::write(refusal), reason })
    }
}
