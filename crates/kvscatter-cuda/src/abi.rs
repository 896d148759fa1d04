//! The types of the values that a launch passes to a kernel, as `kernels/abi.cuh` declares them.
//!
//! `abi.cuh` asserts the same sizes for its own structs when it is compiled, and the last test below reads
//! its numbers. The tests that run the kernels cover the offsets.

use core::ffi::c_void;
use core::mem::offset_of;

/// The maximum number of jobs in one launch in place.
pub(crate) const JOBS: usize = 128;

/// The maximum number of jobs for the kernels with a short table, enough for keys and values.
pub(crate) const FEW_JOBS: usize = 2;

/// The maximum number of jobs in one launch in functional form.
pub(crate) const PRESENT_JOBS: usize = 64;

/// The maximum number of vectors that one thread moves in one pass.
pub(crate) const MAX_VECTORS_PER_THREAD: u32 = 4;

/// The number of loops in a kernel besides those over samples and rows.
pub(crate) const OTHER_LOOPS: usize = 4;

/// The maximum number of threads in a block. The kernels are compiled for it.
pub(crate) const THREADS: u32 = 256;

/// The number of 4-bit elements in a word.
pub(crate) const WORD: u32 = 8;

/// The number of words of a present that one warp writes if 4-bit elements straddle bytes.
pub(crate) const LINE: u32 = 32;

pub(crate) type Address = u64;

/// The addresses of the first elements of one cache and its update.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) cache: Address,
    pub(crate) update: Address,
}

/// The addresses of the first elements of a present, its past and its update.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PresentJob {
    pub(crate) present: Address,
    pub(crate) past: Address,
    pub(crate) update: Address,
}

/// A count, and the multiplier that replaces divisions by it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) count: u32,
    /// The [`magic`] of `count`.
    pub(crate) magic: u32,
}

/// A count, and the strides of the cache and of the update in the kernel's units. A unit is a vector of the
/// kernel's width, or a 4-bit element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) dst_stride: i64,
    pub(crate) src_stride: i64,
    pub(crate) count: u32,
    pub(crate) magic: u32,
}

/// A count, and the strides of all three tensors of the functional form.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentLoop {
    pub(crate) dst_stride: i64,
    pub(crate) past_stride: i64,
    pub(crate) update_stride: i64,
    pub(crate) count: u32,
    pub(crate) magic: u32,
}

/// Returns the multiplier that divides numbers below 2^31 by `count`.
///
/// It is 2^(31 + bits) / count, rounded up, where 2^bits is the smallest power of two that is not below
/// `count`. The method is that of Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994.
pub(crate) const fn magic(count: u32) -> u32 {
    let count = if count == 0 { 1 } else { count };
    let power = 1_u64 << (31 + (count as u64).next_power_of_two().trailing_zeros());
    // `count` is more than half of 2^bits, so the result is below 2^32. For 1 it is 2^31, which is not used.
    power.div_ceil(count as u64) as u32
}

/// Returns the multiplier that divides numbers below 2^63, computed like [`magic`] but with 2^(63 + bits).
pub(crate) const fn magic_64(count: u32) -> u64 {
    let count = if count == 0 { 1 } else { count };
    let power = 1_u128 << (63 + (count as u64).next_power_of_two().trailing_zeros());
    power.div_ceil(count as u128) as u64
}

impl PresentLoop {
    /// An absent dimension.
    pub(crate) const ONCE: Self =
        Self { dst_stride: 0, past_stride: 0, update_stride: 0, count: 1, magic: magic(1) };
}

impl Divisor {
    pub(crate) const fn new(count: u32) -> Self {
        Self { count, magic: magic(count) }
    }
}

impl Loop {
    /// An absent dimension.
    pub(crate) const ONCE: Self = Self { dst_stride: 0, src_stride: 0, count: 1, magic: magic(1) };
}

/// The shape of a write in place.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteShape {
    /// The loop over the samples of the lists.
    pub(crate) samples: Loop,
    /// The loop over the rows of one sample of a padded update, or over all tokens of a packed update.
    pub(crate) rows: Loop,
    /// All other dimensions outside a run.
    pub(crate) others: [Loop; OTHER_LOOPS],
    /// The stride from one layer of the cache to the next.
    pub(crate) layer_stride: i64,
    /// The number of units that are contiguous on both sides.
    pub(crate) run: u32,
    pub(crate) capacity: u32,
    pub(crate) layers: u32,
    pub(crate) per_thread: u32,
    /// The number of 4-bit elements between the address of a job's cache and the cache's first element. It is
    /// less than a word, and 0 if units are bytes.
    pub(crate) dst_begin: u32,
    /// The same number for the update. It is less than a byte.
    pub(crate) src_begin: u32,
}

