//! Tests Ascend's `KVCacheOperation`: the document's worked example, its formula, and every rejection.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use kvscatter::spec::Dimension::{self, Known, Symbolic, Unknown};
use kvscatter::spec::PartialTensor;
use kvscatter::spec::ascend::{KvCacheOperation, KvCacheOperationCall};
use kvscatter::{Argument, ElementType, Error, OutOfRange, Prepared};

const HIDDEN: usize = 2;

fn call<'a>(layer_id: &'a [i32], token_offset: &'a [i32], seq_len: &'a [i32]) -> KvCacheOperationCall<'a> {
    KvCacheOperationCall { layer_id, token_offset, seq_len }
}

fn prepare(tokens: usize) -> Prepared {
    // layer 2, batch 2, maxSeqLen 4
    KvCacheOperation::new().prepare(ElementType::Float16, &[2, 2, 4, HIDDEN], &[tokens, HIDDEN]).unwrap()
}

/// The document's example. A prompt of three tokens is cached at once, and then each continuation token after
/// it. `tokenOffset` is the length after the write, so the fourth token has offset 4.
#[test]
fn the_documents_worked_example() {
    let mut past = [0_u16; 2 * 4 * HIDDEN];
    let operation = KvCacheOperation::new();
    let shape = [2, 1, 4, HIDDEN];
    let prefill = operation.prepare(ElementType::Float16, &shape, &[3, HIDDEN]).unwrap();
    let decode = operation.prepare(ElementType::Float16, &shape, &[1, HIDDEN]).unwrap();
    let _ = prefill.write(&mut past, &[1, 2, 3, 4, 5, 6], call(&[1], &[3], &[3])).unwrap();
    let _ = decode.write(&mut past, &[7, 8], call(&[1], &[4], &[1])).unwrap();
    assert_eq!(past, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], "layer 0 is untouched");
}

#[test]
fn tokens_are_packed_by_seq_len() {
    let mut past = [0_u16; 32];
    let _ = prepare(3).write(&mut past, &[1, 2, 3, 4, 5, 6], call(&[0], &[4, 1], &[2, 1])).unwrap();
    let mut expected = [0_u16; 32];
    expected[4..8].copy_from_slice(&[1, 2, 3, 4]); // batch 0, rows 2 and 3, because tokenOffset == maxSeqLen fills the last slot
    expected[8..10].copy_from_slice(&[5, 6]); // batch 1, row 0
    assert_eq!(past, expected);
}

#[test]
fn four_dimensional_new_kv_is_read_flat() {
    let four = KvCacheOperation::new().prepare(ElementType::Int8, &[1, 2, 4, 6], &[2, 2, 3, 2]).unwrap();
    let flat = KvCacheOperation::new().prepare(ElementType::Int8, &[1, 2, 4, 6], &[4, 6]).unwrap();
    let new_kv: Vec<i8> = (1..=24).collect();
    let (mut a, mut b) = ([0_i8; 48], [0_i8; 48]);
    let _ = four.write(&mut a, &new_kv, call(&[0], &[3, 2], &[2, 2])).unwrap();
    let _ = flat.write(&mut b, &new_kv, call(&[0], &[3, 2], &[2, 2])).unwrap();
    assert_eq!(a, b);

    let argument = Argument::SeqLen;
    let ragged = four.plan(call(&[0], &[3, 2], &[2, 1])).unwrap_err();
    assert_eq!(ragged, Error::LengthOutOfRange { argument, index: 1, value: 1, min: 2, max: 2 });
    let shape = |new_kv: &[usize; 4]| {
        KvCacheOperation::new().prepare(ElementType::Int8, &[1, 2, 4, 6], new_kv).unwrap_err()
    };
    let mismatch = |dimension, expected, got| Error::DimensionMismatch {
        argument: Argument::NewKv,
        dimension,
        expected,
        got,
        hint: None,
    };
    assert_eq!(
        shape(&[2, 2, 2, 2]),
        Error::HiddenSize { argument: Argument::NewKv, heads: 2, head_size: 2, hidden: 6 }
    );
    assert_eq!(shape(&[1, 2, 3, 2]), mismatch(0, 2, 1));
    assert_eq!(
        shape(&[2, 5, 3, 2]),
        Error::UpdateLongerThanCache { argument: Argument::NewKv, rows: 5, capacity: 4 }
    );
}

