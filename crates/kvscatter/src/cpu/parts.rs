//! Divides a dense destination of 4-bit elements into parts that share no byte (P3), so that threads may
//! write them at the same time.
//!
//! A part is a whole number of samples. The number is even if a sample has an odd number of elements, because
//! then only every second sample, counted over all layers, begins on a byte.
//!
//! In a view of a larger buffer, samples may begin anywhere and lie in one another's gaps. Such a buffer is
//! not divided.
//!
//! The crate documentation defines G1 and P3.

use core::marker::PhantomData;
use core::slice;

use super::Executor;
use super::executor::{self, Share};
use crate::geometry::Geometry;

/// Calls `work` on the threads of `executor`. Each call must walk over all samples in order and ask for the
/// part of each sample. If there is no executor, calls `work` once with all of `dst` as the only part.
///
/// If there is an executor, `dst` is a dense tensor of the cache's shape. A sample receives about `written`
/// bytes, and a part about `grain`.
pub(super) fn share(
    geometry: &Geometry,
    dst: &mut [u8],
    [written, grain]: [usize; 2],
    executor: Option<&dyn Executor>,
    work: impl Fn(&mut ThreadParts<'_, '_>) + Sync,
) {
    match executor {
        None => work(&mut ThreadParts::new(&DestinationParts::one(geometry, dst), &mut Share::All)),
        Some(executor) => {
            let parts = DestinationParts::many(geometry, dst, [written, grain]);
            executor::share(executor, parts.len, |share| work(&mut ThreadParts::new(&parts, share)));
        }
    }
}

#[derive(Debug)]
struct DestinationParts<'a> {
    dst: *mut u8,
    len: usize,
    /// The number of samples in one layer.
    batch: usize,
    /// The number of samples in one part.
    samples: usize,
    /// The number of bytes in one part. The last part may be shorter.
    bytes: usize,
    borrowed: PhantomData<&'a mut [u8]>,
}

// SAFETY: Only `part` accesses the bytes at `dst`, and each part is requested once, so no two threads share a
// byte (P3).
unsafe impl Sync for DestinationParts<'_> {}

impl<'a> DestinationParts<'a> {
    fn one(geometry: &Geometry, dst: &'a mut [u8]) -> Self {
        let (dst, len) = (dst.as_mut_ptr(), dst.len());
        let borrowed = PhantomData;
        Self { dst, len, batch: geometry.cache_batch(), samples: usize::MAX, bytes: len, borrowed }
    }

    fn many(geometry: &Geometry, dst: &'a mut [u8], [written, grain]: [usize; 2]) -> Self {
        let elements = geometry.sample_elements();
        let min = if elements.is_multiple_of(2) { 1 } else { 2 };
        let times = grain.checked_div(written.saturating_mul(min)).unwrap_or(1).max(1);
        let samples = times.saturating_mul(min);
        // The product is even unless it saturates. If it saturates, no buffer has a second part.
        let bytes = samples.saturating_mul(elements).div_euclid(2);
        Self { samples, bytes, ..Self::one(geometry, dst) }
    }

    /// Returns the part with this number.
    ///
    /// # Safety
    /// Each part is requested at most once.
    unsafe fn part(&self, number: usize) -> DestinationPart<'a> {
        let first = self.bytes.saturating_mul(number).min(self.len);
        let len = self.bytes.min(self.len.wrapping_sub(first));
        // SAFETY: `first + len` is at most the length of the slice, which was borrowed exclusively for `'a`.
        // Parts with different numbers do not overlap, and this part is requested once, so nothing else uses
        // these bytes (P3).
        let bytes = unsafe { slice::from_raw_parts_mut(self.dst.wrapping_add(first), len) };
        // G1: the product is the index of an element of the tensor.
        DestinationPart { first: first.wrapping_mul(2), bytes }
    }
}

