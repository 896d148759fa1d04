//! The cache write on CUDA devices, with `kvscatter-cuda` on candle's own stream.
//!
//! Positions are also tensors on the device, so a write does not wait. A [`CudaWriter`] writes keys and
//! values, or the caches of all layers, in one launch. [`CudaWriter::check`] reports positions that did not
//! fit.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kvscatter_candle::{TensorScatter, cuda::CudaWriter};
//!
//! let device = Device::new_cuda(0)?;
//! let zeros = || Tensor::zeros((2, 8, 64, 16), DType::F16, &device);
//! let (k, v) = (zeros()?, zeros()?);
//! let mut cache = CudaWriter::new(TensorScatter::new(), &[&k, &v])?;
//! let positions = Tensor::new(&[5_i64, 63], &device)?;
//!
//! // Every step: the model's new rows and their positions.
//! let (new_k, new_v) = (k.narrow(2, 0, 1)?.zeros_like()?, v.narrow(2, 0, 1)?.zeros_like()?);
//! cache.write(&[&new_k, &new_v], &positions)?;
//!
//! // At your next synchronisation point.
//! cache.check()?;
//! # Ok::<(), kvscatter_candle::CandleError>(())
//! ```
//!
//! # Bad positions
//!
//! A write skips a sample whose position or length does not fit, in all caches, and writes the others. The
//! status on the device counts the sample. [`check`](CudaWriter::check) returns the error that the CPU
//! returns for it. Call `check` before updates have another shape. With [`skip_all`](CudaWriter::skip_all), a
//! launch with such a sample writes nothing.
//!
//! # Streams and graphs
//!
//! A write goes to the stream of the device on which the caches were created. cudarc orders several streams
//! by events. A write records these events and waits for them. For tensors without them, it returns
//! [`CandleError::OtherStream`]. A write can be captured in a graph like candle's own operations. Make one
//! write before the capture, because the first write loads the kernels.
//!
//! `Device::new_cuda` uses a separate stream on each thread. If a [`CudaWriter`] is used or dropped on
//! another thread than before, it waits for the device once. The program must order tensors that several
//! threads share, as for candle's own operations.
#![expect(unsafe_code, reason = "launches read and write memory by its address")]

mod launch;
mod launch_log;
mod locks;
mod writer_stream;

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::OnceLock;

use candle_core::backend::BackendDevice;
use candle_core::cuda::cudarc::driver::CudaStream;
use candle_core::layout::LayoutRelation;
use candle_core::{DType, Device, DeviceLocation, Layout, Tensor};
use kvscatter::Argument;
use kvscatter_cuda::{Cuda, DeviceCallIndices, DeviceStatus, Stream};

use crate::element::element_of;
use crate::writer::{first_element_of, overlap, storage_of};
use crate::{CandleError, TensorScatter};
use launch::{Launch, TensorView, TypedLayout, launches};
use launch_log::{LaunchLog, Launched};
use locks::{Lock, LockedStorages, with_locked};
use writer_stream::WriterStream;

/// Writes caches on one device in many steps.
///
/// The writer writes to the memory of the tensors that it was created with. One launch writes all caches of
/// one shape and layout whose updates share a shape and layout too. Keys and values usually do.
#[derive(Debug)]
pub struct CudaWriter {
    /// The stream of all launches. It is dropped first, because it may have to wait before memory is freed.
    stream: WriterStream,
    scatter: TensorScatter,
    location: DeviceLocation,
    cuda: Cuda,
    caches: Vec<Tensor>,
    cache_views: Vec<TensorView>,
    /// One element of each written storage, as in [`crate::Writer`].
    lock_elements: Vec<Tensor>,
    /// The 16 bytes on the device in which all launches count bad positions.
    status: Tensor,
    skip_all: bool,
    launches: Vec<Launch>,
    /// The layouts of the updates for which the launches were made.
    update_layouts: Vec<TypedLayout>,
    /// The writes whose bad positions the status counts.
    log: LaunchLog,
}

/// The target of updates, as lists on the device. A list of positions converts to it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWriteAt<'a> {
    write_indices: &'a Tensor,
    lengths: Option<&'a Tensor>,
}

impl<'a> DeviceWriteAt<'a> {
    /// Creates a target from the first slot of every sample, `[batch]` of `i64` or `i32`.
    #[must_use]
    pub const fn new(write_indices: &'a Tensor) -> Self {
        Self { write_indices, lengths: None }
    }

