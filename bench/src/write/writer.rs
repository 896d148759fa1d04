//! The interface of what is timed in a write.

use std::time::Duration;

use super::scene::Call;
use crate::measure::Failed;

/// The result that a writer must leave in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// The write that the case describes.
    Write,
    /// The same rows in linear mode.
    Unwrapped,
    /// A copy of the same number of bytes in one piece, into the same cache. In functional form, a copy of the past.
    Memcpy,
}

/// An implementation of the write, or a yardstick, that is ready for one case.
pub(super) trait Writer {
    /// Prepares new positions before a call uses them. This is not timed.
    ///
    /// Values that a host program would have ready, such as the offsets of a hand-written loop, are computed here.
    /// Values that a library computes in every call belong in [`write`](Self::write).
    fn aim(&mut self, starts: &[i64]) {
        let _ = starts;
    }

    /// Makes one call on the buffers, for one cache or for the keys and the values of a layer. This is timed.
    fn write(&mut self, call: &mut Call<'_>) -> Result<(), Failed>;

    /// Returns the time of the calls since the last question, if the library measures it.
    fn elapsed(&mut self) -> Option<Duration> {
        None
    }

    /// Copies the result into the cache or the present of the call, if the library has its own memory. This is not
    /// timed.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let _ = call;
        Ok(())
    }
}
