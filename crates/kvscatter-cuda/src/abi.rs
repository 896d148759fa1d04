//! What a launch passes by value, as `kernels/abi.cuh` declares it.
//!
//! That file asserts the same sizes for its own structs when it is compiled, and the last test below reads its numbers;
//! the tests that run the kernels hold offsets together.

use core::ffi::c_void;
use core::mem::offset_of;

/// Jobs of one launch in place.
pub(crate) const JOBS: usize = 128;

/// Jobs that the smallest kernels take: keys and values.
pub(crate) const FEW_JOBS: usize = 2;

/// Jobs of one launch in functional form.
pub(crate) const PRESENT_JOBS: usize = 64;

/// Runs that one thread moves at most.
pub(crate) const MOST_PER_THREAD: u32 = 4;

/// Dimensions around a run, beside samples and rows.
pub(crate) const AROUND: usize = 4;

/// Threads of a block at most: the kernels are compiled for as many.
pub(crate) const THREADS: u32 = 256;

/// 4-bit elements of a word.
pub(crate) const WORD: u32 = 8;

/// Words of a present of 4-bit elements that straddle bytes which the threads of a warp make.
pub(crate) const LINE: u32 = 32;

/// A device's address.
pub(crate) type Address = u64;

/// One cache and its update: where their first elements lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) cache: Address,
    pub(crate) update: Address,
}

/// The same in functional form.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PresentJob {
    pub(crate) present: Address,
    pub(crate) past: Address,
    pub(crate) update: Address,
}

/// A number of things, and what divides by it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisor {
    pub(crate) count: u32,
    /// [`magic`] of `count`.
    pub(crate) magic: u32,
}

/// Steps on either side, in units of the kernel: vectors of its width, or 4-bit elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) dst: i64,
    pub(crate) src: i64,
    pub(crate) count: u32,
    /// [`magic`] of `count`.
    pub(crate) magic: u32,
}

/// Steps of all three tensors of the functional form.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentLoop {
    pub(crate) dst: i64,
    pub(crate) past: i64,
    pub(crate) update: i64,
    pub(crate) count: u32,
    pub(crate) magic: u32,
}

/// What divides numbers below 2^31 by `count`: 2^(31 + bits) / count, rounded up, where 2^bits is the least power that is
/// not below `count`. As in Granlund and Montgomery, "Division by invariant integers using multiplication", 1994.
pub(crate) const fn magic(count: u32) -> u32 {
    let count = if count == 0 { 1 } else { count };
    let power = 1_u64 << (31 + (count as u64).next_power_of_two().trailing_zeros());
    // `count` is more than half of 2^bits, so that this is below 2^32; for 1 it is 2^31, and not used.
    power.div_ceil(count as u64) as u32
}

/// The same for numbers below 2^63, with 2^(63 + bits).
pub(crate) const fn magic_64(count: u32) -> u64 {
    let count = if count == 0 { 1 } else { count };
    let power = 1_u128 << (63 + (count as u64).next_power_of_two().trailing_zeros());
    power.div_ceil(count as u128) as u64
}

impl PresentLoop {
    /// A dimension that is not there.
    pub(crate) const ONCE: Self = Self { dst: 0, past: 0, update: 0, count: 1, magic: magic(1) };
}

impl Divisor {
    pub(crate) const fn of(count: u32) -> Self {
        Self { count, magic: magic(count) }
    }
}

impl Loop {
    /// A dimension that is not there.
    pub(crate) const ONCE: Self = Self { dst: 0, src: 0, count: 1, magic: magic(1) };
}

/// What a write moves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// As many as the lists have.
    pub(crate) samples: Loop,
    /// Those of one sample of a padded update, or all tokens of a packed one.
    pub(crate) rows: Loop,
    /// Every other dimension that does not lie within a run.
    pub(crate) around: [Loop; AROUND],
    /// From one layer of the cache to the next.
    pub(crate) layer: i64,
    /// Units that lie together on both sides.
    pub(crate) run: u32,
    pub(crate) capacity: u32,
    pub(crate) layers: u32,
    pub(crate) per_thread: u32,
    /// 4-bit elements between the address of a job's cache and its first element: less than a word. 0 otherwise.
    pub(crate) dst_begin: u32,
    /// The same for the update: less than a byte.
    pub(crate) src_begin: u32,
}

