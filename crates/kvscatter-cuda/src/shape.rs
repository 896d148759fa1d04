//! Converts the loops of a geometry to the units of a kernel, and checks that they fit its 32-bit arithmetic.
//!
//! The comments cite G1, an invariant that the documentation of kvscatter defines.

use kvscatter::device::Loops;
use kvscatter::{Convention, Loop, Prepared};

use crate::abi::{
    self, Divisor, LINE, MAX_SAMPLES, OTHER_LOOPS, PresentLoop, PresentShape, WORD, WriteShape, magic,
    magic_64,
};
use crate::error::{CountKind, CudaError, SlotMappingError};
use crate::units::Scale;

/// Returns the loops from the update into the cache. If a list gives the rows of each sample, all tokens
/// become one loop over rows.
///
/// # Errors
/// Returns [`CudaError::SamplesNotAdjacent`] if the tokens of the samples are not at one stride.
pub(crate) fn update_loops(prepared: &Prepared, mut loops: Loops) -> Result<Loops, CudaError> {
    if prepared.convention() != Convention::EndsAndRowCounts || prepared.is_packed() {
        return Ok(loops);
    }
    let Loop { count: batch, src_stride: sample, .. } = loops.samples;
    let Loop { count: rows, src_stride: row, .. } = loops.rows;
    let one_list = rows <= 1
        || batch <= 1
        || Some(sample) == isize::try_from(rows).ok().map(|rows| rows.wrapping_mul(row));
    if !one_list {
        return Err(CudaError::SamplesNotAdjacent);
    }
    // G1: the product is the number of rows in the update.
    loops.rows = Loop {
        count: batch.wrapping_mul(rows),
        src_stride: if rows <= 1 { sample } else { row },
        ..loops.rows
    };
    loops.samples.src_stride = 0;
    Ok(loops)
}

/// Returns loops over tokens with one slot each, instead of over the rows of one sample.
///
/// # Errors
/// Returns [`CudaError::SlotMapping`] if the shapes do not fit a slot mapping.
pub(crate) fn slot_loops(prepared: &Prepared) -> Result<Loops, CudaError> {
    let mut loops = prepared.device_interface().write_loops();
    match loops.samples.count {
        _ if prepared.convention() != Convention::Starts => {
            return Err(CudaError::SlotMapping(SlotMappingError::Lists));
        }
        _ if prepared.mode() != kvscatter::Mode::Linear => {
            return Err(CudaError::SlotMapping(SlotMappingError::Ring));
        }
        1 => {}
        samples => return Err(CudaError::SlotMapping(SlotMappingError::Samples(samples))),
    }
    loops.samples = Loop { dst_stride: 0, ..loops.rows };
    loops.rows = Loop { count: 1, src_stride: 0, ..loops.rows };
    Ok(loops)
}

/// Returns the loops of a write in place, and the number of runs in a job.
///
/// # Errors
/// Returns [`CudaError::Loops`] or [`CudaError::TooLarge`] if the loops do not fit the kernels.
pub(crate) fn in_place(
    prepared: &Prepared,
    loops: &Loops,
    scale: Scale,
) -> Result<(WriteShape, usize), CudaError> {
    let geometry = prepared.geometry();
    let mut others = [abi::Loop::ONCE; OTHER_LOOPS];
    if loops.others.len() > OTHER_LOOPS {
        return Err(CudaError::Loops { loops: loops.others.len() });
    }
    for (other, by) in others.iter_mut().zip(&loops.others) {
        *other = in_units(scale, *by)?;
    }
    if loops.run == 0 {
        others = [abi::Loop { count: 0, ..abi::Loop::ONCE }; OTHER_LOOPS];
    }
    if loops.samples.count > MAX_SAMPLES {
        return Err(CudaError::TooLarge {
            what: CountKind::Samples,
            got: loops.samples.count,
            max: MAX_SAMPLES,
        });
    }
    let shape = WriteShape {
        samples: in_units(scale, loops.samples)?,
        rows: abi::Loop {
            // With at most one slot, the stride from slot to slot is never used.
            dst_stride: if geometry.capacity() > 1 { scale.step(loops.rows.dst_stride) } else { 0 },
            ..in_units(scale, loops.rows)?
        },
        others,
        layer_stride: in_units(scale, loops.layers)?.dst_stride,
        run: run(scale, loops)?,
        capacity: count(CountKind::Capacity, geometry.capacity())?,
        layers: count(CountKind::Layers, loops.layers.count)?,
        per_thread: 1,
        dst_begin: 0,
        src_begin: 0,
    };
    let samples = if has_row_counts(prepared) { 1 } else { loops.samples.count };
    let counts = [samples, loops.rows.count, loops.run.min(1)].into_iter();
    let runs = runs(counts.chain(loops.others.iter().map(|by| by.count)))?;
    Ok((shape, runs))
}