    /// Writes only the first `lengths[i]` rows of sample `i`. The list is `[batch]` of `i64` or `i32`.
    /// kvscatter extension; not part of the specification.
    #[must_use]
    pub const fn lengths(self, lengths: &'a Tensor) -> Self {
        Self { lengths: Some(lengths), ..self }
    }

    fn lists(&self) -> impl Iterator<Item = (Argument, &'a Tensor)> {
        let lengths = self.lengths.map(|lengths| (Argument::Lengths, lengths));
        [(Argument::WriteIndices, self.write_indices)].into_iter().chain(lengths)
    }
}

impl<'a> From<&'a Tensor> for DeviceWriteAt<'a> {
    fn from(write_indices: &'a Tensor) -> Self {
        Self::new(write_indices)
    }
}

impl CudaWriter {
    /// Creates a writer of caches.
    ///
    /// The caches may be views of one storage if they do not interleave. The bytes from the first to the last
    /// of one cache, gaps included, must belong to no other cache.
    ///
    /// # Errors
    /// - Returns [`CandleError::NoCaches`] if `caches` is empty.
    /// - Returns [`CandleError::NoCuda`], [`CandleError::OtherDevice`] or [`CandleError::OtherStream`] if the
    ///   caches are not on one CUDA device whose streams are ordered.
    /// - Returns [`CandleError::DType`] for a type that is not supported, including `F4`, whose views
    ///   candle's device cannot address.
    /// - Returns [`kvscatter::Error::Overlap`] if two caches share memory, or interleave in one storage.
    /// - Returns [`CandleError::Cuda`] if there is no driver.
    pub fn new(scatter: TensorScatter, caches: &[&Tensor]) -> Result<Self, CandleError> {
        let first = caches.first().ok_or(CandleError::NoCaches)?;
        let Device::Cuda(device) = first.device() else {
            return Err(CandleError::NoCuda { device: first.device().location() });
        };
        let location = device.location();
        for cache in caches {
            check_device(Argument::PastCache, cache, location)?;
            let (argument, dtype) = (Argument::PastCache, cache.dtype());
            element_of(argument, dtype)?;
            if dtype == DType::F4 {
                return Err(CandleError::DType { argument, dtype });
            }
        }
        let cache_views: Vec<_> = caches.iter().map(|cache| TensorView::from_tensor(cache)).collect();
        check_disjoint(caches, &cache_views)?;
        let cuda = driver()?;
        let ordinal = device.cuda_stream().context().ordinal();
        // candle releases the context, which contains the kernels, with its last tensor.
        cuda.set_device(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        let status = Tensor::zeros(2, DType::I64, first.device())?;
        let mut lock_elements = vec![status.clone()];
        let mut storages = BTreeSet::new();
        for (cache, view) in caches.iter().zip(&cache_views) {
            if storages.insert(view.storage) {
                lock_elements.push(first_element_of(cache)?);
            }
        }
        let locks = lock_elements.iter().map(Lock::Read);
        with_locked(locks, &device.cuda_stream(), &mut |locked| {
            check_order(Argument::PastCache, &cache_views, locked)
        })?;
        Ok(Self {
            stream: WriterStream::new(device),
            scatter,
            location,
            cuda,
            caches: caches.iter().copied().cloned().collect(),
            cache_views,
            lock_elements,
            status,
            skip_all: false,
            launches: Vec::new(),
            update_layouts: Vec::new(),
            log: LaunchLog::default(),
        })
    }

    /// Sets whether a launch with a bad position writes nothing, instead of skipping only the samples with
    /// bad positions.
    #[must_use]
    pub fn skip_all(self, skip_all: bool) -> Self {
        Self { skip_all, launches: Vec::new(), update_layouts: Vec::new(), ..self }
    }

    /// Returns the caches.
    #[must_use]
    pub fn caches(&self) -> &[Tensor] {
        &self.caches
    }

    /// Launches the write of an update into each cache, and does not wait for it. [`check`](Self::check)
    /// reports positions that do not fit.
    ///
    /// # Errors
    /// - Returns an error if a shape, type, layout or device does not match the caches.
    /// - Returns [`kvscatter::Error::Overlap`] if an update or a list shares the storage of a cache.
    /// - Returns [`CandleError::OtherStream`] for a tensor whose stream is not ordered with the writer's.
    /// - Returns [`CandleError::DeviceList`] for positions or lengths that a device cannot read.
    /// - Returns [`CandleError::Cuda`] with an error of the driver.
    ///
    /// Nothing was launched, except after errors of the driver.
    pub fn write<'a>(
        &mut self,
        updates: &[&Tensor],
        at: impl Into<DeviceWriteAt<'a>>,
    ) -> Result<(), CandleError> {
        let at = at.into();
        let sources = self.accept(updates, at)?;
        let lists: Vec<_> =
            at.lists().map(|(argument, list)| (argument, TensorView::from_tensor(list))).collect();
        let stream = self.stream.current()?;
        let status = TensorView::from_tensor(&self.status);
        let Self { cache_views, lock_elements, launches, cuda, skip_all, log, .. } = self;
        let read = updates.iter().copied().chain(at.lists().map(|(_, list)| list));
        let locks = lock_elements.iter().map(Lock::Written).chain(read.map(Lock::Read));
        with_locked(locks, &stream, &mut |locked| {
            check_order(Argument::PastCache, cache_views, locked)?;
            check_order(Argument::Update, &sources, locked)?;
            let (indices, status) = (indices(&lists, locked)?, DeviceStatus::at(locked.address(&status))?);
            let buffers = |cache: usize| (locked.buffer(&cache_views[cache]), locked.buffer(&sources[cache]));
            let writes = launches.iter_mut().map(|launch| launch.prepared(cuda, *skip_all, buffers));
            let writes = writes.collect::<Result<Vec<_>, _>>()?;
            for write in &writes {
                write.check_indices(&indices, Some(status))?;
            }
            let lists = at.lists().map(|(argument, list)| (argument, list.clone())).collect();
            for write in &log.add(Launched::new(&sources, writes, lists)).writes {
                // SAFETY: The conditions of `launch` are met.
                // 1. Context: `with_locked` has made the context of `stream` current. All tensors are in it.
                // 2. Sizes: `locked` keeps the storages of caches, updates, lists and status. The write and the
                //    lists were made with the sizes that candle gave for these storages.
                // 3. Order on one stream: a tensor that was made on `stream` is used and freed in its order. A
                //    writer that moved to another thread has waited for the device (`WriterStream`).
                // 4. Order between streams: a tensor of another stream has events that cudarc records and waits
                //    for (`check_order`). The guards of these events live until the launch is made. It
                //    therefore runs after earlier uses of the tensor, and later uses and the free run after it.
                // 5. A program that disables these events, or that shares the device of `Device::new_cuda`
                //    between threads, must order its work itself, as for candle's own kernels.
                unsafe { write.launch(raw(&stream), &indices, Some(status)) }?;
            }
            Ok(())
        })
    }

