//! A writer of one cache over many steps.

use std::cell::Cell;
use std::ops::Range;
use std::ptr;

use candle_core::layout::LayoutRelation;
use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Tensor};
use kvscatter::{Argument, Lengths, Positions, Prepared, Written};

use crate::element::{element_of, element_of_both};
use crate::scatter::WriteLayouts;
use crate::{CandleError, TensorScatter, element};

/// Writes one cache in many steps. Shapes are prepared only when the layout of an update changes.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvscatter_candle::{TensorScatter, Writer};
///
/// let cache = Tensor::zeros((2, 1, 4, 1), DType::F32, &Device::Cpu)?;
/// let mut writer = Writer::new(TensorScatter::new(), &cache)?;
/// let mut lengths = [2_i64, 0];
/// for step in 1..=2 {
///     let update = Tensor::full(step as f32, (2, 1, 1, 1), &Device::Cpu)?;
///     writer.write(&update, &lengths)?;
///     lengths.iter_mut().for_each(|length| *length += 1);
/// }
/// assert_eq!(cache.flatten_all()?.to_vec1::<f32>()?, [0., 0., 1., 2., 1., 2., 0., 0.]);
/// # Ok::<(), kvscatter_candle::CandleError>(())
/// ```
///
/// The writer writes to the memory of the tensor that it was created with. Clones of a writer write the same
/// cache.
#[derive(Clone, Debug)]
pub struct Writer {
    scatter: TensorScatter,
    cache: Tensor,
    /// One element of the cache, with which candle locks the storage. In every call, candle searches the
    /// layout of the written tensor for repeated elements. The core has done this once for the whole cache.
    lock_element: Tensor,
    /// The address of the storage, which does not change as long as a tensor uses the storage.
    storage: usize,
    prepared: Option<PreparedUpdate>,
}

/// A prepared write, and the layout of its update.
#[derive(Clone, Debug)]
struct PreparedUpdate {
    dtype: DType,
    layout: Layout,
    rows: Option<Range<usize>>,
    prepared: Prepared,
}

/// The target of an update. It has a position for each sample, and optionally lengths and rows.
///
/// A list of `i64`, `i32`, `u32` or `usize` converts to it.
#[derive(Clone, Debug)]
pub struct WriteAt<'a> {
    starts: Positions<'a>,
    lengths: Lengths<'a>,
    rows: Option<Range<usize>>,
}

impl<'a> WriteAt<'a> {
    /// Creates a target from the first slot of every sample.
    pub fn new(write_indices: impl Into<Positions<'a>>) -> Self {
        Self { starts: write_indices.into(), lengths: Lengths::Full, rows: None }
    }

    /// Writes only the first `lengths[i]` rows of sample `i`, so padding and inactive samples are not
    /// written. kvscatter extension; not part of the specification.
    #[must_use]
    pub fn lengths(self, lengths: impl Into<Lengths<'a>>) -> Self {
        Self { lengths: lengths.into(), ..self }
    }

    /// Writes only these rows of the update, without a new tensor for them.
    #[must_use]
    pub fn rows(self, rows: Range<usize>) -> Self {
        Self { rows: Some(rows), ..self }
    }
}

impl<'a, S: Into<Positions<'a>>> From<S> for WriteAt<'a> {
    fn from(write_indices: S) -> Self {
        Self::new(write_indices)
    }
}

/// One write of [`write_many`].
#[derive(Debug)]
pub struct CacheWrite<'w> {
    /// The writer of the cache that is written.
    pub writer: &'w mut Writer,
    /// The new rows, whose type and shape match the cache.
    pub update: &'w Tensor,
    /// The position of each sample, and optionally lengths and rows.
    pub at: WriteAt<'w>,
}

