//! A prepared write, whose launches pass its tables of jobs to the kernel unchanged.
//!
//! The comments cite P1, an invariant that the documentation of kvscatter defines.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use kvscatter::device::ListCounts;
use kvscatter::{Error as CoreError, Geometry, Prepared};

use crate::CudaError;
use crate::abi::{self, Call, JOBS, Job, PRESENT_JOBS, PresentJob, PresentShape, WriteShape};
use crate::cuda::{Cuda, DeviceStatus, Module, Stream};
use crate::driver::{Grid, Handle};
use crate::grid::Work;
use crate::launch_argument::LaunchArgument;
use crate::memory::{AddressRanges, DeviceBuffer, DeviceCallIndices, DeviceList};
use crate::units::{Unit, WIDTHS};

/// A write whose shapes and addresses have been checked. Prepare it once and launch it in every step.
///
/// A write contains addresses and owns no memory. Any thread may launch it if its context is current there.
pub struct DeviceWrite {
    pub(crate) cuda: Cuda,
    pub(crate) module: Arc<Module>,
    pub(crate) prepared: Prepared,
    pub(crate) unit: Unit,
    pub(crate) form: Form,
    pub(crate) work: Work,
    /// The maximum number of jobs in a launch of the kernels with a short table.
    pub(crate) small_table_jobs: u32,
    /// The grid of the first launch. The last launch may have fewer jobs.
    pub(crate) grid: Grid,
    pub(crate) written: Vec<DeviceBuffer>,
    pub(crate) written_ranges: AddressRanges,
    /// The memory of updates and pasts.
    pub(crate) sources: AddressRanges,
    /// The flags of every launch.
    pub(crate) flags: u32,
}

/// The shape of a write, and a table for each launch.
pub(crate) enum Form {
    InPlace {
        shape: WriteShape,
        tables: Vec<Table<Job, JOBS>>,
    },
    /// As in place, with a sample for each token.
    Slots {
        shape: WriteShape,
        tables: Vec<Table<Job, JOBS>>,
    },
    Present {
        shape: Box<PresentShape>,
        tables: Vec<Table<PresentJob, PRESENT_JOBS>>,
    },
}

/// The jobs of one launch, and the number of entries that are used.
pub(crate) struct Table<J, const N: usize> {
    pub(crate) jobs: [J; N],
    pub(crate) count: u32,
}

impl Form {
    /// Returns the size in bytes of a tensor that is written.
    pub(crate) fn bytes(&self, geometry: &Geometry) -> Option<usize> {
        match self {
            Self::InPlace { .. } | Self::Slots { .. } => geometry.cache_bytes(),
            Self::Present { .. } => geometry.present_bytes(),
        }
    }
}

impl DeviceWrite {
    /// Sets whether a launch with any bad index writes nothing, instead of skipping only the bad samples.
    ///
    /// With `true`, every thread checks all samples before it writes.
    #[must_use]
    pub fn skip_all(mut self, skip_all: bool) -> Self {
        self.flags = if skip_all { self.flags | abi::SKIP_ALL } else { self.flags & !abi::SKIP_ALL };
        self
    }

