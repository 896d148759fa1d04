//! Evidence about time and memory: the cost of the caches alone and in a decode step, and peak memory.
//!
//! A single measurement proves nothing on a machine that also does other work. Rounds are interleaved, so
//! that a slow moment affects both sides alike. The limit of a claim about a ratio is far from both possible
//! results. At four times the capacity, a copied cache takes about four times as long, and a cache that is
//! written in place takes about the same time.

mod cache_path;
mod decode;
mod memory;
mod subject;

use kvscatter_session::{CachePort, Interface, Rows};

use crate::CertifyError;
use crate::certificate::{BytesMoved, Check, Timings};

pub(crate) use subject::{Timed, TimedModels};

/// Takes all times, byte counts and peak memory.
///
/// # Errors
/// Returns an error if the engine cannot run a step, or if a temporary file with a part of the model cannot
/// be written or read.
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

/// Returns the number of bytes that a decode step moves in the caches, for the batch that the model fixes or
/// else for one sample.
fn bytes_moved(interface: &Interface, capacity: usize) -> BytesMoved {
    let batch = interface.batch.unwrap_or(1);
    let of_all = |of: &dyn Fn(&CachePort) -> usize| -> u64 {
        interface.caches.iter().map(of).map(|bytes| bytes as u64).sum()
    };
    let row = of_all(&|port| batch * Rows::new(port, capacity).row());
    let all = of_all(&|port| port.element.storage_len(&port.shape(batch, capacity)).unwrap_or_default());
    // Every byte that is moved is read once and written once.
    BytesMoved { batch, capacity, in_place: 2 * row, copied: 2 * all }
}
