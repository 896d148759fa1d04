//! Tests inference of Ascend's `KVCacheOperation`, and kvscatter's extensions of it.
//!
//! `oracle/` compares all other writes and errors with the oracle.
#![cfg(test)]

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
