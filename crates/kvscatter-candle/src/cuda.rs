//! Caches on CUDA devices, written by `kvscatter-cuda` on candle's own stream.
//!
//! Positions are tensors on the device too, so that nothing waits: a [`Writer`] hands keys and values, or the caches of
//! all layers, to the device in one launch, and learns of positions that do not fit when it is [asked](Writer::check).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use kvscatter_candle::{TensorScatter, cuda::Writer};
//!
//! let device = Device::new_cuda(0)?;
//! let (k, v) = (Tensor::zeros((2, 8, 64, 16), DType::F16, &device)?, Tensor::zeros((2, 8, 64, 16), DType::F16, &device)?);
//! let mut cache = Writer::new(TensorScatter::new(), &[&k, &v])?;
//! let positions = Tensor::new(&[5_i64, 63], &device)?;
//!
//! // Every step: what the model computes, and where it goes.
//! let (new_k, new_v) = (k.narrow(2, 0, 1)?.zeros_like()?, v.narrow(2, 0, 1)?.zeros_like()?);
//! cache.write(&[&new_k, &new_v], &positions)?;
//!
//! // Wherever the program waits for the device anyhow.
//! cache.check()?;
//! # Ok::<(), kvscatter_candle::CandleError>(())
//! ```
//!
//! # Bad positions
//!
//! A sample whose position, or length, does not fit is left as it is, in all caches; the others are written. The sample
//! is counted, and [`check`](Writer::check) returns the error that the CPU returns for it, if it is asked before updates
//! have another shape. With [`skip_all`](Writer::skip_all) nothing is written by a launch that has any.
//!
//! # Streams and graphs
//!
//! A write goes to the stream of the device that the caches were made on, and takes part in the events by which cudarc
//! orders several streams; tensors for which there are none are refused ([`CandleError::OtherStream`]). It can be captured in a
//! graph like candle's own operations; the first write comes before that, since it loads the kernels.
//!
//! The stream of `Device::new_cuda` is another one on each thread. A [`Writer`] that is used, or dropped, on another
//! thread than before waits for the device once. Tensors that several threads share are the program's to order, as for
//! candle's own operations.
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
use launch::{Launch, Place, Side, launches};
use launch_log::{LaunchLog, Launched};
use locks::{Lock, LockedStorages, with_locked};
use writer_stream::WriterStream;

/// Caches on one device, and what is needed to write them again and again.
///
/// The tensors that it was made of keep their memory and are what is written. Caches of one shape and layout, whose
/// updates are alike in both as well, take one launch together; keys and values usually do.
#[derive(Debug)]
pub struct Writer {
    /// The first to be dropped: it waits, if it has to, before memory is given back.
    stream: WriterStream,
    scatter: TensorScatter,
    location: DeviceLocation,
    cuda: Cuda,
    caches: Vec<Tensor>,
    places: Vec<Place>,
    /// One element of each storage that is written: see [`crate::Writer`].
    lock_elements: Vec<Tensor>,
    /// Sixteen bytes, for all launches.
    status: Tensor,
    skip_all: bool,
    /// For updates that lie like these.
    launches: Vec<Launch>,
    sides: Vec<Side>,
    /// The writes whose bad positions the status counts.
    log: LaunchLog,
}

/// Where updates go, as lists that lie on the device. A list of positions converts into it.
#[derive(Clone, Copy, Debug)]
pub struct WriteAt<'a> {
    write_indices: &'a Tensor,
    lengths: Option<&'a Tensor>,
}

impl<'a> WriteAt<'a> {
    /// The first slot of every sample: `[batch]`, of `i64` or `i32`.
    #[must_use]
    pub const fn new(write_indices: &'a Tensor) -> Self {
        Self { write_indices, lengths: None }
    }

    /// Only the first so many rows of each sample are written, an extension of ours: `[batch]`, of `i64` or `i32`.
    #[must_use]
    pub const fn lengths(self, lengths: &'a Tensor) -> Self {
        Self { lengths: Some(lengths), ..self }
    }

    fn lists(&self) -> impl Iterator<Item = (Argument, &'a Tensor)> {
        let lengths = self.lengths.map(|lengths| (Argument::Lengths, lengths));
        [(Argument::WriteIndices, self.write_indices)].into_iter().chain(lengths)
    }
}

impl<'a> From<&'a Tensor> for WriteAt<'a> {
    fn from(write_indices: &'a Tensor) -> Self {
        Self::new(write_indices)
    }
}

