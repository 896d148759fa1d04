//! Checks that a status overlaps no list, update or past, which a launch reads while it writes the status. It
//! must not overlap other memory that is written either.

use std::ops::Range;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{ElementType, Geometry, Prepared};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite,
    LaunchArgument, PresentBuffers, Stream as OfCaller,
};

use crate::device::{Memory, Stream};
use crate::host::cuda;

const HALF: ElementType = ElementType::Float16;
const PAST: u8 = 0xEE;

/// All buffers and lists of one write in one piece of memory, with room for a status between any two.
struct Arena {
    memory: Memory,
    used: usize,
    places: Vec<(Range<usize>, Place)>,
}

#[derive(Clone, Copy)]
enum Place {
    /// A list, an update or a past.
    Read,
    /// A cache or a present, with its index in the call.
    Written(usize),
}

impl Arena {
    fn new() -> Self {
        Self { memory: Memory::from_bytes(&[0; 1024]), used: 0, places: Vec::new() }
    }

    /// Stores these bytes at an address that is `by` bytes above a multiple of 8, and returns their buffer.
    fn put(&mut self, place: Place, by: usize, bytes: &[u8]) -> DeviceBuffer {
        let begin = self.used.next_multiple_of(8) + 24 + by;
        let mut all = self.memory.read();
        all[begin..][..bytes.len()].copy_from_slice(bytes);
        self.memory.fill(&all);
        self.used = begin + bytes.len();
        self.places.push((begin..self.used, place));
        DeviceBuffer::new(self.memory.address + begin as u64, bytes.len())
    }

    fn i64(&mut self, values: &[i64]) -> DeviceList {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        DeviceList::i64(self.put(Place::Read, 0, &bytes).address, values.len())
    }

    /// Stores a list that begins and ends in the middle of a word of a status.
    fn i32(&mut self, values: &[i32]) -> DeviceList {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        DeviceList::i32(self.put(Place::Read, 4, &bytes).address, values.len())
    }

    fn pair(&mut self, number: usize, geometry: &Geometry) -> BufferPair {
        let cache = self.put(Place::Written(number), 2, &vec![PAST; geometry.cache_bytes().unwrap()]);
        let update = self.put(Place::Read, 6, &vec![7; geometry.update_bytes().unwrap()]);
        BufferPair { cache, update }
    }

    fn triple(&mut self, number: usize, geometry: &Geometry) -> PresentBuffers {
        let present = self.put(Place::Written(number), 2, &vec![0; geometry.present_bytes().unwrap()]);
        let past = self.put(Place::Read, 4, &vec![PAST; geometry.cache_bytes().unwrap()]);
        let update = self.put(Place::Read, 6, &vec![7; geometry.update_bytes().unwrap()]);
        PresentBuffers { present, past, update }
    }

    /// Tries a status at every address. It is an error exactly if it shares a byte with any of the places.
    fn check(&self, write: &DeviceWrite, indices: &DeviceCallIndices) {
        let (before, stream) = (self.memory.read(), Stream::new());
        // SAFETY: Buffers and lists are in `self.memory` with the sizes given here. A status that overlaps
        // them is rejected, and any other status has 16 bytes there.
        let launch = |status| unsafe { write.launch(OfCaller::new(stream.0), indices, Some(status)) };
        let mut seen = vec![0; self.places.len()];
        let mut free = None;
        for at in (0..self.used + 24).step_by(8) {
            let status = DeviceStatus::at(self.memory.address + at as u64).unwrap();
            let touched = self.places.iter().position(|(place, _)| place.start < at + 16 && at < place.end);
            let Some(touched) = touched else {
                write.check_indices(indices, Some(status)).unwrap();
                free = Some((status, at));
                continue;
            };
            seen[touched] += 1;
            let refused = launch(status);
            let is_it = match self.places[touched].1 {
                Place::Read => matches!(refused, Err(CudaError::StatusShared)),
                Place::Written(number) => {
                    matches!(refused, Err(CudaError::Overlap { list: LaunchArgument::Status, pair }) if pair == number)
                }
            };
            assert!(is_it, "{at} in {:?}: {refused:?}", self.places[touched].0);
        }
        assert!(seen.iter().all(|&addresses| addresses > 1), "{seen:?}");
        stream.synchronize();
        assert_eq!(self.memory.read(), before, "a launch that is refused writes nothing");

        // The same launch with a separate status finds nothing bad, and changes only the memory that it
        // writes.
        let (status, at) = free.unwrap();
        launch(status).unwrap();
        stream.synchronize();
        let after = self.memory.read();
        assert_eq!(after[at..at + 16], [0; 16]);
        for (bytes, place) in &self.places {
            let is_as_before = after[bytes.clone()] == before[bytes.clone()];
            assert_eq!(is_as_before, matches!(place, Place::Read), "{bytes:?}");
        }
    }
}

/// Prepares a packed update of 2 samples with one row each, which takes starts, lengths and cumulative
/// lengths.
fn packed() -> Prepared {
    KvCacheUpdate::new().prepare_packed(HALF, &[2, 1, 4, 2], &[2, 1, 2]).unwrap()
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_status_lies_in_no_cache_update_or_list() {
    let mut arena = Arena::new();
    let pairs = [0, 1].map(|number| arena.pair(number, packed().geometry()));
    let write = cuda().prepare(&packed(), &pairs).unwrap();
    let (starts, lengths) = (arena.i64(&[3, 0]), arena.i32(&[1, 1]));
    let indices = DeviceCallIndices::new(starts).lengths(lengths).row_counts(arena.i32(&[0, 1, 2]));
    arena.check(&write, &indices);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_status_does_not_lie_on_the_layer() {
    let mut arena = Arena::new();
    let write = KvCacheOperation::new().prepare(HALF, &[2, 2, 4, 2], &[2, 2]).unwrap();
    let pair = arena.pair(0, write.geometry());
    let write = cuda().prepare(&write, &[pair]).unwrap();
    let (ends, rows) = (arena.i32(&[4, 1]), arena.i64(&[1, 1]));
    let layer = arena.put(Place::Read, 4, &1_i32.to_ne_bytes());
    arena.check(&write, &DeviceCallIndices::new(ends).row_counts(rows).layer(layer.address));
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_status_lies_in_no_slot_mapping() {
    let mut arena = Arena::new();
    let shapes = KvCacheUpdate::new().prepare(HALF, &[1, 1, 5, 2], &[1, 1, 3, 2]).unwrap();
    let pair = arena.pair(0, shapes.geometry());
    let write = cuda().prepare_slots(&shapes, &[pair]).unwrap();
    let slots = arena.i64(&[4, -1, 0]);
    arena.check(&write, &DeviceCallIndices::new(slots));
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn a_status_lies_in_no_present_and_in_nothing_that_it_is_made_from() {
    let mut arena = Arena::new();
    let triples = [0, 1].map(|number| arena.triple(number, packed().geometry()));
    let write = cuda().prepare_present(&packed(), &triples).unwrap();
    let (starts, lengths) = (arena.i32(&[3, 0]), arena.i64(&[1, 1]));
    let indices = DeviceCallIndices::new(starts).lengths(lengths).row_counts(arena.i64(&[0, 1, 2]));
    arena.check(&write, &indices);
}
