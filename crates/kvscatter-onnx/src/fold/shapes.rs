//! Shapes, strides, and the positions in a dense buffer that a view of it reads.
//!
//! Every shape here belongs to a [`Value`](super::Value), except that of [`elements`]. The product of its dimensions
//! fits `isize`, so the computations below do not saturate.

use super::FoldError;
use crate::{EvalError, OnnxError};

/// Returns the number of elements of a shape. It saturates, because a file may claim any shape.
pub(crate) fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |elements: usize, &dim| elements.saturating_mul(dim))
}

/// Returns the strides of a dense buffer in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<i64> {
    let mut step: i64 = 1;
    let mut strides: Vec<i64> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let this = step;
            step = step.saturating_mul(signed(dim).max(1));
            this
        })
        .collect();
    strides.reverse();
    strides
}

/// Returns the positions that a strided view reads, in the row-major order of the view.
pub(crate) fn walk(shape: &[usize], offset: i64, strides: &[i64]) -> Vec<usize> {
    if shape.contains(&0) {
        return Vec::new();
    }
    let mut axes = merged(shape, strides);
    let (last, last_stride) = axes.pop().unwrap_or((1, 0));
    let mut starts = vec![offset];
    for (dim, stride) in axes {
        let steps = 0..signed(dim);
        let at_step = |start: i64, step: i64| start.saturating_add(step.saturating_mul(stride));
        starts =
            starts.iter().flat_map(|&start| steps.clone().map(move |step| at_step(start, step))).collect();
    }
    // Neither a negative position nor `usize::MAX` is in any buffer.
    let position = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    let mut positions = Vec::with_capacity(starts.len().saturating_mul(last));
    for start in starts {
        // Most masks are read in such runs.
        match (last_stride, usize::try_from(start)) {
            (0, _) => positions.extend(std::iter::repeat_n(position(start), last)),
            (1, Ok(first)) => positions.extend(first..first.saturating_add(last)),
            _ => positions.extend(
                (0..signed(last))
                    .map(|step| position(start.saturating_add(step.saturating_mul(last_stride)))),
            ),
        }
    }
    positions
}

/// Returns the sizes and strides of axes. Neighbouring axes that are walked in one run are one axis.
fn merged(shape: &[usize], strides: &[i64]) -> Vec<(usize, i64)> {
    let mut axes: Vec<(usize, i64)> = Vec::with_capacity(shape.len());
    for (&dim, &stride) in shape.iter().zip(strides) {
        match axes.last_mut() {
            _ if dim == 1 => {}
            Some((size, outer)) if *outer == stride.saturating_mul(signed(dim)) => {
                (*size, *outer) = (size.saturating_mul(dim), stride);
            }
            _ => axes.push((dim, stride)),
        }
    }
    axes
}

/// Returns the shape that two shapes broadcast to, as in NumPy.
///
/// # Errors
/// Returns [`EvalError::Broadcast`] if two dimensions differ and neither is 1.
pub(crate) fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>, OnnxError> {
    let rank = left.len().max(right.len());
    let dim = |(left_dim, right_dim)| match (left_dim, right_dim) {
        (1, dim) | (dim, 1) => Ok(dim),
        (left_dim, right_dim) if left_dim == right_dim => Ok(left_dim),
        _ => Err(EvalError::Broadcast { left: left.to_vec(), right: right.to_vec() }.into()),
    };
    aligned(left, rank).zip(aligned(right, rank)).map(dim).collect()
}

/// Returns the positions of the elements of `from` after it is broadcast to the shape `to`, in row-major
/// order.
pub(crate) fn spread(from: &[usize], to: &[usize]) -> Vec<usize> {
    let missing = to.len().saturating_sub(from.len());
    let own = strides(from).into_iter().zip(from).map(|(stride, &dim)| if dim == 1 { 0 } else { stride });
    let strides: Vec<i64> = std::iter::repeat_n(0, missing).chain(own).collect();
    walk(to, 0, &strides)
}

/// Returns an axis counted from the start. A negative axis counts from the end.
///
/// # Errors
/// Returns [`FoldError::Axis`] for an axis outside `-rank..rank`.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize, OnnxError> {
    let from_start = if axis < 0 { axis.saturating_add(signed(rank)) } else { axis };
    usize::try_from(from_start)
        .ok()
        .filter(|&axis| axis < rank)
        .ok_or_else(|| FoldError::Axis { axis, rank }.into())
}

/// A shape split at one axis: the number of elements before it, its size, and the number of elements after
/// it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisSplit {
    pub(crate) outer: usize,
    pub(crate) dim: usize,
    pub(crate) inner: usize,
}

impl AxisSplit {
    /// Splits a shape at an axis. If `axis == rank`, the axis has size 1 and comes after all others.
    pub(crate) fn new(shape: &[usize], axis: usize) -> Self {
        let (outer, rest) = shape.split_at_checked(axis).unwrap_or((shape, &[]));
        let (dim, inner) = rest.split_first().map_or((1, &[][..]), |(&dim, inner)| (dim, inner));
        Self { outer: elements(outer), dim, inner: elements(inner) }
    }

    /// Returns the number of elements for one index of the axes before the axis.
    pub(crate) fn block(&self) -> usize {
        self.dim.saturating_mul(self.inner)
    }
}

/// Returns `shape` with another size on one axis.
pub(crate) fn with_dim(shape: &[usize], axis: usize, dim: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let Some(at) = shape.get_mut(axis) {
        *at = dim;
    }
    shape
}

/// Converts a size to the signed number that ONNX uses.
pub(crate) fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn aligned(shape: &[usize], rank: usize) -> impl Iterator<Item = usize> {
    std::iter::repeat_n(1, rank.saturating_sub(shape.len())).chain(shape.iter().copied())
}