impl Writer {
    /// Keeps caches to be written. They may be views of one storage if they keep apart: the bytes from the first to the
    /// last of one, gaps included, hold nothing of another.
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
        let places: Vec<_> = caches.iter().map(|cache| Place::of(cache)).collect();
        check_disjoint(caches, &places)?;
        let cuda = driver()?;
        let ordinal = device.cuda_stream().context().ordinal();
        // candle lets go of the context with its last tensor, and the kernels are in it.
        cuda.set_device(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
        let status = Tensor::zeros(2, DType::I64, first.device())?;
        let mut lock_elements = vec![status.clone()];
        let mut storages = BTreeSet::new();
        for (cache, place) in caches.iter().zip(&places) {
            if storages.insert(place.storage) {
                lock_elements.push(first_element_of(cache)?);
            }
        }
        let locks = lock_elements.iter().map(Lock::Read);
        with_locked(locks, &device.cuda_stream(), &mut |locked| {
            check_order(Argument::PastCache, &places, locked)
        })?;
        Ok(Self {
            stream: WriterStream::of(device),
            scatter,
            location,
            cuda,
            caches: caches.iter().copied().cloned().collect(),
            places,
            lock_elements,
            status,
            skip_all: false,
            launches: Vec::new(),
            sides: Vec::new(),
            log: LaunchLog::default(),
        })
    }

    /// Whether a launch with any bad position writes nothing, instead of leaving out the samples that have one.
    #[must_use]
    pub fn skip_all(self, skip_all: bool) -> Self {
        Self { skip_all, launches: Vec::new(), sides: Vec::new(), ..self }
    }

    /// The caches.
    #[must_use]
    pub fn caches(&self) -> &[Tensor] {
        &self.caches
    }

