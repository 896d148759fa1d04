//! Checks that the error of a status is the CPU's if the lists are unchanged or not needed.

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::{KvCacheUpdate, PackedCall};
use kvscatter::{Argument, ElementType, Error as CoreError, Prepared};
use kvscatter_cuda::{
    BufferPair, CudaError, DeviceCallIndices, DeviceList, DeviceStatus, DeviceWrite, StatusWords,
    Stream as OfCaller,
};

use crate::abi::ROW_COUNT;
use crate::device::{Memory, Stream};
use crate::host::cuda;
use crate::rig::buffer;

const HALF: ElementType = ElementType::Float16;

/// A write of one cache, whose lists can change after a launch.
struct Launched {
    write: DeviceWrite,
    status: Memory,
    _tensors: [Memory; 2],
}

impl Launched {
    fn new(prepared: &Prepared) -> Self {
        let geometry = prepared.geometry();
        let tensors = [geometry.cache_bytes(), geometry.update_bytes()];
        let tensors = tensors.map(|bytes| Memory::from_bytes(&vec![0; bytes.unwrap()]));
        let [cache, update] = tensors.each_ref().map(buffer);
        let write = cuda().prepare(prepared, &[BufferPair { cache, update }]).unwrap();
        Self { write, status: Memory::from_bytes(&[0; 16]), _tensors: tensors }
    }

    fn at(&self) -> DeviceStatus {
        DeviceStatus::at(self.status.address).unwrap()
    }

    /// Launches the write, waits, and returns the status.
    fn run(&self, indices: &DeviceCallIndices) -> StatusWords {
        let stream = Stream::new();
        self.status.fill(&[0; 16]);
        // SAFETY: The cache and the update of `self`, the lists of `indices` and the status are memory of the
        // context with the sizes given there, and live until the stream was waited for.
        unsafe { self.write.launch(OfCaller::new(stream.0), indices, Some(self.at())) }.unwrap();
        stream.synchronize();
        // SAFETY: The 16 bytes of the status are memory of the context, and the launch has run.
        unsafe { cuda().read(self.at()) }.unwrap()
    }

