//! Prepares a write from shapes and addresses, with its width, its tables of jobs and its grid.

use kvscatter::device::Loops;
use kvscatter::{Convention, Geometry, Mode, NegativeIndex, Prepared};

use crate::abi::{self, FEW_JOBS, JOBS, Job, LINE, PresentJob, WORD, WriteShape};
use crate::cuda::Cuda;
use crate::driver::Grid;
use crate::error::TensorRole;
use crate::grid::{LaunchConfig, Work, spread};
use crate::memory::{AddressRanges, BufferPair, DeviceBuffer, PresentBuffers};
use crate::units::{Scale, Unit};
use crate::write::{Form, Table};
use crate::{CudaError, DeviceWrite, shape};

impl Cuda {
    /// Prepares a write in place into many caches at the same positions, such as the keys and values of a
    /// layer.
    ///
    /// The write belongs to the context that is current on this thread.
    ///
    /// Buffers are compared by address, and their memory is never touched. More than 128 pairs take several
    /// launches. Without pairs there is no launch, and no index is checked on the device.
    ///
    /// # Errors
    /// * Returns an error if the core rejects the buffers of a pair, as
    ///   [`kvscatter::device::DeviceInterface::check_pairs`] describes.
    /// * Returns [`CudaError::Buffer`] if a buffer is null or too small for its tensor.
    /// * Returns [`CudaError::Loops`] if the strides need more loops than the kernels have.
    /// * Returns [`CudaError::TooLarge`] if a count does not fit the kernels' 32-bit arithmetic.
    /// * Returns [`CudaError::SlotMapping`] if the cache has blocks, as a paged cache does.
    /// * Returns [`CudaError::SamplesNotAdjacent`] if the tokens of a `newKv` with four dimensions are not
    ///   evenly spaced.
    /// * Returns [`CudaError::WholeWords`] if 4-bit rows straddle bytes and a cache does not consist of whole
    ///   words.
    /// * Returns [`CudaError::NoContext`] if no context is current on this thread.
    /// * Returns [`CudaError::ComputeCapability`] if the device is too old for the kernels.
    /// * Returns [`CudaError::Kernels`] if the driver rejects both the machine code and the PTX.
    /// * Returns [`CudaError::Driver`] if the driver returns another error.
    pub fn prepare(&self, prepared: &Prepared, pairs: &[BufferPair]) -> Result<DeviceWrite, CudaError> {
        check_pairs(prepared, pairs)?;
        let loops = shape::update_loops(prepared, prepared.device_interface().write_loops())?;
        let Jobs { unit, shape, tables, runs } = Jobs::new(prepared, &loops, pairs)?;
        let form = Form::InPlace { shape, tables };
        DeviceWrite::new(self, prepared, unit, form, Touched::pairs(prepared.geometry(), pairs), runs)
    }

    /// Prepares a write of tokens to one slot each, as in engines with paged caches.
    ///
    /// `prepared` has batch 1 and linear mode. Its capacity is the number of slots, and its update is a list
    /// of tokens. A negative slot skips its token and is not bad. If two tokens have the same slot, the slot
    /// ends with bytes of either.
    ///
    /// # Errors
    /// Returns [`CudaError::SlotMapping`] if the shapes do not fit a slot mapping, or an error for the same
    /// reasons as [`prepare`](Self::prepare).
    pub fn prepare_slots(&self, prepared: &Prepared, pairs: &[BufferPair]) -> Result<DeviceWrite, CudaError> {
        check_pairs(prepared, pairs)?;
        let Jobs { unit, shape, tables, runs } = Jobs::new(prepared, &shape::slot_loops(prepared)?, pairs)?;
        let form = Form::Slots { shape, tables };
        DeviceWrite::new(self, prepared, unit, form, Touched::pairs(prepared.geometry(), pairs), runs)
    }