/// The shape of a write in functional form.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentShape {
    /// The shape of the update. Its `others` is not used, because the present may split its dimensions
    /// differently.
    pub(crate) update: WriteShape,
    pub(crate) others: [PresentLoop; OTHER_LOOPS],
    /// The loop over all slots of the capacity. `src_stride` is the past's.
    pub(crate) slots: Loop,
    /// The loop over all samples of the cache, including those without an update.
    pub(crate) samples: Loop,
    pub(crate) layers: Loop,
    /// The [`magic_64`] of `update.run`. This and the following fields are for 4-bit elements that straddle
    /// bytes.
    pub(crate) run_magic: u64,
    /// The number of adjacent runs in one slot.
    pub(crate) within: Divisor,
    /// The number of 4-bit elements between the address of a job's past and the past's first element, as
    /// `src_begin` of the update.
    pub(crate) past_begin: u32,
    pub(crate) unused: u32,
}

/// The lists of one launch. An absent list is 0, which means slot 0, all rows, a padded update, layer 0, or
/// no report.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) positions: Address,
    pub(crate) lengths: Address,
    pub(crate) row_counts: Address,
    pub(crate) layer: Address,
    pub(crate) status: Address,
    pub(crate) flags: u32,
    /// The minimum number of rows that a packed update brings for a sample.
    pub(crate) min_rows: u32,
    /// The maximum number of rows that a packed update brings for a sample.
    pub(crate) max_rows: u32,
    pub(crate) unused: u32,
}

pub(crate) const POSITIONS_I64: u32 = 1 << 0;
pub(crate) const LENGTHS_I64: u32 = 1 << 1;
pub(crate) const ROW_COUNTS_I64: u32 = 1 << 2;
/// Row counts are cumulative lengths from 0, with one value more than there are samples. Without this flag,
/// there is one row count per sample.
pub(crate) const CUMULATIVE: u32 = 1 << 3;
/// Positions are lengths after the write, padding included.
pub(crate) const FROM_END: u32 = 1 << 4;
pub(crate) const CIRCULAR: u32 = 1 << 5;
/// In a ring, a negative position is bad.
pub(crate) const REJECT_NEGATIVE: u32 = 1 << 6;
/// A negative position skips its sample without being bad.
pub(crate) const SKIP_NEGATIVE: u32 = 1 << 7;
/// A launch with any bad index writes nothing.
pub(crate) const SKIP_ALL: u32 = 1 << 8;

/// A bit of [`StatusWords::first_sample`]. The sample's length is bad, not its position.
pub(crate) const LENGTH: u32 = 1 << 31;
/// Bits of [`StatusWords::first_sample`]. The number of rows that a packed update brings for the sample is
/// bad. They include the bit of [`LENGTH`].
pub(crate) const ROW_COUNT: u32 = LENGTH | 1 << 30;
/// The value of [`StatusWords::first_sample`] if the layer is bad, for all samples.
pub(crate) const LAYER: u32 = u32::MAX;
/// The maximum number of samples in a launch. Their numbers leave the bits above free and never equal
/// `LAYER`.
pub(crate) const MAX_SAMPLES: usize = (1 << 30) - 2;

/// The bad indices that launches have counted since the caller cleared the status.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusWords {
    /// The number of samples with a bad index, each counted once per launch. A launch whose layer is bad, or
    /// whose list of rows as a whole is bad, counts all its samples, and at least 1.
    pub bad_samples: u32,
    /// Bits 0 to 29 are the first bad sample of the first such launch. If bit 31 is set, its length is bad rather
    /// than its position. If bits 31 and 30 are set, its number of rows in a packed update is bad, or the sum of all
    /// rows if the lower bits are the number of samples. If all bits are set, the layer is bad.
    pub first_sample: u32,
    /// The bad value. For cumulative lengths it is the sample's number of rows, or the first or last entry if that
    /// is wrong. [`first`](Self::first) decodes this and `first_sample`.
    pub first_value: i64,
}

