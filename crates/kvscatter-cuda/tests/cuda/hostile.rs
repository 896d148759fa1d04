//! Checks that the host rejects wrong addresses and lists before it calls the driver.

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::paged::PagedWrite;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error as CoreError, Mode, Prepared};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, LaunchArgument,
    PresentBuffers, SlotMappingError, TensorRole,
};

use crate::device::Memory;
use crate::fake::{calls, is_fake};
use crate::host::cuda;
use crate::rig::{ROW, Rig, SAMPLES, SLOTS, buffer, shapes};

const CACHE: usize = SAMPLES * SLOTS * ROW;
const UPDATE: usize = SAMPLES * ROW;

/// Prepares a write of buffers at these addresses, which nothing dereferences.
fn prepared(pairs: &[(u64, usize, u64, usize)]) -> Result<(), CudaError> {
    let buffers = |&(cache, cache_bytes, update, update_bytes): &(u64, usize, u64, usize)| BufferPair {
        cache: DeviceBuffer::new(cache, cache_bytes),
        update: DeviceBuffer::new(update, update_bytes),
    };
    cuda().prepare(&shapes(), &pairs.iter().map(buffers).collect::<Vec<_>>()).map(drop)
}

/// Checks that every field of an error is as expected.
fn assert_refused(found: Result<(), CudaError>, expected: impl Into<CudaError>) {
    assert_eq!(format!("{:?}", found.unwrap_err()), format!("{:?}", expected.into()));
}

