//! The rule that decides which steps a ring takes. The core implements it in `kvscatter::ring`.
//!
//! `lib.rs` defines C3.

use kvscatter::ring::{self, Feeding, Ring};

use crate::boundary::check_pointer;
use crate::guard::guarded;
use crate::options::choice;
use crate::status::kvs_status;

/// A ring of a layer whose queries see their own position and the `window - 1` positions before it. Position
/// `p` is in slot `p` modulo `capacity`. Functions take the struct by value, and it does not grow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvs_ring {
    /// The number of slots. A number above PTRDIFF_MAX is like 0, because no tensor has that many slots. A
    /// negative number is such a number after its conversion.
    pub capacity: usize,
    /// The number of positions that a query sees. 0 is like 1.
    pub window: usize,
}

/// What the steps of a sample contain besides its tokens.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_feeding {
    /// A step writes tokens only, or padding is not written, as with `lengths` in a `kvs_call`.
    KVS_FEEDING_WITHOUT_PADDING = 0,
    /// A step may be padded on the right, and has at least one token.
    KVS_FEEDING_PADDED_ON_THE_RIGHT = 1,
    /// A step may also consist of padding alone, for a sample that waits for others.
    KVS_FEEDING_IDLE = 2,
}

/// Returns 1 if each query of a step sees its window and nothing else, and 0 if the step overwrites a row that
/// one of its queries still needs. Test a step before you write it, because a write into a ring cannot notice
/// that. The write succeeds, and attention then reads wrong rows.
///
/// The step writes `rows` rows, including padding, from position `start` on. `high` is one more than the
/// furthest position that was written before, as `kvs_ring_high_after` computes it. It does not matter if
/// `start` is 0, because the sample then starts over. All earlier steps must have been exact. The result may be
/// 0 for an exact step if the sample has padding on the left. It is 0 if `start` is above PTRDIFF_MAX, as a
/// negative number is after its conversion.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_ring_takes(ring: kvs_ring, high: usize, start: usize, rows: usize) -> i32 {
    (is_size(start) && ring.rule().takes(high, start, rows)).into()
}

/// Returns the largest number of rows that an exact step can write from position `start` on, or 0 if there is
/// no such step. The arguments are those of `kvs_ring_takes`.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_ring_most_rows(ring: kvs_ring, high: usize, start: usize) -> usize {
    if is_size(start) { ring.rule().most_rows(high, start) } else { 0 }
}

/// Returns the lowest position above 0 from which an exact step can still start, or 0 if every position is
/// possible. A sample that is taken back further must start over at 0. The capacity must be at least the
/// window. `high` is that of `kvs_ring_takes`.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_ring_least_start(ring: kvs_ring, high: usize) -> usize {
    ring.rule().least_start(high)
}

/// Returns one more than the furthest position written, after a step of `rows` rows from position `start` on.
/// `high` is the number before the step, which is 0 for a new sample. A sample that starts over at 0 reads
/// nothing that was written before, so `high` starts over too.
#[unsafe(no_mangle)]
pub extern "C" fn kvs_ring_high_after(high: usize, start: usize, rows: usize) -> usize {
    ring::high_after(high, start, rows)
}

/// Computes the least capacity with which every step of up to `rows` rows is exact, if a sample is never taken
/// back by more than `rewind` tokens below its furthest one. `feeding` is one of `kvs_feeding`.
///
/// Rewinds add up until the furthest token is passed: back 5, forward 1 and back 5 is a rewind of 9. A
/// capacity that does not fit `size_t` becomes SIZE_MAX, which no tensor has.
///
/// Besides `KVS_OK`, returns `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED` or `KVS_ERROR_ADDRESS_SPACE` if
/// `out` is not valid, and `KVS_ERROR_UNKNOWN_OPTION` if `feeding` has no meaning.
///
/// # Safety
/// `out` is either NULL or points to a `size_t` that nothing else uses before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_ring_least_capacity(
    window: usize,
    rows: usize,
    rewind: usize,
    feeding: i32,
    out: *mut usize,
) -> kvs_status {
    guarded(|| {
        check_pointer(out, 1, c"out".into())?;
        let all = [Feeding::WithoutPadding, Feeding::PaddedOnTheRight, Feeding::Idle];
        let capacity = ring::least_capacity(window, rows, rewind, choice(c"feeding", feeding, &all)?);
        // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C3.
        unsafe { out.write(capacity) };
        Ok(())
    })
}

impl kvs_ring {
    fn rule(self) -> Ring {
        Ring::new(if is_size(self.capacity) { self.capacity } else { 0 }, self.window)
    }
}

/// Returns `false` for a number that is larger than any tensor, such as a negative number of C.
fn is_size(number: usize) -> bool {
    number <= isize::MAX.unsigned_abs()
}
