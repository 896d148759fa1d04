//! Lists of numbers for the kernels.

use core::ops::{Deref, DerefMut};

use crate::kernel::LANES;

/// A list of float32 numbers that begins at a multiple of a vector's size. So no vector of a row lies in two lines of
/// the CPU cache, which would take twice as long to load.
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