    /// Prepares the functional form, which writes a dense present from a past and an update in one pass.
    ///
    /// More than 64 triples take several launches.
    ///
    /// # Errors
    /// * Returns an error for the same reasons as [`prepare`](Self::prepare), except
    ///   [`CudaError::WholeWords`].
    /// * Returns an error if the core rejects the buffers of a triple, as
    ///   [`kvscatter::device::DeviceInterface::check_present`] describes.
    /// * Returns [`CudaError::Presents`] if a present shares memory with a tensor of another triple.
    pub fn prepare_present(
        &self,
        prepared: &Prepared,
        triples: &[PresentBuffers],
    ) -> Result<DeviceWrite, CudaError> {
        check_triples(prepared, triples)?;
        let past = prepared.device_interface().present_from_past_loops();
        let update = shape::update_loops(prepared, prepared.device_interface().present_from_update_loops())?;
        let begins = [past.dst_offset, past.src_offset, update.src_offset];
        let buffers =
            |triple: &PresentBuffers| [triple.present, triple.past, triple.update].into_iter().zip(begins);
        let scale = Scale::widest(prepared.geometry(), [&past, &update], triples.iter().flat_map(buffers));
        let (mut shape, runs) = shape::present(prepared, &past, &update, scale)?;
        let begin = |triple: &PresentBuffers| {
            let (past, past_begin) = scale.begin(triple.past, past.src_offset, 1);
            let (update, update_begin) = scale.begin(triple.update, update.src_offset, 1);
            (PresentJob { present: triple.present.address, past, update }, past_begin, update_begin)
        };
        if let Some((_, past_begin, update_begin)) = triples.first().map(begin) {
            // These are equal for all triples, for the same reason as in place.
            (shape.past_begin, shape.update.src_begin) = (past_begin, update_begin);
        }
        let runs = match scale.unit {
            Unit::Nibbles if runs > 0 => shape::lines(&shape, runs)?,
            _ => runs,
        };
        // If nothing moves, the addresses may be arbitrary. They become null, which is aligned.
        let job = |triple: &PresentBuffers| if runs == 0 { PresentJob::default() } else { begin(triple).0 };
        let tables = tables(triples.iter().map(job));
        let form = Form::Present { shape: Box::new(shape), tables };
        DeviceWrite::new(
            self,
            prepared,
            scale.unit,
            form,
            Touched::triples(prepared.geometry(), triples),
            runs,
        )
    }
}

impl DeviceWrite {
    fn new(
        cuda: &Cuda,
        prepared: &Prepared,
        unit: Unit,
        form: Form,
        Touched { written, sources }: Touched,
        runs: usize,
    ) -> Result<Self, CudaError> {
        let module = cuda.module()?;
        let along = match (unit, &form) {
            (Unit::Bytes(_), Form::InPlace { shape, .. } | Form::Slots { shape, .. }) => shape.run,
            (Unit::Bytes(_), Form::Present { shape, .. }) => shape.update.run,
            // For 4-bit elements, these are the words of a run in place. In the functional form, a warp
            // writes a line of words instead of runs.
            (Unit::Nibbles, Form::InPlace { shape, .. } | Form::Slots { shape, .. }) => {
                shape.run.div_ceil(WORD) + 1
            }
            (Unit::Nibbles, Form::Present { .. }) => LINE,
        };
        let written_ranges = AddressRanges::from_buffers(
            written.iter().map(|buffer| buffer.first(form.bytes(prepared.geometry()))),
        );
        let write = Self {
            flags: flags(prepared, &form),
            cuda: cuda.clone(),
            prepared: prepared.clone(),
            work: Work { along, runs },
            small_table_jobs: 0,
            grid: Grid { blocks: [1, 1], threads: [1, 1] },
            module,
            unit,
            form,
            written,
            written_ranges,
            sources,
        };
        Ok(write.with_launch_config(&LaunchConfig::DEFAULT))
    }

    /// Returns the same write with another grid, for benchmarks.
    #[doc(hidden)]
    #[must_use]
    pub fn with_launch_config(mut self, config: &LaunchConfig) -> Self {
        // All launches of one write except the last have the same number of jobs as the first.
        let (per_thread, first) = match &mut self.form {
            Form::InPlace { shape, tables } | Form::Slots { shape, tables } => {
                (&mut shape.per_thread, tables.first().map(|table| table.count))
            }
            Form::Present { shape, tables } => {
                (&mut shape.update.per_thread, tables.first().map(|table| table.count))
            }
        };
        let spread = spread(self.work, first.unwrap_or(0), self.module.multiprocessors, config);
        *per_thread = spread.per_thread;
        self.grid = spread.grid;
        self.small_table_jobs = config.small_table_jobs.min(FEW_JOBS as u32);
        self
    }
}