    /// Launches the write of an update into each cache. Nothing waits for it; a position that does not fit is no error
    /// here, see [`check`](Self::check).
    ///
    /// # Errors
    /// Whatever is wrong with shapes, types, layouts or devices; [`kvscatter::Error::Overlap`] if an update or a list
    /// shares the storage of a cache; [`CandleError::OtherStream`]; [`CandleError::DeviceList`]; [`CandleError::Cuda`]. Nothing has been
    /// launched then, but for errors of the driver.
    pub fn write<'a>(&mut self, updates: &[&Tensor], at: impl Into<WriteAt<'a>>) -> Result<(), CandleError> {
        let at = at.into();
        let sources = self.accept(updates, at)?;
        let lists: Vec<_> = at.lists().map(|(argument, list)| (argument, Place::of(list))).collect();
        let stream = self.stream.current()?;
        let status = Place::of(&self.status);
        let Self { places, lock_elements, launches, cuda, skip_all, log, .. } = self;
        let read = updates.iter().copied().chain(at.lists().map(|(_, list)| list));
        let locks = lock_elements.iter().map(Lock::Written).chain(read.map(Lock::Read));
        with_locked(locks, &stream, &mut |locked| {
            check_order(Argument::PastCache, places, locked)?;
            check_order(Argument::Update, &sources, locked)?;
            let (indices, status) = (indices(&lists, locked)?, DeviceStatus::at(locked.address(&status))?);
            let buffers = |cache: usize| (locked.buffer(&places[cache]), locked.buffer(&sources[cache]));
            let writes = launches.iter_mut().map(|launch| launch.prepared(cuda, *skip_all, buffers));
            let writes = writes.collect::<Result<Vec<_>, _>>()?;
            for write in &writes {
                write.check_indices(&indices, Some(status))?;
            }
            let lists = at.lists().map(|(argument, list)| (argument, list.clone())).collect();
            for write in &log.add(Launched::new(&sources, writes, lists)).writes {
                // SAFETY: candle holds the storages of all tensors in this call, and was asked for their sizes, which
                // the write and the lists were made with; the stream is one of the context in which they lie, which is
                // current. Each of them was made on this stream, in whose order it is used and given back; or on
                // another one (`check_order`), and cudarc keeps events for both, whose guards live until the
                // launch is made: it runs after what uses them already, and later uses, such as freeing them, after it.
                // Who disables these events, and who shares a device with a stream for each thread among threads,
                // orders that themselves, as for candle's own kernels; a writer that moves has waited (`WriterStream`).
                unsafe { write.launch(raw(&stream), &indices, Some(status)) }?;
            }
            Ok(())
        })
    }

    /// Waits for the device, and says whether a position or length of the writes since the last [`clear`](Self::clear)
    /// did not fit.
    ///
    /// # Errors
    /// For the first one that did not, the error that the CPU returns: [`CandleError::Write`]. The device says which sample and
    /// value it was; its rows are those of the writes since the last `clear`, or since a `check` that found nothing. If
    /// these writes differ in them, the error is [`kvscatter_cuda::CudaError::BadIndices`]: their updates are not all of the
    /// same shapes, or there are several that bring several rows with `lengths`. The lengths of a single one are read
    /// from its list, which must not have changed since.
    pub fn check(&mut self) -> Result<(), CandleError> {
        let stream = self.stream.current()?;
        stream.synchronize().map_err(candle_core::Error::wrap)?;
        let lists: Vec<_> = self.log.lists().map(|(argument, list)| (*argument, Place::of(list))).collect();
        let status = Place::of(&self.status);
        let read = self.log.lists().map(|(_, list)| list).chain([&self.status]).map(Lock::Read);
        with_locked(read, &stream, &mut |locked| {
            let status = DeviceStatus::at(locked.address(&status))?;
            // SAFETY: candle keeps the storage of the status during this call, its context is current (`with_locked`),
            // and `synchronize` has waited for all launches that were given it.
            let words = unsafe { self.cuda.read(status) }?;
            let Some(first) = words.first() else { return Ok(()) };
            let indices = indices(&lists, locked)?;
            // SAFETY: candle keeps the storages of the status and of the lists during this call, their context is current
            // (`with_locked`), `LockedStorages::list` has compared the lists' lengths with their memory, and `synchronize`
            // has waited for all launches that were given the status.
            unsafe { self.log.error(words, status, &indices) }?;
            Err(kvscatter_cuda::CudaError::BadIndices { bad_samples: words.bad_samples, first }.into())
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Forgets what writes have found, in the stream's order.
    ///
    /// # Errors
    /// [`CandleError::Cuda`], [`CandleError::Candle`].
    pub fn clear(&mut self) -> Result<(), CandleError> {
        let (stream, status) = (self.stream.current()?, Place::of(&self.status));
        with_locked([Lock::Written(&self.status)], &stream, &mut |locked| {
            // SAFETY: the status lies in memory of the current context (`with_locked`), to which the stream belongs. It was
            // allocated on this stream, and `Drop` of `WriterStream` waits for the device where it might be freed on
            // another.
            Ok(unsafe { self.cuda.clear(DeviceStatus::at(locked.address(&status))?, raw(&stream)) }?)
        })?;
        self.log.mark_clear();
        Ok(())
    }

    /// Holds a call against the caches, and makes launches for updates that lie as these do. Returns where they are.
    fn accept(&mut self, updates: &[&Tensor], at: WriteAt<'_>) -> Result<Vec<Place>, CandleError> {
        let (got, expected) = (updates.len(), self.caches.len());
        if got != expected {
            return Err(CandleError::Updates { got, expected });
        }
        let lists = at.lists().map(|(argument, list)| (argument, 0, list));
        let updates = updates.iter().enumerate().map(|(index, update)| (Argument::Update, index, *update));
        for (argument, index, tensor) in updates.clone().chain(lists) {
            check_device(argument, tensor, self.location)?;
            let storage = storage_of(tensor);
            if let Some(cache) = self.places.iter().position(|place| place.storage == storage) {
                return Err(overlap(argument, cache, index));
            }
        }
        for (argument, list) in at.lists() {
            let (dtype, rank) = (list.dtype(), list.rank());
            if rank != 1 || !list.is_contiguous() || !matches!(dtype, DType::I64 | DType::I32) {
                return Err(CandleError::DeviceList { argument, dtype, rank });
            }
        }
        let sources: Vec<_> = updates.map(|(_, _, update)| Place::of(update)).collect();
        let alike = |(source, known): (&Place, &Side)| source.side == *known;
        if self.sides.len() != sources.len() || !sources.iter().zip(&self.sides).all(alike) {
            self.launches = launches(&self.scatter, &self.places, &sources)?;
            self.sides = sources.iter().map(|source| source.side.clone()).collect();
        }
        Ok(sources)
    }
}

/// The process's one driver, whose kernels all writers share.
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

/// No two caches share memory.
fn check_disjoint(caches: &[&Tensor], places: &[Place]) -> Result<(), CandleError> {
    for (index, (cache, place)) in caches.iter().zip(places).enumerate() {
        for (other, (earlier, earlier_place)) in caches.iter().zip(places).take(index).enumerate() {
            let meet = || Layout::relation(earlier.layout(), cache.layout()) != LayoutRelation::Disjoint;
            if place.storage == earlier_place.storage && meet() {
                return Err(overlap(Argument::PastCache, other, index));
            }
        }
    }
    Ok(())
}

/// This launch is ordered with whatever else is done with these tensors.
fn check_order(argument: Argument, places: &[Place], locked: &LockedStorages) -> Result<(), CandleError> {
    places.iter().try_for_each(|place| locked.check_order(argument, place))
}

fn indices(lists: &[(Argument, Place)], locked: &LockedStorages) -> Result<DeviceCallIndices, CandleError> {
    lists.iter().try_fold(DeviceCallIndices::zero(), |indices, (argument, place)| {
        locked.check_order(*argument, place)?;
        let list = locked.list(*argument, place)?;
        Ok(if *argument == Argument::Lengths { indices.lengths(list) } else { DeviceCallIndices::new(list) })
    })
}

fn raw(stream: &CudaStream) -> Stream {
    Stream::new(stream.cu_stream().cast::<c_void>())
}
