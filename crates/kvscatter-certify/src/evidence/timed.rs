//! Evidence about time and memory: the cost of the caches alone and in a decode step, and peak memory.
//!
//! A single measurement proves nothing on a machine that also does other work. Rounds are interleaved, so
//! that a slow moment affects all sides alike. A claim about a ratio has a limit far from both possible
//! answers. At four times the capacity, a copied cache takes about four times as long and a cache written in
//! place takes about as long as before.

mod cache_path;
mod decode;
mod memory;
mod subject;

use kvscatter_session::{CachePort, Interface};

use crate::CertifyError;
use crate::certificate::{BytesMoved, Check, Timings};

pub(crate) use subject::{Timed, TimedModels};

/// Takes all times, byte counts and peak memory.
///
/// # Errors
/// Returns an error if the engine refuses a step, or if a temporary file with a part of the model cannot be
/// written or read.
pub(crate) fn gather(subject: &TimedModels<'_>) -> Result<(Timings, Vec<Check>), CertifyError> {
    let (cache_path, flat) = cache_path::time(subject.engine, subject.model)?;
    let timings = Timings {
        cache_path,
        bytes_moved: Some(bytes_moved(subject.model.interface, subject.capacity)),
        peak_memory: memory::weigh(subject)?,
        decode: Some(decode::time(subject)?),
    };
    Ok((timings, vec![flat]))
}

/// Returns the bytes that a decode step moves in the caches. The batch is the model's fixed batch, or else
/// one sample.
fn bytes_moved(interface: &Interface, capacity: usize) -> BytesMoved {
    let batch = interface.batch.unwrap_or(1);
    let bytes = |length: usize| -> u64 {
        let of_cache = |port: &CachePort| port.element.storage_len(&port.shape(batch, length));
        interface.caches.iter().filter_map(of_cache).map(|bytes| bytes as u64).sum()
    };
    // Every byte that is moved is read once and written once.
    BytesMoved { batch, capacity, in_place: 2 * bytes(1), copied: 2 * bytes(capacity) }
}
