//! Caches on CUDA devices, written by `kvscatter-cuda` on candle's own stream.
//!
//! Positions are tensors on the device too, so nothing waits. A [`CudaWriter`] writes keys and values, or the caches of all
//! layers, in one launch. [`CudaWriter::check`] reports positions that did not fit.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kvscatter_candle::{TensorScatter, cuda::CudaWriter};
//!
//! let device = Device::new_cuda(0)?;
//! let (k, v) = (Tensor::zeros((2, 8, 64, 16), DType::F16, &device)?, Tensor::zeros((2, 8, 64, 16), DType::F16, &device)?);
//! let mut cache = CudaWriter::new(TensorScatter::new(), &[&k, &v])?;
//! let positions = Tensor::new(&[5_i64, 63], &device)?;
//!
//! // Every step: the model's new rows, and their positions.
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
//! A sample whose position or length does not fit is skipped in all caches, and the others are written. The sample is
//! counted, and [`check`](CudaWriter::check) returns the error that the CPU returns for it, if it is called before updates
//! have another shape. With [`skip_all`](CudaWriter::skip_all), a launch with any such sample writes nothing.
//!
//! # Streams and graphs
//!
//! A write goes to the stream of the device that the caches were made on. It records and waits for the events by which
//! cudarc orders several streams, and refuses tensors that have none ([`CandleError::OtherStream`]). It can be captured in
//! a graph like candle's own operations. Make one write before the capture, since the first write loads the kernels.
//!
//! `Device::new_cuda` uses a separate stream on each thread. A [`CudaWriter`] that is used or dropped on another thread
//! than before waits for the device once. The program orders tensors that several threads share, as for candle's own
//! operations.
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

/// Writes caches on one device again and again.
///
/// The tensors that it was made of keep their memory, which is what is written. Caches of one shape and layout take one
/// launch together if their updates share a shape and layout too, as those of keys and values usually do.
#[derive(Debug)]
pub struct CudaWriter {
    /// Dropped first, since it may have to wait before memory is freed.
    stream: WriterStream,
    scatter: TensorScatter,
    location: DeviceLocation,
    cuda: Cuda,
    caches: Vec<Tensor>,
    cache_views: Vec<TensorView>,
    /// One element of each storage that is written: see [`crate::Writer`].
    lock_elements: Vec<Tensor>,
    /// Sixteen bytes, for all launches.
    status: Tensor,
    skip_all: bool,
    launches: Vec<Launch>,
    /// The updates that the launches are for.
    update_layouts: Vec<TypedLayout>,
    /// The writes whose bad positions the status counts.
    log: LaunchLog,
}

/// Where updates go, as lists on the device. A list of positions converts into it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWriteAt<'a> {
    write_indices: &'a Tensor,
    lengths: Option<&'a Tensor>,
}

impl<'a> DeviceWriteAt<'a> {
    /// The first slot of every sample: `[batch]`, of `i64` or `i32`.
    #[must_use]
    pub const fn new(write_indices: &'a Tensor) -> Self {
        Self { write_indices, lengths: None }
    }

    /// Writes only the first `lengths[i]` rows of sample `i`, an extension of ours: `[batch]`, of `i64` or `i32`.
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
    /// Makes a writer of these caches. They may be views of one storage if they do not interleave: the bytes from the first
    /// to the last of one, gaps included, belong to no other.
    ///
    /// # Errors
    /// [`CandleError::NoCaches`], [`CandleError::NoCuda`], [`CandleError::OtherDevice`], [`CandleError::OtherStream`]; [`CandleError::DType`], also of
    /// `F4`, whose views candle's device cannot address; [`kvscatter::Error::Overlap`] if two of them share memory, or
    /// interleave in one storage; [`CandleError::Cuda`] without a driver.
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
        let cache_views: Vec<_> = caches.iter().map(|cache| TensorView::of(cache)).collect();
        check_disjoint(caches, &cache_views)?;
        let cuda = driver()?;
        let ordinal = device.cuda_stream().context().ordinal();
        // candle releases the context with its last tensor, and the kernels are in it.
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
            stream: WriterStream::of(device),
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

    /// Makes a launch with any bad position write nothing, instead of skipping the samples that have one.
    #[must_use]
    pub fn skip_all(self, skip_all: bool) -> Self {
        Self { skip_all, launches: Vec::new(), update_layouts: Vec::new(), ..self }
    }

    /// Returns the caches.
    #[must_use]
    pub fn caches(&self) -> &[Tensor] {
        &self.caches
    }

