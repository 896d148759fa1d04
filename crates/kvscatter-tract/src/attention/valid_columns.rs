//! The operator that cuts a mask, or a part of its computation, to the columns of valid slots.

use tract_onnx::tract_hir::internal::*;

/// The numbers of columns are multiples of this, so that a call of attention is not prepared for every
/// length.
pub(super) const BLOCK: usize = 16;

/// Takes a tensor with an element for each slot along `axis`, and lengths, `[batch]`. Returns the elements of
/// the slots up to the largest length, and some after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValidColumns {
    pub(super) axis: usize,
    /// The size of the result along `axis`, a symbol that a run resolves.
    pub(super) columns: TDim,
}

/// Returns the number of columns for these lengths, at most `capacity`. A length that `Attention` rejects
/// counts as the nearest valid one.
fn columns(lengths: &[i64], capacity: usize) -> usize {
    let valid = |length: &i64| usize::try_from((*length).max(0)).unwrap_or(capacity).min(capacity);
    let longest = lengths.iter().map(valid).max().unwrap_or_default();
    longest.max(1).checked_next_multiple_of(BLOCK).unwrap_or(capacity).min(capacity)
}

impl Op for ValidColumns {
    fn name(&self) -> StaticName {
        "ValidColumns".into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        true
    }

    op_as_typed_op!();
}

impl EvalOp for ValidColumns {
    op_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        let (all, lengths) = args_2!(inputs);
        let capacity = all.shape().get(self.axis).copied().context("the axis of slots is missing")?;
        let columns = columns(lengths.try_as_plain_ram()?.as_slice()?, capacity);
        if columns == capacity {
            return Ok(tvec!(all));
        }
        Ok(tvec!(all.slice(self.axis, 0, columns)?.into_tvalue()))
    }
}

impl TypedOp for ValidColumns {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let mut fact = inputs.first().context("an input is missing")?.without_value();
        fact.shape.set(self.axis, self.columns.clone());
        Ok(tvec!(fact))
    }

    as_op!();
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_cover_the_longest_sample_and_repeat() {
        for (lengths, capacity, expected) in [
            (&[0][..], 100, 16),
            (&[], 100, 16),
            (&[16], 100, 16),
            (&[3, 17, 0], 100, 32),
            (&[97], 100, 100),
            (&[101], 100, 100),
            (&[i64::MAX, -1], usize::MAX, i64::MAX as usize + 1),
            (&[i64::MIN], 5, 5),
            (&[1], 0, 0),
        ] {
            assert_eq!(columns(lengths, capacity), expected, "{lengths:?} of {capacity}");
        }
    }
}
