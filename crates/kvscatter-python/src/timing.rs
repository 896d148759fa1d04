//! Measures what `bench/peers.py` compares the package with, in the same process and on the same memory: the
//! Rust call of a prepared write, and libc's memcpy. This is not part of the public interface.

use std::hint::black_box;
use std::time::Instant;

use pyo3::prelude::*;

use crate::error::ArgumentNames;
use crate::prepared::PyPrepared;
use crate::prepared_scatter::ScatterIndices;

/// Returns the nanoseconds of `repeats` calls in Rust. Every call checks the positions, plans and writes.
#[pyfunction]
pub(crate) fn time_rust_call(
    py: Python<'_>,
    write: &PyPrepared,
    cache: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    write_indices: &Bound<'_, PyAny>,
    repeats: u32,
) -> PyResult<u64> {
    let indices = ScatterIndices::read(Some(write_indices), None)?;
    let write = write.shared();
    let (cache, update) = write.arrays(0, cache, update)?;
    let (cache, update) = {
        let plan = write.plan(py, &indices)?;
        let geometry = plan.geometry();
        (cache.buffer(geometry.cache_bytes()), update.buffer(geometry.update_bytes()))
    };
    let begin = Instant::now();
    for _ in 0..repeats {
        let plan = black_box(&write).plan(py, &indices)?;
        // SAFETY: Both buffers are memory of the arrays, with the sizes that their owners state. The arrays
        // are borrowed until this function returns.
        let _ = unsafe { plan.write_raw(black_box(cache), black_box(update)) }
            .map_err(|refused| ArgumentNames::Functional.raise(py, refused))?;
    }
    Ok(nanoseconds(begin))
}

/// Returns the nanoseconds of `repeats` calls of memcpy with `bytes`, between new buffers that a first call
/// has warmed.
#[pyfunction]
pub(crate) fn time_memcpy(bytes: u32, repeats: u32) -> u64 {
    let bytes = bytes as usize;
    let (mut to, from) = (vec![1_u8; bytes], vec![2_u8; bytes]);
    to.copy_from_slice(&from);
    let begin = Instant::now();
    for _ in 0..repeats {
        black_box(to.as_mut_slice()).copy_from_slice(black_box(&from));
    }
    nanoseconds(begin)
}

fn nanoseconds(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
