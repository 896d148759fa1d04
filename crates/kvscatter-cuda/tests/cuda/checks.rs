//! A status may be read long after its launch. For any values in the status and in the lists, `check` returns
//! an error and does not panic.

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{ElementType, Error as CoreError, Prepared};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceBuffer, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite,
    StatusWords,
};
use kvscatter_oracle::cases::Random;

use crate::abi::{LAYER, LENGTH, ROW_COUNT};
use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, shapes};

const BATCH: usize = 3;

/// Returns a write of three samples for each of the four forms of lists.
fn writes() -> Vec<(DeviceWrite, bool)> {
    let half = ElementType::Float16;
    let onnx = TensorScatter::new().axis(1).prepare(half, &[BATCH, 5, 2], &[BATCH, 2, 2]).unwrap();
    let padded = KvCacheUpdate::new().prepare(half, &[BATCH, 1, 5, 2], &[BATCH, 1, 2, 2]).unwrap();
    let packed = KvCacheUpdate::new().prepare_packed(half, &[BATCH, 1, 5, 2], &[6, 1, 2]).unwrap();
    let ends = KvCacheOperation::new().prepare(half, &[2, BATCH, 5, 2], &[6, 2]).unwrap();
    let write = |prepared: &Prepared| {
        let (cache, update) = (DeviceBuffer::new(0x1000, 4096), DeviceBuffer::new(0x9000, 4096));
        cuda().prepare(prepared, &[BufferPair { cache, update }]).unwrap()
    };
    vec![(write(&onnx), false), (write(&padded), false), (write(&packed), true), (write(&ends), true)]
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn any_status_over_any_lists_is_an_error() {
    const EDGES: [i64; 10] = [i64::MIN, i64::MIN + 1, -1, 0, 1, 2, 6, 1 << 31, i64::MAX - 1, i64::MAX];
    let random = &mut Random::new(61, 0);
    let (layer, memory) = (Memory::of_i32(&[0]), Memory::from_bytes(&[0; 16]));
    let lists = [BATCH, BATCH, BATCH + 1].map(|numbers| Memory::of_i64(&vec![0; numbers]));
    let mut write_errors = 0;
    for ((write, has_row_counts), _) in
        writes().iter().flat_map(|write| (0..300).map(move |round| (write, round)))
    {
        for list in &lists {
            let values = random.many(list.bytes / 8, |random| random.pick(&EDGES));
            list.fill(&values.into_iter().flat_map(i64::to_ne_bytes).collect::<Vec<_>>());
        }
        let [starts, lengths, row_counts] = lists.each_ref().map(|list| list.address);
        let mut indices =
            DeviceCallIndices::new(DeviceList::i64(starts, BATCH)).lengths(DeviceList::i64(lengths, BATCH));
        if *has_row_counts {
            let has_layer = write.prepared().geometry().layers() == 2;
            indices =
                indices.row_counts(DeviceList::i64(row_counts, if has_layer { BATCH } else { BATCH + 1 }));
            indices = if has_layer { indices.layer(layer.address) } else { indices };
        }
        let sample = random.pick(&[0, 1, 2, 3, 4, ROW_COUNT - 1, 0x3FFF_FFFF, 0x3FFF_FFFE]);
        let words = StatusWords {
            bad_samples: random.pick(&[1, 2, u32::MAX]),
            first_sample: random.pick(&[sample, sample | LENGTH, sample | ROW_COUNT, LAYER]),
            first_value: random.pick(&EDGES),
        };
        memory.fill(&bytes_of(words));
        let status = DeviceStatus::at(memory.address).unwrap();
        // SAFETY: The 16 bytes of the status, and of each list `len` values of its width, are memory of the
        // context, and no launch runs.
        let found = unsafe { write.check(status, &indices) };
        assert!(
            matches!(found, Err(CudaError::Write(_) | CudaError::BadIndices { .. })),
            "{found:?} {words:?}"
        );
        write_errors += usize::from(matches!(found, Err(CudaError::Write(_))));
        let found = write.check_words(words);
        assert!(
            matches!(found, Err(CudaError::Write(_) | CudaError::BadIndices { .. })),
            "{found:?} {words:?}"
        );
    }
    assert!(write_errors > 100, "{write_errors}");
}

/// Checks the error of the last launch after its lists have been corrected.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn the_value_is_that_of_the_launch() {
    let rig = Rig::new(1);
    let write = rig.write();
    rig.run(&write, [2, 7]);
    rig.starts.fill(&[0_i64, 0].map(i64::to_ne_bytes).concat());
    let is_it = |found: &Result<(), CudaError>| {
        matches!(
            found,
            Err(CudaError::Write(CoreError::StartOutOfRange {
                index: 1,
                value: 7,
                rows: 1,
                capacity: 4,
                ..
            }))
        )
    };
    let found = rig.check(&write);
    assert!(is_it(&found), "{found:?}");
    // SAFETY: The 16 bytes of the status are memory of `rig`, whose stream was waited for.
    let words = unsafe { cuda().read(rig.status()) }.unwrap();
    let found = write.check_words(words);
    assert!(is_it(&found), "{found:?}");
    write.check_words(StatusWords::default()).unwrap();
    assert_eq!(write.check_indices(&rig.indices(), Some(rig.status())).unwrap(), 2);
    assert_eq!(write.prepared().geometry().cache_bytes(), shapes().geometry().cache_bytes());
}

fn bytes_of(words: StatusWords) -> Vec<u8> {
    let StatusWords { bad_samples, first_sample, first_value } = words;
    [&bad_samples.to_ne_bytes()[..], &first_sample.to_ne_bytes(), &first_value.to_ne_bytes()].concat()
}