/// Returns `true` if a list gives the rows of each sample. The kernels then search the list for each token's
/// sample.
fn has_row_counts(prepared: &Prepared) -> bool {
    prepared.convention() != Convention::Starts
}

/// Returns the loops of the functional form, and the number of runs in a job.
///
/// # Errors
/// Returns [`CudaError::Loops`] or [`CudaError::TooLarge`] if the loops do not fit the kernels.
pub(crate) fn present(
    prepared: &Prepared,
    past: &Loops,
    update: &Loops,
    scale: Scale,
) -> Result<(PresentShape, usize), CudaError> {
    let joined = join(past, update);
    if joined.len() > OTHER_LOOPS {
        return Err(CudaError::Loops { loops: joined.len() });
    }
    let mut others = [PresentLoop::ONCE; OTHER_LOOPS];
    for (other, by) in others.iter_mut().zip(&joined) {
        let Joined { count: times, dst_stride, past_stride, update_stride } = *by;
        let times = count(CountKind::Elements, times)?;
        let [dst_stride, past_stride, update_stride] =
            [dst_stride, past_stride, update_stride].map(|stride| scale.step(stride));
        *other = PresentLoop { dst_stride, past_stride, update_stride, count: times, magic: magic(times) };
    }
    let mut update = update.clone();
    update.run = past.run.min(update.run);
    // The kernels use the present's other loops for the update too.
    update.others.clear();
    let (shape, _) = in_place(prepared, &update, scale)?;
    let (slots, samples, layers) = (past.rows, past.samples, past.layers);
    let counts = [slots.count, samples.count, layers.count, update.run.min(1)].into_iter();
    let runs = runs(counts.chain(joined.iter().map(|by| by.count)))?;
    if runs == 0 {
        others = [PresentLoop { count: 0, ..PresentLoop::ONCE }; OTHER_LOOPS];
    }
    let within = if runs == 0 { 1 } else { within(&joined, slots)? };
    let shape = PresentShape {
        run_magic: magic_64(shape.run),
        update: shape,
        others,
        slots: in_units(scale, slots)?,
        samples: in_units(scale, samples)?,
        layers: in_units(scale, layers)?,
        within: Divisor::new(within),
        past_begin: 0,
        unused: 0,
    };
    Ok((shape, runs))
}

/// Returns the number of adjacent runs in one slot of the present. They come from the dimensions within the
/// rows.
fn within(joined: &[Joined], slots: Loop) -> Result<u32, CudaError> {
    let is_within = |by: &&Joined| slots.count > 1 && by.dst_stride < slots.dst_stride;
    runs(joined.iter().filter(is_within).map(|by| by.count)).and_then(|runs| count(CountKind::Runs, runs))
}

/// Returns the maximum number of groups of words in a present of 4-bit elements, for any position of its
/// beginning. Threads take these groups if rows straddle bytes.
///
/// # Errors
/// Returns [`CudaError::TooLarge`] if the number does not fit.
pub(crate) fn lines(shape: &PresentShape, runs: usize) -> Result<usize, CudaError> {
    // G1: the product is the number of elements in the present. Its first and its last word may not be whole.
    let elements = (runs as u64).wrapping_mul(shape.update.run.into());
    let lines = (elements / u64::from(WORD) + 2).div_ceil(LINE.into());
    let lines = usize::try_from(lines).unwrap_or(usize::MAX);
    count(CountKind::Words, lines)?;
    Ok(lines)
}

/// A dimension with its strides in all three tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Joined {
    count: usize,
    dst_stride: isize,
    past_stride: isize,
    update_stride: isize,
}