    /// Waits for the device, and returns an error if a position or length of the writes since the last
    /// [`clear`](Self::clear) did not fit.
    ///
    /// # Errors
    /// Returns [`CandleError::Write`] with the CPU's error for the first position or length that did not fit.
    ///
    /// The device reports only the sample and the value. The rows in the error are those of the writes since
    /// the last `clear`, or since a `check` that returned `Ok`. The error is
    /// [`kvscatter_cuda::CudaError::BadIndices`] if these writes differ in their rows. They differ if their
    /// updates have different shapes, or if several of them have several rows and `lengths`. For a single
    /// write, the lengths are read from its list, which must not have changed since. In writes of one row, the
    /// length of a bad sample is taken to be 1.
    pub fn check(&mut self) -> Result<(), CandleError> {
        let stream = self.stream.current()?;
        stream.synchronize().map_err(candle_core::Error::wrap)?;
        let lists: Vec<_> =
            self.log.lists().map(|(argument, list)| (*argument, TensorView::from_tensor(list))).collect();
        let status = TensorView::from_tensor(&self.status);
        let read = self.log.lists().map(|(_, list)| list).chain([&self.status]).map(Lock::Read);
        with_locked(read, &stream, &mut |locked| {
            let status = DeviceStatus::at(locked.address(&status))?;
            // SAFETY: `locked` keeps the 16 bytes of the status. Their context is current (`with_locked`),
            // and `synchronize` has waited for all launches with this status.
            let words = unsafe { self.cuda.read(status) }?;
            let Some(first) = words.first() else { return Ok(()) };
            let indices = indices(&lists, locked)?;
            // SAFETY: `locked` keeps the 16 bytes of the status and the lists, and `LockedStorages::list` has
            // compared the lengths of the lists with their memory. Their context is current (`with_locked`),
            // and `synchronize` has waited for all launches with this status.
            unsafe { self.log.error(words, status, &indices) }?;
            Err(kvscatter_cuda::CudaError::BadIndices { bad_samples: words.bad_samples, first }.into())
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Clears the status, in the stream's order.
    ///
    /// # Errors
    /// Returns [`CandleError::Cuda`] or [`CandleError::Candle`] with an error of the driver or of candle.
    pub fn clear(&mut self) -> Result<(), CandleError> {
        let (stream, status) = (self.stream.current()?, TensorView::from_tensor(&self.status));
        with_locked([Lock::Written(&self.status)], &stream, &mut |locked| {
            // SAFETY: The 16 bytes of the status are memory of the current context (`with_locked`), and the
            // stream belongs to this context. The bytes are allocated until this has run, because they were
            // allocated on this stream. If they might be freed on another stream, `Drop` of `WriterStream`
            // waits for the device.
            Ok(unsafe { self.cuda.clear(DeviceStatus::at(locked.address(&status))?, raw(&stream)) }?)
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Checks a call, creates launches for the layouts of these updates, and returns the views of the
    /// updates.
    fn accept(&mut self, updates: &[&Tensor], at: DeviceWriteAt<'_>) -> Result<Vec<TensorView>, CandleError> {
        let (got, expected) = (updates.len(), self.caches.len());
        if got != expected {
            return Err(CandleError::Updates { got, expected });
        }
        let lists = at.lists().map(|(argument, list)| (argument, 0, list));
        let updates = updates.iter().enumerate().map(|(index, update)| (Argument::Update, index, *update));
        for (argument, index, tensor) in updates.clone().chain(lists) {
            check_device(argument, tensor, self.location)?;
            let storage = storage_of(tensor);
            if let Some(cache) = self.cache_views.iter().position(|view| view.storage == storage) {
                return Err(overlap(argument, cache, index));
            }
        }
        for (argument, list) in at.lists() {
            let (dtype, rank) = (list.dtype(), list.rank());
            if rank != 1 || !list.is_contiguous() || !matches!(dtype, DType::I64 | DType::I32) {
                return Err(CandleError::DeviceList { argument, dtype, rank });
            }
        }
        let sources: Vec<_> = updates.map(|(_, _, update)| TensorView::from_tensor(update)).collect();
        let alike = |(source, known): (&TensorView, &TypedLayout)| source.typed_layout == *known;
        if self.update_layouts.len() != sources.len() || !sources.iter().zip(&self.update_layouts).all(alike)
        {
            self.launches = launches(&self.scatter, &self.cache_views, &sources)?;
            self.update_layouts = sources.iter().map(|source| source.typed_layout.clone()).collect();
        }
        Ok(sources)
    }
}

/// Returns the driver of the process. All writers share its kernels.
fn driver() -> Result<Cuda, CandleError> {
    static DRIVER: OnceLock<Cuda> = OnceLock::new();
    if let Some(driver) = DRIVER.get() {
        return Ok(driver.clone());
    }
    let driver = Cuda::new()?;
    Ok(DRIVER.get_or_init(|| driver).clone())
}

fn check_device(argument: Argument, tensor: &Tensor, cache: DeviceLocation) -> Result<(), CandleError> {
    let device = tensor.device().location();
    if device == cache { Ok(()) } else { Err(CandleError::OtherDevice { argument, device, cache }) }
}

/// Checks that no two caches share memory.
fn check_disjoint(caches: &[&Tensor], cache_views: &[TensorView]) -> Result<(), CandleError> {
    for (index, (cache, view)) in caches.iter().zip(cache_views).enumerate() {
        for (other, (earlier, earlier_view)) in caches.iter().zip(cache_views).take(index).enumerate() {
            let meet = || Layout::relation(earlier.layout(), cache.layout()) != LayoutRelation::Disjoint;
            if view.storage == earlier_view.storage && meet() {
                return Err(overlap(Argument::PastCache, other, index));
            }
        }
    }
    Ok(())
}

/// Checks that this launch is ordered with all other work on these tensors.
fn check_order(
    argument: Argument,
    cache_views: &[TensorView],
    locked: &LockedStorages,
) -> Result<(), CandleError> {
    cache_views.iter().try_for_each(|view| locked.check_order(argument, view))
}

fn indices(
    lists: &[(Argument, TensorView)],
    locked: &LockedStorages,
) -> Result<DeviceCallIndices, CandleError> {
    lists.iter().try_fold(DeviceCallIndices::zero(), |indices, (argument, view)| {
        locked.check_order(*argument, view)?;
        let list = locked.list(*argument, view)?;
        Ok(if *argument == Argument::Lengths { indices.lengths(list) } else { DeviceCallIndices::new(list) })
    })
}

fn raw(stream: &CudaStream) -> Stream {
    Stream::new(stream.cu_stream().cast::<c_void>())
}
