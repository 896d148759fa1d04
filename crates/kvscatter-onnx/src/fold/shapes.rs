//! Shapes, strides, and the positions in a dense buffer that a view of it reads.
//!
//! Every shape here belongs to a [`Value`](super::Value), except that of [`elements`]. The product of its dimensions
//! fits `isize`, so the computations below do not saturate.

use super::FoldError;
use crate::OnnxError;
pub(crate) use crate::eval::broadcast;

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
    positions(shape, offset, strides).collect()
}

/// Returns the positions that [`walk`] returns, one after the other. A mask may have more elements than all other
/// values together, so its positions are not stored.
fn positions(shape: &[usize], offset: i64, strides: &[i64]) -> impl Iterator<Item = usize> + use<> {
    let mut axes = merged(shape, strides);
    let (last, last_stride) = axes.pop().unwrap_or((1, 0));
    let mut starts = if shape.contains(&0) { Vec::new() } else { vec![offset] };
    for (dim, stride) in axes {
        let steps = 0..signed(dim);
        let at_step = |start: i64, step: i64| start.saturating_add(step.saturating_mul(stride));
        starts =
            starts.iter().flat_map(|&start| steps.clone().map(move |step| at_step(start, step))).collect();
    }
    // Neither a negative position nor `usize::MAX` is in any buffer.
    let position = |at: i64| usize::try_from(at).unwrap_or(usize::MAX);
    let run = move |start: i64| {
        (0..signed(last)).map(move |step| position(start.saturating_add(step.saturating_mul(last_stride))))
    };
    starts.into_iter().flat_map(run)
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

/// Returns the positions of the elements of `from` after it is broadcast to the shape `to`, in row-major
/// order.
pub(crate) fn spread(from: &[usize], to: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let missing = to.len().saturating_sub(from.len());
    let own = strides(from).into_iter().zip(from).map(|(stride, &dim)| if dim == 1 { 0 } else { stride });
    let strides: Vec<i64> = std::iter::repeat_n(0, missing).chain(own).collect();
    positions(to, 0, &strides)
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

/// Returns `shape` with any number of axes in the place of one.
pub(crate) fn with_axes(shape: &[usize], axis: usize, axes: &[usize]) -> Vec<usize> {
    let (before, rest) = shape.split_at_checked(axis).unwrap_or_default();
    [before, axes, rest.get(1..).unwrap_or_default()].concat()
}

/// Returns `shape` with another size on one axis.
pub(crate) fn with_dim(shape: &[usize], axis: usize, dim: usize) -> Vec<usize> {
    with_axes(shape, axis, &[dim])
}

/// Returns how far the element at a position is above the diagonal of its matrix.
pub(crate) fn above_diagonal(position: usize, rows: usize, columns: usize) -> Option<i64> {
    let row = position.checked_div(columns)?.checked_rem(rows)?;
    Some(signed(position.checked_rem(columns)?).saturating_sub(signed(row)))
}

/// Converts a size to the signed number that ONNX uses.
pub(crate) fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