    /// Returns the shapes and the rules for lists.
    #[must_use]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Returns the bytes that a thread moves at a time, or `None` if 4-bit rows straddle bytes.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        match self.unit {
            Unit::Bytes(place) => WIDTHS.get(place).and_then(|&width| usize::try_from(width).ok()),
            Unit::Nibbles => None,
        }
    }

    /// Launches the write, without allocating or waiting.
    ///
    /// In a captured graph, the kernel reads the lists at every replay.
    ///
    /// For any values in the lists, nothing outside the caches and the status is written, and no kernel
    /// traps. A sample with a bad index keeps its rows and is counted in `status`, once per launch.
    /// [`check`](Self::check) then returns the error. No row is written if the row counts of a packed update
    /// are wrong or the layer does not exist.
    ///
    /// A write of more than 128 caches, or 64 presents, takes several launches, one after the other. If the
    /// driver rejects one of them, the earlier launches have already been made.
    ///
    /// # Errors
    /// * Returns [`kvscatter::Error::ListLength`] or [`kvscatter::Error::BatchTooLarge`] if a list has the
    ///   wrong length.
    /// * Returns [`CudaError::List`] if a slot mapping gets a list other than the slots, or no slots.
    /// * Returns [`CudaError::Address`] if an address is null or not aligned.
    /// * Returns [`CudaError::ListWraps`] if a list reaches past the end of the address space.
    /// * Returns [`CudaError::Overlap`] if a list or the status overlaps memory that is written.
    /// * Returns [`CudaError::StatusShared`] if the status overlaps memory that is read.
    /// * Returns [`CudaError::Driver`] if the driver returns an error. The error may come from an earlier
    ///   launch.
    ///
    /// # Safety
    /// * The context that was current when this was prepared still exists and is current, and the stream
    ///   belongs to it.
    /// * Until the launch has run, these are memory of that context: the [`DeviceBuffer::bytes`] of every
    ///   buffer of this write, all values of every list (its length times its width), and the 16 bytes of the
    ///   status.
    /// * Until then, nothing else reads the memory that is written, and only other launches write to any of
    ///   this memory. Launches may share a status and write into the same caches. If two launches write the
    ///   same row at the same time, the row ends with bytes of either.
    /// * If the launch is captured in a graph, all of this holds at every replay.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        indices: &DeviceCallIndices,
        status: Option<DeviceStatus>,
    ) -> Result<(), CudaError> {
        let samples = self.check_indices(indices, status)?;
        // Never saturates: preparing the write has limited the number of samples and of tokens.
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        let mut call = self.call(indices, status);
        match &self.form {
            Form::InPlace { shape, tables } | Form::Slots { shape, tables } => {
                let mut shape = *shape;
                shape.samples.count = samples;
                for Table { jobs, count } in tables {
                    let kernel = self.kernel(&call, *count);
                    // SAFETY: The context is the one of `prepare` and is current, the stream belongs to it,
                    // and buffers, lists and status are memory of it until the launch has run (this
                    // function's contract). `kernel` takes a table of this type, a `WriteShape` and a `Call`,
                    // and reads `count` jobs of the table.
                    unsafe { self.launch_one(kernel, *count, stream, jobs, &shape, &call) }?;
                    call.status = 0; // Each sample counts once.
                }
            }
            Form::Present { shape, tables } => {
                let mut shape = **shape;
                shape.update.samples.count = samples;
                for Table { jobs, count } in tables {
                    // SAFETY: The context is the one of `prepare` and is current, the stream belongs to it,
                    // and buffers, lists and status are memory of it until the launch has run (this
                    // function's contract). Kernels for presents take a table of this type, a `PresentShape`
                    // and a `Call`.
                    unsafe { self.launch_one(self.present_kernel(), *count, stream, jobs, &shape, &call) }?;
                    call.status = 0;
                }
            }
        }
        Ok(())
    }

    /// Launches the kernel for one table of jobs.
    ///
    /// # Safety
    /// The conditions of [`launch`](Self::launch) hold. The parameters of the kernel are a `T`, an `S` and a
    /// `Call`, and the kernel reads the first `jobs` entries of the `T`.
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
        // SAFETY: The arguments live until this returns and have the types of the kernel's parameters (this
        // function's contract). Every address that the kernel computes from the shapes lies inside its buffer
        // (P1, and `DeviceInterface::check_pairs` and `check_present` in `prepare`), since the kernel checks
        // each value of the lists before it uses it. The buffers, lists and status are memory of the current
        // context until the kernel has run, and the stream belongs to that context (the contract of
        // `launch`).
        unsafe { self.cuda.driver().launch(kernel, grid, stream.handle(), arguments) }
    }

    /// Returns the kernel with the fewest features that this launch needs.
    fn kernel(&self, call: &Call, jobs: u32) -> Handle {
        let kernels = &self.module.kernels;
        let Unit::Bytes(place) = self.unit else { return kernels.nibbles };
        let has_positions_alone =
            (call.lengths, call.row_counts, call.layer) == (0, 0, 0) && call.flags & abi::SKIP_ALL == 0;
        let few = jobs <= self.small_table_jobs;
        let by_width = match (has_positions_alone, few) {
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

    fn call(&self, indices: &DeviceCallIndices, status: Option<DeviceStatus>) -> Call {
        let address = |list: Option<DeviceList>| list.map_or(0, DeviceList::address);
        // An empty list may have any address, including null, but null means to the kernels that there is no
        // list. Only Ascend's `seqLen` can be empty. Its address is then replaced by the layer's, which is
        // not null.
        let row_counts = indices.row_counts;
        let not_null = row_counts.filter(|list| list.len() > 0).or(row_counts.and(indices.layer));
        let wide =
            |list: Option<DeviceList>, flag| if list.is_some_and(DeviceList::is_i64) { flag } else { 0 };
        let limits = self.prepared.device_interface().row_limits();
        let [min_rows, max_rows] =
            [limits.min, limits.max].map(|rows| u32::try_from(rows).unwrap_or(u32::MAX));
        Call {
            positions: address(indices.positions),
            lengths: address(indices.lengths),
            row_counts: address(not_null),
            layer: address(indices.layer),
            status: status.map_or(0, DeviceStatus::address),
            flags: self.flags
                | wide(indices.positions, abi::POSITIONS_I64)
                | wide(indices.lengths, abi::LENGTHS_I64)
                | wide(row_counts, abi::ROW_COUNTS_I64),
            min_rows,
            max_rows,
            unused: 0,
        }
    }

    /// Makes the checks of a launch, and returns the number of samples.
    ///
    /// This checks the lengths and addresses of the lists, and that neither a list nor the status overlaps
    /// memory that is written. Every launch makes these checks too.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`launch`](Self::launch), except [`CudaError::Driver`].
    pub fn check_indices(
        &self,
        indices: &DeviceCallIndices,
        status: Option<DeviceStatus>,
    ) -> Result<usize, CudaError> {
        let samples = self.samples(indices)?;
        let status = status.map(|status| (LaunchArgument::Status, DeviceList::i64(status.address(), 2)));
        if let Some((_, words)) = status {
            // A launch writes the status while it reads these buffers. If they overlapped, a list could
            // change after the kernel has checked it.
            let in_list =
                |(_, numbers): (LaunchArgument, DeviceList)| numbers.buffer().overlaps(words.buffer());
            if self.sources.overlap(words.buffer()) || indices.all().any(in_list) {
                return Err(CudaError::StatusShared);
            }
        }
        for (list, numbers) in indices.all().chain(status) {
            numbers.check(list)?;
            if self.written_ranges.overlap(numbers.buffer()) {
                let bytes = self.form.bytes(self.prepared.geometry());
                let shares = |buffer: &DeviceBuffer| buffer.first(bytes).overlaps(numbers.buffer());
                let pair = self.written.iter().position(shares).unwrap_or(0);
                return Err(CudaError::Overlap { list, pair });
            }
        }
        Ok(samples)
    }

    /// Returns the number of samples of the lists.
    pub(crate) fn samples(&self, indices: &DeviceCallIndices) -> Result<usize, CudaError> {
        if let Form::Slots { shape, .. } = &self.form {
            return check_slots(shape, indices);
        }
        let DeviceCallIndices { positions, lengths, row_counts, layer } = indices;
        let len = |list: &Option<DeviceList>| list.map(DeviceList::len);
        let lists = ListCounts {
            positions: len(positions),
            row_counts: len(row_counts),
            lengths: len(lengths),
            layers: len(layer).unwrap_or(0),
        };
        Ok(self.prepared.device_interface().check_counts(lists)?)
    }
}

impl std::fmt::Debug for DeviceWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, grid) = (&self.unit, &self.grid);
        f.debug_struct("DeviceWrite").field("unit", unit).field("grid", grid).finish_non_exhaustive()
    }
}

/// Checks that there is one slot for each token, and no other list.
fn check_slots(shape: &WriteShape, indices: &DeviceCallIndices) -> Result<usize, CudaError> {
    let other = indices.all().find(|(list, _)| *list != LaunchArgument::Positions);
    if let Some((list, _)) = other {
        return Err(CudaError::List { list, given: true });
    }
    let slots = indices.positions.ok_or(CudaError::List { list: LaunchArgument::Positions, given: false })?;
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