/// Bytes that one thread may write.
#[derive(Debug)]
pub(super) struct DestinationPart<'a> {
    /// The number of elements before this part in the tensor.
    pub(super) first: usize,
    pub(super) bytes: &'a mut [u8],
}

#[derive(Debug)]
pub(super) struct ThreadParts<'a, 'p> {
    parts: &'a DestinationParts<'a>,
    share: &'a mut Share<'p>,
    /// The part that was requested last, if this thread writes it.
    part: Option<DestinationPart<'a>>,
    /// The first sample after that part, counted over all layers.
    end: usize,
}

impl<'a, 'p> ThreadParts<'a, 'p> {
    fn new(parts: &'a DestinationParts<'a>, share: &'a mut Share<'p>) -> Self {
        Self { parts, share, part: None, end: 0 }
    }

    /// Returns the part that contains a sample, if this thread writes it.
    #[inline(always)]
    pub(super) fn part_of(&mut self, layer: usize, sample: usize) -> Option<&mut DestinationPart<'a>> {
        // G1: the index counts samples of one tensor.
        let index = layer.wrapping_mul(self.parts.batch).wrapping_add(sample);
        if index >= self.end {
            self.next(index);
        }
        self.part.as_mut()
    }

    fn next(&mut self, index: usize) {
        let number = index.checked_div(self.parts.samples).unwrap_or(0);
        self.end = number.saturating_add(1).saturating_mul(self.parts.samples);
        // SAFETY: Samples only ascend, so a walk asks `share` for each part once. All walks ask for the same
        // sizes in the same order, and `share` gives each part to only one walk.
        self.part = self.share.take(self.parts.bytes).then(|| unsafe { self.parts.part(number) });
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};
    use core::sync::atomic::AtomicUsize;

    use super::{DestinationParts, Share, ThreadParts};
    use crate::ElementType;
    use crate::spec::onnx::TensorScatter;

    /// Two threads that ask in turns get every byte once between them, and every sample whole.
    #[test]
    fn parts_cover_the_buffer_and_share_no_byte() {
        let sizes = [(7, 65, 1), (6, 65, 1 << 20), (5, 64, 1 << 20), (4, 1, 1), (1, 3, 1)];
        for ((batch, capacity, written), grain) in
            sizes.into_iter().flat_map(|sizes| [(sizes, 3), (sizes, 128 << 10)])
        {
            let shape = [batch, capacity, 1];
            let write = TensorScatter::new().axis(1).prepare(ElementType::Int4, &shape, &shape).unwrap();
            // Use three layers, although no operator has layers for elements of 4 bits.
            let elements = 3 * batch * capacity;
            let mut buffer = vec![0_u8; elements.div_ceil(2)];
            let parts = DestinationParts::many(write.geometry(), &mut buffer, [written, grain]);
            let taken = AtomicUsize::new(0);
            let mut shares = [0..20, 20..usize::BITS].map(|chunks| Share::new(&taken, chunks, parts.len));
            let mut threads = shares.each_mut().map(|share| ThreadParts::new(&parts, share));
            let mut owners = Vec::new();
            for (layer, sample) in (0..3).flat_map(|layer| (0..batch).map(move |sample| (layer, sample))) {
                let begin = (layer * batch + sample) * capacity;
                let own = threads.each_mut().map(|mine| {
                    mine.part_of(layer, sample).map(|part| {
                        assert!(part.first <= begin && begin + capacity <= part.first + 2 * part.bytes.len());
                        let bytes = &mut part.bytes
                            [(begin - part.first) / 2..(begin + capacity).div_ceil(2) - part.first / 2];
                        bytes.iter_mut().for_each(|byte| *byte = 1);
                    })
                });
                owners.push(own.map(|own| own.is_some()));
            }
            assert!(owners.iter().all(|[a, b]| a != b), "{shape:?}: {owners:?}");
            assert!(buffer.iter().all(|&byte| byte == 1), "{shape:?}");
        }
    }
}
