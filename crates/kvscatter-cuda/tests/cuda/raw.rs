//! Converts a case to the arguments of a kernel, independently of the host code. It does not merge
//! dimensions, and units may be smaller than necessary. Blocks may have any number of threads.

use kvscatter_oracle::cases::{Call, Case};

use crate::abi::{
    Divisor, LINE, Loop, OTHER_LOOPS, PresentLoop, PresentShape, WORD, WriteShape, magic, magic_64,
};
use crate::contract;
use crate::scene::Scene;

/// A dimension that all tensors have, with its strides in elements.
#[derive(Clone, Copy, Debug)]
struct Dim {
    count: usize,
    cache: isize,
    present: isize,
    update: isize,
}

/// The dimensions of a case by their roles.
#[derive(Debug)]
pub(crate) struct Dims {
    layers: Dim,
    /// The samples of the cache.
    samples: Dim,
    /// The number of samples in the update.
    batch: usize,
    rows: Dim,
    capacity: usize,
    others: Vec<Dim>,
}

/// The amount that a kernel moves at once, as a number of bytes or as one 4-bit element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes(usize),
    Nibble,
}

impl Dims {
    /// Returns `None` if the tokens of a packed update are not at one stride, because the kernels take only
    /// one.
    pub(crate) fn of(scene: &Scene<'_>) -> Option<Self> {
        let Scene { case: Case { call, update_shape, .. }, views: [cache, update], .. } = scene;
        let batch = contract::batch(call, update_shape);
        let present = dense(cache.shape());
        let [old, new] =
            [cache, update].map(|view| view.strides().map_or_else(|| dense(view.shape()), <[isize]>::to_vec));
        let count = |from: usize| cache.shape()[from];
        let pair = |of_cache: usize, of_update: usize| Dim {
            count: count(of_cache),
            cache: old[of_cache],
            present: present[of_cache],
            update: new[of_update],
        };
        let rows = |of_cache: usize, of_update: usize| Dim {
            count: update.shape()[of_update],
            ..pair(of_cache, of_update)
        };
        let of_cache = |from: usize| Dim { update: 0, ..pair(from, 0) };
        let one = Dim { count: 1, cache: 0, present: 0, update: 0 };
        let (layers, samples, rows, others) = match (call, update.shape()) {
            (Call::TensorScatter { operator, .. }, shape) => {
                let axis = operator.axis.rem_euclid(shape.len() as i64) as usize;
                let others = (1..shape.len()).filter(|&at| at != axis).map(|at| pair(at, at)).collect();
                (one, pair(0, 0), rows(axis, axis), others)
            }
            (Call::KvCacheUpdate { .. }, [_, _, _, _]) => {
                (one, pair(0, 0), rows(2, 2), vec![pair(1, 1), pair(3, 3)])
            }
            (Call::KvCacheUpdate { .. }, _) => (one, of_cache(0), rows(2, 0), vec![pair(1, 1), pair(3, 2)]),
            (Call::KvCacheOperation { .. }, &[_, _]) => {
                (of_cache(0), of_cache(1), rows(2, 0), vec![pair(3, 1)])
            }
            (Call::KvCacheOperation { .. }, &[samples, each, heads, head_size]) => {
                // The tokens must be at one stride. The hidden size is split in two.
                if samples > 1 && each > 1 && new[0] != each.cast_signed() * new[1] {
                    return None;
                }
                let tokens = Dim { count: samples * each, ..pair(2, usize::from(each > 1)) };
                let over = |step: isize| step * head_size.cast_signed();
                let heads = Dim { count: heads, cache: over(old[3]), present: over(1), update: new[2] };
                (of_cache(0), of_cache(1), tokens, vec![heads, Dim { count: head_size, ..pair(3, 3) }])
            }
            (call, shape) => unreachable!("{call:?} with an update of {shape:?}"),
        };
        let capacity = match call {
            Call::TensorScatter { operator, .. } => {
                count(operator.axis.rem_euclid(cache.shape().len() as i64) as usize)
            }
            _ => count(2),
        };
        Some(Self { layers, samples, batch, rows, capacity, others })
    }

    /// Returns the shape for a kernel that writes in place, if this unit fits all strides.
    pub(crate) fn in_place(&self, unit: Unit, bits: usize) -> Option<WriteShape> {
        self.shape(unit, bits, |dim| (dim.cache, dim.update) == (1, 1))
    }