fn count(argument: Argument, got: usize, expected: usize) -> CoreError {
    CoreError::ListLength { argument, got, expected }
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn buffers_that_are_missing_or_short_are_refused() {
    let good = (0x1000, CACHE, 0x9000, UPDATE);
    let refused = |pairs: &[_]| match prepared(pairs) {
        Err(error @ CudaError::Buffer { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for (pairs, expected) in [
        (&[(0, CACHE, 0x9000, UPDATE)][..], format!("cache 0 is null, must have {CACHE} bytes")),
        (&[(0x1000, CACHE, 0, UPDATE)], format!("update 0 is null, must have {UPDATE} bytes")),
        (&[good, (0, CACHE, 0x9000, UPDATE)], format!("cache 1 is null, must have {CACHE} bytes")),
        (
            &[(0x1000, CACHE - 1, 0x9000, UPDATE)],
            format!("cache 0 has {} bytes, must have {CACHE}", CACHE - 1),
        ),
        (
            &[good, (0x2000, CACHE, 0x9000, UPDATE - 1)],
            format!("update 1 has {} bytes, must have {UPDATE}", UPDATE - 1),
        ),
    ] {
        assert_eq!(refused(pairs), expected);
    }
    let triple = |present, past, update| {
        let buffer = |address| DeviceBuffer::new(address, CACHE);
        let triple = PresentBuffers { present: buffer(present), past: buffer(past), update: buffer(update) };
        cuda().prepare_present(&shapes(), &[triple]).map(drop)
    };
    for (prepared, tensor) in [
        (triple(0, 0x2000, 0x3000), TensorRole::Present),
        (triple(0x1000, 0, 0x3000), TensorRole::Past),
        (triple(0x1000, 0x2000, 0), TensorRole::Update),
    ] {
        let is_it = matches!(prepared, Err(CudaError::Buffer { tensor: at, index: 0, .. }) if at == tensor);
        assert!(is_it, "{prepared:?}");
    }
    prepared(&[(0x1000, 2 * CACHE, 0x9000, 2 * UPDATE)]).unwrap();
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn buffers_that_overlap_are_refused() {
    let assert_overlap = |found: Result<(), CudaError>, case: u64| {
        assert!(matches!(found, Err(CudaError::Write(CoreError::Overlap { .. }))), "{case}: {found:?}");
    };
    let (cache, update) = (CACHE as u64, UPDATE as u64);
    for by in 1..cache + update {
        let at = 0x1000 - update + by;
        assert_overlap(prepared(&[(0x1000, CACHE, at, UPDATE)]), by);
    }
    for by in 1..2 * cache {
        let at = 0x1000 - cache + by;
        assert_overlap(prepared(&[(0x1000, CACHE, 0x9000, UPDATE), (at, CACHE, 0xA000, UPDATE)]), by);
    }
    // The caches are adjacent, and two caches have one update.
    prepared(&[(0x1000, CACHE, 0x1000 - update, UPDATE), (0x1000 + cache, CACHE, 0x1000 - update, UPDATE)])
        .unwrap();

    let triple = |present, past, update| PresentBuffers {
        present: DeviceBuffer::new(present, CACHE),
        past: DeviceBuffer::new(past, CACHE),
        update: DeviceBuffer::new(update, UPDATE),
    };
    let present = |triple| cuda().prepare_present(&shapes(), &[triple]).map(drop);
    for (past, update) in [(0x1000, 0x9000), (0x1000 + cache - 1, 0x9000), (0x2000, 0x1000 - 1)] {
        assert_overlap(present(triple(0x1000, past, update)), past);
    }
    present(triple(0x1000, 0x1000 + cache, 0x9000)).unwrap();
    // Each present is written completely, so it must not overlap a tensor of another triple either.
    let first = triple(0x1000, 0x3000, 0x9000);
    let meeting = triple(0x1000 + cache - 1, 0x3000, 0x9000);
    for (triples, expected) in [
        ([first, meeting], (1, 0)),
        ([meeting, first], (0, 1)),
        ([first, triple(0x5000, 0x1000 + cache - 1, 0x9000)], (0, 1)),
        ([first, triple(0x5000, 0x3000, 0x1000 + cache - 1)], (0, 1)),
        ([triple(0x5000, 0x1000 - cache + 1, 0x9000), first], (1, 0)),
    ] {
        let refused = cuda().prepare_present(&shapes(), &triples);
        let is_it =
            matches!(refused, Err(CudaError::Presents { triple, with }) if (triple, with) == expected);
        assert!(is_it, "{refused:?}");
    }
    let apart = [first, triple(0x1000 + cache, 0x3000, 0x9000), triple(0x1000 - cache, 0x3008, 0x9002)];
    cuda().prepare_present(&shapes(), &apart).unwrap();
}

/// Tests buffers at the end of the 64-bit address space.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn buffers_beyond_the_address_space_are_refused() {
    let (cache, update) = (u64::MAX - CACHE as u64, u64::MAX - UPDATE as u64);
    prepared(&[(cache, CACHE, 0x10, UPDATE)]).unwrap();
    prepared(&[(0x1000, CACHE, update, UPDATE)]).unwrap();
    for (pair, argument, len) in [
        ((cache + 1, CACHE, 0x10, UPDATE), Argument::PastCache, CACHE),
        ((u64::MAX - 3, CACHE, 0x10, UPDATE), Argument::PastCache, CACHE),
        ((0x1000, CACHE, update + 1, UPDATE), Argument::Update, UPDATE),
    ] {
        let found = prepared(&[(0x2000, CACHE, 0x10, UPDATE), pair]);
        let is_it = matches!(found, Err(CudaError::Write(CoreError::AddressSpace { argument: of, pair: 1, len: bytes, .. })) if (of, bytes) == (argument, len));
        assert!(is_it, "{found:?}");
    }
    let (rig, address) = (Rig::new(2), u64::MAX - 7);
    let found = rig.launch_with(&rig.write(), &DeviceCallIndices::new(DeviceList::i64(address, SAMPLES)));
    assert_refused(found, CudaError::ListWraps { list: LaunchArgument::Positions, address, bytes: 16 });
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn lists_that_a_device_cannot_read_are_refused() {
    let rig = Rig::new(2);
    let write = rig.write();
    let at = rig.starts.address;
    let before = is_fake().then(|| calls("cuLaunchKernel"));
    let misaligned = |list, address, alignment| CudaError::Address { list, address, alignment };
    let starts = |address| DeviceCallIndices::new(DeviceList::i64(address, SAMPLES));
    for address in [0, at + 4, at + 1] {
        let found = rig.launch_with(&write, &starts(address));
        assert_refused(found, misaligned(LaunchArgument::Positions, address, 8));
    }
    for address in [0, at + 2] {
        let lengths = rig.indices().lengths(DeviceList::i32(address, SAMPLES));
        let found = rig.launch_with(&write, &lengths);
        assert_refused(found, misaligned(LaunchArgument::Lengths, address, 4));
    }
    for address in [0, 4, 12] {
        assert_refused(DeviceStatus::at(address).map(drop), misaligned(LaunchArgument::Status, address, 8));
    }
    // The launch would overwrite this list while it reads the list.
    let cache = rig.caches[1].address;
    for address in [cache, cache + CACHE as u64 - 8] {
        let found = rig.launch_with(&write, &starts(address));
        assert_refused(found, CudaError::Overlap { list: LaunchArgument::Positions, pair: 1 });
    }
    if let Some(before) = before {
        assert_eq!(calls("cuLaunchKernel"), before);
    }
    let narrow = Memory::of_i32(&[0, 1, 2]);
    rig.launch_with(&write, &DeviceCallIndices::new(DeviceList::i32(narrow.address + 4, SAMPLES))).unwrap();
    rig.stream.synchronize();
    rig.assert_written(&[[Some(1), Some(2)]]);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn lists_that_an_operator_lacks_or_needs_are_named() {
    let rig = Rig::new(1);
    let write = rig.write();
    let list = DeviceList::i64(rig.starts.address, SAMPLES);
    let short = |samples| DeviceList::i64(rig.starts.address, samples);
    for (indices, expected) in [
        (rig.indices().row_counts(list), count(Argument::UpdateLengths, SAMPLES, 0)),
        (rig.indices().layer(rig.starts.address), count(Argument::LayerId, 1, 0)),
        (DeviceCallIndices::new(short(SAMPLES - 1)), count(Argument::WriteIndices, SAMPLES - 1, SAMPLES)),
        (rig.indices().lengths(short(SAMPLES + 1)), count(Argument::Lengths, SAMPLES + 1, SAMPLES)),
    ] {
        assert_refused(rig.launch_with(&write, &indices), expected);
    }
    rig.launch_with(&write, &DeviceCallIndices::zero()).unwrap(); // ONNX: absent write_indices are zeros
    rig.stream.synchronize();
    rig.assert_written(&[[Some(0), Some(0)]]);

    let half = ElementType::Float16;
    let (cache, update) = (Memory::from_bytes(&[0; 64]), Memory::from_bytes(&[0; 16]));
    let pairs = [BufferPair { cache: buffer(&cache), update: buffer(&update) }];
    let layered = KvCacheOperation::new().prepare(half, &[1, 2, 4, 2], &[2, 2]).unwrap();
    let layered = cuda().prepare(&layered, &pairs).unwrap();
    let missing = rig.launch_with(&layered, &rig.indices().row_counts(list));
    assert_refused(missing, count(Argument::LayerId, 0, 1));
    let packed = KvCacheUpdate::new().prepare_packed(half, &[2, 1, 4, 2], &[2, 1, 2]).unwrap();
    let packed = cuda().prepare(&packed, &pairs).unwrap();
    assert!(
        rig.launch_with(&packed, &rig.indices()).is_err(),
        "a packed update needs the number of rows of each sample"
    );
    assert!(rig.launch_with(&packed, &DeviceCallIndices::zero()).is_err());
}

/// Checks that a slot mapping rejects an operator with other lists or rules, and any list besides the slots.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn slot_mappings_take_starts_alone() {
    let half = ElementType::Float16;
    let (past, new) = ([1, 1, 4, 2], [1, 1, 2, 2]);
    let (cache, update) = (Memory::from_bytes(&[0xEE; 32]), Memory::from_bytes(&[1; 16]));
    let prepare = |prepared: &Prepared| {
        cuda().prepare_slots(prepared, &[BufferPair { cache: buffer(&cache), update: buffer(&update) }])
    };
    let linear = TensorScatter::new().prepare(half, &past, &new).unwrap();
    let ring = TensorScatter::new().mode(Mode::Circular).prepare(half, &past, &new).unwrap();
    let batch = TensorScatter::new().prepare(half, &[2, 1, 2, 2], &[2, 1, 1, 2]).unwrap();
    let packed = KvCacheUpdate::new().prepare_packed(half, &past, &[2, 1, 2]).unwrap();
    let layered = KvCacheOperation::new().prepare(half, &past, &[2, 2]).unwrap();
    let paged = PagedWrite::new().prepare(half, &[1, 4, 2, 2], &[2, 2, 2]).unwrap();
    for (prepared, why) in [
        (&ring, SlotMappingError::Ring),
        (&batch, SlotMappingError::Samples(2)),
        (&packed, SlotMappingError::Lists),
        (&layered, SlotMappingError::Lists),
        (&paged, SlotMappingError::Blocks),
    ] {
        assert_refused(prepare(prepared).map(drop), CudaError::SlotMapping(why));
    }
    let pairs = [BufferPair { cache: buffer(&cache), update: buffer(&update) }];
    let blocks = CudaError::SlotMapping(SlotMappingError::Blocks);
    assert_refused(cuda().prepare(&paged, &pairs).map(drop), blocks);

    let (write, rig) = (prepare(&linear).unwrap(), Rig::new(0));
    let (list, indices) = (DeviceList::i64(rig.starts.address, 2), rig.indices());
    for (indices, list, given) in [
        (indices.lengths(list), LaunchArgument::Lengths, true),
        (indices.row_counts(list), LaunchArgument::RowCounts, true),
        (indices.layer(rig.starts.address), LaunchArgument::Layer, true),
        (DeviceCallIndices::zero(), LaunchArgument::Positions, false),
    ] {
        assert_refused(rig.launch_with(&write, &indices), CudaError::List { list, given });
    }
    for got in [0, 1, 3] {
        let slots = DeviceCallIndices::new(DeviceList::i64(rig.starts.address, got));
        assert_refused(rig.launch_with(&write, &slots), count(Argument::WriteIndices, got, 2));
    }
    rig.stream.synchronize();
    assert_eq!(cache.read(), [0xEE; 32]);
}

/// Tests addresses that are not aligned for an element. The kernels then move smaller pieces.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn odd_addresses_are_written_in_smaller_pieces() {
    for (by, width) in [(0, 8), (8, 8), (4, 4), (2, 2), (1, 1), (12, 4), (3, 1)] {
        let rig = Rig::new(1);
        let memory = Memory::from_bytes(&[0xEE; 2 * CACHE]);
        let cache = DeviceBuffer::new(memory.address + by, CACHE);
        let write =
            cuda().prepare(&shapes(), &[BufferPair { cache, update: buffer(&rig.updates[0]) }]).unwrap();
        assert_eq!(write.width(), Some(width), "{by}");
        rig.run(&write, [1, 3]);
        let all = memory.read();
        let (before, rest) = all.split_at(by as usize);
        let (cache, after) = rest.split_at(CACHE);
        assert_eq!(cache, crate::rig::written(0, &[[Some(1), Some(3)]]));
        assert!(before.iter().chain(after).all(|&byte| byte == 0xEE));
    }
}

/// Checks the buffers of 4-bit rows that straddle bytes, which are exchanged by words.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn caches_of_half_bytes_are_whole_words() {
    let write = TensorScatter::new().axis(1);
    let write = write.prepare(ElementType::Int4, &[1, 3, 3], &[1, 1, 3]).unwrap(); // 9 elements, 5 bytes
    let prepare = |address, bytes| {
        let (cache, update) = (DeviceBuffer::new(address, bytes), DeviceBuffer::new(0x9000, 2));
        cuda().prepare(&write, &[BufferPair { cache, update }]).map(|write| write.width())
    };
    assert_eq!(prepare(0x1000, 8).unwrap(), None);
    for (address, bytes) in [(0x1000, 5), (0x1000, 7), (0x1002, 8), (0x1001, 16)] {
        let expected = CudaError::WholeWords { pair: 0, address, bytes, needed: 8 };
        assert_refused(prepare(address, bytes).map(drop), expected);
    }
}
