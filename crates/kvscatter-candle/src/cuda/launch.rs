//! What is launched together: caches of one layout, with updates of one.

use std::sync::Arc;

use candle_core::{DType, Layout, Shape, Tensor};
use kvscatter::Prepared;
use kvscatter_cuda::{BufferPair, Cuda, DeviceBuffer, DeviceWrite};

use crate::element::element_of_both;
use crate::scatter::Sides;
use crate::writer::storage_of;
use crate::{CandleError, TensorScatter};

/// A tensor: where its first element is, and how the others lie behind it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) storage: usize,
    /// Bytes in front of its first element.
    pub(super) begin: usize,
    pub(super) side: Side,
}

/// What of a tensor decides how it is written, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) dtype: DType,
    layout: Layout,
}

impl Place {
    pub(super) fn of(tensor: &Tensor) -> Self {
        let (dtype, layout) = (tensor.dtype(), tensor.layout());
        let begin = layout.start_offset().saturating_mul(dtype.size_in_bytes());
        let layout = Layout::new(layout.shape().clone(), strides(layout), 0);
        Self { storage: storage_of(tensor), begin, side: Side { dtype, layout } }
    }

    pub(super) fn shape(&self) -> &Shape {
        self.side.layout.shape()
    }

    pub(super) fn elements(&self) -> usize {
        self.shape().elem_count()
    }
}

/// A stride along a dimension of 1 moves nothing, and is another one in a transposed projection than in what rotary
/// embedding makes of it: both are taken to be dense there.
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

/// Caches that one launch writes.
#[derive(Debug)]
pub(super) struct Launch {
    sides: [Side; 2],
    /// Their places in the call.
    members: Vec<usize>,
    prepared: Prepared,
    /// For tensors at these addresses.
    ready: Option<(Vec<BufferPair>, Arc<DeviceWrite>)>,
}

/// As few launches as caches and updates allow.
pub(super) fn launches(
    scatter: &TensorScatter,
    caches: &[Place],
    updates: &[Place],
) -> Result<Vec<Launch>, CandleError> {
    let mut launches: Vec<Launch> = Vec::new();
    for (index, (cache, update)) in caches.iter().zip(updates).enumerate() {
        let sides = [&cache.side, &update.side];
        match launches.iter_mut().find(|launch| launch.sides.each_ref() == sides) {
            Some(launch) => launch.members.push(index),
            None => launches.push(Launch::new(scatter, sides, index)?),
        }
    }
    Ok(launches)
}

impl Launch {
    fn new(scatter: &TensorScatter, sides: [&Side; 2], index: usize) -> Result<Self, CandleError> {
        let [cache, update] = sides;
        let element = element_of_both(cache.dtype, update.dtype)?;
        let prepared =
            scatter.prepare(&Sides { element, cache: &cache.layout, update: &update.layout, rows: None })?;
        Ok(Self { sides: sides.map(Clone::clone), members: vec![index], prepared, ready: None })
    }

    /// The write for the addresses that its tensors have in this call.
    pub(super) fn prepared(
        &mut self,
        cuda: &Cuda,
        skip_all: bool,
        place: impl Fn(usize) -> (DeviceBuffer, DeviceBuffer),
    ) -> Result<Arc<DeviceWrite>, CandleError> {
        let pairs = self.members.iter().map(|&member| place(member));
        let pairs: Vec<_> = pairs.map(|(cache, update)| BufferPair { cache, update }).collect();
        if let Some((known, write)) = &self.ready
            && *known == pairs
        {
            return Ok(Arc::clone(write));
        }
        let write = Arc::new(cuda.prepare(&self.prepared, &pairs)?.skip_all(skip_all));
        self.ready = Some((pairs, Arc::clone(&write)));
        Ok(write)
    }
}
