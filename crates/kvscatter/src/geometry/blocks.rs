//! Rows of a sample and blocks in two buffers, counted in elements.
//!
//! The crate documentation defines G1 and P1.

/// A strided loop over the elements of two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// The number of iterations.
    pub count: usize,
    /// The distance in the destination from one iteration to the next, in elements.
    pub dst_stride: isize,
    /// The distance in the source from one iteration to the next, in elements.
    pub src_stride: isize,
}

impl Loop {
    pub(crate) const ONCE: Self = Self { count: 1, dst_stride: 0, src_stride: 0 };
}

/// One strided copy of a plan: a contiguous run inside three loops. All numbers count elements.
///
/// The loops are ordered from the outermost to the innermost. At loop indices `i`, `j` and `k`, the run
/// begins in the source at
/// `src_offset + i·loops[0].src_stride + j·loops[1].src_stride + k·loops[2].src_stride`. The same sum with
/// `dst_offset` and `dst_stride` gives the start in the destination. A loop that is not needed has a count of
/// 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Block {
    /// The offset of the first destination element.
    pub dst_offset: usize,
    /// The offset of the first source element.
    pub src_offset: usize,
    /// The number of elements in one contiguous run.
    pub len: usize,
    /// The loops around the run, outermost first.
    pub loops: [Loop; 3],
}

impl Block {
    /// Moves loops of one iteration outwards. The innermost loop then has more than one iteration, unless all
    /// loops have one. The runs and their order stay the same.
    #[inline(always)]
    pub(crate) fn with_innermost_loop(mut self) -> Self {
        while let [outer, middle, Loop { count: 1, .. }] = self.loops
            && (outer.count, middle.count) != (1, 1)
        {
            self.loops = [Loop::ONCE, outer, middle];
        }
        self
    }

    /// Moves the offsets of the block by a number of iterations of a loop.
    #[inline(always)]
    pub(super) fn advance(&mut self, by: Loop, iterations: usize) {
        // P1: the loop belongs to a tensor and has more than `iterations` iterations, so no sum wraps.
        let iterations = iterations.cast_signed();
        self.dst_offset = self.dst_offset.wrapping_add_signed(by.dst_stride.wrapping_mul(iterations));
        self.src_offset = self.src_offset.wrapping_add_signed(by.src_stride.wrapping_mul(iterations));
    }

    /// Returns the number of elements that this block moves.
    #[must_use]
    pub fn elements(&self) -> usize {
        // G1: these elements are a part of a tensor.
        self.loops.iter().fold(self.len, |n, each| n.wrapping_mul(each.count))
    }

    /// Visits every run, passing the offsets of its first element in the destination and in the source.
    #[inline(always)]
    pub fn for_each_run(&self, mut run: impl FnMut(usize, usize)) {
        let [outer, middle, inner] = self.loops;
        // P1: every partial sum lies inside its buffer, except for the step after the last iteration, which
        // is never used.
        let step = |(dst, src): (usize, usize), by: Loop| {
            (dst.wrapping_add_signed(by.dst_stride), src.wrapping_add_signed(by.src_stride))
        };
        let mut at = (self.dst_offset, self.src_offset);
        for _ in 0..outer.count {
            let mut at_middle = at;
            for _ in 0..middle.count {
                let mut at_inner = at_middle;
                for _ in 0..inner.count {
                    run(at_inner.0, at_inner.1);
                    at_inner = step(at_inner, inner);
                }
                at_middle = step(at_middle, middle);
            }
            at = step(at, outer);
        }
    }
}

/// The offsets of one element in the destination and in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) dst: usize,
    pub(crate) src: usize,
}

/// A range of rows of one sample that are neighbours in the destination and in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) sample: usize,
    /// The first row in the destination.
    pub(crate) dst_row: usize,
    /// The first row in the source.
    pub(crate) src_row: usize,
    pub(crate) count: usize,
}

/// One sample of the functional form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRows {
    pub(crate) layer: usize,
    pub(crate) sample: usize,
    /// All slots of the sample, from first to last, in three pieces. A piece may be empty.
    pub(crate) pieces: [(Source, RowRange); 3],
}

/// The source of the slots of a present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Past,
    Update,
}
