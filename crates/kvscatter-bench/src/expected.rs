//! The expected result of a call, computed without the library.

use kvscatter::Mode;
use kvscatter_oracle::{Tensor, nibbles, onnx::TensorScatter};
use serde::Serialize;

use crate::call::Task;
use crate::case::{CacheDims, Case, Form, UpdateLayout};
use crate::layout::{runs, starts_of};

/// The code that computes the expected results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// The specification's pseudocode, element by element.
    Oracle,
    /// A loop over samples, heads and rows, for cases that take the oracle too long.
    RowLoop,
}

/// The largest update in elements, and the largest cache in bytes, for which the oracle is fast enough.
const ORACLE_ELEMENTS: usize = 1 << 20;
const ORACLE_BYTES: usize = 64 << 20;

impl Reference {
    /// Returns the oracle if it is fast enough for the case, and the row loop otherwise.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        let CacheDims { batch, outer, inner, .. } = case.dims();
        let elements = batch * outer * case.parameters().rows * inner;
        if elements <= ORACLE_ELEMENTS && case.cache_bytes() <= ORACLE_BYTES {
            Self::Oracle
        } else {
            Self::RowLoop
        }
    }

    /// Computes the cache after the task from the cache before it.
    pub(crate) fn after(
        self,
        case: &Case,
        task: Task,
        starts: &[i64],
        mut cache: Vec<u8>,
        update: &[u8],
    ) -> Vec<u8> {
        match (task, self) {
            (Task::Memcpy, _) if case.parameters().form == Form::Functional => (),
            (Task::Memcpy, _) => flat(case, starts, &mut cache, update),
            (Task::Write | Task::Unwrapped, Self::Oracle) => {
                let last = cache.last().copied();
                cache = oracle(case, task, starts, &cache, update);
                pad(case, last, &mut cache);
            }
            (Task::Write | Task::Unwrapped, Self::RowLoop) => {
                let last = cache.last().copied();
                row_loop(case, task, starts, &mut cache, update);
                pad(case, last, &mut cache);
            }
        }
        cache
    }
}

/// Sets the unused nibble after an odd number of 4-bit elements. A write in place keeps its value from the
/// `last` byte. In a new cache it is 0, as in ONNX files.
fn pad(case: &Case, last: Option<u8>, cache: &mut [u8]) {
    let is_odd = case.dims().bits == 4 && case.parameters().shape.iter().product::<usize>() % 2 == 1;
    if let (true, Some(last), Some(byte)) = (is_odd, last, cache.last_mut()) {
        let kept = if case.parameters().form == Form::InPlace { last & 0xF0 } else { 0 };
        *byte = (*byte & 0x0F) | kept;
    }
}

/// Applies the copies of the memcpy yardstick byte by byte, because no specification describes them.
fn flat(case: &Case, starts: &[i64], cache: &mut [u8], update: &[u8]) {
    let runs = runs(case, Task::Memcpy, starts);
    for (to, from) in runs.destinations().zip(runs.sources()) {
        cache[to].iter_mut().zip(&update[from]).for_each(|(new, old)| *new = *old);
    }
}

fn oracle(case: &Case, task: Task, starts: &[i64], cache: &[u8], update: &[u8]) -> Vec<u8> {
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    match case.dims().bits {
        4 => {
            let elements = nibbles::unpack(cache, count(&case.parameters().shape));
            let update = nibbles::unpack(update, count(&case.update_shape()));
            nibbles::pack(&by_oracle(case, task, starts, &elements, &update))
        }
        8 => by_oracle(case, task, starts, cache, update),
        16 => by_oracle(case, task, starts, cache.as_chunks::<2>().0, update.as_chunks::<2>().0)
            .into_flattened(),
        32 => by_oracle(case, task, starts, cache.as_chunks::<4>().0, update.as_chunks::<4>().0)
            .into_flattened(),
        64 => by_oracle(case, task, starts, cache.as_chunks::<8>().0, update.as_chunks::<8>().0)
            .into_flattened(),
        _ => by_oracle(case, task, starts, cache.as_chunks::<16>().0, update.as_chunks::<16>().0)
            .into_flattened(),
    }
}

fn by_oracle<E: Copy>(case: &Case, task: Task, starts: &[i64], cache: &[E], update: &[E]) -> Vec<E> {
    let parameters = case.parameters();
    let circular = parameters.mode == Mode::Circular && task == Task::Write;
    let starts = starts_of(case, task, starts);
    let operator = TensorScatter {
        axis: parameters.axis,
        mode: if circular { "circular" } else { "linear" }.to_owned(),
        ..TensorScatter::default()
    };
    let update = in_order(case, update);
    let (cache, shape) = (Tensor::new(cache, &parameters.shape), case.update_shape());
    #[expect(clippy::expect_used, reason = "a case is valid, and the oracle accepts every valid case")]
    let outcome =
        operator.run(cache, Tensor::new(&update, &shape), Some(&starts), None).expect("a valid case");
    outcome.present
}

/// Returns the update in the cache's order of dimensions.
fn in_order<E: Copy>(case: &Case, update: &[E]) -> Vec<E> {
    let (CacheDims { batch, outer, inner, .. }, rows) = (case.dims(), case.parameters().rows);
    if case.parameters().update == UpdateLayout::Dense {
        return update.to_vec();
    }
    let mut ordered = Vec::with_capacity(update.len());
    for sample in 0..batch {
        for head in 0..outer {
            for row in 0..rows {
                let first = ((sample * rows + row) * outer + head) * inner;
                ordered.extend_from_slice(&update[first..first + inner]);
            }
        }
    }
    ordered
}

/// Copies row by row to the slots that the specification's formula gives. No engine uses this code.
fn row_loop(case: &Case, task: Task, starts: &[i64], cache: &mut [u8], update: &[u8]) {
    let CacheDims { outer, capacity, inner, bits, .. } = case.dims();
    let rows = case.parameters().rows;
    for (sample, start) in starts_of(case, task, starts).into_iter().enumerate() {
        for (head, row) in (0..outer).flat_map(|head| (0..rows).map(move |row| (head, row))) {
            // Linear starts fit within the capacity, so the modulo does not change them.
            let slot = (i128::from(start) + row as i128).rem_euclid(capacity as i128) as usize;
            let to = ((sample * outer + head) * capacity + slot) * inner;
            let from = match case.parameters().update {
                UpdateLayout::Dense => ((sample * outer + head) * rows + row) * inner,
                UpdateLayout::Bshd => ((sample * rows + row) * outer + head) * inner,
            };
            if bits == 4 {
                (0..inner)
                    .for_each(|k| set_nibble(cache, to + k, update[(from + k) / 2] >> ((from + k) % 2 * 4)));
            } else {
                let bytes = |element: usize| element * bits / 8..(element + inner) * bits / 8;
                cache[bytes(to)].copy_from_slice(&update[bytes(from)]);
            }
        }
    }
}

fn set_nibble(cache: &mut [u8], element: usize, value: u8) {
    let shift = element % 2 * 4;
    cache[element / 2] = cache[element / 2] & !(0xF << shift) | (value & 0xF) << shift;
}