    fn check(&self, indices: &DeviceCallIndices) -> Result<(), CudaError> {
        // SAFETY: The 16 bytes of the status, and the `len` values of each list, are memory of the context.
        // Every launch was waited for.
        unsafe { self.write.check(self.at(), indices) }
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

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn words_alone_tell_a_padded_start_and_length() {
    let (core, starts, lengths) = (padded(), Memory::of_i64(&[0, 3, 4]), Memory::of_i64(&[2, 2, 3]));
    let launched = Launched::new(&core);
    let alone = DeviceCallIndices::new(list(&starts));
    let both = alone.lengths(list(&lengths));

    let words = launched.run(&alone);
    let expected = CoreError::StartOutOfRange {
        argument: Argument::WriteIndices,
        index: 2,
        value: 4,
        rows: 2,
        capacity: 5,
    };
    assert_eq!(core.plan(&[0_i64, 3, 4]).map(drop), Err(expected));
    assert_core(launched.write.check_words(words), &expected);
    assert_core(launched.check(&alone), &expected);

    let words = launched.run(&both);
    let expected =
        CoreError::LengthOutOfRange { argument: Argument::Lengths, index: 2, value: 3, min: 0, max: 2 };
    assert_eq!(core.plan_with_lengths(&[0_i64, 3, 4], &[2_i64, 2, 3]).map(drop), Err(expected));
    assert_core(launched.write.check_words(words), &expected);
    assert_core(launched.check(&both), &expected);

    // For a bad start, the words do not contain the number of rows to write. `check_words` assumes all rows.
    set(&starts, &[0, 5, 0]);
    set(&lengths, &[2, 1, 2]);
    let words = launched.run(&both);
    let expected = |rows| CoreError::StartOutOfRange {
        argument: Argument::WriteIndices,
        index: 1,
        value: 5,
        rows,
        capacity: 5,
    };
    assert_core(launched.write.check_words(words), &expected(2));
    assert_core(launched.check(&both), &expected(1));
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn words_alone_tell_the_layer_and_rows_of_samples() {
    let core = KvCacheOperation::new().prepare(HALF, &[2, 2, 5, 2], &[3, 2]).unwrap();
    let (ends, rows, layer) = (Memory::of_i32(&[5, 5]), Memory::of_i32(&[1, 2]), Memory::of_i32(&[2]));
    let launched = Launched::new(&core);
    let narrow = |memory: &Memory| DeviceList::i32(memory.address, 2);
    let indices = DeviceCallIndices::new(narrow(&ends)).row_counts(narrow(&rows)).layer(layer.address);
    let checked = |layer_id: i32, offsets: [i32; 2], seq_len: [i32; 2]| {
        layer.fill(&layer_id.to_ne_bytes());
        ends.fill(&offsets.map(i32::to_ne_bytes).concat());
        rows.fill(&seq_len.map(i32::to_ne_bytes).concat());
        let words = launched.run(&indices);
        let expected = core
            .plan(KvCacheOperationCall { layer_id: &[layer_id], token_offset: &offsets, seq_len: &seq_len })
            .map(drop)
            .unwrap_err();
        assert_core(launched.check(&indices), &expected);
        (launched.write.check_words(words), words, expected)
    };
    for layer_id in [2, -1, i32::MIN, i32::MAX] {
        let (found, _, expected) = checked(layer_id, [5, 5], [1, 2]);
        assert_eq!(
            expected,
            CoreError::LayerOutOfRange { argument: Argument::LayerId, value: layer_id.into(), layers: 2 }
        );
        assert_core(found, &expected);
    }
    for seq_len in [[1, 0], [6, 2], [1, 1]] {
        let (found, _, expected) = checked(1, [5, 5], seq_len);
        assert_core(found, &expected);
    }
    // The error of an end needs the number of rows, which only the list contains.
    let (found, words, expected) = checked(1, [5, 1], [1, 2]);
    assert!(matches!(expected, CoreError::EndOutOfRange { index: 1, value: 1, min: 2, .. }), "{expected:?}");
    assert_bad_indices(found, words);
}

#[test]
#[ignore = "needs a driver: cargo xtask cuda"]
fn of_a_packed_update_the_words_alone_tell_the_total() {
    let core = KvCacheUpdate::new().prepare_packed(HALF, &[3, 1, 5, 2], &[6, 1, 2]).unwrap();
    let (starts, totals) = (Memory::of_i64(&[0, 4, 0]), Memory::of_i64(&[0, 2, 4, 6]));
    let launched = Launched::new(&core);
    let indices = DeviceCallIndices::new(list(&starts)).row_counts(list(&totals));
    let words = launched.run(&indices);
    assert_eq!(words, StatusWords { bad_samples: 1, first_sample: 1, first_value: 4 });
    assert_bad_indices(launched.write.check_words(words), words);
    assert_core(
        launched.check(&indices),
        &CoreError::StartOutOfRange {
            argument: Argument::TensorRtWriteIndices,
            index: 1,
            value: 4,
            rows: 2,
            capacity: 5,
        },
    );
    set(&starts, &[0; 3]);
    for narrow in [[1, 2, 4, 6], [0, 2, 1, 6], [0, 0, 6, 6], [0, 2, 4, 5]] {
        set(&totals, &narrow.map(i64::from));
        let words = launched.run(&indices);
        let expected = core.plan(PackedCall::new(&[0_i64; 3], &narrow)).map(drop).unwrap_err();
        assert_core(launched.check(&indices), &expected);
        let found = launched.write.check_words(words);
        if matches!(expected, CoreError::TokenSum { got: 5, tokens: 6, .. }) {
            assert_core(found, &expected);
        } else {
            assert_bad_indices(found, words);
        }
    }
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
            let none = DeviceList::i64(launched.status.address, 0);
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
