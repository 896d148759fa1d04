//! The numbers that decide how bytes move; none of them changes what is written. The comment of a measured
//! number names what it was measured against, on an Intel Xeon; `docs/rejected.md` has the figures. The
//! others are round numbers between values that were measured.
//!
//! Tests compile with `--cfg kvscatter_tiny`, which makes them so small that every path is taken by tensors of a
//! few bytes.

/// `value`, or `tiny` where tests ask for it.
const fn limit(value: usize, tiny: usize) -> usize {
    if cfg!(kvscatter_tiny) { tiny } else { value }
}

/// Runs longer than this are left to `memcpy`. Measured: 512 and 1024.
pub(super) const INLINE_MAX_RUN: usize = limit(1024, 160);

/// Runs longer than this are left to the machine's own prefetching. Measured: 512 and 1024.
pub(super) const PREFETCH_MAX_RUN: usize = limit(512, 40);

/// Bytes of destinations that are prefetched before they are written. Measured: 2 to 32 KiB.
pub(super) const PREFETCH_DISTANCE: usize = limit(4 << 10, 8);

/// How many samples a kernel is called for at once.
pub(super) const SAMPLES_PER_CALL: usize = limit(64, 2);

/// Writes of at least this many bytes bypass the caches with non-temporal stores: they would not be kept until they are
/// read, and lines that are overwritten whole need not be read first.
pub(super) const STREAM_MIN_BYTES: usize = limit(64 << 20, 96);

/// A run is streamed if it has this many bytes from its first whole line on.
pub(super) const STREAM_MIN_RUN: usize = limit(1024, 64);

/// How far ahead of a streamed copy its source is prefetched.
pub(super) const STREAM_PREFETCH_DISTANCE: usize = limit(1024, 64);

/// Writes smaller than this stay on one thread: handing parts of them over would cost what it gains. Measured: 128 KiB
/// to 1 MiB.
pub(super) const PARALLEL_MIN_BYTES: usize = limit(512 << 10, 4);

/// The grain in which rows are handed to threads. Measured: 32 to 256 KiB.
pub(super) const THREAD_GRAIN: usize = limit(128 << 10, 3);

/// Slabs below this size are copied whole from the past and then overwritten from the update.
pub(super) const SLAB_OVERWRITE_MAX: usize = limit(4 << 10, 48);

/// Bytes of a group of slabs. Measured: 16 to 64 KiB.
pub(super) const SLAB_TILE: usize = limit(32 << 10, 64);

/// Slabs of at least this size are stored in the order of their addresses where they bypass the caches. Measured: 4 to
/// 512 bytes.
pub(super) const SLAB_STREAM_MIN: usize = limit(256, 12);

/// Longer slabs than this are not stored in that order. Shorter ones are, in groups of at most this many bytes.
pub(super) const SLAB_STREAM_MAX: usize = limit(128 << 10, 80);

const _: () = assert!(SLAB_OVERWRITE_MAX <= SLAB_TILE, "a tile holds a slab");
