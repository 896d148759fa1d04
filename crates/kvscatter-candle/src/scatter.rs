//! The operator, and one call of it on three tensors.

use std::ops::Range;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{CpuStorage, CudaStorage, InplaceOp3, Layout};
use kvscatter::spec::onnx;
use kvscatter::{Argument, ElementType, Mode, NegativeIndex, OutOfRange, Prepared};

use crate::CandleError;
use crate::element::{self, element_of_storage};
use crate::indices::gathered;

/// ONNX `TensorScatter` as an in-place operation of candle on `(cache, update, write_indices)`.
///
/// - `cache` is `[batch, …, capacity, …]` and `update` is `[batch, …, rows, …]`. They have the same rank and
///   differ only in the sequence dimension. Their strides may be any, but positions of the cache must not
///   overlap.
/// - `write_indices` is `[batch]`, of `i64`, `i32` or `u32`. It contains the first slot of each sample.
///
/// Everything is checked before the first byte moves.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use kvscatter_candle::TensorScatter;
///
/// let cache = Tensor::zeros((2, 4, 1), candle_core::DType::F32, &Device::Cpu)?;
/// let update = Tensor::new(&[[[1f32], [2.]], [[3.], [4.]]], &Device::Cpu)?;
/// let write_indices = Tensor::new(&[0i64, 2], &Device::Cpu)?;
/// cache.inplace_op3(&update, &write_indices, &TensorScatter::new())?;
/// assert_eq!(cache.flatten_all()?.to_vec1::<f32>()?, [1., 2., 0., 0., 0., 0., 3., 4.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// This operation prepares the shapes in every call, which takes longer than the write of a decode step. In a
/// loop, use a [`Writer`](crate::Writer) instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorScatter {
    axis: i64,
    operator: onnx::TensorScatter,
    one_start: bool,
}

/// The layouts for which a write is prepared, and the rows of the update that are written.
#[derive(Clone, Debug)]
pub(crate) struct WriteLayouts<'a> {
    pub(crate) element: ElementType,
    pub(crate) cache: &'a Layout,
    pub(crate) update: &'a Layout,
    /// The rows, or `None` for all rows.
    pub(crate) rows: Option<Range<usize>>,
}

impl TensorScatter {
    /// Creates an operator with axis -2, linear mode, and one position for each sample.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            axis: onnx::TensorScatter::DEFAULT_AXIS,
            operator: onnx::TensorScatter::new(),
            one_start: false,
        }
    }

    /// Sets the sequence dimension, which is in `1..rank` or counted from the end. With
    /// [`one_start`](Self::one_start) it may be 0.
    #[must_use]
    pub const fn axis(mut self, axis: i64) -> Self {
        self.axis = axis;
        self
    }

    /// Sets whether the cache is a ring.
    #[must_use]
    pub const fn mode(mut self, mode: Mode) -> Self {
        self.operator = self.operator.mode(mode);
        self
    }

    /// Sets whether a sample whose position does not fit is an error or is left unchanged.
    #[must_use]
    pub const fn out_of_range(mut self, policy: OutOfRange) -> Self {
        self.operator = self.operator.out_of_range(policy);
        self
    }

    /// Sets the meaning of a negative position in a ring.
    #[must_use]
    pub const fn negative_index(mut self, policy: NegativeIndex) -> Self {
        self.operator = self.operator.negative_index(policy);
        self
    }

    /// Uses one position for the whole tensor. No dimension is the batch, and `write_indices` is `[1]`.
    /// kvscatter extension; not part of the specification.
    #[must_use]
    pub const fn one_start(mut self) -> Self {
        self.one_start = true;
        self
    }

    /// Checks the shapes and prepares a write.
    pub(crate) fn prepare(&self, layouts: &WriteLayouts<'_>) -> Result<Prepared, CandleError> {
        if self.one_start {
            self.check_ranks(layouts)?;
        }
        // With one position, a dimension of 1 is inserted at the front as the batch.
        let axis = if self.one_start && self.axis >= 0 { self.axis.saturating_add(1) } else { self.axis };
        let operator = self.operator.axis(axis);
        let cache = CoreLayout::from_layout(layouts.cache, self.one_start);
        let mut update = CoreLayout::from_layout(layouts.update, self.one_start);
        // An update of another rank does not have these rows. The core rejects it below.
        if let Some(rows) = &layouts.rows
            && update.dims.len() == cache.dims.len()
        {
            update.keep_rows(operator.resolve_axis(cache.dims.len())?, rows)?;
        }
        let prepared = operator.prepare(layouts.element, cache.layout(), update.layout());
        Ok(prepared.map_err(|error| if self.one_start { without_batch(error) } else { error })?)
    }

    /// Checks the axis and the ranks of tensors without a batch. Otherwise the core could return an error
    /// with a rank that includes the inserted batch.
    fn check_ranks(&self, layouts: &WriteLayouts<'_>) -> Result<(), kvscatter::Error> {
        let (cache, update) = (layouts.cache.dims().len(), layouts.update.dims().len());
        let rank = i64::try_from(cache).unwrap_or(i64::MAX);
        if !(-rank..rank).contains(&self.axis) {
            return Err(kvscatter::Error::AxisOutOfRange { axis: self.axis, rank: cache });
        }
        if cache != update {
            return Err(kvscatter::Error::RankMismatch { argument: Argument::Update, cache, update });
        }
        Ok(())
    }
}

