//! Memory of the kernels that begins at a line of the CPU cache.

use core::ops::{Deref, DerefMut};

use crate::kernel::LANES;

/// A list of float32 numbers that begins at a line of the CPU cache. If its rows are [`padded`], no vector of a
/// row lies in two lines, which would take twice as long to load.
#[derive(Debug)]
pub(crate) struct Aligned(Vec<Lanes>);

#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Lanes([f32; LANES]);

impl Aligned {
    /// Allocates at least this many zeros, rounded up to a multiple of [`LANES`].
    pub(crate) fn zeros(count: usize) -> Self {
        Self(vec![Lanes([0.0; LANES]); count.div_ceil(LANES)])
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Returns the distance between rows of this many numbers. It is a multiple of [`LANES`], which the kernels require.
pub(crate) fn padded(size: usize) -> usize {
    size.next_multiple_of(LANES)
}

/// Returns the distance between many rows of this many numbers, of which the same part is read one after the other. It
/// is an odd multiple of [`LANES`]. With a power of two, that part of all rows would share a few sets of the
/// first-level cache.
pub(crate) fn spread(size: usize) -> usize {
    (size.div_ceil(LANES) | 1) * LANES
}
