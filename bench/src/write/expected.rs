//! The expected result of a call, computed without the library.

use kvscatter::Mode;
use kvscatter_oracle::{Tensor, nibbles, onnx::TensorScatter};

use super::case::{Dims, Form, UpdateLayout, Write};
use super::copies::{Copies, starts_of};
use super::writer::Task;

/// The largest update in elements, and the largest cache in bytes, for which the oracle is fast enough. A loop over
/// samples, heads and rows computes the results of larger cases.
const ORACLE_ELEMENTS: usize = 1 << 20;
const ORACLE_BYTES: usize = 64 << 20;

/// Computes the cache after the task from the cache before it.
pub(super) fn after(case: &Write, task: Task, starts: &[i64], mut cache: Vec<u8>, update: &[u8]) -> Vec<u8> {
    if task == Task::Memcpy {
        if case.form == Form::InPlace {
            for [to, from] in Copies::new(case, task, starts).ranges() {
                cache[to].copy_from_slice(&update[from]);
            }
        }
        return cache;
    }
    let starts = starts_of(case, task, starts);
    let last = cache.last().copied();
    let elements: usize = case.update_shape().iter().product();
    if elements <= ORACLE_ELEMENTS && case.cache_bytes() <= ORACLE_BYTES {
        cache = oracle(case, task, &starts, &cache, update);
    } else {
        row_loop(case, &starts, &mut cache, update);
    }
    pad(case, last, &mut cache);
    cache
}

/// Sets the unused nibble after an odd number of 4-bit elements. A write in place keeps its value from the `last` byte.
/// In a new cache it is 0, as in ONNX files.
fn pad(case: &Write, last: Option<u8>, cache: &mut [u8]) {
    let is_odd = case.dims().bits == 4 && case.shape.iter().product::<usize>() % 2 == 1;
    if let (true, Some(last), Some(byte)) = (is_odd, last, cache.last_mut()) {
        let kept = if case.form == Form::InPlace { last & 0xF0 } else { 0 };
        *byte = (*byte & 0x0F) | kept;
    }
}

fn oracle(case: &Write, task: Task, starts: &[i64], cache: &[u8], update: &[u8]) -> Vec<u8> {
    fn wide<const N: usize>(
        case: &Write,
        task: Task,
        starts: &[i64],
        cache: &[u8],
        update: &[u8],
    ) -> Vec<u8> {
        by_oracle(case, task, starts, cache.as_chunks::<N>().0, update.as_chunks::<N>().0).into_flattened()
    }
    match case.dims().bits {
        4 => {
            let elements = nibbles::unpack(cache, case.shape.iter().product());
            let update = nibbles::unpack(update, case.update_shape().iter().product());
            nibbles::pack(&by_oracle(case, task, starts, &elements, &update))
        }
        8 => wide::<1>(case, task, starts, cache, update),
        16 => wide::<2>(case, task, starts, cache, update),
        32 => wide::<4>(case, task, starts, cache, update),
        64 => wide::<8>(case, task, starts, cache, update),
        _ => wide::<16>(case, task, starts, cache, update),
    }
}

fn by_oracle<E: Copy>(case: &Write, task: Task, starts: &[i64], cache: &[E], update: &[E]) -> Vec<E> {
    let circular = case.mode == Mode::Circular && task == Task::Write;
    let mode = if circular { "circular" } else { "linear" }.to_owned();
    let operator = TensorScatter { axis: case.axis, mode, ..TensorScatter::default() };
    let update = in_order(case, update);
    let (cache, shape) = (Tensor::new(cache, &case.shape), case.update_shape());
    #[expect(clippy::expect_used, reason = "a case is valid, and the oracle accepts every valid case")]
    let outcome =
        operator.run(cache, Tensor::new(&update, &shape), Some(starts), None).expect("a valid case");
    outcome.present
}

/// Returns the update in the cache's order of dimensions.
fn in_order<E: Copy>(case: &Write, update: &[E]) -> Vec<E> {
    let Dims { batch, outer, inner, .. } = case.dims();
    if case.update == UpdateLayout::Dense {
        return update.to_vec();
    }
    let rows = (0..batch).flat_map(|sample| {
        (0..outer)
            .flat_map(move |head| (0..case.rows).map(move |row| (sample * case.rows + row) * outer + head))
    });
    rows.flat_map(|row| &update[row * inner..(row + 1) * inner]).copied().collect()
}

/// Copies row by row to the slots that the specification's formula gives. No subject uses this code.
fn row_loop(case: &Write, starts: &[i64], cache: &mut [u8], update: &[u8]) {
    let Dims { outer, capacity, inner, bits, .. } = case.dims();
    for (sample, &start) in starts.iter().enumerate() {
        for (head, row) in (0..outer).flat_map(|head| (0..case.rows).map(move |row| (head, row))) {
            // Linear starts fit within the capacity, so the modulo does not change them.
            let slot = (i128::from(start) + row as i128).rem_euclid(capacity as i128) as usize;
            let to = ((sample * outer + head) * capacity + slot) * inner;
            let from = match case.update {
                UpdateLayout::Dense => ((sample * outer + head) * case.rows + row) * inner,
                UpdateLayout::Bshd => ((sample * case.rows + row) * outer + head) * inner,
            };
            if bits == 4 {
                for k in 0..inner {
                    let value = update[(from + k) / 2] >> ((from + k) % 2 * 4) & 0xF;
                    let (byte, shift) = (&mut cache[(to + k) / 2], (to + k) % 2 * 4);
                    *byte = *byte & !(0xF << shift) | value << shift;
                }
            } else {
                let bytes = |element: usize| element * bits / 8..(element + inner) * bits / 8;
                cache[bytes(to)].copy_from_slice(&update[bytes(from)]);
            }
        }
    }
}