impl Default for TensorScatter {
    fn default() -> Self {
        Self::new()
    }
}

impl InplaceOp3 for TensorScatter {
    fn name(&self) -> &'static str {
        "tensor-scatter"
    }

    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        cache_layout: &Layout,
        update: &CpuStorage,
        update_layout: &Layout,
        write_indices: &CpuStorage,
        indices_layout: &Layout,
    ) -> candle_core::Result<()> {
        let element = element_of_storage(cache, update)?;
        let prepared =
            self.prepare(&WriteLayouts { element, cache: cache_layout, update: update_layout, rows: None })?;
        let starts = gathered(write_indices, indices_layout)?;
        let plan = prepared.plan(&starts).map_err(CandleError::from)?;
        // candle's operations return nothing, so skipped samples are not reported.
        let _ = element::write(&plan, cache, update)?;
        Ok(())
    }

    /// Returns an error for CUDA tensors. A device cannot report in time that a position does not fit, and an
    /// operation cannot report it later.
    fn cuda_fwd(
        &self,
        cache: &mut CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        let device = cache.device().location();
        Err(CandleError::Device { argument: Argument::PastCache, device }.into())
    }
}

/// The layout of a tensor in the core's types.
struct CoreLayout {
    dims: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

impl CoreLayout {
    fn from_layout(layout: &Layout, in_a_batch: bool) -> Self {
        let batch = in_a_batch.then_some(1);
        // A stride beyond `isize` is beyond any buffer, so the core rejects it.
        let stride = |&stride: &usize| isize::try_from(stride).unwrap_or(isize::MAX);
        Self {
            dims: batch.into_iter().chain(layout.dims().iter().copied()).collect(),
            strides: in_a_batch.then_some(0).into_iter().chain(layout.stride().iter().map(stride)).collect(),
            offset: layout.start_offset(),
        }
    }

    fn keep_rows(&mut self, axis: usize, rows: &Range<usize>) -> Result<(), CandleError> {
        let (Some(dim), Some(stride)) = (self.dims.get_mut(axis), self.strides.get(axis)) else {
            return Ok(()); // `axis` is a dimension of the cache, which has the same rank
        };
        if rows.start > rows.end || rows.end > *dim {
            return Err(CandleError::Rows { first: rows.start, end: rows.end, rows: *dim });
        }
        *dim = rows.len();
        self.offset = self.offset.saturating_add(rows.start.saturating_mul(stride.unsigned_abs()));
        Ok(())
    }

    fn layout(&self) -> kvscatter::Layout<'_> {
        kvscatter::Layout::strided(&self.dims, &self.strides).with_offset(self.offset)
    }
}

/// Changes the dimension in an error so that it does not count the inserted batch. After `check_ranks`, no
/// other variant that the core returns here has a dimension, a rank or an axis.
fn without_batch(mut error: kvscatter::Error) -> kvscatter::Error {
    if let kvscatter::Error::DimensionMismatch { dimension, .. } = &mut error {
        *dimension = dimension.saturating_sub(1);
    }
    error
}
