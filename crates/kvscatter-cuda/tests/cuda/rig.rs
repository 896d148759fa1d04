//! Any number of a small decoder's caches. Each has 2 samples, 4 slots and rows of 8 bytes, and gets one row
//! for each sample.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Prepared};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite,
    PresentBuffers, StatusWords, Stream as OfCaller,
};

use crate::device::{Memory, Stream};
use crate::fake::is_fake;
use crate::host::cuda;
use crate::scene::status_of;

pub(crate) const SAMPLES: usize = 2;
pub(crate) const SLOTS: usize = 4;
pub(crate) const ROW: usize = 8;
const OLD: u8 = 0xEE;

pub(crate) fn shapes() -> Prepared {
    let write = TensorScatter::new().axis(1);
    write.prepare(ElementType::UInt8, &[SAMPLES, SLOTS, ROW], &[SAMPLES, 1, ROW]).unwrap()
}

pub(crate) struct Rig {
    pub(crate) caches: Vec<Memory>,
    pub(crate) updates: Vec<Memory>,
    pub(crate) starts: Memory,
    pub(crate) status: Memory,
    pub(crate) stream: Stream,
}

impl Rig {
    /// Creates a rig with this number of caches, each with a separate update.
    pub(crate) fn new(caches: usize) -> Self {
        Self {
            caches: (0..caches).map(|_| Memory::from_bytes(&[OLD; SAMPLES * SLOTS * ROW])).collect(),
            updates: (0..caches).map(|number| Memory::from_bytes(&update(number))).collect(),
            starts: Memory::of_i64(&[0; SAMPLES]),
            status: Memory::from_bytes(&[0; size_of::<StatusWords>()]),
            stream: Stream::new(),
        }
    }

    /// Returns `None` if the driver is that of a device.
    pub(crate) fn simulated(caches: usize) -> Option<Self> {
        is_fake().then(|| Self::new(caches))
    }

    pub(crate) fn pairs(&self) -> Vec<BufferPair> {
        let pairs = self.caches.iter().zip(&self.updates);
        pairs.map(|(cache, update)| BufferPair { cache: buffer(cache), update: buffer(update) }).collect()
    }

    pub(crate) fn write(&self) -> DeviceWrite {
        cuda().prepare(&shapes(), &self.pairs()).unwrap()
    }

    /// Prepares the functional form, with the caches as the pasts of the presents.
    pub(crate) fn present(&self, presents: &[Memory]) -> DeviceWrite {
        let triples = presents.iter().zip(self.pairs());
        let triples = triples.map(|(present, BufferPair { cache, update })| PresentBuffers {
            present: buffer(present),
            past: cache,
            update,
        });
        cuda().prepare_present(&shapes(), &triples.collect::<Vec<_>>()).unwrap()
    }

    pub(crate) fn indices(&self) -> DeviceCallIndices {
        DeviceCallIndices::new(DeviceList::i64(self.starts.address, SAMPLES))
    }

    pub(crate) fn of_caller(&self) -> OfCaller {
        OfCaller::new(self.stream.0)
    }

    pub(crate) fn status(&self) -> DeviceStatus {
        DeviceStatus::at(self.status.address).unwrap()
    }

    pub(crate) fn launch(&self, write: &DeviceWrite) -> Result<(), CudaError> {
        self.launch_with(write, &self.indices())
    }

    pub(crate) fn launch_with(
        &self,
        write: &DeviceWrite,
        indices: &DeviceCallIndices,
    ) -> Result<(), CudaError> {
        // SAFETY: Caches, updates, positions and status are memory of this rig with the sizes given here, and
        // live until its stream was waited for. Tests with wrong addresses give only addresses that the host
        // code rejects.
        unsafe { write.launch(self.of_caller(), indices, Some(self.status())) }
    }

    /// Launches with these starts, waits, and returns the status.
    pub(crate) fn run(&self, write: &DeviceWrite, starts: [i64; SAMPLES]) -> StatusWords {
        self.starts.fill(&starts.map(i64::to_ne_bytes).concat());
        self.launch(write).unwrap();
        self.stream.synchronize();
        status_of(&self.status)
    }

    /// Launches with these indices and a status of zeros, and waits. Returns the status.
    pub(crate) fn run_with(&self, write: &DeviceWrite, indices: &DeviceCallIndices) -> StatusWords {
        self.status.fill(&[0; size_of::<StatusWords>()]);
        self.launch_with(write, indices).unwrap();
        self.stream.synchronize();
        status_of(&self.status)
    }

    /// Returns the error of the last launch with these indices.
    pub(crate) fn check_with(
        &self,
        write: &DeviceWrite,
        indices: &DeviceCallIndices,
    ) -> Result<(), CudaError> {
        // SAFETY: The 16 bytes of the status are memory of this rig, whose stream was waited for. Tests give lists of
        // live memory.
        unsafe { write.check(self.status(), indices) }
    }

    pub(crate) fn check(&self, write: &DeviceWrite) -> Result<(), CudaError> {
        self.check_with(write, &self.indices())
    }

    /// Checks that every cache equals the result of writes at these starts, one after the other. `None`
    /// leaves a sample as it is.
    pub(crate) fn assert_written(&self, starts: &[[Option<usize>; SAMPLES]]) {
        for (number, cache) in self.caches.iter().enumerate() {
            assert_eq!(cache.read(), written(number, starts), "cache {number}");
        }
    }
}

/// Returns a cache after such writes.
pub(crate) fn written(number: usize, starts: &[[Option<usize>; SAMPLES]]) -> Vec<u8> {
    let mut cache = vec![OLD; SAMPLES * SLOTS * ROW];
    for (sample, slot) in starts.iter().flat_map(|starts| starts.iter().enumerate()) {
        if let Some(slot) = slot {
            let row = update(number)[sample * ROW..][..ROW].to_vec();
            cache[(sample * SLOTS + slot) * ROW..][..ROW].copy_from_slice(&row);
        }
    }
    cache
}

fn update(number: usize) -> Vec<u8> {
    (0..SAMPLES * ROW).map(|at| (number * 7 + at) as u8).collect()
}

pub(crate) fn buffer(memory: &Memory) -> DeviceBuffer {
    DeviceBuffer::new(memory.address, memory.bytes)
}