const _: () = {
    assert!(size_of::<Address>() == size_of::<*const c_void>());
    assert!(size_of::<Job>() == 16 && size_of::<PresentJob>() == 24);
    assert!(offset_of!(PresentJob, past) == 8 && offset_of!(PresentJob, update) == 16);
    assert!(offset_of!(Job, update) == 8);
    assert!(size_of::<Loop>() == 24 && offset_of!(Loop, src_stride) == 8 && offset_of!(Loop, count) == 16);
    assert!(
        size_of::<WriteShape>() == 176
            && offset_of!(WriteShape, rows) == 24
            && offset_of!(WriteShape, others) == 48
    );
    assert!(offset_of!(WriteShape, layer_stride) == 144 && offset_of!(WriteShape, run) == 152);
    assert!(offset_of!(WriteShape, capacity) == 156 && offset_of!(WriteShape, layers) == 160);
    assert!(offset_of!(WriteShape, per_thread) == 164 && offset_of!(WriteShape, dst_begin) == 168);
    assert!(size_of::<PresentLoop>() == 32 && offset_of!(PresentLoop, count) == 24);
    assert!(offset_of!(PresentLoop, past_stride) == 8 && offset_of!(PresentLoop, update_stride) == 16);
    assert!(size_of::<PresentShape>() == 400 && offset_of!(PresentShape, others) == 176);
    assert!(offset_of!(PresentShape, slots) == 304 && offset_of!(PresentShape, samples) == 328);
    assert!(offset_of!(PresentShape, layers) == 352 && offset_of!(PresentShape, run_magic) == 376);
    assert!(size_of::<Divisor>() == 8 && offset_of!(Divisor, magic) == 4);
    assert!(offset_of!(PresentShape, within) == 384 && offset_of!(PresentShape, past_begin) == 392);
    assert!(size_of::<Call>() == 56 && offset_of!(Call, lengths) == 8 && offset_of!(Call, row_counts) == 16);
    assert!(offset_of!(Call, layer) == 24 && offset_of!(Call, status) == 32);
    assert!(
        offset_of!(Call, flags) == 40 && offset_of!(Call, min_rows) == 44 && offset_of!(Call, max_rows) == 48
    );
    assert!(size_of::<StatusWords>() == 16 && offset_of!(StatusWords, first_sample) == 4);
    assert!(offset_of!(StatusWords, first_value) == 8);
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Divides as the kernels do.
    fn over(number: u32, count: u32) -> u32 {
        if count == 1 {
            return number;
        }
        let high = (u64::from(number) * u64::from(magic(count))) >> 32;
        u32::try_from(high).unwrap() >> (31 - (count - 1).leading_zeros())
    }

    /// Divides 64-bit numbers as the kernels do.
    fn over_64(number: u64, count: u32) -> u64 {
        if count == 1 {
            return number;
        }
        let high = (u128::from(number) * u128::from(magic_64(count))) >> 64;
        u64::try_from(high).unwrap() >> (31 - (count - 1).leading_zeros())
    }

    #[test]
    fn magic_numbers_divide() {
        let counts =
            (1..2_000).chain((0..31).flat_map(|bits| [1_u32 << bits, (1 << bits) - 1, (1 << bits) + 1]));
        for count in counts.filter(|&count| count > 0 && count < 1 << 31) {
            let max = (1_u32 << 31) - 1;
            let edges =
                [0, 1, count - 1, count, max / count * count, (max / count * count).saturating_sub(1), max];
            for number in edges.into_iter().chain((0..64).map(|step| step * (max / 64))) {
                assert_eq!(over(number, count), number / count, "{number} / {count}");
            }
            let (by, max) = (u64::from(count), (1_u64 << 63) - 1);
            let edges = [0, 1, by - 1, by, max / by * by, (max / by * by).saturating_sub(1), max];
            for number in edges.into_iter().chain((0..64).map(|step| step * (max / 64))) {
                assert_eq!(over_64(number, count), number / by, "{number} / {count}");
            }
        }
        assert_eq!(magic(0), magic(1), "nothing is divided by 0, and the host does not fail on it either");
        assert_eq!(magic_64(0), magic_64(1));
    }

    /// Compares every number in `abi.cuh` with the number of the same name here.
    #[test]
    fn the_kernels_have_the_same_numbers() {
        let ours: BTreeMap<_, _> = [
            ("JOBS", JOBS as u64),
            ("FEW_JOBS", FEW_JOBS as u64),
            ("PRESENT_JOBS", PRESENT_JOBS as u64),
            ("OTHER_LOOPS", OTHER_LOOPS as u64),
            ("MAX_VECTORS_PER_THREAD", MAX_VECTORS_PER_THREAD.into()),
            ("THREADS", THREADS.into()),
            ("WORD", WORD.into()),
            ("LINE", LINE.into()),
            ("POSITIONS_I64", POSITIONS_I64.into()),
            ("LENGTHS_I64", LENGTHS_I64.into()),
            ("ROW_COUNTS_I64", ROW_COUNTS_I64.into()),
            ("CUMULATIVE", CUMULATIVE.into()),
            ("FROM_END", FROM_END.into()),
            ("CIRCULAR", CIRCULAR.into()),
            ("REJECT_NEGATIVE", REJECT_NEGATIVE.into()),
            ("SKIP_NEGATIVE", SKIP_NEGATIVE.into()),
            ("SKIP_ALL", SKIP_ALL.into()),
            ("LENGTH", LENGTH.into()),
            ("ROW_COUNT", ROW_COUNT.into()),
            ("LAYER", LAYER.into()),
        ]
        .into();
        assert_eq!(numbers(include_str!("../kernels/abi.cuh")), ours);
    }

    /// Returns the numbers that a source defines as `NAME = 4`, `NAME = 0xF` or `NAME = 1 << 2`.
    fn numbers(source: &str) -> BTreeMap<&str, u64> {
        let number = |text: &str| match text.trim_end_matches('u').strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
            None => text.trim_end_matches('u').parse().unwrap(),
        };
        let code = source.lines().map(|line| line.split("//").next().unwrap());
        let definitions = code.flat_map(|line| line.split([';', ',', '{', '}']));
        let named = definitions.filter_map(|definition| definition.split_once(" = "));
        let valued = named.map(|(name, value)| match value.trim().split_once(" << ") {
            Some((one, by)) => (name, number(one) << number(by)),
            None => (name, number(value.trim())),
        });
        valued.map(|(name, value)| (name.split_whitespace().last().unwrap(), value)).collect()
    }
}
