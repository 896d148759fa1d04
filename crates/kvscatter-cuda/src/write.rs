//! A write that is prepared: tables of jobs that a launch passes as they are.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use kvscatter::device::ListCounts;
use kvscatter::{Convention, Error as CoreError, Geometry, Prepared};

use crate::CudaError;
use crate::abi::{self, Call, JOBS, Job, PRESENT_JOBS, PresentJob, PresentShape, Shape};
use crate::cuda::{Cuda, Module, Status, Stream};
use crate::driver::{Grid, Handle};
use crate::grid::Work;
use crate::list::List;
use crate::memory::{DeviceBuffer, DeviceList, Indices, Places};
use crate::units::{Unit, WIDTHS};

/// A write whose shapes and addresses are checked: prepare it once, launch it every step.
///
/// It holds addresses, and no memory. It may be launched from any thread on which its context is current.
pub struct DeviceWrite {
    pub(crate) cuda: Cuda,
    pub(crate) module: Arc<Module>,
    pub(crate) prepared: Prepared,
    pub(crate) unit: Unit,
    pub(crate) form: Form,
    pub(crate) work: Work,
    /// Caches of a launch for which the kernels with a short table are taken.
    pub(crate) few_jobs: u32,
    /// Of the first launch; the last may have fewer jobs.
    pub(crate) grid: Grid,
    pub(crate) written: Vec<DeviceBuffer>,
    pub(crate) places: Places,
    /// Where updates and pasts lie.
    pub(crate) sources: Places,
    /// What every launch says of its lists.
    pub(crate) flags: u32,
}

/// What moves, and a table for each launch.
pub(crate) enum Form {
    InPlace {
        shape: Shape,
        tables: Vec<Table<Job, JOBS>>,
    },
    /// As in place, with a sample for each token.
    Slots {
        shape: Shape,
        tables: Vec<Table<Job, JOBS>>,
    },
    Present {
        shape: Box<PresentShape>,
        tables: Vec<Table<PresentJob, PRESENT_JOBS>>,
    },
}

/// The jobs of one launch, as it passes them, and how many there are: no block looks at the others.
pub(crate) struct Table<J, const N: usize> {
    pub(crate) jobs: [J; N],
    pub(crate) count: u32,
}

impl Form {
    /// Bytes of what is written.
    pub(crate) fn bytes(&self, geometry: &Geometry) -> Option<usize> {
        match self {
            Self::InPlace { .. } | Self::Slots { .. } => geometry.cache_bytes(),
            Self::Present { .. } => geometry.present_bytes(),
        }
    }
}

impl DeviceWrite {
    /// Whether a launch with any bad index writes nothing at all, instead of leaving out the samples that have one. Every
    /// thread then looks at all samples before it writes.
    #[must_use]
    pub fn skip_all(mut self, skip_all: bool) -> Self {
        self.flags = if skip_all { self.flags | abi::SKIP_ALL } else { self.flags & !abi::SKIP_ALL };
        self
    }

