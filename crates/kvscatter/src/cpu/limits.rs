//! The numbers that decide how bytes move. They do not change what is written.
//!
//! Some of the numbers were measured on an Intel Xeon. The comment of a measured number names the values that
//! it was compared with, and `docs/decisions.md` has the figures. The others are round numbers between values
//! that were measured.

use super::Isa;

/// What kernels are chosen by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// An instruction set that the machine has (V2).
    pub(crate) isa: Isa,
    pub(crate) limits: &'static Limits,
}

impl Tuning {
    /// Returns the tuning of this machine, with at most this instruction set.
    pub(crate) fn up_to(isa: Isa) -> Self {
        Self { isa: isa.min(Isa::allowed()), limits: &Limits::REAL }
    }
}

/// The numbers that decide which path a write takes.
#[derive(Debug)]
pub(crate) struct Limits {
    /// Longer runs are not prefetched, because the processor prefetches them without hints. Measured: 512 and
    /// 1024.
    pub(super) prefetch_max_run: usize,
    /// The number of bytes of destinations that are prefetched before they are written. Measured: 2 to 32 KiB.
    pub(super) prefetch_distance: usize,
    /// The number of samples that one call of a kernel handles, at most [`MAX_SAMPLES_PER_CALL`].
    pub(super) samples_per_call: usize,
    /// Writes of at least this many bytes bypass the CPU caches with non-temporal stores. The CPU caches would
    /// evict these bytes before they are read, and lines that are overwritten whole need not be read first.
    pub(super) stream_min_bytes: usize,
    /// The runs of such a write are streamed if they have at least this many bytes.
    pub(super) stream_min_run: usize,
    /// Smaller writes stay on one thread, because distributing their parts costs as much time as it saves.
    /// Measured: 128 KiB to 1 MiB.
    pub(super) parallel_min_bytes: usize,
    /// The size of the pieces in which rows are distributed to threads. Measured: 32 to 256 KiB.
    pub(super) thread_grain: usize,
    /// Slabs below this size are copied whole from the past and then overwritten from the update.
    pub(super) slab_overwrite_max: usize,
    /// The number of bytes in a group of slabs. Measured: 16 to 64 KiB.
    pub(super) slab_tile: usize,
    /// If slabs bypass the CPU caches, those of at least this size are stored in the order of their addresses.
    /// Measured: 4 to 512 bytes.
    pub(super) slab_stream_min: usize,
    /// Longer slabs are not stored in that order. Shorter ones are, in groups of at most this many bytes.
    pub(super) slab_stream_max: usize,
}

impl Limits {
    pub(crate) const REAL: Self = Self {
        prefetch_max_run: 512,
        prefetch_distance: 4 << 10,
        samples_per_call: MAX_SAMPLES_PER_CALL,
        stream_min_bytes: 64 << 20,
        stream_min_run: 1024,
        parallel_min_bytes: 512 << 10,
        thread_grain: 128 << 10,
        slab_overwrite_max: 4 << 10,
        slab_tile: 32 << 10,
        slab_stream_min: 256,
        slab_stream_max: 128 << 10,
    }
    .checked();

    /// Numbers so small that tensors of a few bytes take every path. They are for tests.
    pub(crate) const TINY: Self = Self {
        prefetch_max_run: 40,
        prefetch_distance: 8,
        samples_per_call: 2,
        stream_min_bytes: 96,
        stream_min_run: 64,
        parallel_min_bytes: 4,
        thread_grain: 3,
        slab_overwrite_max: 48,
        slab_tile: 64,
        slab_stream_min: 12,
        slab_stream_max: 80,
    }
    .checked();

    const fn checked(self) -> Self {
        assert!(self.slab_overwrite_max <= self.slab_tile, "a tile holds a slab");
        assert!(0 < self.samples_per_call && self.samples_per_call <= MAX_SAMPLES_PER_CALL);
        self
    }
}

pub(super) const MAX_SAMPLES_PER_CALL: usize = 64;

// The kernels contain the numbers below. Tests reach them with long runs.

/// Longer runs are copied with `memcpy`. Measured: 512 and 1024.
pub(super) const INLINE_MAX_RUN: usize = 1024;

/// The distance in bytes at which the source of a streamed copy is prefetched.
pub(super) const STREAM_PREFETCH_DISTANCE: usize = 1024;
