//! Products of matrices.

use super::node::{Replacing, StandardEditor};
use crate::OnnxError;
use crate::edit::NewNode;

/// Replaces `FusedMatMul`: a product whose operands may be transposed, times a number.
pub(super) fn fused(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    old.only(
        &[(0, "A"), (1, "B")],
        &[(0, "Y")],
        &["alpha", "transA", "transB", "transBatchA", "transBatchB"],
    )?;
    let left = operand(standard, old, 0, ["transBatchA", "transA"])?;
    let right = operand(standard, old, 1, ["transBatchB", "transB"])?;
    let product = NewNode::new("MatMul", &[&left, &right]);
    let alpha = f64::from(old.float("alpha", 1.0)?);
    if alpha == 1.0 {
        standard.named(product, old.output(0));
        return Ok(());
    }
    let product = standard.editor.add(product);
    let alpha = standard.editor.float(old.element(0)?, alpha)?;
    standard.named(NewNode::new("Mul", &[&product, &alpha]), old.output(0));
    Ok(())
}

/// Transposes an operand as its attributes say.
///
/// `transBatch` moves the first axis to the end of the batch's axes, and `trans` exchanges the last two
/// axes after that.
fn operand(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    slot: usize,
    [trans_batch, trans]: [&str; 2],
) -> Result<String, OnnxError> {
    let value = old.input(slot)?;
    let rank = old.shape(slot)?.len();
    let mut perm: Vec<i64> = (0..).take(rank).collect();
    let last = rank.saturating_sub(1);
    if old.int(trans_batch, 0)? != 0
        && let Some(batch) = perm.get_mut(..last).filter(|batch| !batch.is_empty())
    {
        batch.rotate_left(1);
    }
    if old.int(trans, 0)? != 0 && last > 0 {
        perm.swap(last.saturating_sub(1), last);
    }
    if perm.is_sorted() {
        return Ok(value.to_owned());
    }
    Ok(standard.editor.add(NewNode::new("Transpose", &[value]).ints("perm", &perm)))
}
