//! Memory on a device, by address and length. Nothing here follows an address.

use std::ptr;

use kvscatter::RawBuffer;

use crate::CudaError;
use crate::abi::Address;
use crate::list::List;

/// The memory of one tensor on a device: at least the bytes that its geometry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    /// Where the first byte lies. Of a buffer without bytes it may be any address.
    pub address: u64,
    /// Bytes from there on that may be used.
    pub bytes: usize,
}

/// A cache and its update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// What is written.
    pub cache: DeviceBuffer,
    /// What it is written from.
    pub update: DeviceBuffer,
}

/// The tensors of the functional form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentBuffers {
    /// What is written, all of it: a dense tensor.
    pub present: DeviceBuffer,
    /// The cache as it was.
    pub past: DeviceBuffer,
    /// What is new.
    pub update: DeviceBuffer,
}

impl DeviceBuffer {
    /// So many bytes from an address on.
    #[must_use]
    pub const fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// As many of its bytes as a tensor takes, for checks of what lies where.
    pub(crate) fn first(self, bytes: Option<usize>) -> RawBuffer {
        // The address space of a device is as large as the host's: `abi` asserts it.
        let address = usize::try_from(self.address).unwrap_or(usize::MAX);
        let len = bytes.map_or(self.bytes, |bytes| bytes.min(self.bytes));
        RawBuffer { ptr: ptr::without_provenance_mut(address), len }
    }
}

/// Where many buffers lie, to find out quickly whether another one shares a byte with any of them.
#[derive(Debug)]
pub(crate) struct Places {
    /// The first byte of each, ascending, and the end of all up to it.
    ascending: Vec<[usize; 2]>,
}

impl Places {
    pub(crate) fn of(buffers: impl Iterator<Item = RawBuffer>) -> Self {
        let buffers = buffers.filter(|buffer| buffer.len > 0);
        let mut ascending: Vec<[usize; 2]> = buffers.map(ends).collect();
        ascending.sort_unstable();
        let mut end = 0;
        for place in &mut ascending {
            end = end.max(place[1]);
            place[1] = end;
        }
        Self { ascending }
    }

    pub(crate) fn share(&self, buffer: RawBuffer) -> bool {
        let [begin, end] = ends(buffer);
        let before = self.ascending.partition_point(|place| place[0] < end);
        buffer.len > 0
            && self.ascending.get(..before).and_then(<[_]>::last).is_some_and(|place| begin < place[1])
    }
}

fn ends(buffer: RawBuffer) -> [usize; 2] {
    [buffer.ptr.addr(), buffer.ptr.addr().saturating_add(buffer.len)]
}

/// A list of whole numbers on a device.
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
    /// A list of 64-bit numbers.
    #[must_use]
    pub const fn i64(address: u64, len: usize) -> Self {
        Self { address, len, width: Width::I64 }
    }

    /// A list of 32-bit numbers.
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

    /// Where a number lies; `None` if there are fewer.
    pub(crate) fn place(self, index: usize) -> Option<Address> {
        let offset = u64::try_from(index).ok()?.checked_mul(self.bytes_each())?;
        if index < self.len { self.address.checked_add(offset) } else { None }
    }

    /// Where it lies, for checks.
    pub(crate) fn buffer(self) -> RawBuffer {
        let each = usize::try_from(self.bytes_each()).unwrap_or(usize::MAX);
        DeviceBuffer::new(self.address, self.len.saturating_mul(each)).first(None)
    }

    /// # Errors
    /// [`CudaError::Address`] and [`CudaError::ListWraps`] if no device can read it. An empty list may lie anywhere.
    pub(crate) fn check(self, list: List) -> Result<(), CudaError> {
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

/// What a launch reads on the device, all of it when the launch runs: in a captured graph, whenever it is replayed.
///
/// ```
/// use kvscatter_cuda::{DeviceList, Indices};
///
/// # let (write_indices, lengths) = (0x1000, 0x2000);
/// let ragged = Indices::new(DeviceList::i64(write_indices, 8)).lengths(DeviceList::i32(lengths, 8));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Indices {
    pub(crate) starts: Option<DeviceList>,
    pub(crate) lengths: Option<DeviceList>,
    pub(crate) row_counts: Option<DeviceList>,
    pub(crate) layer: Option<DeviceList>,
}

impl Indices {
    /// Every sample from slot 0, where the operator allows it.
    #[must_use]
    pub const fn zero() -> Self {
        Self { starts: None, lengths: None, row_counts: None, layer: None }
    }

    /// The positions: `write_indices`, `writeIndices`, `tokenOffset`, or the slots of a slot mapping.
    #[must_use]
    pub const fn new(starts: DeviceList) -> Self {
        Self { starts: Some(starts), ..Self::zero() }
    }

    /// An extension of ours: only the first `lengths[i]` rows of sample `i` are written.
    #[must_use]
    pub const fn lengths(self, lengths: DeviceList) -> Self {
        Self { lengths: Some(lengths), ..self }
    }

    /// TensorRT's `updateLengths` (cumulative lengths from 0, one more than samples), or Ascend's `seqLen`.
    #[must_use]
    pub const fn row_counts(self, row_counts: DeviceList) -> Self {
        Self { row_counts: Some(row_counts), ..self }
    }

    /// Ascend's `layerId`: the address of one 32-bit number.
    #[must_use]
    pub const fn layer(self, address: u64) -> Self {
        Self { layer: Some(DeviceList::i32(address, 1)), ..self }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (List, DeviceList)> {
        let lists = [
            (List::Positions, self.starts),
            (List::Lengths, self.lengths),
            (List::RowCounts, self.row_counts),
            (List::Layer, self.layer),
        ];
        lists.into_iter().filter_map(|(list, numbers)| Some((list, numbers?)))
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceBuffer, DeviceList, Places};
    use crate::CudaError;
    use crate::list::List;

    #[test]
    fn a_list_that_leaves_the_address_space_is_refused() {
        let last = u64::MAX - 15;
        let list = List::Positions;
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
    fn places_are_shared_exactly_if_a_buffer_overlaps() {
        let raw = |(address, bytes): (u64, usize)| DeviceBuffer::new(address, bytes).first(None);
        let sets: [&[(u64, usize)]; 5] =
            [&[], &[(4, 3)], &[(9, 1), (2, 3)], &[(1, 12), (3, 1), (15, 2)], &[(5, 0), (u64::MAX - 1, 9)]];
        for set in sets {
            let places = Places::of(set.iter().copied().map(raw));
            for (address, bytes) in
                (0..20).chain([u64::MAX - 2]).flat_map(|at| (0..5).map(move |bytes| (at, bytes)))
            {
                let other = raw((address, bytes));
                let expected = set.iter().any(|&buffer| raw(buffer).overlaps(other));
                assert_eq!(places.share(other), expected, "{set:?} {address} {bytes}");
            }
        }
    }
}