    /// Launches the write of an update into each cache, and does not wait for it. [`check`](Self::check) reports positions
    /// that do not fit.
    ///
    /// # Errors
    /// Errors of shapes, types, layouts and devices; [`kvscatter::Error::Overlap`] if an update or a list shares the storage
    /// of a cache; [`CandleError::OtherStream`]; [`CandleError::DeviceList`]; [`CandleError::Cuda`]. Nothing was launched
    /// then, except after errors of the driver.
    pub fn write<'a>(
        &mut self,
        updates: &[&Tensor],
        at: impl Into<DeviceWriteAt<'a>>,
    ) -> Result<(), CandleError> {
        let at = at.into();
        let sources = self.accept(updates, at)?;
        let lists: Vec<_> = at.lists().map(|(argument, list)| (argument, TensorView::of(list))).collect();
        let stream = self.stream.current()?;
        let status = TensorView::of(&self.status);
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
                // SAFETY: the conditions of `launch`.
                // 1. Context: `with_locked` has made the context of `stream` current, in which all tensors lie.
                // 2. Sizes: `locked` keeps the storages of caches, updates, lists and status, and the write and the
                //    lists were made with the sizes that candle gave for them.
                // 3. Order on one stream: a tensor that was made on `stream` is used and freed in its order. A writer
                //    that moved to another thread has waited for the device (`WriterStream`).
                // 4. Order between streams: a tensor of another stream has events that cudarc records and waits for
                //    (`check_order`). Their guards live until the launch is made, so it runs after earlier uses of the
                //    tensor, and later uses and the free run after it.
                // 5. A program that disables these events, or that shares the device of `Device::new_cuda` between
                //    threads, orders its work itself, as for candle's own kernels.
                unsafe { write.launch(raw(&stream), &indices, Some(status)) }?;
            }
            Ok(())
        })
    }

    /// Waits for the device, and returns an error if a position or length of the writes since the last
    /// [`clear`](Self::clear) did not fit.
    ///
    /// # Errors
    /// For the first one that did not fit, the error that the CPU returns: [`CandleError::Write`]. The device reports the
    /// sample and the value. The rows in the error are those of the writes since the last `clear`, or since a `check` that
    /// returned `Ok`. If these writes differ in their rows, the error is [`kvscatter_cuda::CudaError::BadIndices`]: their
    /// updates have different shapes, or several of them bring several rows with `lengths`. The lengths of a single write
    /// are read from its list, which must not have changed since.
    pub fn check(&mut self) -> Result<(), CandleError> {
        let stream = self.stream.current()?;
        stream.synchronize().map_err(candle_core::Error::wrap)?;
        let lists: Vec<_> =
            self.log.lists().map(|(argument, list)| (*argument, TensorView::of(list))).collect();
        let status = TensorView::of(&self.status);
        let read = self.log.lists().map(|(_, list)| list).chain([&self.status]).map(Lock::Read);
        with_locked(read, &stream, &mut |locked| {
            let status = DeviceStatus::at(locked.address(&status))?;
            // SAFETY: `locked` keeps the 16 bytes of the status, their context is current (`with_locked`), and `synchronize`
            // has waited for all launches with this status.
            let words = unsafe { self.cuda.read(status) }?;
            let Some(first) = words.first() else { return Ok(()) };
            let indices = indices(&lists, locked)?;
            // SAFETY: `locked` keeps the 16 bytes of the status and the lists, whose lengths `LockedStorages::list` has
            // compared with their memory. Their context is current (`with_locked`), and `synchronize` has waited for all
            // launches with this status.
            unsafe { self.log.error(words, status, &indices) }?;
            Err(kvscatter_cuda::CudaError::BadIndices { bad_samples: words.bad_samples, first }.into())
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Clears the status, in the stream's order.
    ///
    /// # Errors
    /// [`CandleError::Cuda`], [`CandleError::Candle`].
    pub fn clear(&mut self) -> Result<(), CandleError> {
        let (stream, status) = (self.stream.current()?, TensorView::of(&self.status));
        with_locked([Lock::Written(&self.status)], &stream, &mut |locked| {
            // SAFETY: the 16 bytes of the status are memory of the current context (`with_locked`), to which the stream
            // belongs. They live until this has run: they were allocated on this stream, and `Drop` of `WriterStream` waits
            // for the device if they might be freed on another.
            Ok(unsafe { self.cuda.clear(DeviceStatus::at(locked.address(&status))?, raw(&stream)) }?)
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Compares a call with the caches, makes launches for the layouts of these updates, and returns the updates' views.
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
        let sources: Vec<_> = updates.map(|(_, _, update)| TensorView::of(update)).collect();
        let alike = |(source, known): (&TensorView, &TypedLayout)| source.typed_layout == *known;
        if self.update_layouts.len() != sources.len() || !sources.iter().zip(&self.update_layouts).all(alike)
        {
            self.launches = launches(&self.scatter, &self.cache_views, &sources)?;
            self.update_layouts = sources.iter().map(|source| source.typed_layout.clone()).collect();
        }
        Ok(sources)
    }
}

/// Returns the driver of the process, whose kernels all writers share.
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
