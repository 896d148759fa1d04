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
/// * Returns [`CudaError::SlotMapping`] if the cache has blocks.
/// * Returns [`CudaError::SamplesNotAdjacent`] if the tokens of the samples are not at one stride.
pub(crate) fn update_loops(prepared: &Prepared, mut loops: Loops) -> Result<Loops, CudaError> {
    refuse_blocks(prepared)?;
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
    refuse_blocks(prepared)?;
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

/// Refuses a cache of blocks, because no kernel divides a slot into a block and an offset.
fn refuse_blocks(prepared: &Prepared) -> Result<(), CudaError> {
    match prepared.convention() {
        Convention::Slots => Err(CudaError::SlotMapping(SlotMappingError::Blocks)),
        _ => Ok(()),
    }
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
    use kvscatter::spec::onnx::TensorScatter;
    use kvscatter::{ElementType, Prepared};

    use super::{PresentShape, in_place, lines, present};
    use crate::error::{CountKind, CudaError};
    use crate::units::Scale;

    #[test]
    fn sizes_beyond_32_bits_are_refused() {
        let shape = |cache: &[usize], update: &[usize]| {
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, cache, update).unwrap();
            let loops = write.device_interface().write_loops();
            in_place(&write, &loops, Scale::widest(write.geometry(), [&loops], [])).map(|(_, runs)| runs)
        };
        assert_eq!(shape(&[1 << 20, 1 << 10, 16], &[1 << 20, 1 << 10, 16]).ok(), Some(1 << 30));
        let refused = |result: Result<usize, CudaError>| match result {
            Err(CudaError::TooLarge { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(shape(&[1 << 21, 1 << 10, 16], &[1 << 21, 1 << 10, 16])), CountKind::Runs);
        assert_eq!(refused(shape(&[1, 1 << 31, 1], &[1, 1, 1])), CountKind::Capacity);
        assert_eq!(refused(shape(&[1 << 30, 1, 1], &[1 << 30, 1, 1])), CountKind::Samples);
        assert_eq!(refused(shape(&[1, 1, 1 << 36], &[1, 1, 1 << 36])), CountKind::Units);
        assert_eq!(shape(&[1 << 20, 1 << 20, 0], &[1 << 20, 1 << 20, 0]).ok(), Some(0), "nothing moves");
    }

    /// Returns the shape of the functional form, and the number of runs in a job.
    fn present_of(write: &Prepared) -> Result<(PresentShape, usize), CudaError> {
        let past = write.device_interface().present_from_past_loops();
        let update = write.device_interface().present_from_update_loops();
        present(write, &past, &update, Scale::widest(write.geometry(), [&past, &update], []))
    }

    /// Checks that runs without bytes are not walked, because there may be no memory to walk in.
    #[test]
    fn nothing_is_walked_where_nothing_moves() {
        let write = TensorScatter::new().axis(1).prepare(ElementType::Int8, &[3, 5, 2, 0], &[3, 2, 2, 0]);
        let (shape, runs) = present_of(&write.unwrap()).unwrap();
        assert_eq!((shape.others.map(|by| by.count), runs), ([0; 4], 0));
    }

    #[test]
    fn words_of_a_present_are_counted_whole_and_in_part() {
        let lines = |[slots, head]: [usize; 2]| {
            let (cache, update) = ([2, slots, head], [2, 1, head]);
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, &cache, &update).unwrap();
            let (shape, runs) = present_of(&write)?;
            lines(&shape, runs)
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
}