struct Touched {
    written: Vec<DeviceBuffer>,
    sources: AddressRanges,
}

impl Touched {
    fn pairs(geometry: &Geometry, pairs: &[BufferPair]) -> Self {
        let update = |pair: &BufferPair| pair.update.first(geometry.update_bytes());
        let written = pairs.iter().map(|pair| pair.cache).collect();
        Self { written, sources: AddressRanges::from_buffers(pairs.iter().map(update)) }
    }

    fn triples(geometry: &Geometry, triples: &[PresentBuffers]) -> Self {
        let written = triples.iter().map(|triple| triple.present).collect();
        Self {
            written,
            sources: AddressRanges::from_buffers(triples.iter().flat_map(|triple| sources(geometry, triple))),
        }
    }
}

/// Returns the memory of the tensors that the functional form reads.
fn sources(geometry: &Geometry, triple: &PresentBuffers) -> [kvscatter::RawBuffer; 2] {
    [triple.past.first(geometry.cache_bytes()), triple.update.first(geometry.update_bytes())]
}

/// Returns the rules of the operator as flags for the kernels.
fn flags(prepared: &Prepared, form: &Form) -> u32 {
    let ring = if prepared.mode() == Mode::Circular { abi::CIRCULAR } else { 0 };
    let reject = if prepared.negative_index() == NegativeIndex::Reject { abi::REJECT_NEGATIVE } else { 0 };
    let convention = match prepared.convention() {
        Convention::StartsAndCumulativeLengths => abi::CUMULATIVE,
        Convention::EndsAndRowCounts => abi::FROM_END,
        _ => 0,
    };
    let slots = if matches!(form, Form::Slots { .. }) { abi::SKIP_NEGATIVE } else { 0 };
    ring | reject | convention | slots
}

/// Checks that each of these buffers is large enough for the tensor.
fn check_sizes(
    tensor: TensorRole,
    needed: Option<usize>,
    buffers: impl Iterator<Item = DeviceBuffer>,
) -> Result<(), CudaError> {
    let needed = needed.unwrap_or(0);
    for (index, DeviceBuffer { address, bytes }) in buffers.enumerate() {
        if bytes < needed || (address == 0 && needed > 0) {
            return Err(CudaError::Buffer { tensor, index, address, bytes, needed });
        }
    }
    Ok(())
}

fn check_pairs(prepared: &Prepared, pairs: &[BufferPair]) -> Result<(), CudaError> {
    let geometry = prepared.geometry();
    check_sizes(TensorRole::Cache, geometry.cache_bytes(), pairs.iter().map(|pair| pair.cache))?;
    check_sizes(TensorRole::Update, geometry.update_bytes(), pairs.iter().map(|pair| pair.update))?;
    let raw = |pair: &BufferPair| {
        (pair.cache.first(geometry.cache_bytes()), pair.update.first(geometry.update_bytes()))
    };
    Ok(prepared.device_interface().check_pairs(pairs.iter().map(raw))?)
}

