//! Evidence by the clock: what the caches cost, alone and as part of a decode step, and what they weigh.
//!
//! A single time proves nothing on a machine that does other things as well. Rounds are interleaved, so that a slow
//! moment falls on all sides, and where a claim rests on a ratio its limit is far from both answers: a cache that is
//! copied takes about four times as long at four times the capacity, one that is written in place as long as before.

mod cache_path;
mod decode;
mod memory;
mod subject;

use kvscatter_session::{CachePort, Interface};

use crate::CertifyError;
use crate::certificate::{BytesMoved, Check, Timings};

pub(crate) use subject::{Timed, TimedModels};

/// Times, counts and weighs.
///
/// # Errors
/// Those of the engine, for steps that it refuses, and of the files that hold parts of the model meanwhile.
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

/// What a decode step of one sample, or of the batch that the model is made for, moves in the caches.
fn bytes_moved(interface: &Interface, capacity: usize) -> BytesMoved {
    let batch = interface.batch.unwrap_or(1);
    let bytes = |length: usize| -> u64 {
        let of_cache = |port: &CachePort| port.element.storage_len(&port.shape(batch, length));
        interface.caches.iter().filter_map(of_cache).map(|bytes| bytes as u64).sum()
    };
    // Everything that is moved is read once and written once.
    BytesMoved { batch, capacity, in_place: 2 * bytes(1), copied: 2 * bytes(capacity) }
}