/// Joins the other loops of both mappings, for runs that are equally long in both.
///
/// Both mappings have the same dimensions but may have merged different ones. If two loops end at the same
/// dimension, the longer one is therefore a multiple of the shorter one.
fn join(past: &Loops, update: &Loops) -> Vec<Joined> {
    let run = past.run.min(update.run);
    let mut stacks = [past, update].map(|loops| {
        let mut others = loops.others.clone();
        let (count, step) = (loops.run.checked_div(run).unwrap_or(1), run.cast_signed());
        if count > 1 {
            others.push(Loop { count, dst_stride: step, src_stride: step });
        }
        others
    });
    let [past, update] = &mut stacks;
    let mut joined: Vec<Joined> = Vec::new();
    while let (Some(one), Some(other)) = (past.pop(), update.pop()) {
        let count = one.count.min(other.count);
        for (stack, by) in [(&mut *past, one), (&mut *update, other)] {
            let times = by.count.checked_div(count).unwrap_or(1);
            if times > 1 {
                // G1: these are steps within a tensor.
                let over = |step: isize| step.wrapping_mul(count.cast_signed());
                stack.push(Loop {
                    count: times,
                    dst_stride: over(by.dst_stride),
                    src_stride: over(by.src_stride),
                });
            }
        }
        joined.push(Joined {
            count,
            dst_stride: one.dst_stride,
            past_stride: one.src_stride,
            update_stride: other.src_stride,
        });
    }
    joined.reverse();
    joined
}

fn run(scale: Scale, loops: &Loops) -> Result<u32, CudaError> {
    let units = usize::try_from(scale.step(loops.run.cast_signed())).unwrap_or(usize::MAX);
    count(CountKind::Units, units)
}

fn in_units(scale: Scale, by: Loop) -> Result<abi::Loop, CudaError> {
    let times = count(CountKind::Elements, by.count)?;
    // A loop of one step uses no stride, so its stride need not be a multiple of a unit.
    let step = |elements| if by.count > 1 { scale.step(elements) } else { 0 };
    Ok(abi::Loop {
        dst_stride: step(by.dst_stride),
        src_stride: step(by.src_stride),
        count: times,
        magic: magic(times),
    })
}

/// Accepts numbers below 2^31. The kernels do not divide larger numbers, and can add two of these without
/// overflow.
fn count(what: CountKind, got: usize) -> Result<u32, CudaError> {
    let max = 0x7FFF_FFFF;
    let fits = u32::try_from(got).ok().filter(|_| got <= max);
    fits.ok_or(CudaError::TooLarge { what, got, max })
}

/// Returns the number of runs in a job, or 0 if any count is 0.
fn runs(counts: impl Iterator<Item = usize> + Clone) -> Result<usize, CudaError> {
    if counts.clone().any(|count| count == 0) {
        return Ok(0);
    }
    let product = counts.fold(1, usize::saturating_mul);
    count(CountKind::Runs, product)?;
    Ok(product)
}

#[cfg(test)]
mod tests {
    use kvscatter::device::Loops;
    use kvscatter::spec::{ascend::KvCacheOperation, onnx::TensorScatter};
    use kvscatter::{ElementType, Layout, Loop, Prepared};

    use super::{Joined, in_place, join, present, slot_loops, update_loops};
    use crate::error::{CountKind, CudaError, SlotMappingError};
    use crate::units::Scale;

    /// Returns the destination and source of every element that loops reach from one sample's row, in the
    /// order of the indices.
    fn reached(others: impl Iterator<Item = [isize; 3]>, run: usize) -> Vec<[isize; 2]> {
        let mut reached = vec![[0, 0]];
        let run = [run.cast_signed(), 1, 1];
        for [count, dst, src] in others.chain([run]) {
            let step = |at: &[isize; 2], index| [at[0] + index * dst, at[1] + index * src];
            reached = reached.iter().flat_map(|at| (0..count).map(move |index| step(at, index))).collect();
        }
        reached
    }

    fn of_loops(loops: &Loops) -> Vec<[isize; 2]> {
        let others = loops.others.iter().map(|by| [by.count.cast_signed(), by.dst_stride, by.src_stride]);
        reached(others, loops.run)
    }

