//! Compares shapes of real decoders with the core. The oracle's cases are too small for several blocks,
//! several runs for a thread, and runs that are longer than a block.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode, OutOfRange, Prepared, WritePlan};
use kvscatter_cuda::{BufferPair, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceWrite, PresentBuffers};
use kvscatter_oracle::cases::Random;

use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, buffer};

/// The cache's shape, `[batch, heads, slots, head size]`, and the number of rows in the update.
struct Size {
    cache: [usize; 4],
    rows: usize,
    element: ElementType,
    /// The number of bytes that a thread moves at a time, or `None` for 4-bit rows that straddle bytes.
    width: Option<usize>,
}

const fn size(cache: [usize; 4], rows: usize, element: ElementType, width: Option<usize>) -> Size {
    Size { cache, rows, element, width }
}

const SIZES: &[Size] = &[
    size([64, 8, 32, 128], 1, ElementType::Float16, Some(16)),
    size([1, 8, 512, 128], 400, ElementType::BFloat16, Some(16)),
    size([2, 32, 400, 64], 300, ElementType::Float8E5M2, Some(16)), // 19,200 runs: several for a thread
    size([300, 1, 4, 8], 3, ElementType::Int8, Some(8)),            // more samples than a block has threads
    size([3, 1, 5, 5000], 2, ElementType::Float32, Some(16)),       // 1,250 vectors in a run
    size([2, 3, 40, 80], 17, ElementType::Float16, Some(16)),
    size([2, 3, 40, 65], 17, ElementType::Int8, Some(1)),
    size([5, 7, 33, 6], 11, ElementType::Float16, Some(4)),
    size([3, 5, 64, 33], 9, ElementType::Int4, None),
    size([2, 2, 24, 700], 9, ElementType::UInt4, Some(2)),
    size([2, 1, 9, 2301], 4, ElementType::Float4E2M1, None), // 288 words in a run
];

/// The value of the bytes before and after a present.
const GUARD: u8 = 0xEE;
const GUARDS: usize = 5;

/// A call on the CPU and on the device.
struct SizedCall {
    write: Prepared,
    starts: Vec<i64>,
    lengths: Option<Vec<i64>>,
    past: Vec<u8>,
    new: Vec<u8>,
}

impl SizedCall {
    /// Returns calls in rings and linear caches from any slot. Some of them do not fit.
    fn all(number: usize, Size { cache, rows, element, .. }: &Size) -> Vec<Self> {
        let update = [cache[0], cache[1], *rows, cache[3]];
        let random = &mut Random::new(41, number);
        let starts = random.many(cache[0], |random| random.below(cache[2] + 3) as i64 - 1);
        let lengths = random.many(cache[0], |random| random.between(0, *rows) as i64);
        let modes = [Mode::Linear, Mode::Circular].into_iter();
        let calls = modes.flat_map(|mode| [None, Some(&lengths)].map(|lengths| (mode, lengths)));
        let sized = |(mode, lengths): (Mode, Option<&Vec<i64>>)| {
            let write = TensorScatter::new().mode(mode).out_of_range(OutOfRange::SkipSample);
            let write = write.prepare(*element, cache, &update).unwrap();
            let geometry = write.geometry();
            let words = geometry.cache_bytes().unwrap().next_multiple_of(4);
            let (past, new) = (painted(words, 7), painted(geometry.update_bytes().unwrap(), 3));
            Self { starts: starts.clone(), lengths: lengths.cloned(), past, new, write }
        };
        calls.map(sized).collect()
    }

    fn plan(&self) -> WritePlan<'_> {
        self.write.plan_with_lengths(&self.starts, self.lengths.as_deref()).unwrap()
    }

    /// Launches the write and waits. Checks that the device counts the number of samples that the core has
    /// skipped.
    fn run(&self, write: &DeviceWrite, skipped: usize) {
        let (rig, list) = (Rig::new(0), Memory::of_i64(&self.starts));
        let held = self.lengths.as_ref().map(|lengths| Memory::of_i64(lengths));
        let mut indices = DeviceCallIndices::new(DeviceList::i64(list.address, self.starts.len()));
        if let Some(held) = &held {
            indices = indices.lengths(DeviceList::i64(held.address, self.starts.len()));
        }
        assert_eq!(rig.run_with(write, &indices).bad_samples as usize, skipped);
    }

    /// Runs the functional form at an offset of some bytes from a word. Checks that the present equals the
    /// core's, and that no other byte changes.
    fn present(&self, begin: usize) -> DeviceWrite {
        let geometry = self.write.geometry();
        let past = &self.past[..geometry.cache_bytes().unwrap()];
        let mut expected = vec![GUARD; begin + geometry.present_bytes().unwrap() + GUARDS];
        let place = begin..expected.len() - GUARDS;
        let of_present = &mut expected[place.clone()];
        let skipped = self.plan().write_present_bytes(past, &self.new, of_present).unwrap().skipped;

        let [past, update] = [past, &self.new].map(Memory::from_bytes);
        let present = Memory::from_bytes(&vec![GUARD; expected.len()]);
        let address = present.address + begin as u64;
        let triple = PresentBuffers {
            present: DeviceBuffer::new(address, place.len()),
            past: buffer(&past),
            update: buffer(&update),
        };
        let write = cuda().prepare_present(&self.write, &[triple]).unwrap();
        self.run(&write, skipped);
        assert!(present.read() == expected, "{:?} from {begin} on", self.plan());
        write
    }
}

fn painted(bytes: usize, by: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * by % 251) as u8).collect()
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn writes_of_any_size_are_those_of_the_core() {
    for (number, size) in SIZES.iter().enumerate() {
        for call in SizedCall::all(number, size) {
            let geometry = call.write.geometry();
            let mut expected = call.past.clone();
            let of_cache = &mut expected[..geometry.cache_bytes().unwrap()];
            let skipped = call.plan().write_bytes(of_cache, &call.new).unwrap().skipped;

            let (caches, update) =
                ([(); 3].map(|()| Memory::from_bytes(&call.past)), Memory::from_bytes(&call.new));
            let pairs =
                caches.each_ref().map(|cache| BufferPair { cache: buffer(cache), update: buffer(&update) });
            let write = cuda().prepare(&call.write, &pairs).unwrap();
            assert_eq!(write.width(), size.width, "{:?}", size.cache);
            call.run(&write, skipped);
            for memory in &caches {
                assert!(memory.read() == expected, "{:?} {:?}", size.cache, call.plan());
            }
        }
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn presents_of_any_size_are_those_of_the_core() {
    for (number, size) in SIZES.iter().enumerate() {
        for call in SizedCall::all(number, size) {
            let write = call.present(0);
            assert_eq!(write.width(), size.width, "{:?}", size.cache);
        }
    }
}

/// Checks that words of a present are distributed in lines of 32, for any number of words and any position of
/// the first.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn presents_of_half_bytes_begin_anywhere_and_end_anywhere() {
    let shapes = (1..600)
        .step_by(2)
        .map(|head| ([1, 1, 1, head], 1))
        .chain((40..120).map(|slots| ([1, 1, slots, 5], 3)));
    for (number, (cache, rows)) in shapes.enumerate() {
        let size = size(cache, rows, ElementType::Int4, None);
        for (begin, call) in SizedCall::all(number, &size).iter().enumerate() {
            assert_eq!(call.present(begin).width(), None);
        }
    }
}
