//! What a write moves, counted in elements: rows of a sample, and the blocks that they are in two buffers.

/// A strided loop over elements of two buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Loop {
    /// Iterations.
    pub count: usize,
    /// How far the destination moves with each iteration.
    pub dst_stride: isize,
    /// How far the source moves with each iteration.
    pub src_stride: isize,
}

impl Loop {
    pub(crate) const ONCE: Self = Self { count: 1, dst_stride: 0, src_stride: 0 };
}

/// One strided copy of a plan: a contiguous run inside three loops, outermost first, counted in elements.
///
/// The run at loop indices `i`, `j`, `k` goes from `src_offset + i·loops[0].src_stride + j·loops[1].src_stride +
/// k·loops[2].src_stride` to the same sum for the destination. Loops that are not needed have a count of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Block {
    /// Offset of the first destination element.
    pub dst_offset: usize,
    /// Offset of the first source element.
    pub src_offset: usize,
    /// Elements of one contiguous run.
    pub len: usize,
    /// The loops around it.
    pub loops: [Loop; 3],
}

impl Block {
    /// Moves loops of one iteration outwards, so that the innermost loop repeats if any does. The runs and their order
    /// stay the same.
    #[inline(always)]
    pub(crate) fn with_innermost_loop(mut self) -> Self {
        while let [outer, middle, Loop { count: 1, .. }] = self.loops
            && (outer.count, middle.count) != (1, 1)
        {
            self.loops = [Loop::ONCE, outer, middle];
        }
        self
    }

    /// Moves the block on by this many iterations of a loop.
    #[inline(always)]
    pub(super) fn advance(&mut self, by: Loop, iterations: usize) {
        // P1: the loop is one of a tensor, with more iterations than these, so no sum wraps.
        let iterations = iterations.cast_signed();
        self.dst_offset = self.dst_offset.wrapping_add_signed(by.dst_stride.wrapping_mul(iterations));
        self.src_offset = self.src_offset.wrapping_add_signed(by.src_stride.wrapping_mul(iterations));
    }

    /// Elements this block moves.
    #[must_use]
    pub fn elements(&self) -> usize {
        // G1: a part of a tensor.
        self.loops.iter().fold(self.len, |n, each| n.wrapping_mul(each.count))
    }

    /// Visits every run as `(dst, src)` offsets of its first element.
    #[inline(always)]
    pub fn for_each_run(&self, mut run: impl FnMut(usize, usize)) {
        let [outer, middle, inner] = self.loops;
        // P1: every partial sum lies inside its buffer, and the steps past the last one are never used.
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

/// The offsets of an element in the buffers of the destination and of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) dst: usize,
    pub(crate) src: usize,
}

/// Rows of one sample that lie next to each other on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) sample: usize,
    /// The first row in the destination.
    pub(crate) dst_row: usize,
    /// The first row in the source.
    pub(crate) src_row: usize,
    pub(crate) count: usize,
}

/// A sample of the functional form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRows {
    pub(crate) layer: usize,
    pub(crate) sample: usize,
    /// All slots of the sample from first to last. A piece may be empty.
    pub(crate) pieces: [(Source, RowRange); 3],
}

/// Where slots of a present come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Past,
    Update,
}
