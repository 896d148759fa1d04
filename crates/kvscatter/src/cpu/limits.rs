//! The numbers that decide how bytes move. They do not change what is written.
//!
//! Some of the numbers were measured on an Intel Xeon. The comment of a measured number names the values that
//! it was compared with, and `docs/decisions.md` has the figures. The others are round numbers between values
//! that were measured.
//!
//! Tests compile with `--cfg kvscatter_tiny`, which makes the numbers so small that tensors of a few bytes
//! take every path.

/// Returns `value`, or `tiny` if the tests are compiled with tiny limits.
const fn limit(value: usize, tiny: usize) -> usize {
    if cfg!(kvscatter_tiny) { tiny } else { value }
}

/// Longer runs are copied with `memcpy`. Measured: 512 and 1024.
pub(super) const INLINE_MAX_RUN: usize = limit(1024, 160);

/// Longer runs are not prefetched, because the processor prefetches them without hints. Measured: 512 and
/// 1024.
pub(super) const PREFETCH_MAX_RUN: usize = limit(512, 40);

/// The number of bytes of destinations that are prefetched before they are written. Measured: 2 to 32 KiB.
pub(super) const PREFETCH_DISTANCE: usize = limit(4 << 10, 8);

/// The number of samples that one call of a kernel handles.
pub(super) const SAMPLES_PER_CALL: usize = limit(64, 2);

/// Writes of at least this many bytes bypass the CPU caches with non-temporal stores. The CPU caches would
/// evict these bytes before they are read, and lines that are overwritten whole need not be read first.
pub(super) const STREAM_MIN_BYTES: usize = limit(64 << 20, 96);

/// A run is streamed if it has at least this many bytes from its first whole line on.
pub(super) const STREAM_MIN_RUN: usize = limit(1024, 64);

/// The distance in bytes at which the source of a streamed copy is prefetched.
pub(super) const STREAM_PREFETCH_DISTANCE: usize = limit(1024, 64);

/// Smaller writes stay on one thread, because distributing their parts costs as much time as it saves.
/// Measured: 128 KiB to 1 MiB.
pub(super) const PARALLEL_MIN_BYTES: usize = limit(512 << 10, 4);

/// The size of the pieces in which rows are distributed to threads. Measured: 32 to 256 KiB.
pub(super) const THREAD_GRAIN: usize = limit(128 << 10, 3);

/// Slabs below this size are copied whole from the past and then overwritten from the update.
pub(super) const SLAB_OVERWRITE_MAX: usize = limit(4 << 10, 48);

/// The number of bytes in a group of slabs. Measured: 16 to 64 KiB.
pub(super) const SLAB_TILE: usize = limit(32 << 10, 64);

/// If slabs bypass the CPU caches, those of at least this size are stored in the order of their addresses.
/// Measured: 4 to 512 bytes.
pub(super) const SLAB_STREAM_MIN: usize = limit(256, 12);

/// Longer slabs are not stored in that order. Shorter ones are, in groups of at most this many bytes.
pub(super) const SLAB_STREAM_MAX: usize = limit(128 << 10, 80);

const _: () = assert!(SLAB_OVERWRITE_MAX <= SLAB_TILE, "a tile holds a slab");
