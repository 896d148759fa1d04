//! Checks that the error of a status is the CPU's if the lists are unchanged or not needed.

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{Argument, ElementType, Error as CoreError, Prepared};
use kvscatter_cuda::{BufferPair, CudaError, DeviceCallIndices, DeviceList, DeviceWrite, StatusWords};

use crate::abi::ROW_COUNT;
use crate::device::Memory;
use crate::host::cuda;
use crate::rig::{Rig, buffer};

const HALF: ElementType = ElementType::Float16;

/// A write of one cache, whose lists can change after a launch.
struct Launched {
    write: DeviceWrite,
    rig: Rig,
    _tensors: [Memory; 2],
}

impl Launched {
    fn new(prepared: &Prepared) -> Self {
        let geometry = prepared.geometry();
        let tensors = [geometry.cache_bytes(), geometry.update_bytes()];
        let tensors = tensors.map(|bytes| Memory::from_bytes(&vec![0; bytes.unwrap()]));
        let [cache, update] = tensors.each_ref().map(buffer);
        let write = cuda().prepare(prepared, &[BufferPair { cache, update }]).unwrap();
        Self { write, rig: Rig::new(0), _tensors: tensors }
    }

    fn run(&self, indices: &DeviceCallIndices) -> StatusWords {
        self.rig.run_with(&self.write, indices)
    }

    fn check(&self, indices: &DeviceCallIndices) -> Result<(), CudaError> {
        self.rig.check_with(&self.write, indices)
    }
}

fn assert_core(found: Result<(), CudaError>, expected: &CoreError) {
    match found {
        Err(CudaError::Write(error)) => assert_eq!(error, *expected),
        other => panic!("{other:?} instead of {expected:?}"),
    }
}

/// Checks that the error is `BadIndices`, with everything that the status contains.
fn assert_bad_indices(found: Result<(), CudaError>, words: StatusWords) {
    match found {
        Err(CudaError::BadIndices { bad_samples, first }) => {
            assert_eq!((bad_samples, Some(first)), (words.bad_samples, words.first()));
        }
        other => panic!("{other:?} instead of {words:?}"),
    }
}

fn list(memory: &Memory) -> DeviceList {
    DeviceList::i64(memory.address, memory.bytes / 8)
}

fn set(memory: &Memory, values: &[i64]) {
    memory.fill(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
}

/// Prepares a cache of 3 samples, 5 slots and width 2, with two rows for each sample.
fn padded() -> Prepared {
    TensorScatter::new().axis(1).prepare(HALF, &[3, 5, 2], &[3, 2, 2]).unwrap()
}

/// Tests lists that have been corrected or changed since the launch.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn lists_that_have_changed_leave_what_the_status_says() {
    let (core, starts, lengths) = (padded(), Memory::of_i64(&[0, 5, 0]), Memory::of_i64(&[2, 1, 2]));
    let launched = Launched::new(&core);
    let indices = DeviceCallIndices::new(list(&starts)).lengths(list(&lengths));
    let words = launched.run(&indices);
    for length in [0, -1, i64::MIN] {
        set(&lengths, &[2, length, 2]);
        assert_bad_indices(launched.check(&indices), words);
    }

    let core = KvCacheUpdate::new().prepare_packed(HALF, &[3, 1, 5, 2], &[6, 1, 2]).unwrap();
    let (starts, totals) = (Memory::of_i64(&[0, 4, 0]), Memory::of_i64(&[0, 2, 4, 6]));
    let launched = Launched::new(&core);
    let indices = DeviceCallIndices::new(list(&starts)).row_counts(list(&totals));
    let words = launched.run(&indices);
    for changed in [[0, 2, 3, 6], [0, 2, 2, 6], [0, 2, 1, 6], [0, i64::MIN, i64::MAX, 6]] {
        set(&totals, &changed);
        assert_bad_indices(launched.check(&indices), words);
    }
    set(&totals, &[0, 2, 1, 6]);
    let words = launched.run(&indices);
    assert_eq!(words, StatusWords { bad_samples: 3, first_sample: ROW_COUNT | 1, first_value: -1 });
    for changed in [[0, 2, 4, 6], [0, 3, 1, 6], [1, 1, 1, 1]] {
        set(&totals, &changed);
        assert_bad_indices(launched.check(&indices), words);
    }
    // These lists contain two errors. The status of the earlier launch matches one of them.
    set(&totals, &[0, 3, 2, 6]);
    let previous =
        CoreError::CumulativeOrder { argument: Argument::UpdateLengths, index: 2, value: 2, previous: 3 };
    assert_core(launched.check(&indices), &previous);
}

/// Tests tokens without a sample. A launch without samples counts one.
#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn calls_without_samples_are_refused_as_on_the_cpu() {
    for batch in [2, 0] {
        let core = KvCacheUpdate::new().prepare_packed(HALF, &[batch, 1, 4, 2], &[2, 1, 2]).unwrap();
        let launched = Launched::new(&core);
        for total in [0, 5, -1] {
            let totals = Memory::of_i32(&[total]);
            // An empty list may have any address, even that of the status.
            let none = DeviceList::i64(launched.rig.status.address, 0);
            let indices = DeviceCallIndices::new(none).row_counts(DeviceList::i32(totals.address, 1));
            let words = launched.run(&indices);
            assert_eq!(
                words,
                StatusWords { bad_samples: 1, first_sample: ROW_COUNT, first_value: total.into() }
            );
            let expected = core.plan(PackedCall::new(&[] as &[i64], &[total])).map(drop).unwrap_err();
            assert_core(launched.check(&indices), &expected);
            assert_eq!(total == 0, matches!(expected, CoreError::TokenSum { got: 0, tokens: 2, .. }));
            let found = launched.write.check_words(words);
            if (batch, total) == (0, 0) {
                assert_core(found, &expected)
            } else {
                assert_bad_indices(found, words)
            }
        }
    }
    let core = KvCacheOperation::new().prepare(HALF, &[1, 0, 4, 2], &[2, 2]).unwrap();
    let (launched, layer) = (Launched::new(&core), Memory::of_i32(&[0]));
    let none = DeviceList::i32(0, 0);
    let indices = DeviceCallIndices::new(none).row_counts(none).layer(layer.address);
    let words = launched.run(&indices);
    let expected = core
        .plan(KvCacheOperationCall { layer_id: &[0], token_offset: &[], seq_len: &[] })
        .map(drop)
        .unwrap_err();
    assert!(matches!(expected, CoreError::TokenSum { got: 0, tokens: 2, .. }), "{expected:?}");
    assert_core(launched.check(&indices), &expected);
    assert_core(launched.write.check_words(words), &expected);
}
