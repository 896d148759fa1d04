//! Describes memory on a device by address and length, and checks which buffers overlap. Nothing here dereferences an
//! address.

use std::ptr;

use kvscatter::RawBuffer;

use crate::CudaError;
use crate::abi::Address;
use crate::launch_argument::LaunchArgument;

/// The memory of one tensor on a device, with at least the number of bytes that the tensor's geometry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// The address of the first byte. If the buffer has no bytes, any address is allowed.
    pub address: u64,
    /// The size in bytes.
    pub bytes: usize,
}

/// A cache and its update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPair {
    /// The cache that is written.
    pub cache: DeviceBuffer,
    /// The new rows.
    pub update: DeviceBuffer,
}

/// The tensors of the functional form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentBuffers {
    /// The cache after the write, a dense tensor that is written completely.
    pub present: DeviceBuffer,
    /// The cache before the write.
    pub past: DeviceBuffer,
    /// The new rows.
    pub update: DeviceBuffer,
}

impl DeviceBuffer {
    /// Creates a buffer of `bytes` bytes that begins at an address.
    #[must_use]
    pub const fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Returns the first `bytes` bytes of the buffer, which its tensor uses, for checks of overlap.
    pub(crate) fn first(self, bytes: Option<usize>) -> RawBuffer {
        // The address space of a device is as large as the host's, which `abi` asserts.
        let address = usize::try_from(self.address).unwrap_or(usize::MAX);
        let len = bytes.map_or(self.bytes, |bytes| bytes.min(self.bytes));
        RawBuffer { ptr: ptr::without_provenance_mut(address), len }
    }
}

/// The sorted address ranges of many buffers, for quick checks whether another buffer overlaps any of them.
#[derive(Debug)]
pub(crate) struct AddressRanges {
    /// The first byte of each buffer, in ascending order, and the greatest end among the buffers up to it.
    ascending: Vec<[usize; 2]>,
}

impl AddressRanges {
    pub(crate) fn from_buffers(buffers: impl Iterator<Item = RawBuffer>) -> Self {
        let buffers = buffers.filter(|buffer| buffer.len > 0);
        let mut ascending: Vec<[usize; 2]> = buffers.map(ends).collect();
        ascending.sort_unstable();
        let mut end = 0;
        for range in &mut ascending {
            end = end.max(range[1]);
            range[1] = end;
        }
        Self { ascending }
    }

    pub(crate) fn overlap(&self, buffer: RawBuffer) -> bool {
        let [begin, end] = ends(buffer);
        let before = self.ascending.partition_point(|range| range[0] < end);
        buffer.len > 0
            && self.ascending.get(..before).and_then(<[_]>::last).is_some_and(|range| begin < range[1])
    }
}

fn ends(buffer: RawBuffer) -> [usize; 2] {
    [buffer.ptr.addr(), buffer.ptr.addr().saturating_add(buffer.len)]
}

/// A list of integers on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceList {
    address: Address,
    len: usize,
    width: Width,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    I32,
    I64,
}

impl DeviceList {
    /// Creates a list of `len` 64-bit integers.
    #[must_use]
    pub const fn i64(address: u64, len: usize) -> Self {
        Self { address, len, width: Width::I64 }
    }

    /// Creates a list of `len` 32-bit integers.
    #[must_use]
    pub const fn i32(address: u64, len: usize) -> Self {
        Self { address, len, width: Width::I32 }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn address(self) -> Address {
        self.address
    }

    pub(crate) fn is_i64(self) -> bool {
        self.width == Width::I64
    }

    /// Returns the address of a value, or `None` if the list has fewer values.
    pub(crate) fn address_of(self, index: usize) -> Option<Address> {
        let offset = u64::try_from(index).ok()?.checked_mul(self.bytes_each())?;
        if index < self.len { self.address.checked_add(offset) } else { None }
    }

    /// Returns the memory of the list, for checks of overlap.
    pub(crate) fn buffer(self) -> RawBuffer {
        let each = usize::try_from(self.bytes_each()).unwrap_or(usize::MAX);
        DeviceBuffer::new(self.address, self.len.saturating_mul(each)).first(None)
    }

    /// Checks that the list is aligned, is not null and ends inside the address space.
    ///
    /// # Errors
    /// Returns [`CudaError::Address`] or [`CudaError::ListWraps`] if no device can read the list. An empty
    /// list may have any address.
    pub(crate) fn check(self, list: LaunchArgument) -> Result<(), CudaError> {
        let (address, alignment) = (self.address, self.bytes_each());
        if self.len > 0 && (address == 0 || !address.is_multiple_of(alignment)) {
            return Err(CudaError::Address { list, address, alignment });
        }
        if self.buffer().wraps() {
            return Err(CudaError::ListWraps { list, address, bytes: self.buffer().len });
        }
        Ok(())
    }

    fn bytes_each(self) -> u64 {
        match self.width {
            Width::I32 => 4,
            Width::I64 => 8,
        }
    }
}

/// The lists of a launch, on the device. The counterpart on the CPU is [`kvscatter::Call`].
///
/// The device reads the lists when the launch runs. In a captured graph it reads them at every replay.
///
/// ```
/// use kvscatter_cuda::{DeviceList, DeviceCallIndices};
///
/// # let (write_indices, lengths) = (0x1000, 0x2000);
/// let ragged = DeviceCallIndices::new(DeviceList::i64(write_indices, 8)).lengths(DeviceList::i32(lengths, 8));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCallIndices {
    pub(crate) positions: Option<DeviceList>,
    pub(crate) lengths: Option<DeviceList>,
    pub(crate) row_counts: Option<DeviceList>,
    pub(crate) layer: Option<DeviceList>,
}