/// Checks each triple as the core does. Also checks that no present shares a byte with a tensor of another
/// triple.
fn check_triples(prepared: &Prepared, triples: &[PresentBuffers]) -> Result<(), CudaError> {
    let geometry = prepared.geometry();
    check_sizes(TensorRole::Present, geometry.present_bytes(), triples.iter().map(|triple| triple.present))?;
    check_sizes(TensorRole::Past, geometry.cache_bytes(), triples.iter().map(|triple| triple.past))?;
    check_sizes(TensorRole::Update, geometry.update_bytes(), triples.iter().map(|triple| triple.update))?;
    let present = |triple: &PresentBuffers| triple.present.first(geometry.present_bytes());
    let sources = |triple: &PresentBuffers| sources(geometry, triple);
    for triple in triples {
        let [past, update] = sources(triple);
        prepared.device_interface().check_present(past, update, present(triple))?;
    }
    let read = AddressRanges::from_buffers(triples.iter().flat_map(sources));
    let mut ascending: Vec<usize> = (0..triples.len()).collect();
    ascending.sort_by_key(|&index| triples.get(index).map(|triple| present(triple).ptr.addr()));
    let mut before: Option<(usize, &PresentBuffers)> = None;
    for (index, triple) in ascending.iter().filter_map(|&index| Some((index, triples.get(index)?))) {
        let written = present(triple);
        if let Some((with, other)) = before
            && written.overlaps(present(other))
        {
            return Err(CudaError::Presents { triple: index, with });
        }
        if read.overlap(written) {
            let shares =
                |other: &PresentBuffers| sources(other).into_iter().any(|source| source.overlaps(written));
            let with = triples.iter().position(shares).unwrap_or(index);
            return Err(CudaError::Presents { triple: index, with });
        }
        // Because all presents have the same size, a present that does not overlap its predecessor does not
        // overlap any earlier present either.
        before = if written.len > 0 { Some((index, triple)) } else { before };
    }
    Ok(())
}

/// The parts of a write in place.
struct Jobs {
    unit: Unit,
    shape: WriteShape,
    /// One table for each launch.
    tables: Vec<Table<Job, JOBS>>,
    /// The number of runs in one job.
    runs: usize,
}

impl Jobs {
    fn new(prepared: &Prepared, loops: &Loops, pairs: &[BufferPair]) -> Result<Self, CudaError> {
        let begins = [loops.dst_offset, loops.src_offset];
        let buffers = |pair: &BufferPair| [pair.cache, pair.update].into_iter().zip(begins);
        let scale = Scale::widest(prepared.geometry(), [loops], pairs.iter().flat_map(buffers));
        let (mut shape, runs) = shape::in_place(prepared, loops, scale)?;
        let word = size_of::<u32>();
        if scale.unit == Unit::Nibbles {
            for (pair, BufferPair { cache, .. }) in pairs.iter().enumerate() {
                check_words(prepared.geometry(), pair, *cache, word)?;
            }
        }
        let begin = |pair: &BufferPair| {
            (scale.begin(pair.cache, loops.dst_offset, word), scale.begin(pair.update, loops.src_offset, 1))
        };
        if let Some(((_, dst_begin), (_, src_begin))) = pairs.first().map(begin) {
            // These are equal for all pairs, because all pairs have one layout, caches begin on words and
            // updates on bytes.
            (shape.dst_begin, shape.src_begin) = (dst_begin, src_begin);
        }
        let jobs = pairs.iter().map(|pair| {
            let ((cache, _), (update, _)) = begin(pair);
            // If nothing moves, the addresses may be arbitrary. They become null, which is aligned.
            if runs == 0 { Job::default() } else { Job { cache, update } }
        });
        Ok(Self { unit: scale.unit, shape, tables: tables(jobs), runs })
    }
}

fn check_words(geometry: &Geometry, pair: usize, cache: DeviceBuffer, word: usize) -> Result<(), CudaError> {
    let DeviceBuffer { address, bytes } = cache;
    let needed = geometry.cache_bytes().unwrap_or(0).next_multiple_of(word);
    let on_word = address.is_multiple_of(u64::try_from(word).unwrap_or(1));
    if needed > 0 && (!on_word || bytes < needed) {
        return Err(CudaError::WholeWords { pair, address, bytes, needed });
    }
    Ok(())
}

/// Distributes the jobs to one table for each launch.
fn tables<J: Copy + Default, const N: usize>(jobs: impl Iterator<Item = J>) -> Vec<Table<J, N>> {
    let mut tables: Vec<Table<J, N>> = Vec::new();
    for (index, job) in jobs.enumerate() {
        if index % N == 0 {
            tables.push(Table { jobs: [J::default(); N], count: 0 });
        }
        let Some(table) = tables.last_mut() else { continue };
        if let Some(entry) = table.jobs.get_mut(index % N) {
            *entry = job;
            table.count += 1;
        }
    }
    tables
}
