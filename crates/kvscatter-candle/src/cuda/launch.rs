//! Groups of caches that one launch writes. The caches of a group have the same layout, and so do their
//! updates.

use std::sync::Arc;

use candle_core::{DType, Layout, Shape, Tensor};
use kvscatter::Prepared;
use kvscatter_cuda::{BufferPair, Cuda, DeviceBuffer, DeviceWrite};

use crate::element::element_of_both;
use crate::scatter::WriteLayouts;
use crate::writer::storage_of;
use crate::{CandleError, TensorScatter};

/// A tensor with its storage, the offset of its first byte, and its layout.
#[derive(Clone, Debug)]
pub(super) struct TensorView {
    pub(super) storage: usize,
    /// The number of bytes before its first element.
    pub(super) begin: usize,
    pub(super) typed_layout: TypedLayout,
}

/// The element type and the layout of a tensor, without its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypedLayout {
    pub(super) dtype: DType,
    layout: Layout,
}

impl TensorView {
    pub(super) fn from_tensor(tensor: &Tensor) -> Self {
        let (dtype, layout) = (tensor.dtype(), tensor.layout());
        let begin = layout.start_offset().saturating_mul(dtype.size_in_bytes());
        let layout = Layout::new(layout.shape().clone(), strides(layout), 0);
        Self { storage: storage_of(tensor), begin, typed_layout: TypedLayout { dtype, layout } }
    }

    pub(super) fn shape(&self) -> &Shape {
        self.typed_layout.layout.shape()
    }

    pub(super) fn elements(&self) -> usize {
        self.shape().elem_count()
    }
}

/// Returns the strides, with dense strides for dimensions of 1. Such strides have no effect, but they differ
/// between the results of a transposed projection and of rotary embedding.
fn strides(layout: &Layout) -> Vec<usize> {
    let mut dense_stride = 1_usize;
    let sizes = layout.dims().iter().zip(layout.stride()).rev();
    let strides = sizes.map(|(&size, &stride)| {
        let dense = dense_stride;
        dense_stride = dense_stride.saturating_mul(size);
        if size == 1 { dense } else { stride }
    });
    let mut strides: Vec<_> = strides.collect();
    strides.reverse();
    strides
}

#[derive(Debug)]
pub(super) struct Launch {
    typed_layouts: [TypedLayout; 2],
    /// The indices of the caches in the call.
    members: Vec<usize>,
    prepared: Prepared,
    /// The write that was prepared for the last addresses.
    prepared_for: Option<(Vec<BufferPair>, Arc<DeviceWrite>)>,
}

/// Returns the smallest number of launches that caches and updates allow.
pub(super) fn launches(
    scatter: &TensorScatter,
    caches: &[TensorView],
    updates: &[TensorView],
) -> Result<Vec<Launch>, CandleError> {
    let mut launches: Vec<Launch> = Vec::new();
    for (index, (cache, update)) in caches.iter().zip(updates).enumerate() {
        let typed_layouts = [&cache.typed_layout, &update.typed_layout];
        match launches.iter_mut().find(|launch| launch.typed_layouts.each_ref() == typed_layouts) {
            Some(launch) => launch.members.push(index),
            None => launches.push(Launch::new(scatter, typed_layouts, index)?),
        }
    }
    Ok(launches)
}

impl Launch {
    fn new(
        scatter: &TensorScatter,
        typed_layouts: [&TypedLayout; 2],
        index: usize,
    ) -> Result<Self, CandleError> {
        let [cache, update] = typed_layouts;
        let element = element_of_both(cache.dtype, update.dtype)?;
        let prepared = scatter.prepare(&WriteLayouts {
            element,
            cache: &cache.layout,
            update: &update.layout,
            rows: None,
        })?;
        Ok(Self {
            typed_layouts: typed_layouts.map(Clone::clone),
            members: vec![index],
            prepared,
            prepared_for: None,
        })
    }

    /// Returns the write for the addresses of the tensors in this call.
    pub(super) fn prepared(
        &mut self,
        cuda: &Cuda,
        skip_all: bool,
        buffers_of: impl Fn(usize) -> (DeviceBuffer, DeviceBuffer),
    ) -> Result<Arc<DeviceWrite>, CandleError> {
        let pairs = self.members.iter().map(|&member| buffers_of(member));
        let pairs: Vec<_> = pairs.map(|(cache, update)| BufferPair { cache, update }).collect();
        if let Some((known, write)) = &self.prepared_for
            && *known == pairs
        {
            return Ok(Arc::clone(write));
        }
        let write = Arc::new(cuda.prepare(&self.prepared, &pairs)?.skip_all(skip_all));
        self.prepared_for = Some((pairs, Arc::clone(&write)));
        Ok(write)
    }
}
