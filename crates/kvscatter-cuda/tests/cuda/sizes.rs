//! Shapes of real decoders, which the oracle's cases are too small for: several blocks, several runs for a thread, runs that
//! are longer than a block, held against the core.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode, OutOfRange};
use kvscatter_cuda::{DeviceList, Indices, Pair};
use kvscatter_oracle::cases::Random;

use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, buffer};
use crate::scene::status_of;

/// `[batch, heads, slots, head size]` and the rows of the update.
struct Size {
    cache: [usize; 4],
    rows: usize,
    element: ElementType,
    /// Bytes that a thread moves at a time, as far as there are whole bytes.
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

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn writes_of_any_size_are_those_of_the_core() {
    for (number, Size { cache, rows, element, width }) in SIZES.iter().enumerate() {
        for mode in [Mode::Linear, Mode::Circular] {
            let random = &mut Random::new(41, number);
            let update = [cache[0], cache[1], *rows, cache[3]];
            let write = TensorScatter::new().mode(mode).out_of_range(OutOfRange::SkipSample);
            let write = write.prepare(*element, cache, &update).unwrap();
            let geometry = write.geometry();
            let starts = random.many(cache[0], |random| random.below(cache[2] + 3) as i64 - 1);
            let lengths = random.many(cache[0], |random| random.between(0, *rows) as i64);
            let paint =
                |bytes: usize, by: usize| (0..bytes).map(|at| (at * by % 251) as u8).collect::<Vec<_>>();
            let words = geometry.cache_bytes().unwrap().next_multiple_of(4);
            let (past, new) = (paint(words, 7), paint(geometry.update_bytes().unwrap(), 3));
            for lengths in [None, Some(lengths)] {
                let mut expected = past.clone();
                let plan = write.plan_lengths(&starts, lengths.as_deref()).unwrap();
                let of_cache = &mut expected[..geometry.cache_bytes().unwrap()];
                let skipped = plan.write_bytes(of_cache, &new).unwrap().skipped;

                let rig = Rig::new(0);
                let caches = [&past, &past, &past].map(|past| Memory::of(past));
                let update = Memory::of(&new);
                let pairs =
                    caches.each_ref().map(|cache| Pair { cache: buffer(cache), update: buffer(&update) });
                let of_device = cuda().prepare(geometry, &pairs).unwrap();
                assert_eq!(of_device.width(), *width, "{cache:?}");
                let list = Memory::of_i64(&starts);
                let mut indices = Indices::new(DeviceList::i64(list.address, starts.len()));
                let held = lengths.as_ref().map(|lengths| Memory::of_i64(lengths));
                if let Some(held) = &held {
                    indices = indices.lengths(DeviceList::i64(held.address, starts.len()));
                }
                rig.launch_with(&of_device, &indices).unwrap();
                rig.stream.synchronize();
                for memory in &caches {
                    assert!(memory.read() == expected, "{cache:?} {rows} {mode:?} {lengths:?}");
                }
                assert_eq!(status_of(&rig.status).bad_samples as usize, skipped, "{cache:?} {mode:?}");
            }
        }
    }
}