impl DeviceCallIndices {
    /// Creates indices without lists. Every sample then begins at slot 0, if the operator allows that.
    #[must_use]
    pub const fn zero() -> Self {
        Self { positions: None, lengths: None, row_counts: None, layer: None }
    }

    /// Creates indices with these positions: `write_indices`, `writeIndices`, `tokenOffset`, or the slots of
    /// a slot mapping.
    #[must_use]
    pub const fn new(positions: DeviceList) -> Self {
        Self { positions: Some(positions), ..Self::zero() }
    }

    /// Adds the lengths. Only the first `lengths[i]` rows of sample `i` are written. kvscatter extension; not
    /// part of the specification.
    #[must_use]
    pub const fn lengths(self, lengths: DeviceList) -> Self {
        Self { lengths: Some(lengths), ..self }
    }

    /// Adds Ascend's `seqLen`, or TensorRT's `updateLengths`, the cumulative lengths from 0 with one value
    /// more than there are samples.
    #[must_use]
    pub const fn row_counts(self, row_counts: DeviceList) -> Self {
        Self { row_counts: Some(row_counts), ..self }
    }

    /// Adds Ascend's `layerId` at the address of one 32-bit integer.
    #[must_use]
    pub const fn layer(self, address: u64) -> Self {
        Self { layer: Some(DeviceList::i32(address, 1)), ..self }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (LaunchArgument, DeviceList)> {
        let lists = [
            (LaunchArgument::Positions, self.positions),
            (LaunchArgument::Lengths, self.lengths),
            (LaunchArgument::RowCounts, self.row_counts),
            (LaunchArgument::Layer, self.layer),
        ];
        lists.into_iter().filter_map(|(list, numbers)| Some((list, numbers?)))
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressRanges, DeviceBuffer, DeviceList};
    use crate::CudaError;
    use crate::launch_argument::LaunchArgument;

    #[test]
    fn a_list_that_leaves_the_address_space_is_refused() {
        let last = u64::MAX - 15;
        let list = LaunchArgument::Positions;
        for (numbers, expected) in [
            (DeviceList::i64(last, 0), Ok(())),
            (DeviceList::i64(last, 1), Ok(())),
            (DeviceList::i64(last, 2), Err(CudaError::ListWraps { list, address: last, bytes: 16 })),
            (DeviceList::i32(last, 3), Ok(())),
            (DeviceList::i32(last, 4), Err(CudaError::ListWraps { list, address: last, bytes: 16 })),
            (
                DeviceList::i64(8, usize::MAX),
                Err(CudaError::ListWraps { list, address: 8, bytes: usize::MAX }),
            ),
        ] {
            let refused = |checked: Result<(), CudaError>| checked.map_err(|error| error.to_string());
            assert_eq!(refused(numbers.check(list)), refused(expected), "{numbers:?}");
        }
    }

    #[test]
    fn ranges_overlap_exactly_if_a_buffer_does() {
        let raw = |(address, bytes): (u64, usize)| DeviceBuffer::new(address, bytes).first(None);
        let sets: [&[(u64, usize)]; 5] =
            [&[], &[(4, 3)], &[(9, 1), (2, 3)], &[(1, 12), (3, 1), (15, 2)], &[(5, 0), (u64::MAX - 1, 9)]];
        for set in sets {
            let ranges = AddressRanges::from_buffers(set.iter().copied().map(raw));
            for (address, bytes) in
                (0..20).chain([u64::MAX - 2]).flat_map(|at| (0..5).map(move |bytes| (at, bytes)))
            {
                let other = raw((address, bytes));
                let expected = set.iter().any(|&buffer| raw(buffer).overlaps(other));
                assert_eq!(ranges.overlap(other), expected, "{set:?} {address} {bytes}");
            }
        }
    }
}
