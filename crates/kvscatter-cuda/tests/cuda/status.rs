//! Tests values that no case of the oracle has: thousands of samples, and 64-bit ends.

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Prepared};
use kvscatter_cuda::{BufferPair, DeviceCallIndices, DeviceList, LaunchConfig, StatusWords};

use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, buffer};

const UNTOUCHED: u8 = 0xEE;

/// Writes ones into a new cache of one byte for each slot. Returns the status and the offsets that were written.
fn run(write: &Prepared, indices: &DeviceCallIndices, config: &LaunchConfig) -> (StatusWords, Vec<usize>) {
    let (geometry, rig) = (write.geometry(), Rig::new(0));
    let cache = Memory::from_bytes(&vec![UNTOUCHED; geometry.cache_bytes().unwrap()]);
    let update = Memory::from_bytes(&vec![1; geometry.update_bytes().unwrap()]);
    let pair = BufferPair { cache: buffer(&cache), update: buffer(&update) };
    let write = cuda().prepare(write, &[pair]).unwrap().with_launch_config(config);
    let status = rig.run_with(&write, indices);
    let bytes = cache.read();
    assert!(bytes.iter().all(|&byte| byte == 1 || byte == UNTOUCHED));
    (status, (0..bytes.len()).filter(|&at| bytes[at] == 1).collect())
}

fn status(bad_samples: u32, first_sample: u32, first_value: i64) -> StatusWords {
    StatusWords { bad_samples, first_sample, first_value }
}

/// Tests more samples than a block has threads, for any thread that finds the first bad sample.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn thousands_of_samples_are_counted_exactly() {
    const SAMPLES: usize = 3_000;
    for (bad, threads) in [(vec![2_999], 256), (vec![1, 257, 513, 2_000], 256), ((5..3_000).collect(), 64)] {
        let mut starts = vec![1; SAMPLES];
        bad.iter().for_each(|&sample: &usize| starts[sample] = 2 + sample as i64);
        let config = LaunchConfig { max_threads_per_block: threads, ..LaunchConfig::DEFAULT };
        let write = TensorScatter::new().axis(1);
        let write = write.prepare(ElementType::UInt8, &[SAMPLES, 2], &[SAMPLES, 1]).unwrap();
        let list = Memory::of_i64(&starts);
        let indices = DeviceCallIndices::new(DeviceList::i64(list.address, SAMPLES));
        let (found, written) = run(&write, &indices, &config);
        assert_eq!(found, status(bad.len() as u32, bad[0] as u32, starts[bad[0]]));
        let good = (0..SAMPLES).filter(|sample| !bad.contains(sample));
        assert_eq!(written, good.map(|sample| 2 * sample + 1).collect::<Vec<_>>());
    }
}

/// The ends of the oracle's cases have 32 bits.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn ends_of_64_bits_do_not_overflow() {
    let write = KvCacheOperation::new().prepare(ElementType::Int8, &[1, 1, 8, 1], &[3, 1]).unwrap();
    let (rows, layer) = (Memory::of_i64(&[3]), Memory::of_i32(&[0]));
    let (small, large) = ([-1, 0, 1, 2, 3, 8, 9], [1 << 32, (1 << 32) + 3, i64::MAX - 1, i64::MAX]);
    for end in [i64::MIN, i64::MIN + 1].into_iter().chain(small).chain(large) {
        let list = Memory::of_i64(&[end]);
        let indices = DeviceCallIndices::new(DeviceList::i64(list.address, 1));
        let indices = indices.row_counts(DeviceList::i64(rows.address, 1)).layer(layer.address);
        let fits = (3..=8).contains(&end);
        let expected = if fits { status(0, 0, 0) } else { status(1, 0, end) };
        let slots = if fits { end as usize - 3..end as usize } else { 0..0 };
        assert_eq!(run(&write, &indices, &LaunchConfig::DEFAULT), (expected, slots.collect()), "end {end}");
    }
}
