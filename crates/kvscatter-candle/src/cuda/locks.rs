//! Locks candle's storages while their addresses are used.

use std::cell::RefCell;
use std::collections::BTreeMap;

use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use candle_core::{CpuStorage, CudaStorage, DType, InplaceOp1, Layout, Storage, Tensor};
use kvscatter::Argument;
use kvscatter::error::LengthUnit;
use kvscatter_cuda::{DeviceBuffer, DeviceList};

use super::launch::TensorView;
use crate::CandleError;
use crate::writer::storage_of;

/// The use of a tensor's storage.
#[derive(Clone, Copy)]
pub(super) enum Lock<'a> {
    Read(&'a Tensor),
    Written(&'a Tensor),
}

/// The locked storages of a call, by their identity.
#[derive(Default)]
pub(super) struct LockedStorages {
    storages: BTreeMap<usize, LockedStorage>,
}

#[derive(Clone, Copy)]
struct LockedStorage {
    buffer: DeviceBuffer,
    /// Whether the call's stream and the storage's own stream are ordered.
    is_ordered: bool,
}

impl LockedStorages {
    /// Returns the memory from a tensor's first element on.
    pub(super) fn buffer(&self, view: &TensorView) -> DeviceBuffer {
        let storage = self.storages.get(&view.storage);
        let DeviceBuffer { address, bytes } =
            storage.map_or(DeviceBuffer::new(0, 0), |storage| storage.buffer);
        DeviceBuffer::new(address.saturating_add(view.begin as u64), bytes.saturating_sub(view.begin))
    }

    pub(super) fn address(&self, view: &TensorView) -> u64 {
        self.buffer(view).address
    }

    /// Returns a tensor of `i64` or `i32` as a list. Checks that its memory is as large as its shape
    /// requires, which candle does not check.
    pub(super) fn list(&self, argument: Argument, view: &TensorView) -> Result<DeviceList, CandleError> {
        let (DeviceBuffer { address, bytes }, expected) = (self.buffer(view), view.elements());
        let (list, got) = match view.typed_layout.dtype {
            DType::I64 => (DeviceList::i64(address, expected), bytes / size_of::<i64>()),
            _ => (DeviceList::i32(address, expected), bytes / size_of::<i32>()),
        };
        if got < expected {
            let unit = LengthUnit::Elements;
            let short =
                kvscatter::Error::BufferLength { argument, pair: 0, got, expected, unit, exact: false };
            return Err(short.into());
        }
        Ok(list)
    }

    pub(super) fn check_order(&self, argument: Argument, view: &TensorView) -> Result<(), CandleError> {
        match self.storages.get(&view.storage) {
            Some(LockedStorage { is_ordered: true, .. }) => Ok(()),
            _ => Err(CandleError::OtherStream { argument }),
        }
    }
}

/// Calls `then` while all storages are locked.
///
/// The storages are locked in the order of their addresses, as in candle, so that threads do not deadlock.
/// The stream waits for the work of other streams on the storages.
pub(super) fn with_locked<'a>(
    locks: impl IntoIterator<Item = Lock<'a>>,
    stream: &CudaStream,
    then: &mut dyn FnMut(&LockedStorages) -> Result<(), CandleError>,
) -> Result<(), CandleError> {
    let distinct = distinct(locks);
    let mut outcome = Ok(());
    let mut then = |locked: &LockedStorages| outcome = then(locked);
    let level =
        Level { rest: &distinct, stream, locked: &RefCell::default(), then: &RefCell::new(&mut then) };
    level.descend()?;
    outcome
}

/// Returns one lock for each storage. It is for writing if any of the storage's tensors is written.
fn distinct<'a>(locks: impl IntoIterator<Item = Lock<'a>>) -> Vec<(usize, Lock<'a>)> {
    let mut storages = BTreeMap::new();
    for lock in locks {
        let (Lock::Read(tensor) | Lock::Written(tensor)) = lock;
        let kept = storages.entry(storage_of(tensor)).or_insert(lock);
        if let Lock::Written(_) = lock {
            *kept = lock;
        }
    }
    storages.into_iter().collect()
}

/// A step of the recursion, with the storages that are not locked yet.
struct Level<'a> {
    rest: &'a [(usize, Lock<'a>)],
    stream: &'a CudaStream,
    locked: &'a RefCell<LockedStorages>,
    then: &'a RefCell<&'a mut dyn FnMut(&LockedStorages)>,
}