    /// The shapes that are written, and the rules for the lists.
    #[must_use]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Bytes that a thread moves at a time; `None` where 4-bit rows straddle bytes.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        match self.unit {
            Unit::Bytes(place) => WIDTHS.get(place).and_then(|&width| usize::try_from(width).ok()),
            Unit::Nibbles => None,
        }
    }

    /// Launches the write. It allocates nothing and waits for nothing, and may be captured in a graph: what is at the
    /// addresses of the lists counts when the graph runs.
    ///
    /// Whatever the lists say, nothing outside the caches is written and no kernel traps. A sample with a bad index is
    /// left as it is and counted in `status`, once per launch; [`check`](Self::check) has the error. Lists that do not
    /// tell the tokens of a packed update apart, and a layer that does not exist, leave everything as it is.
    ///
    /// A write of more than 128 caches, or 64 presents, is several launches one behind the other; if the driver refuses
    /// one of them, those before it have been made.
    ///
    /// # Errors
    /// [`kvscatter::Error::ListLength`] and [`kvscatter::Error::BatchTooLarge`] for lists of the wrong length;
    /// [`CudaError::List`], [`CudaError::Address`], [`CudaError::ListWraps`], [`CudaError::Overlap`]; [`CudaError::Driver`], which may be one of an earlier launch.
    ///
    /// # Safety
    /// * The context that was current when this was prepared still exists and is current, and the stream belongs to it.
    /// * Until the launch has run, every buffer of this write, every list and the status is memory of that context, as
    ///   large as it was said to be. Nothing else reads what is written, and nothing else writes to any of them but other
    ///   launches: these may share a status, and write into the same caches; of rows that two write at the same time,
    ///   either's bytes are left, or some of each.
    /// * For a graph: the same, whenever it runs.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        indices: &Indices,
        status: Option<Status>,
    ) -> Result<(), CudaError> {
        let samples = self.check_indices(indices, status)?;
        let samples = u32::try_from(samples).unwrap_or(u32::MAX); // No more than the cache has, or tokens.
        let mut call = self.call(indices, status);
        match &self.form {
            Form::InPlace { shape, tables } | Form::Slots { shape, tables } => {
                let mut shape = *shape;
                shape.samples.count = samples;
                for Table { jobs, count } in tables {
                    let kernel = self.kernel(&call, *count);
                    // SAFETY: the context is the one of `prepare` and current, the stream belongs to it, and buffers,
                    // lists and status are memory of it until the launch has run (this function's contract). `kernel`
                    // returns one that takes a table of this type, of which it reads `count` jobs, `Shape` and `Call`.
                    unsafe { self.launch_one(kernel, *count, stream, jobs, &shape, &call) }?;
                    call.status = 0; // Each sample counts once.
                }
            }
            Form::Present { shape, tables } => {
                let mut shape = **shape;
                shape.update.samples.count = samples;
                for Table { jobs, count } in tables {
                    // SAFETY: the context is the one of `prepare` and current, the stream belongs to it, and buffers,
                    // lists and status are memory of it until the launch has run (this function's contract). Kernels for
                    // presents take a table of this type, `PresentShape` and `Call`.
                    unsafe { self.launch_one(self.present_kernel(), *count, stream, jobs, &shape, &call) }?;
                    call.status = 0;
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The conditions of [`launch`](Self::launch) hold, and the parameters of the kernel are a `T`, of which it reads the
    /// first `jobs` entries, an `S` and a `Call`.
    unsafe fn launch_one<T, S>(
        &self,
        kernel: Handle,
        jobs: u32,
        stream: Stream,
        table: &T,
        shape: &S,
        call: &Call,
    ) -> Result<(), CudaError> {
        let [blocks, _] = self.grid.blocks;
        let grid = Grid { blocks: [blocks, jobs], ..self.grid };
        let arguments: [*const c_void; 3] =
            [ptr::from_ref(table).cast(), ptr::from_ref(shape).cast(), ptr::from_ref(call).cast()];
        // SAFETY: the arguments live until this returns and have the types of the kernel's parameters (this function's
        // contract). `prepare` has compared every address that follows from the shapes with its buffer (P1 of the
        // geometry, `DeviceInterface::check_pairs` and `check_present`), and the kernel checks each value of the lists before it uses it. The buffers, lists and
        // status are memory of the current context until the kernel has run, and the stream belongs to that context
        // (the contract of `launch`).
        unsafe { self.cuda.driver().launch(kernel, grid, stream.handle(), arguments) }
    }

    /// The smallest kernel that does what a launch asks for.
    fn kernel(&self, call: &Call, jobs: u32) -> Handle {
        let kernels = &self.module.kernels;
        let Unit::Bytes(place) = self.unit else { return kernels.nibbles };
        let starts_alone =
            (call.lengths, call.spans, call.layer) == (0, 0, 0) && call.flags & abi::SKIP_ALL == 0;
        let few = jobs <= self.few_jobs;
        let by_width = match (starts_alone, few) {
            (true, true) => &kernels.few,
            (true, false) => &kernels.many,
            (false, _) => &kernels.lists,
        };
        by_width.get(place).copied().unwrap_or(Handle::NULL)
    }

    fn present_kernel(&self) -> Handle {
        let kernels = &self.module.kernels;
        let Unit::Bytes(place) = self.unit else { return kernels.present_nibbles };
        kernels.present.get(place).copied().unwrap_or(Handle::NULL)
    }

    fn call(&self, indices: &Indices, status: Option<Status>) -> Call {
        let address = |list: Option<DeviceList>| list.map_or(0, DeviceList::address);
        // A list without numbers may lie anywhere, null as well, which means to the kernels that there is none. Only
        // Ascend's can be empty, which has a layer.
        let row_counts = indices.row_counts;
        let spans = row_counts.filter(|list| list.len() > 0).or(row_counts.and(indices.layer));
        let wide =
            |list: Option<DeviceList>, flag| if list.is_some_and(DeviceList::is_i64) { flag } else { 0 };
        let limits = self.prepared.device_interface().row_limits();
        let [least, most] = [limits.min, limits.max].map(|rows| u32::try_from(rows).unwrap_or(u32::MAX));
        Call {
            starts: address(indices.starts),
            lengths: address(indices.lengths),
            spans: address(spans),
            layer: address(indices.layer),
            status: status.map_or(0, Status::address),
            flags: self.flags
                | wide(indices.starts, abi::STARTS_I64)
                | wide(indices.lengths, abi::LENGTHS_I64)
                | wide(row_counts, abi::SPANS_I64),
            least,
            most,
            unused: 0,
        }
    }

    /// Holds the lists of a launch against what is written, by their addresses and lengths, as every launch does. Returns
    /// the samples.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch), but for the driver's.
    pub fn check_indices(&self, indices: &Indices, status: Option<Status>) -> Result<usize, CudaError> {
        let samples = self.samples(indices)?;
        let status = status.map(|status| (List::Status, DeviceList::i64(status.address(), 2)));
        if let Some((_, words)) = status {
            // It is written while these are read: a list could change after it has been checked.
            let in_list = |(_, numbers): (List, DeviceList)| numbers.buffer().overlaps(words.buffer());
            if self.sources.share(words.buffer()) || indices.all().any(in_list) {
                return Err(CudaError::StatusShared);
            }
        }
        for (list, numbers) in indices.all().chain(status) {
            numbers.check(list)?;
            if self.places.share(numbers.buffer()) {
                let bytes = self.form.bytes(self.prepared.geometry());
                let shares = |buffer: &DeviceBuffer| buffer.first(bytes).overlaps(numbers.buffer());
                let pair = self.written.iter().position(shares).unwrap_or(0);
                return Err(CudaError::Overlap { list, pair });
            }
        }
        Ok(samples)
    }

    /// Samples that the lists are for.
    pub(crate) fn samples(&self, indices: &Indices) -> Result<usize, CudaError> {
        let has_layer = self.prepared.device_interface().has_layers();
        if has_layer != indices.layer.is_some() {
            return Err(CudaError::List { list: List::Layer, given: !has_layer });
        }
        let Indices { starts, lengths, row_counts, .. } = indices;
        if let Form::Slots { shape, .. } = &self.form {
            return check_slots(shape, indices);
        }
        if self.prepared.convention() == Convention::Starts && row_counts.is_some() {
            return Err(CudaError::List { list: List::RowCounts, given: true });
        }
        let len = |list: &Option<DeviceList>| list.map(DeviceList::len);
        let lists = ListCounts { positions: len(starts), row_counts: len(row_counts), lengths: len(lengths) };
        Ok(self.prepared.device_interface().check_counts(lists)?)
    }
}

impl std::fmt::Debug for DeviceWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, grid) = (&self.unit, &self.grid);
        f.debug_struct("DeviceWrite").field("unit", unit).field("grid", grid).finish_non_exhaustive()
    }
}

/// One slot for each token, and no other list.
fn check_slots(shape: &Shape, indices: &Indices) -> Result<usize, CudaError> {
    for (list, given) in [(List::Lengths, indices.lengths), (List::RowCounts, indices.row_counts)] {
        if given.is_some() {
            return Err(CudaError::List { list, given: true });
        }
    }
    let slots = indices.starts.ok_or(CudaError::List { list: List::Positions, given: false })?;
    let (got, tokens) = (slots.len(), usize::try_from(shape.samples.count).unwrap_or(usize::MAX));
    if got != tokens {
        return Err(CoreError::ListLength {
            argument: kvscatter::Argument::WriteIndices,
            got,
            expected: tokens,
        }
        .into());
    }
    Ok(tokens)
}