impl Writer {
    /// Creates a writer of a cache.
    ///
    /// # Errors
    /// - Returns [`CandleError::Device`] if the cache is not on the CPU.
    /// - Returns [`CandleError::DType`] if its type is not supported.
    pub fn new(scatter: TensorScatter, cache: &Tensor) -> Result<Self, CandleError> {
        check_device(Argument::PastCache, cache)?;
        element_of(Argument::PastCache, cache.dtype())?;
        let lock_element = first_element_of(cache)?;
        Ok(Self { scatter, cache: cache.clone(), lock_element, storage: storage_of(cache), prepared: None })
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &Tensor {
        &self.cache
    }

    /// Returns the operator.
    #[must_use]
    pub fn scatter(&self) -> TensorScatter {
        self.scatter
    }

    /// Writes an update.
    ///
    /// # Errors
    /// Returns an error if shapes, types, devices or positions do not fit. Returns
    /// [`kvscatter::Error::Overlap`] if the update shares the cache's storage.
    pub fn write<'a>(&mut self, update: &Tensor, at: impl Into<WriteAt<'a>>) -> Result<Written, CandleError> {
        let at = at.into();
        check_device(Argument::Update, update)?;
        let Self { cache, scatter, lock_element, storage, prepared } = self;
        let prepared = PreparedUpdate::for_update(prepared, scatter, cache, update, &at)?;
        let operation = Operation { prepared, at: &at, outcome: Cell::new(None) };
        let done = lock_element.inplace_op2(update, &operation);
        match (operation.outcome.into_inner(), done) {
            (Some(outcome), _) => outcome,
            // candle rejected the operation before it ran.
            (None, _) if storage_of(update) == *storage => Err(overlap(Argument::Update, 0, 0)),
            (None, Err(error)) => Err(error.into()),
            (None, Ok(())) => Err(candle_core::Error::msg("candle left out the operation").into()),
        }
    }

    /// Checks everything except the memory, and writes nothing.
    fn check(&mut self, update: &Tensor, at: &WriteAt<'_>) -> Result<(), CandleError> {
        let prepared =
            PreparedUpdate::for_update(&mut self.prepared, &self.scatter, &self.cache, update, at)?;
        prepared.plan_with_lengths(at.starts, at.lengths)?;
        Ok(())
    }
}

impl PreparedUpdate {
    /// Checks an update, except its positions and its memory. An update with the layout of the last one needs
    /// no check.
    #[inline]
    fn for_update<'r>(
        last: &'r mut Option<Self>,
        scatter: &TensorScatter,
        cache: &Tensor,
        update: &Tensor,
        at: &WriteAt<'_>,
    ) -> Result<&'r Prepared, CandleError> {
        let (dtype, layout) = (update.dtype(), update.layout());
        let fits = |last: &Self| last.dtype == dtype && last.layout == *layout && last.rows == at.rows;
        if !last.as_ref().is_some_and(fits) {
            *last = None;
        }
        match last {
            Some(last) => Ok(&last.prepared),
            none => {
                let element = element_of_both(cache.dtype(), dtype)?;
                let sides =
                    WriteLayouts { element, cache: cache.layout(), update: layout, rows: at.rows.clone() };
                let prepared = scatter.prepare(&sides)?;
                Ok(&none
                    .insert(Self { dtype, layout: layout.clone(), rows: at.rows.clone(), prepared })
                    .prepared)
            }
        }
    }
}