#[test]
fn values_are_refused_one_by_one() {
    let write = prepare(3);
    let refused =
        |layer: &[i32], offset: &[i32], len: &[i32]| write.plan(call(layer, offset, len)).unwrap_err();
    let count = |argument, got, expected| Error::ListLength { argument, got, expected };
    assert_eq!(refused(&[], &[2, 1], &[2, 1]), count(Argument::LayerId, 0, 1));
    assert_eq!(refused(&[0, 1], &[2, 1], &[2, 1]), count(Argument::LayerId, 2, 1));
    assert_eq!(refused(&[0], &[2], &[2, 1]), count(Argument::TokenOffset, 1, 2));
    assert_eq!(refused(&[0], &[2, 1], &[3]), count(Argument::SeqLen, 1, 2));
    for value in [2, -1, i32::MAX, i32::MIN] {
        assert_eq!(
            refused(&[value], &[2, 1], &[2, 1]),
            Error::LayerOutOfRange { argument: Argument::LayerId, value: value.into(), layers: 2 }
        );
    }
    let length =
        |index, value| Error::LengthOutOfRange { argument: Argument::SeqLen, index, value, min: 1, max: 4 };
    assert_eq!(refused(&[0], &[3, 1], &[3, 0]), length(1, 0));
    assert_eq!(refused(&[0], &[3, 1], &[-1, 4]), length(0, -1));
    assert_eq!(refused(&[0], &[4, 1], &[5, 1]), length(0, 5));
    for (lens, got) in [([2, 2], 4), ([1, 1], 2)] {
        assert_eq!(
            refused(&[0], &[4, 4], &lens),
            Error::TokenSum { argument: Argument::SeqLen, got, tokens: 3 }
        );
    }
    let end = |index, value, min| Error::EndOutOfRange {
        argument: Argument::TokenOffset,
        index,
        value,
        min,
        max: 4,
    };
    for value in [1, 0, -1, 5, i32::MAX, i32::MIN] {
        assert_eq!(refused(&[0], &[value, 1], &[2, 1]), end(0, value.into(), 2));
    }
    assert_eq!(refused(&[0], &[2, 0], &[2, 1]), end(1, 0, 1));
}

#[test]
fn shapes_are_refused_one_by_one() {
    let operation = KvCacheOperation::new();
    let refused =
        |element, new_kv: &[usize], past: &[usize]| operation.prepare(element, past, new_kv).unwrap_err();
    let past = [2, 2, 4, 6];
    for element in ElementType::ALL {
        let allowed = matches!(element, ElementType::Float16 | ElementType::BFloat16 | ElementType::Int8);
        let accepted = KvCacheOperation::ELEMENT_TYPES;
        let expected = Err(Error::ElementType { argument: Argument::Past, element, accepted });
        let got = operation.prepare(element, &past, &[3, 6]).map(|_| ());
        assert_eq!(got, if allowed { Ok(()) } else { expected });
    }
    let rank = |argument, rank, expected| Error::Rank { argument, rank, expected };
    assert_eq!(refused(ElementType::Int8, &[3, 6], &[2, 4, 6]), rank(Argument::Past, 3, &[4]));
    assert_eq!(refused(ElementType::Int8, &[3], &past), rank(Argument::NewKv, 1, &[2, 4]));
    assert_eq!(refused(ElementType::Int8, &[1, 3, 6], &past), rank(Argument::NewKv, 3, &[2, 4]));
    let argument = Argument::NewKv;
    let mismatch = Error::DimensionMismatch { argument, dimension: 1, expected: 6, got: 5, hint: None };
    assert_eq!(refused(ElementType::Int8, &[3, 5], &past), mismatch);
}

