//! Finds the widest move that divides every address, stride and run: 16 to 1 bytes, or elements of 4 bits.
//!
//! The comments cite G1, an invariant that the documentation of kvscatter defines.

use kvscatter::Geometry;
use kvscatter::device::Loops;

use crate::abi::Address;
use crate::memory::DeviceBuffer;

/// The numbers of bytes that the kernels can move at a time.
pub(crate) const WIDTHS: [i64; 5] = [16, 8, 4, 2, 1];

/// The unit of strides and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A number of bytes, as its index in [`WIDTHS`].
    Bytes(usize),
    /// 4-bit elements.
    Nibbles,
}

/// A conversion from elements to units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) unit: Unit,
    /// The number of half bytes in an element, a power of two.
    halves: i64,
}

impl Scale {
    /// Creates the widest scale for these loops and buffers. Each buffer comes with the element at which its
    /// tensor begins.
    pub(crate) fn widest<'a>(
        geometry: &Geometry,
        loops: impl IntoIterator<Item = &'a Loops>,
        buffers: impl IntoIterator<Item = (DeviceBuffer, usize)>,
    ) -> Self {
        // Strings have no width. Other code rejects their buffers.
        let halves = geometry.element().bits().map_or(2, |bits| bits.div_ceil(4));
        let scale = Self { unit: Unit::Nibbles, halves: i64::try_from(halves).unwrap_or(2) };
        let steps = loops.into_iter().flat_map(|loops| steps(loops, geometry.capacity()));
        // The lowest set bit of `all` is the largest power of two that divides every number.
        let all = steps.map(|step| scale.halves_of(step)).fold(2 * WIDTHS[0], |all, step| all | step);
        let all = buffers.into_iter().fold(all, |all, (buffer, begin)| {
            // Wrapping does not change the remainder by a power of two.
            let address = buffer.address.wrapping_mul(2).cast_signed();
            all | address.wrapping_add(scale.halves_of(begin.cast_signed()))
        });
        match WIDTHS.iter().position(|width| all % (2 * width) == 0) {
            Some(place) => Self { unit: Unit::Bytes(place), ..scale },
            None => scale,
        }
    }

    /// Converts a stride from elements to units. It must be a stride of the loops that
    /// [`widest`](Self::widest) was given.
    pub(crate) fn step(self, elements: isize) -> i64 {
        // G1: a stride fits `isize` in bytes if its dimension has more than one step.
        self.halves_of(elements) / self.unit_halves()
    }

    /// Returns the position of a tensor that begins at an element of its buffer.
    ///
    /// The position is an address on a multiple of `alignment` bytes and a number of elements from there.
    /// That number is 0 unless the units are 4-bit elements.
    pub(crate) fn begin(self, buffer: DeviceBuffer, element: usize, alignment: usize) -> (Address, u32) {
        let rest = match self.unit {
            Unit::Nibbles => element % (2 * alignment),
            Unit::Bytes(_) => 0,
        };
        let bytes = self.halves_of((element - rest).cast_signed()) / 2;
        (buffer.address.wrapping_add_signed(bytes), u32::try_from(rest).unwrap_or(0))
    }

    fn unit_halves(self) -> i64 {
        match self.unit {
            Unit::Bytes(place) => WIDTHS.get(place).map_or(2, |width| 2 * width),
            Unit::Nibbles => 1,
        }
    }

    fn halves_of(self, elements: isize) -> i64 {
        // Twice the bytes may not fit, but the low bits are right, and only they decide divisibility. `step`
        // needs all bits. It is called only for strides that move, and a device has fewer than 2^62 bytes.
        i64::try_from(elements).unwrap_or(0).wrapping_mul(self.halves)
    }
}

/// Returns every number of elements that is ever added to an address.
fn steps(loops: &Loops, slots: usize) -> impl Iterator<Item = isize> {
    let Loops { layers, samples, rows, others: inner, run, .. } = loops;
    let both = [layers, samples].into_iter().chain(inner).filter(|by| by.count > 1);
    let both = both.flat_map(|by| [by.dst_stride, by.src_stride]);
    // A row of an update can go to any slot, so the stride of slots counts even for one row.
    let rows =
        [(slots, rows.dst_stride), (rows.count, rows.src_stride)].into_iter().filter(|(count, _)| *count > 1);
    both.chain(rows.map(|(_, step)| step)).chain([run.cast_signed()])
}

#[cfg(test)]
mod tests {
    use kvscatter::spec::ascend::KvCacheOperation;
    use kvscatter::spec::onnx::TensorScatter;
    use kvscatter::{ElementType, Layout, Prepared};

    use super::{Scale, Unit, WIDTHS};
    use crate::memory::DeviceBuffer;

    fn widest(prepared: &Prepared, addresses: [u64; 2]) -> Option<i64> {
        let loops = prepared.device_interface().write_loops();
        let begins = [loops.dst_offset, loops.src_offset];
        let buffers = addresses.into_iter().zip(begins);
        let buffers = buffers.map(|(address, begin)| (DeviceBuffer::new(address, 1 << 40), begin));
        match Scale::widest(prepared.geometry(), [&loops], buffers).unit {
            Unit::Bytes(place) => Some(WIDTHS[place]),
            Unit::Nibbles => None,
        }
    }