/// Writes many caches, all or none, such as the keys and values of one layer or of all layers.
///
/// Caches may be views of one storage if they do not interleave.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use kvscatter_candle::{WriteAt, CacheWrite, TensorScatter, Writer, write_many};
///
/// let zeros = || Tensor::zeros((1, 2, 8, 4), DType::F16, &Device::Cpu);
/// let (keys, values) = (zeros()?, zeros()?);
/// let mut k = Writer::new(TensorScatter::new(), &keys)?;
/// let mut v = Writer::new(TensorScatter::new(), &values)?;
/// let (new_k, new_v) = (keys.narrow(2, 0, 3)?.ones_like()?, values.narrow(2, 0, 3)?.ones_like()?);
/// let at = WriteAt::new(&[5_i64]);
/// let _ = write_many(&mut [
///     CacheWrite { writer: &mut k, update: &new_k, at: at.clone() },
///     CacheWrite { writer: &mut v, update: &new_v, at },
/// ])?;
/// # Ok::<(), kvscatter_candle::CandleError>(())
/// ```
///
/// Returns the number of samples that [`SkipSample`](kvscatter::OutOfRange::SkipSample) skipped in all
/// caches.
///
/// # Errors
/// Returns an error for the same reasons as [`Writer::write`]. Also returns [`kvscatter::Error::Overlap`] if
/// an update shares the storage of an earlier write's cache, or if two caches share memory. An error means
/// that nothing has been written.
pub fn write_many(writes: &mut [CacheWrite<'_>]) -> Result<Written, CandleError> {
    for index in 1..writes.len() {
        check_disjoint(writes, index)?;
    }
    // The first write checks itself before it writes.
    for write in writes.iter_mut().skip(1) {
        write.writer.check(write.update, &write.at)?;
    }
    let mut written = Written::default();
    for write in writes {
        let one = write.writer.write(write.update, write.at.clone())?;
        written.skipped = written.skipped.saturating_add(one.skipped);
    }
    Ok(written)
}

/// Checks that a write shares no memory with earlier ones. An update may be in the cache of a later write,
/// because it has been read by then.
fn check_disjoint(writes: &[CacheWrite<'_>], index: usize) -> Result<(), CandleError> {
    let (before, rest) = writes.split_at(index);
    let Some(this) = rest.first() else { return Ok(()) };
    check_device(Argument::Update, this.update)?;
    let update = storage_of(this.update);
    for (other, CacheWrite { writer, .. }) in before.iter().chain([this]).enumerate() {
        if writer.storage == update {
            return Err(overlap(Argument::Update, other, index));
        }
        let meet = || Layout::relation(writer.cache.layout(), this.writer.cache.layout());
        if other < index && writer.storage == this.writer.storage && meet() != LayoutRelation::Disjoint {
            return Err(overlap(Argument::PastCache, other, index));
        }
    }
    Ok(())
}

/// One write as an operation of candle. The outcome is stored here, because candle's errors contain only
/// text.
struct Operation<'a> {
    prepared: &'a Prepared,
    at: &'a WriteAt<'a>,
    outcome: Cell<Option<Result<Written, CandleError>>>,
}

impl InplaceOp2 for Operation<'_> {
    fn name(&self) -> &'static str {
        "tensor-scatter"
    }

    fn cpu_fwd(
        &self,
        cache: &mut CpuStorage,
        _: &Layout,
        update: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<()> {
        let plan = self.prepared.plan_with_lengths(self.at.starts, self.at.lengths);
        let outcome = plan.map_err(CandleError::from).and_then(|plan| element::write(&plan, cache, update));
        self.outcome.set(Some(outcome));
        Ok(())
    }
}

fn check_device(argument: Argument, tensor: &Tensor) -> Result<(), CandleError> {
    match tensor.device() {
        Device::Cpu => Ok(()),
        device => Err(CandleError::Device { argument, device: device.location() }),
    }
}

/// Returns one element of a tensor, if it has any.
pub(crate) fn first_element_of(tensor: &Tensor) -> candle_core::Result<Tensor> {
    let mut element = tensor.clone();
    for dim in 0..if tensor.elem_count() > 0 { tensor.rank() } else { 0 } {
        element = element.narrow(dim, 0, 1)?;
    }
    Ok(element)
}

/// Returns the address of a tensor's storage. Views of one tensor have the same address.
pub(crate) fn storage_of(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    ptr::from_ref(&*storage).addr()
}

pub(crate) fn overlap(with: Argument, buffer: usize, with_pair: usize) -> CandleError {
    kvscatter::Error::Overlap { argument: Argument::PastCache, with, pair: buffer, with_pair }.into()
}