fn known<'a>(element: ElementType, shape: &'a [Dimension<'a>]) -> PartialTensor<'a> {
    PartialTensor { element: Some(element), shape: Some(shape) }
}

const UNKNOWN: PartialTensor<'static> = PartialTensor { element: None, shape: None };

#[test]
fn the_output_has_the_type_and_shape_of_past() {
    let past = [Known(2), Symbolic("batch"), Known(4), Symbolic("hidden")];
    let past = known(ElementType::Int8, &past);
    for new_kv in [
        UNKNOWN,
        known(ElementType::Int8, &[Unknown, Known(6)]),
        known(ElementType::Int8, &[Known(3), Known(4), Known(2), Symbolic("size")]),
    ] {
        let lists = known(ElementType::Int32, &[Unknown]);
        assert_eq!(KvCacheOperation::new().infer(past, new_kv, lists, lists, lists), Ok(past));
    }
    assert_eq!(
        KvCacheOperation::new().infer(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
        Ok(UNKNOWN),
        "unknowns contradict nothing"
    );
}

#[test]
fn inputs_are_refused_before_any_run() {
    let infer = |past, new_kv| KvCacheOperation::new().infer(past, new_kv, UNKNOWN, UNKNOWN, UNKNOWN);
    let int8 = |shape| known(ElementType::Int8, shape);
    let past = &[Unknown, Known(3), Known(6), Known(8)];

    let (cache, element) = (ElementType::Int8, ElementType::Float16);
    let other = PartialTensor { element: Some(element), shape: None };
    let argument = Argument::NewKv;
    assert_eq!(infer(int8(past), other), Err(Error::ElementTypeMismatch { cache, argument, element }));
    let accepted = KvCacheOperation::ELEMENT_TYPES;
    let other = PartialTensor { element: Some(ElementType::Float32), shape: None };
    let element_type =
        |argument| Err(Error::ElementType { argument, element: ElementType::Float32, accepted });
    assert_eq!(infer(other, UNKNOWN), element_type(Argument::Past));
    assert_eq!(infer(UNKNOWN, other), element_type(argument));

    let rank = |argument, rank, expected| Err(Error::Rank { argument, rank, expected });
    assert_eq!(infer(int8(&[Unknown; 3]), UNKNOWN), rank(Argument::Past, 3, &[4]));
    assert_eq!(infer(UNKNOWN, int8(&[Unknown; 3])), rank(argument, 3, &[2, 4]));

    let mismatch = |dimension, expected, got| Error::DimensionMismatch {
        argument,
        dimension,
        expected,
        got,
        hint: None,
    };
    assert_eq!(infer(int8(past), int8(&[Unknown, Known(7)])), Err(mismatch(1, 8, 7)));
    assert_eq!(infer(int8(past), int8(&[Known(4), Unknown, Unknown, Unknown])), Err(mismatch(0, 3, 4)));
    assert_eq!(
        infer(int8(past), int8(&[Unknown, Known(7), Unknown, Unknown])),
        Err(Error::UpdateLongerThanCache { argument, rows: 7, capacity: 6 })
    );
    let hidden = Error::HiddenSize { argument, heads: 2, head_size: 3, hidden: 8 };
    assert_eq!(infer(int8(past), int8(&[Unknown, Unknown, Known(2), Known(3)])), Err(hidden));
}

#[test]
fn lists_are_refused_before_any_run() {
    let batch = known(ElementType::Int8, &[Unknown, Known(3), Unknown, Unknown]);
    let of_new_kv = known(ElementType::Int8, &[Known(3), Unknown, Unknown, Unknown]);
    for (past, new_kv) in [(batch, UNKNOWN), (UNKNOWN, of_new_kv)] {
        let infer = |list: usize, tensor| {
            let mut lists = [UNKNOWN; 3];
            lists[list] = tensor;
            KvCacheOperation::new().infer(past, new_kv, lists[0], lists[1], lists[2]).unwrap_err()
        };
        let arguments = [(Argument::LayerId, 1), (Argument::TokenOffset, 3), (Argument::SeqLen, 3)];
        for (list, (argument, expected)) in arguments.into_iter().enumerate() {
            let accepted = KvCacheOperation::INDEX_TYPES;
            assert_eq!(
                infer(list, known(ElementType::Int64, &[Unknown])),
                Error::ElementType { argument, element: ElementType::Int64, accepted }
            );
            assert_eq!(
                infer(list, known(ElementType::Int32, &[Known(2)])),
                Error::ListLength { argument, got: 2, expected }
            );
            assert_eq!(
                infer(list, known(ElementType::Int32, &[Unknown, Unknown])),
                Error::Rank { argument, rank: 2, expected: &[1] }
            );
        }
    }
}

#[test]
fn extensions() {
    // The padding after the real tokens of a sample is not written.
    let mut past = [9_u16; 32];
    let write = prepare(3);
    let lengths = [1_i32, 1];
    let _ = write
        .plan_with_lengths(call(&[0], &[2, 1], &[2, 1]), &lengths)
        .unwrap()
        .write(&mut past, &[1, 2, 3, 4, 5, 6])
        .unwrap();
    let mut expected = [9_u16; 32];
    expected[..2].copy_from_slice(&[1, 2]);
    expected[8..10].copy_from_slice(&[5, 6]);
    assert_eq!(past, expected);
    // The padding does not have to fit into the cache either.
    assert!(write.plan_with_lengths(call(&[0], &[5, 1], &[2, 1]), &lengths).is_ok());
    let refused = write.plan_with_lengths(call(&[0], &[6, 1], &[2, 1]), &lengths).unwrap_err();
    let argument = Argument::TokenOffset;
    assert_eq!(refused, Error::EndOutOfRange { argument, index: 0, value: 6, min: 2, max: 5 });

    let skipping = KvCacheOperation::new()
        .out_of_range(OutOfRange::SkipSample)
        .prepare(ElementType::Float16, &[2, 2, 4, HIDDEN], &[3, HIDDEN])
        .unwrap();
    let mut past = [9_u16; 32];
    let written = skipping.write(&mut past, &[1, 2, 3, 4, 5, 6], call(&[0], &[1, 4], &[2, 1])).unwrap();
    assert_eq!(written.skipped, 1);
    let mut expected = [9_u16; 32];
    expected[14..16].copy_from_slice(&[5, 6]); // the second batch still takes the third token
    assert_eq!(past, expected);
}