    /// Checks that both mappings walk the same indices, for all ways to merge their dimensions.
    #[test]
    fn joined_loops_reach_what_each_reaches() {
        let shape = [2, 3, 5, 4, 2];
        let strides: [[isize; 5]; 5] = [
            [120, 40, 8, 2, 1],
            [120, 8, 24, 2, 1],
            [40, 80, 8, 2, 1],
            [240, 80, 16, 4, 2],
            [-120, 40, 8, 1, 4],
        ];
        let mut seen = Vec::new();
        for axis in 1..5 {
            let update_shape: Vec<usize> =
                shape.iter().enumerate().map(|(at, &size)| if at == axis { 1 } else { size }).collect();
            for (cache, update) in
                strides.iter().flat_map(|cache| strides.iter().map(move |update| (cache, update)))
            {
                let cache = Layout::strided(&shape, cache);
                let update = Layout::strided(&update_shape, update);
                let operator = TensorScatter::new().axis(i64::try_from(axis).unwrap());
                let prepared = operator.prepare(
                    ElementType::Int8,
                    cache.with_offset(cache.min_offset()),
                    update.with_offset(update.min_offset()),
                );
                let Ok(prepared) = prepared else { continue };
                let (past, update) = (
                    prepared.device_interface().present_from_past_loops(),
                    prepared.device_interface().present_from_update_loops(),
                );
                let joined = join(&past, &update);
                let run = past.run.min(update.run);
                let each = |step: fn(&Joined) -> isize| {
                    reached(joined.iter().map(|by| [by.count.cast_signed(), by.dst_stride, step(by)]), run)
                };
                assert_eq!(each(|by| by.past_stride), of_loops(&past));
                assert_eq!(each(|by| by.update_stride), of_loops(&update));
                seen.push((past.run, update.run));
            }
        }
        assert!(seen.len() > 50 && seen.iter().any(|(past, update)| past < update), "{seen:?}");
        assert!(seen.iter().any(|(past, update)| past > update && *update > 1), "{seen:?}");
    }

    fn ascend(new_kv: &[usize], strides: &[isize]) -> Prepared {
        let past = Layout::dense(&[2, 2, 5, 6]);
        KvCacheOperation::new().prepare(ElementType::Int8, past, Layout::strided(new_kv, strides)).unwrap()
    }

    #[test]
    fn tokens_of_four_dimensions_are_one_list_if_they_lie_so() {
        let flat = |strides: &[isize]| {
            let write = ascend(&[2, 3, 2, 3], strides);
            update_loops(&write, write.device_interface().write_loops())
                .map(|loops| (loops.samples.src_stride, loops.rows))
        };
        assert!(matches!(flat(&[18, 6, 3, 1]), Ok((0, Loop { count: 6, dst_stride: 6, src_stride: 6 }))));
        assert!(matches!(flat(&[24, 8, 3, 1]), Ok((0, Loop { count: 6, dst_stride: 6, src_stride: 8 }))));
        assert!(matches!(flat(&[20, 6, 3, 1]), Err(CudaError::SamplesNotAdjacent)));
        let single = ascend(&[2, 1, 2, 3], &[20, 7, 3, 1]);
        let loops = update_loops(&single, single.device_interface().write_loops()).unwrap();
        assert_eq!((loops.rows.count, loops.rows.src_stride), (2, 20), "from sample to sample");
    }

    #[test]
    fn a_slot_mapping_has_one_sample_for_each_token() {
        let prepare = |batch, rows| {
            let shapes = ([batch, 8, 6], [batch, rows, 6]);
            TensorScatter::new().prepare(ElementType::Int8, &shapes.0, &shapes.1).unwrap()
        };
        let loops = slot_loops(&prepare(1, 3)).unwrap();
        assert_eq!(loops.samples, Loop { count: 3, dst_stride: 0, src_stride: 6 });
        assert_eq!(loops.rows, Loop { count: 1, dst_stride: 6, src_stride: 0 });
        assert!(matches!(
            slot_loops(&prepare(2, 3)),
            Err(CudaError::SlotMapping(SlotMappingError::Samples(2)))
        ));
    }