    fn dense(element: ElementType, head: usize) -> Prepared {
        TensorScatter::new().prepare(element, &[2, 3, 8, head], &[2, 3, 1, head]).unwrap()
    }

    #[test]
    fn the_least_aligned_of_all_decides() {
        let even = dense(ElementType::Float16, 64);
        for (cache, update, width) in
            [(256, 512, 16), (256, 8, 8), (4, 512, 4), (258, 512, 2), (257, 512, 1), (256, 255, 1)]
        {
            assert_eq!(widest(&even, [cache, update]), Some(width), "{cache} {update}");
        }
        for (head, width) in [(8, 16), (4, 8), (2, 4), (3, 2), (24, 16), (20, 8)] {
            assert_eq!(widest(&dense(ElementType::Float16, head), [256, 256]), Some(width), "{head}");
        }
        assert_eq!(widest(&dense(ElementType::Complex128, 3), [256, 256]), Some(16));
    }

    #[test]
    fn strides_count_where_there_is_more_than_one_step() {
        // The cache has a row of 8 elements of 2 bytes every 9 elements, and more slots than the update has
        // rows.
        let shape = [2, 3, 8, 8];
        let padded = Layout::strided(&shape, &[3 * 8 * 16, 8 * 16, 9, 1]);
        let write = TensorScatter::new().prepare(ElementType::Float16, padded, &[2, 3, 1, 8]).unwrap();
        assert_eq!(widest(&write, [256, 256]), Some(2));
        let single = Layout::strided(&[1, 3, 1, 8], &[5, 16, 7, 1]);
        let write = TensorScatter::new().prepare(ElementType::Float16, &[1, 3, 8, 8], single).unwrap();
        assert_eq!(widest(&write, [256, 256]), Some(16), "nothing steps by 5 or 7");
    }

    /// Checks that each stride counts if its dimension has more than one step. On both sides 16 bytes are
    /// contiguous, and all strides but one are multiples of 16 bytes.
    #[test]
    fn every_dimension_of_more_than_one_step_counts() {
        let width = |counts: [usize; 2], [layer, sample, slot]: [isize; 3], update: [isize; 3]| {
            let ([layers, batch], [new_sample, row, head]) = (counts, update);
            let (past, new) = ([layers, batch, 4, 16], [batch, 2, 2, 8]);
            let (past_strides, new_strides) = ([layer, sample, slot, 1], [new_sample, row, head, 1]);
            let past = Layout::strided(&past, &past_strides);
            let new = Layout::strided(&new, &new_strides);
            let write = KvCacheOperation::new().prepare(ElementType::Float16, past, new).unwrap();
            widest(&write, [256, 256])
        };
        let (cache, update) = ([160, 80, 16], [64, 32, 16]);
        let longer = |mut strides: [isize; 3], at: usize| {
            strides[at] += 1;
            strides
        };
        assert_eq!(width([2, 2], cache, update), Some(16));
        for at in 0..3 {
            assert_eq!(width([2, 2], longer(cache, at), update), Some(2), "cache {at}");
            assert_eq!(width([2, 2], cache, longer(update, at)), Some(2), "update {at}");
        }
        assert_eq!(width([2, 1], longer(cache, 0), update), Some(2), "two layers of one sample");
        assert_eq!(width([1, 2], longer(cache, 0), update), Some(16), "one layer");
        assert_eq!(width([2, 1], longer(cache, 1), longer(update, 0)), Some(16), "one sample");
    }

    #[test]
    fn offsets_and_addresses_add_up() {
        let shape = [1, 3, 8, 8];
        let view = Layout::dense(&shape).with_offset(4);
        let write = TensorScatter::new().prepare(ElementType::Float16, view, &[1, 3, 1, 8]).unwrap();
        assert_eq!(widest(&write, [256, 256]), Some(8));
        assert_eq!(widest(&write, [248, 256]), Some(16));
    }

    #[test]
    fn half_bytes_are_bytes_where_everything_is_even() {
        let int4 = ElementType::Int4;
        for (head, width) in [(32, Some(16)), (8, Some(4)), (2, Some(1)), (3, None)] {
            assert_eq!(widest(&dense(int4, head), [256, 256]), width, "{head}");
        }
        let shape = [2, 3, 8, 8];
        let odd =
            TensorScatter::new().prepare(int4, Layout::dense(&shape).with_offset(1), &[2, 3, 1, 8]).unwrap();
        assert_eq!(widest(&odd, [256, 256]), None);
    }

    #[test]
    fn a_tensor_may_begin_inside_a_word() {
        let shape = [2, 1, 8, 3];
        let write = TensorScatter::new().prepare(ElementType::Int4, &shape, &[2, 1, 1, 3]).unwrap();
        let loops = write.device_interface().write_loops();
        let buffer = DeviceBuffer::new(256, 64);
        let scale = Scale::widest(write.geometry(), [&loops], [(buffer, 0)]);
        assert_eq!(scale.begin(buffer, 21, 4), (264, 5));
        assert_eq!(scale.begin(buffer, 21, 1), (266, 1));
        assert_eq!(scale.step(-3), -3);
    }
}