    /// Returns the shape for the functional form, if this unit fits all strides.
    pub(crate) fn functional(&self, unit: Unit, bits: usize) -> Option<PresentShape> {
        let together = |dim: &Dim| (dim.cache, dim.present, dim.update) == (1, 1, 1);
        let update = self.shape(unit, bits, together)?;
        let (others, _) = self.split(together);
        let mut loops =
            [PresentLoop { dst_stride: 0, past_stride: 0, update_stride: 0, count: 1, magic: magic(1) };
                OTHER_LOOPS];
        assert!(others.len() <= OTHER_LOOPS, "{self:?}");
        for (to, from) in loops.iter_mut().zip(others) {
            let count = u32::try_from(from.count).unwrap();
            *to = PresentLoop {
                dst_stride: steps(unit, bits, from.count, from.present)?,
                past_stride: steps(unit, bits, from.count, from.cache)?,
                update_stride: steps(unit, bits, from.count, from.update)?,
                count,
                magic: magic(count),
            };
        }
        let past = |dim: Dim| looped(unit, bits, dim.count, [dim.present, dim.cache]);
        let within = others.iter().filter(|dim| dim.present < self.rows.present).map(|dim| dim.count);
        let within = u32::try_from(within.product::<usize>()).unwrap();
        Some(PresentShape {
            run_magic: magic_64(update.run),
            update,
            others: loops,
            slots: past(Dim { count: self.capacity, ..self.rows })?,
            samples: past(self.samples)?,
            layers: past(self.layers)?,
            within: Divisor::of(within),
            past_begin: 0,
            unused: 0,
        })
    }

    fn shape(&self, unit: Unit, bits: usize, is_together: impl Fn(&Dim) -> bool) -> Option<WriteShape> {
        let (others, run) = self.split(is_together);
        let mut loops = [Loop { dst_stride: 0, src_stride: 0, count: 1, magic: magic(1) }; OTHER_LOOPS];
        assert!(others.len() <= OTHER_LOOPS, "{self:?}");
        for (to, from) in loops.iter_mut().zip(others) {
            *to = looped(unit, bits, from.count, [from.cache, from.update])?;
        }
        if run == 0 {
            loops[0].count = 0; // Nothing moves, so there are no runs either.
        }
        let batch = u32::try_from(self.batch).unwrap();
        let samples = looped(unit, bits, self.samples.count, [self.samples.cache, self.samples.update])?;
        let tokens = u32::try_from(self.rows.count).unwrap();
        let rows = Loop {
            // This stride is from slot to slot, and there may be more slots than rows.
            dst_stride: steps(unit, bits, self.capacity, self.rows.cache)?,
            src_stride: steps(unit, bits, self.rows.count, self.rows.update)?,
            count: tokens,
            magic: magic(tokens),
        };
        Some(WriteShape {
            samples: Loop { count: batch, magic: magic(batch), ..samples },
            rows,
            others: loops,
            layer_stride: steps(unit, bits, self.layers.count, self.layers.cache)?,
            run: u32::try_from(steps(unit, bits, 2, run.cast_signed())?).unwrap(),
            capacity: u32::try_from(self.capacity).unwrap(),
            layers: u32::try_from(self.layers.count).unwrap(),
            per_thread: 1,
            dst_begin: 0,
            src_begin: 0,
        })
    }

    /// Splits the dimensions into those outside a run, and the number of elements in a run.
    fn split(&self, is_together: impl Fn(&Dim) -> bool) -> (&[Dim], usize) {
        match self.others.split_last() {
            Some((last, others)) if is_together(last) => (others, last.count),
            _ => (&self.others, 1),
        }
    }

    /// Returns the number of runs in a write in place.
    pub(crate) fn runs(shape: &WriteShape, is_packed: bool) -> u32 {
        let samples = if is_packed { 1 } else { shape.samples.count };
        shape.others.iter().fold(samples * shape.rows.count, |runs, others| runs * others.count)
    }

    pub(crate) fn present_runs(shape: &PresentShape) -> u32 {
        let all = shape.layers.count * shape.samples.count * shape.slots.count;
        shape.others.iter().fold(all, |runs, others| runs * others.count)
    }

    /// Returns the number of lines of words in a present of 4-bit elements, whose first and last word may be
    /// partial.
    pub(crate) fn present_lines(shape: &PresentShape) -> u32 {
        let elements = Self::present_runs(shape) * shape.update.run;
        (elements / WORD + 2).div_ceil(LINE)
    }
}

fn looped(unit: Unit, bits: usize, count: usize, [dst_stride, src_stride]: [isize; 2]) -> Option<Loop> {
    let (dst_stride, src_stride) =
        (steps(unit, bits, count, dst_stride)?, steps(unit, bits, count, src_stride)?);
    let count = u32::try_from(count).unwrap();
    Some(Loop { dst_stride, src_stride, count, magic: magic(count) })
}

/// Converts a stride from elements to units, or returns `None` if it does not fit. The stride of a single
/// step does not matter.
fn steps(unit: Unit, bits: usize, count: usize, elements: isize) -> Option<i64> {
    let elements = elements as i64;
    match unit {
        _ if count < 2 => Some(0),
        Unit::Nibble => Some(elements),
        Unit::Bytes(width) => {
            let (of_step, of_unit) = (elements * bits as i64, 8 * width as i64);
            (of_step % of_unit == 0).then_some(of_step / of_unit)
        }
    }
}

/// Returns row-major strides.
fn dense(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].cast_signed();
    }
    strides
}