    #[test]
    fn sizes_beyond_32_bits_are_refused() {
        let shape = |cache: &[usize], update: &[usize]| {
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, cache, update).unwrap();
            let loops = write.device_interface().write_loops();
            in_place(&write, &loops, Scale::widest(write.geometry(), [&loops], [])).map(|(_, runs)| runs)
        };
        assert_eq!(shape(&[1 << 20, 1 << 10, 16], &[1 << 20, 1 << 10, 16]).ok(), Some(1 << 30));
        let what = |result| match result {
            Err(CudaError::TooLarge { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(shape(&[1 << 21, 1 << 10, 16], &[1 << 21, 1 << 10, 16])), CountKind::Runs);
        assert_eq!(what(shape(&[1, 1 << 31, 1], &[1, 1, 1])), CountKind::Capacity);
        assert_eq!(what(shape(&[1 << 30, 1, 1], &[1 << 30, 1, 1])), CountKind::Samples);
        assert_eq!(what(shape(&[1, 1, 1 << 36], &[1, 1, 1 << 36])), CountKind::Units);
        assert_eq!(shape(&[1 << 20, 1 << 20, 0], &[1 << 20, 1 << 20, 0]).ok(), Some(0), "nothing moves");
    }

    /// Checks that runs without bytes are not walked, because there may be no memory to walk in.
    #[test]
    fn nothing_is_walked_where_nothing_moves() {
        let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, &[3, 5, 2, 0], &[3, 2, 2, 0]);
        let write = write.unwrap();
        let both = (
            write.device_interface().present_from_past_loops(),
            write.device_interface().present_from_update_loops(),
        );
        let (shape, runs) =
            present(&write, &both.0, &both.1, Scale::widest(write.geometry(), [&both.0, &both.1], []))
                .unwrap();
        assert_eq!((shape.others.map(|by| by.count), runs), ([0; 4], 0));
        let loops = write.device_interface().write_loops();
        let (shape, runs) = in_place(&write, &loops, Scale::widest(write.geometry(), [&loops], [])).unwrap();
        assert_eq!((shape.others.map(|by| by.count), runs), ([0; 4], 0));
    }

    #[test]
    fn words_of_a_present_are_counted_whole_and_in_part() {
        let lines = |[slots, head]: [usize; 2]| {
            let (cache, update) = ([2, slots, head], [2, 1, head]);
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, &cache, &update).unwrap();
            let both = (
                write.device_interface().present_from_past_loops(),
                write.device_interface().present_from_update_loops(),
            );
            let (shape, runs) =
                present(&write, &both.0, &both.1, Scale::widest(write.geometry(), [&both.0, &both.1], []))?;
            super::lines(&shape, runs)
        };
        // 240 elements are 30 words, or two more if the first and the last are not whole.
        assert_eq!(lines([40, 3]).ok(), Some(1));
        assert_eq!(lines([41, 3]).ok(), Some(1));
        assert_eq!(lines([42, 3]).ok(), Some(2));
        assert_eq!(lines([1 << 16, (1 << 16) + 1]).ok(), Some((1 << 25) + 513));
        let too_large = lines([1 << 20, (1 << 20) + 1]);
        assert!(
            matches!(too_large, Err(CudaError::TooLarge { what: CountKind::Words, .. })),
            "{too_large:?}"
        );
    }

    /// Checks that the adjacent runs of one slot come from the dimensions after the rows, unless they are one
    /// run.
    #[test]
    fn dimensions_within_the_rows_are_told_from_those_around_them() {
        let within = |axis, strides: [isize; 4]| {
            let mut update = [2, 3, 5, 7];
            update[usize::try_from(axis).unwrap()] = 1;
            let update = Layout::strided(&update, &strides);
            let write = TensorScatter::new().axis(axis).prepare(ElementType::Int4, &[2, 3, 5, 7], update);
            let write = write.unwrap();
            let both = (
                write.device_interface().present_from_past_loops(),
                write.device_interface().present_from_update_loops(),
            );
            let (shape, _) =
                present(&write, &both.0, &both.1, Scale::widest(write.geometry(), [&both.0, &both.1], []))
                    .unwrap();
            (shape.within.count, shape.update.run)
        };
        assert_eq!(within(1, [35, 35, 7, 1]), (1, 35));
        assert_eq!(within(1, [45, 45, 9, 1]), (5, 7));
        assert_eq!(within(2, [45, 15, 15, 1]), (1, 7));
        assert_eq!(within(2, [45, 15, 15, 2]), (7, 1));
        assert_eq!(within(3, [45, 15, 3, 1]), (1, 1));
    }
}
