//! Tests values that no case of the oracle has: thousands of samples, and any 64-bit index.

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{ElementType, Mode, NegativeIndex, Prepared};
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

/// Writes rows of one byte from `[samples, rows]` into `[samples, capacity]`.
fn scatter(
    write: &TensorScatter,
    [capacity, rows]: [usize; 2],
    starts: &[i64],
    config: &LaunchConfig,
) -> (StatusWords, Vec<usize>) {
    let (samples, list) = (starts.len(), Memory::of_i64(starts));
    let write = write.axis(1).prepare(ElementType::UInt8, &[samples, capacity], &[samples, rows]).unwrap();
    run(&write, &DeviceCallIndices::new(DeviceList::i64(list.address, samples)), config)
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
        let (found, written) = scatter(&TensorScatter::new(), [2, 1], &starts, &config);
        assert_eq!(found, status(bad.len() as u32, bad[0] as u32, starts[bad[0]]));
        let good = (0..SAMPLES).filter(|sample| !bad.contains(sample));
        assert_eq!(written, good.map(|sample| 2 * sample + 1).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_start_is_a_slot_of_a_ring() {
    let starts = [i64::MIN, i64::MAX, i64::MIN + 1, -1, 7, 1 << 32, -(1 << 32), 0];
    let slots = |(sample, start): (usize, &i64)| {
        let mut slots = [0, 1, 2].map(|row| 7 * sample + ((start.rem_euclid(7) + row) % 7) as usize);
        slots.sort_unstable();
        slots
    };
    let ring = TensorScatter::new().mode(Mode::Circular);
    let every = starts.iter().enumerate().flat_map(slots).collect::<Vec<_>>();
    assert_eq!(scatter(&ring, [7, 3], &starts, &LaunchConfig::DEFAULT), (status(0, 0, 0), every));

    let refusing = ring.negative_index(NegativeIndex::Reject);
    let kept = starts.iter().enumerate().filter(|(_, start)| **start >= 0).flat_map(slots);
    let expected = (status(4, 0, i64::MIN), kept.collect());
    assert_eq!(scatter(&refusing, [7, 3], &starts, &LaunchConfig::DEFAULT), expected);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn ends_and_linear_starts_do_not_overflow() {
    let edges =
        [i64::MIN, i64::MIN + 1, -1, 0, 1, 2, 3, 8, 9, 1 << 32, (1 << 32) + 3, i64::MAX - 1, i64::MAX];
    let ends = KvCacheOperation::new().prepare(ElementType::Int8, &[1, 1, 8, 1], &[3, 1]).unwrap();
    let (rows, layer) = (Memory::of_i64(&[3]), Memory::of_i32(&[0]));
    for start in edges {
        let expected = |first: Option<i64>| {
            let slot = first.filter(|slot| (0..=5).contains(slot)).map(|slot| slot as usize);
            let status = if slot.is_some() { status(0, 0, 0) } else { status(1, 0, start) };
            (status, slot.into_iter().flat_map(|slot| slot..slot + 3).collect::<Vec<_>>())
        };
        let config = &LaunchConfig::DEFAULT;
        let found = scatter(&TensorScatter::new(), [8, 3], &[start], config);
        assert_eq!(found, expected(Some(start)), "start {start}");
        let end = Memory::of_i64(&[start]);
        let indices = DeviceCallIndices::new(DeviceList::i64(end.address, 1));
        let indices = indices.row_counts(DeviceList::i64(rows.address, 1)).layer(layer.address);
        assert_eq!(run(&ends, &indices, config), expected(start.checked_sub(3)), "end {start}");
    }
}