/// What the functional form moves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PresentShape {
    /// Its `around` is not used: that of the present may be split in another way.
    pub(crate) update: Shape,
    pub(crate) around: [PresentLoop; AROUND],
    /// As many as the capacity; `src` is the past's.
    pub(crate) slots: Loop,
    /// All samples of the cache.
    pub(crate) samples: Loop,
    pub(crate) layers: Loop,
    /// [`magic_64`] of `update.run`. This and what follows is for 4-bit elements that straddle bytes.
    pub(crate) run_magic: u64,
    /// Runs of one slot that lie one behind the other.
    pub(crate) within: Divisor,
    /// 4-bit elements between the address of a job's past and its first element, as `src_begin` of the update.
    pub(crate) past_begin: u32,
    pub(crate) unused: u32,
}

/// One launch's lists. What is absent is 0: slot 0, all rows, a padded update, layer 0, no report.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) starts: Address,
    pub(crate) lengths: Address,
    pub(crate) spans: Address,
    pub(crate) layer: Address,
    pub(crate) status: Address,
    pub(crate) flags: u32,
    /// Rows that a sample of a packed update brings at least.
    pub(crate) least: u32,
    /// And at most.
    pub(crate) most: u32,
    pub(crate) unused: u32,
}

pub(crate) const STARTS_I64: u32 = 1 << 0;
pub(crate) const LENGTHS_I64: u32 = 1 << 1;
pub(crate) const SPANS_I64: u32 = 1 << 2;
/// Spans are running totals from 0, one more than samples; otherwise a number for each.
pub(crate) const CUMULATIVE: u32 = 1 << 3;
/// Positions are lengths after the write, padding included.
pub(crate) const FROM_END: u32 = 1 << 4;
pub(crate) const CIRCULAR: u32 = 1 << 5;
/// In a ring.
pub(crate) const REJECT_NEGATIVE: u32 = 1 << 6;
/// A negative start leaves its sample out without being bad.
pub(crate) const SKIP_NEGATIVE: u32 = 1 << 7;
/// A launch with any bad index writes nothing.
pub(crate) const SKIP_ALL: u32 = 1 << 8;

/// In [`StatusWords::first_sample`]: not the sample's start is bad, but its length.
pub(crate) const LENGTH: u32 = 1 << 31;
/// Together with [`LENGTH`]: the length is the number of rows that a packed update brings for the sample.
pub(crate) const SPAN: u32 = LENGTH | 1 << 30;
/// The layer is bad, for all samples.
pub(crate) const LAYER: u32 = u32::MAX;
/// Samples of a launch: their numbers leave the bits above free, and `LAYER` is none of them.
pub(crate) const MAX_SAMPLES: usize = (1 << 30) - 2;

/// What launches have found since their caller has reset it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusWords {
    /// Samples with a bad index, each counted once per launch; a launch whose layer or whose lists as a whole are bad
    /// counts all its samples, and at least 1.
    pub bad_samples: u32,
    /// The first one that the first such launch has found. Bit 31: its length is bad rather than its position; bits 31
    /// and 30: the number of rows that a packed update brings for it; all bits: the layer.
    pub first_sample: u32,
    /// The bad value. [`first`](Self::first) has both in words.
    pub first_value: i64,
}

