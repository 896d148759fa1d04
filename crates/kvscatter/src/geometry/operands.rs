//! The input of a geometry: two tensors with a role for each dimension.

use alloc::vec;
use alloc::vec::Vec;

use super::blocks::Loop;
use super::layout::{Dim, View, dense};
use super::mapping::{MappingDims, Strides};
use crate::argument::ArgumentNames;
use crate::element::ElementType;

/// Two checked tensors. The specification has assigned a role to each dimension.
#[derive(Debug)]
pub(crate) struct Operands<'a> {
    pub(crate) names: &'static ArgumentNames,
    pub(crate) element: ElementType,
    pub(crate) cache: &'a View,
    pub(crate) update: &'a View,
    pub(crate) layers: Dim,
    pub(crate) batch: ByTensor<Dim, UpdateBatch>,
    pub(crate) rows: ByTensor,
    /// The dimensions between the batch and the sequence. The sizes of each pair agree.
    pub(crate) outer: Vec<ByTensor>,
    /// The dimensions after the sequence. The sizes of each pair agree.
    pub(crate) inner: Vec<ByTensor>,
}

/// How an update is divided into the samples of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UpdateBatch {
    /// The update is padded, and this is its batch dimension.
    Padded(Dim),
    /// The samples of the update follow each other.
    Packed,
    /// The call gives the sample and the slot of each token. In a paged cache the samples are the blocks.
    Tokens,
}

/// A dimension of the cache, and the dimension of the update with the same role.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByTensor<C = Dim, U = C> {
    pub(crate) cache: C,
    pub(crate) update: U,
}

impl Operands<'_> {
    /// Returns the layer stride and the dimensions of a dense tensor with the cache's shape.
    pub(super) fn present(&self) -> Option<(isize, TensorDims)> {
        let Self { layers, batch, rows, outer, inner, .. } = self;
        let sizes = |pairs: &[ByTensor]| pairs.iter().map(|pair| pair.cache.size).collect::<Vec<_>>();
        let shape =
            [vec![layers.size, batch.cache.size], sizes(outer), vec![rows.cache.size], sizes(inner)].concat();
        let mut dims = dense(&shape)?.into_iter();
        let (layer, sample) = (dims.next()?, dims.next()?);
        let outer: Vec<Dim> = dims.by_ref().take(outer.len()).collect();
        let row = dims.next()?;
        Some((layer.stride, TensorDims { sample: sample.stride, outer, row, inner: dims.collect() }))
    }
}

/// The dimensions of the destination or of the source of a mapping.
#[derive(Debug)]
pub(super) struct TensorDims {
    sample: isize,
    outer: Vec<Dim>,
    row: Dim,
    inner: Vec<Dim>,
}

impl TensorDims {
    pub(super) fn new(
        sample: isize,
        row: Dim,
        outer: impl Iterator<Item = Dim>,
        inner: impl Iterator<Item = Dim>,
    ) -> Self {
        Self { sample, outer: outer.collect(), row, inner: inner.collect() }
    }

    pub(super) fn pair(dst: &Self, src: &Self, max_rows: usize) -> MappingDims {
        let pair = |dst: &[Dim], src: &[Dim]| -> Vec<Loop> {
            let pairs = dst.iter().zip(src);
            pairs
                .map(|(dst, src)| Loop { count: dst.size, dst_stride: dst.stride, src_stride: src.stride })
                .collect()
        };
        MappingDims {
            sample: Strides { dst: dst.sample, src: src.sample },
            rows: Loop { count: max_rows, dst_stride: dst.row.stride, src_stride: src.row.stride },
            outer: pair(&dst.outer, &src.outer),
            inner: pair(&dst.inner, &src.inner),
        }
    }
}