impl Level<'_> {
    /// Locks the next storage and then the rest.
    fn descend(&self) -> candle_core::Result<()> {
        match self.rest.first() {
            None => {
                self.stream.context().bind_to_thread().map_err(candle_core::Error::wrap)?;
                (self.then.borrow_mut())(&self.locked.borrow());
                Ok(())
            }
            Some((_, Lock::Written(tensor))) => tensor.inplace_op1(self),
            Some((_, Lock::Read(tensor))) => match &*tensor.storage_and_layout().0 {
                Storage::Cuda(storage) => {
                    let is_ordered = are_ordered(self.stream, stream_of(storage));
                    let (buffer, _until_launched) = to_read(storage, self.stream);
                    self.next(LockedStorage { buffer, is_ordered })
                }
                _ => candle_core::bail!("a tensor has left its device"),
            },
        }
    }

    fn next(&self, storage: LockedStorage) -> candle_core::Result<()> {
        let Some(((identity, _), rest)) = self.rest.split_first() else { return Ok(()) };
        self.locked.borrow_mut().storages.insert(*identity, storage);
        Level { rest, ..*self }.descend()
    }
}

impl InplaceOp1 for Level<'_> {
    fn name(&self) -> &'static str {
        "tensor-scatter"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("a tensor has left its device")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let is_ordered = are_ordered(self.stream, stream_of(storage));
        let (buffer, _until_launched) = to_write(storage, self.stream);
        self.next(LockedStorage { buffer, is_ordered })
    }
}

/// Returns `true` if the work of two streams on one storage is ordered.
///
/// It is ordered if they are the same stream. It is also ordered by the events that cudarc keeps for
/// storages, if the contexts of both streams use them. A context whose only stream is that of
/// `Device::new_cuda` neither waits for events nor records them. A program that orders all work itself may
/// have disabled events.
fn are_ordered(ours: &CudaStream, theirs: &CudaStream) -> bool {
    let is_alone = |stream: &CudaStream| {
        stream.context().is_event_tracking() && !stream.context().is_in_multi_stream_mode()
    };
    ours == theirs || (ours.context() == theirs.context() && !is_alone(ours) && !is_alone(theirs))
}

/// Evaluates an expression with the slice of a storage of any type.
macro_rules! with_slice {
    ($storage:expr, $slice:ident => $result:expr) => {{
        use CudaStorageSlice as S;
        match $storage {
            S::U8($slice) | S::F6E2M3($slice) | S::F6E3M2($slice) | S::F4($slice) | S::F8E8M0($slice) => {
                $result
            }
            S::U32($slice) => $result,
            S::I16($slice) => $result,
            S::I32($slice) => $result,
            S::I64($slice) => $result,
            S::BF16($slice) => $result,
            S::F16($slice) => $result,
            S::F32($slice) => $result,
            S::F64($slice) => $result,
            S::F8E4M3($slice) => $result,
        }
    }};
}

/// Returns the stream on which a storage was allocated and will be freed.
fn stream_of(storage: &CudaStorage) -> &CudaStream {
    with_slice!(&storage.slice, slice => slice.stream())
}

fn to_read<'a>(storage: &'a CudaStorage, stream: &'a CudaStream) -> (DeviceBuffer, SyncOnDrop<'a>) {
    with_slice!(&storage.slice, slice => {
        let (address, until_launched) = slice.device_ptr(stream);
        (DeviceBuffer::new(address, slice.num_bytes()), until_launched)
    })
}

fn to_write<'a>(storage: &'a mut CudaStorage, stream: &'a CudaStream) -> (DeviceBuffer, SyncOnDrop<'a>) {
    with_slice!(&mut storage.slice, slice => {
        let bytes = slice.num_bytes();
        let (address, until_launched) = slice.device_ptr_mut(stream);
        (DeviceBuffer::new(address, bytes), until_launched)
    })
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::{Lock, distinct};

    #[test]
    fn a_storage_that_is_read_and_written_is_locked_to_be_written() {
        let whole = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        let row = whole.narrow(0, 1, 1).unwrap();
        for locks in [[Lock::Read(&row), Lock::Written(&whole)], [Lock::Written(&row), Lock::Read(&whole)]] {
            assert!(matches!(*distinct(locks), [(_, Lock::Written(_))]));
        }
        assert!(matches!(*distinct([Lock::Read(&row), Lock::Read(&whole)]), [(_, Lock::Read(_))]));
    }
}