const _: () = {
    assert!(size_of::<Address>() == size_of::<*const c_void>());
    assert!(size_of::<Job>() == 16 && size_of::<PresentJob>() == 24);
    assert!(offset_of!(PresentJob, past) == 8 && offset_of!(PresentJob, update) == 16);
    assert!(offset_of!(Job, update) == 8);
    assert!(size_of::<Loop>() == 24 && offset_of!(Loop, src) == 8 && offset_of!(Loop, count) == 16);
    assert!(size_of::<Shape>() == 176 && offset_of!(Shape, rows) == 24 && offset_of!(Shape, around) == 48);
    assert!(offset_of!(Shape, layer) == 144 && offset_of!(Shape, run) == 152);
    assert!(offset_of!(Shape, capacity) == 156 && offset_of!(Shape, layers) == 160);
    assert!(offset_of!(Shape, per_thread) == 164 && offset_of!(Shape, dst_begin) == 168);
    assert!(size_of::<PresentLoop>() == 32 && offset_of!(PresentLoop, count) == 24);
    assert!(offset_of!(PresentLoop, past) == 8 && offset_of!(PresentLoop, update) == 16);
    assert!(size_of::<PresentShape>() == 400 && offset_of!(PresentShape, around) == 176);
    assert!(offset_of!(PresentShape, slots) == 304 && offset_of!(PresentShape, samples) == 328);
    assert!(offset_of!(PresentShape, layers) == 352 && offset_of!(PresentShape, run_magic) == 376);
    assert!(size_of::<Divisor>() == 8 && offset_of!(Divisor, magic) == 4);
    assert!(offset_of!(PresentShape, within) == 384 && offset_of!(PresentShape, past_begin) == 392);
    assert!(size_of::<Call>() == 56 && offset_of!(Call, lengths) == 8 && offset_of!(Call, spans) == 16);
    assert!(offset_of!(Call, layer) == 24 && offset_of!(Call, status) == 32);
    assert!(offset_of!(Call, flags) == 40 && offset_of!(Call, least) == 44 && offset_of!(Call, most) == 48);
    assert!(size_of::<StatusWords>() == 16 && offset_of!(StatusWords, first_sample) == 4);
    assert!(offset_of!(StatusWords, first_value) == 8);
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What the kernels do with it.
    fn over(number: u32, count: u32) -> u32 {
        if count == 1 {
            return number;
        }
        let high = (u64::from(number) * u64::from(magic(count))) >> 32;
        u32::try_from(high).unwrap() >> (31 - (count - 1).leading_zeros())
    }

    /// The same for 64 bits.
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
            let most = (1_u32 << 31) - 1;
            let edges = [
                0,
                1,
                count - 1,
                count,
                most / count * count,
                (most / count * count).saturating_sub(1),
                most,
            ];
            for number in edges.into_iter().chain((0..64).map(|step| step * (most / 64))) {
                assert_eq!(over(number, count), number / count, "{number} / {count}");
            }
            let (by, most) = (u64::from(count), (1_u64 << 63) - 1);
            let edges = [0, 1, by - 1, by, most / by * by, (most / by * by).saturating_sub(1), most];
            for number in edges.into_iter().chain((0..64).map(|step| step * (most / 64))) {
                assert_eq!(over_64(number, count), number / by, "{number} / {count}");
            }
        }
        assert_eq!(magic(0), magic(1), "nothing is divided by 0, and the host does not fail on it either");
        assert_eq!(magic_64(0), magic_64(1));
    }

    /// Every number that `abi.cuh` has, by its name in both.
    #[test]
    fn the_kernels_have_the_same_numbers() {
        let ours: BTreeMap<_, _> = [
            ("JOBS", JOBS as u64),
            ("FEW_JOBS", FEW_JOBS as u64),
            ("PRESENT_JOBS", PRESENT_JOBS as u64),
            ("AROUND", AROUND as u64),
            ("MOST_PER_THREAD", MOST_PER_THREAD.into()),
            ("THREADS", THREADS.into()),
            ("WORD", WORD.into()),
            ("LINE", LINE.into()),
            ("STARTS_I64", STARTS_I64.into()),
            ("LENGTHS_I64", LENGTHS_I64.into()),
            ("SPANS_I64", SPANS_I64.into()),
            ("CUMULATIVE", CUMULATIVE.into()),
            ("FROM_END", FROM_END.into()),
            ("CIRCULAR", CIRCULAR.into()),
            ("REJECT_NEGATIVE", REJECT_NEGATIVE.into()),
            ("SKIP_NEGATIVE", SKIP_NEGATIVE.into()),
            ("SKIP_ALL", SKIP_ALL.into()),
            ("LENGTH", LENGTH.into()),
            ("SPAN", SPAN.into()),
            ("LAYER", LAYER.into()),
        ]
        .into();
        assert_eq!(numbers(include_str!("../kernels/abi.cuh")), ours);
    }

    /// What a source defines as `NAME = 4`, `NAME = 0xF` or `NAME = 1 << 2`, with whatever ends it.
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
