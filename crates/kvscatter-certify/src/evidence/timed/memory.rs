//! The peak memory of the process while it decodes. Linux counts it and lets a process reset the count.

use std::fs;

use kvscatter_session::{Engine, LoadOptions};

use super::decode::Decoding;
use super::subject::{Timed, TimedModels};
use crate::CertifyError;
use crate::certificate::{ComparedModel, PeakMemory};

/// The number of decode steps. The last one fills the capacity.
const STEPS: usize = 8;
/// The minimum number of bytes of the caches and states. It makes them large compared with everything else, so small
/// models get a larger batch.
const CACHE_BYTES: usize = 16 << 20;
const MOST_BATCH: usize = 512;

/// The sizes of the run.
#[derive(Clone, Copy)]
struct Load {
    batch: usize,
    /// The number of slots of static caches, or the number of tokens in growing ones after the last step.
    capacity: usize,
    steps: usize,
}

/// Measures the peak memory of both models, one after the other.
pub(super) fn weigh(subject: &TimedModels<'_>) -> Result<Vec<PeakMemory>, CertifyError> {
    let interface = subject.model.interface;
    let storage = |batch: usize| -> usize {
        let caches = interface.caches.iter();
        let caches = caches.map(|port| port.element.storage_len(&port.shape(batch, subject.capacity)));
        let states = interface.states.iter().map(|port| port.element.storage_len(&port.shape(batch)));
        caches.chain(states).flatten().sum()
    };
    let batch =
        interface.batch.unwrap_or_else(|| CACHE_BYTES.div_ceil(storage(1).max(1)).clamp(1, MOST_BATCH));
    let load = Load { batch, capacity: subject.capacity, steps: STEPS.min(subject.capacity) };
    let mut peaks = Vec::new();
    let sides = [(ComparedModel::Model, Some(subject.model)), (ComparedModel::Original, subject.original)];
    for (of, timed) in sides {
        let Some(timed) = timed else { continue };
        let bytes = peak(subject.engine, timed, subject.options, load)?;
        peaks.push(PeakMemory { of, batch, steps: load.steps, context: load.capacity, bytes });
    }
    Ok(peaks)
}

/// Returns the peak memory of the last steps before the caches are full, less the memory that the loaded
/// model takes.
fn peak(
    engine: &dyn Engine,
    timed: Timed<'_>,
    options: LoadOptions,
    load: Load,
) -> Result<Option<u64>, CertifyError> {
    let mut decoding = Decoding::load(engine, timed, options)?;
    give_back_free_memory();
    let Some(before) = counted("VmRSS:") else { return Ok(None) };
    if fs::write("/proc/self/clear_refs", "5").is_err() {
        return Ok(None);
    }
    // Each present of a growing cache becomes the past of the next step, as a caller would do.
    let Load { batch, capacity, steps } = load;
    for context in capacity - steps..capacity {
        decoding.advance(batch, context, capacity)?;
        decoding.step()?;
    }
    Ok(counted("VmHWM:").map(|peak| peak.saturating_sub(before)))
}

/// Returns freed memory to the system. Otherwise the allocator would reuse that memory, and the count would
/// not show it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the C library's function has no safe form")]
fn give_back_free_memory() {
    // SAFETY: The function may be called at any time, by any thread, with any number.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back_free_memory() {}

/// Returns a count of the process's memory in bytes. Returns `None` if the system does not report it.
fn counted(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::counted;

    #[test]
    fn the_peak_is_at_least_what_is_held() {
        let block = vec![1_u8; 8 << 20];
        assert!(counted("VmHWM:").unwrap() >= 8 << 20, "{}", block.len());
        assert_eq!(counted("VmNothing:"), None);
    }
}
