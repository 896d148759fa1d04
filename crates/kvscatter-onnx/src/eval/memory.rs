//! Computes how much memory an evaluation will allocate, before anything is computed.

use std::collections::BTreeMap;

use super::evaluator::Evaluator;
use super::feed::Feed;
use super::op::Op;
use super::placement::PlacementPlan;
use super::types::{Types, missing};
use crate::{Data, EvalError, OnnxError, Tensor, storage_len};

/// Checks that the memory of the values that an evaluation allocates is within the limit: results of `Add`, caches
/// that are not written in place, and copied outputs.
///
/// For strings, whose lengths are known only afterwards, the largest possible number of bytes counts. For all other
/// types it is exact.
///
/// # Errors
/// Returns [`EvalError::MemoryLimit`] if it is not.
pub(super) fn check(
    evaluator: &Evaluator<'_>,
    feeds: &BTreeMap<&str, Feed<'_>>,
    types: &Types<'_>,
    plan: &PlacementPlan,
) -> Result<(), OnnxError> {
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    let constants = evaluator.constants.iter().map(|(&name, tensor)| (name, tensor));
    let feeds = feeds.iter().map(|(&name, feed)| (name, feed.tensor()));
    sizes.extend(constants.chain(feeds).map(|(name, tensor)| (name, footprint(tensor))));
    let mut needed = 0_u64;
    for (op, reason) in evaluator.ops.iter().zip(&plan.reasons) {
        let size = |name: &str| sizes.get(name).copied().ok_or_else(|| missing(name));
        let output = match *op {
            Op::Constant { .. } => continue,
            Op::Identity { input, .. } => size(input)?,
            Op::Add { output, .. } => {
                let ty = types.value(output)?;
                let sum = bytes(storage_len(ty.element, &ty.shape)?);
                // The sum, and both operands expanded to its size.
                needed = needed.saturating_add(sum.saturating_mul(3));
                sum
            }
            Op::TensorScatter { past_cache, update, .. } => {
                let is_strings = types.get(update).is_some_and(|ty| ty.element.bits().is_none());
                // Strings are cloned, and may be longer than the strings that they replace.
                let cloned = if is_strings { size(update)? } else { 0 };
                let present = size(past_cache)?.saturating_add(cloned);
                needed = needed.saturating_add(if reason.is_some() { present } else { cloned });
                present
            }
        };
        sizes.insert(op.output(), output);
    }
    for (output, _) in evaluator.outputs.iter().zip(&plan.output_copies).filter(|(_, is_copy)| **is_copy) {
        let size = sizes.get(output.name).ok_or_else(|| missing(output.name))?;
        needed = needed.saturating_add(*size);
    }
    let limit = evaluator.memory_limit;
    if needed > limit { Err(EvalError::MemoryLimit { needed, limit }.into()) } else { Ok(()) }
}

/// Returns the number of bytes of the values. For strings, only their own bytes count.
pub(super) fn size(tensor: &Tensor) -> usize {
    match tensor.data() {
        Data::Bytes(bytes) => bytes.len(),
        Data::Strings(strings) => strings.iter().map(Vec::len).fold(0, usize::saturating_add),
    }
}

/// Returns the number of bytes that the values take in memory.
fn footprint(tensor: &Tensor) -> u64 {
    let strings = match tensor.data() {
        Data::Bytes(_) => 0,
        Data::Strings(strings) => strings.len().saturating_mul(size_of::<Vec<u8>>()),
    };
    bytes(size(tensor).saturating_add(strings))
}

/// Converts a size in memory to the type of the limits.
pub(crate) fn bytes(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}
