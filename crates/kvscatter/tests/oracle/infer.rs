//! Compares inference with the oracle: before a call, it returns the errors about types, shapes and numbers
//! of indices.

use kvscatter::spec::Dimension::{self, Known, Symbolic, Unknown};
use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::tensorrt::{AttentionIoForm, KvCacheUpdate};
use kvscatter::spec::{PartialTensor, onnx};
use kvscatter::{Argument, ElementType, Error};
use kvscatter_oracle::Refusal;
use kvscatter_oracle::cases::{Call, Case, Element, Random, cases};
use kvscatter_oracle::tensorrt::UpdateForm;

use crate::call::{error, is_reachable, tensor_scatter, without_hint};

const UNKNOWN: PartialTensor<'static> = PartialTensor { element: None, shape: None };

fn element(element: &Element) -> ElementType {
    ElementType::from_name(element.name).unwrap()
}

/// Infers the output from tensors of these dimensions, and from lists with those that `describe` returns.
fn infer<'a>(
    case: &Case,
    [cache, update]: [&'a [Dimension<'a>]; 2],
    mut describe: impl FnMut(usize) -> Dimension<'static>,
) -> Result<PartialTensor<'a>, Error> {
    let tensor = |side: usize, shape| PartialTensor {
        element: Some(element(case.elements[side])),
        shape: Some(shape),
    };
    let (cache, update) = (tensor(0, cache), tensor(1, update));
    let inferred = match &case.call {
        Call::TensorScatter { operator, write_indices, .. } => {
            let starts = write_indices.as_ref().map(|starts| [describe(starts.len())]);
            let starts = starts.as_ref().map(|starts| list(ElementType::Int64, starts));
            tensor_scatter(operator)?.infer(cache, update, starts)
        }
        Call::KvCacheUpdate { operator, write_indices, update_lengths, .. } => {
            let form = match operator.update_form {
                UpdateForm::Padded => AttentionIoForm::PaddedBhnd,
                UpdateForm::Packed => AttentionIoForm::PackedNhd,
            };
            let starts = [describe(write_indices.len())];
            let lengths = update_lengths.as_ref().map(|lengths| [describe(lengths.len())]);
            let lengths = lengths.as_ref().map(|lengths| list(ElementType::Int32, lengths));
            KvCacheUpdate::new().infer(form, cache, update, list(ElementType::Int64, &starts), lengths)
        }
        Call::KvCacheOperation { layer_id, token_offset, seq_len, .. } => {
            let lists = [layer_id, token_offset, seq_len].map(|list| [describe(list.len())]);
            let [layer, ends, rows] = lists.each_ref().map(|shape| list(ElementType::Int32, shape));
            KvCacheOperation::new().infer(cache, update, layer, ends, rows)
        }
    };
    assert!(inferred.is_err() || inferred == Ok(cache), "{case:?}");
    inferred.map(|_| cache).map_err(without_hint)
}

fn list<'a>(element: ElementType, shape: &'a [Dimension<'a>]) -> PartialTensor<'a> {
    PartialTensor { element: Some(element), shape: Some(shape) }
}

/// Returns the core's error for a rule that is broken, or `None` if the rule is about values that inference
/// does not know.
fn expected(case: &Case, refusal: &Refusal) -> Option<Error> {
    let samples =
        if let Call::KvCacheUpdate { write_indices, .. } = &case.call { write_indices.len() } else { 0 };
    let lengths = |got, expected| Error::ListLength { argument: Argument::UpdateLengths, got, expected };
    match refusal {
        Refusal::TypesDiffer { .. } => {
            let [cache, update] = case.elements.map(element);
            Some(Error::ElementTypeMismatch { cache, argument: Argument::Update, element: update })
        }
        Refusal::UpdateLengthsMissing => Some(lengths(0, samples + 1)),
        Refusal::UpdateLengthsUnexpected => Some(lengths(2, 0)),
        Refusal::UpdateBatch { cache, update, .. } => {
            Some(Error::BatchTooLarge { argument: Argument::Update, cache: *cache, update: *update })
        }
        // Inference counts the samples of a packed update by their starts.
        Refusal::IndexCount { argument: "writeIndices", given, needed } if case.update_shape.len() == 3 => {
            Some(lengths(needed + 1, given + 1))
        }
        Refusal::IndexCount { argument: "lengths", .. }
        | Refusal::Length { .. }
        | Refusal::NegativeStart { .. }
        | Refusal::OutOfRange { .. }
        | Refusal::UpdateLengthsFirst { .. }
        | Refusal::UpdateLengthsDecrease { .. }
        | Refusal::UpdateLengthsTooLong { .. }
        | Refusal::UpdateLengthsTotal { .. }
        | Refusal::LayerId { .. }
        | Refusal::SeqLen { .. }
        | Refusal::SeqLenTotal { .. } => None,
        refusal => {
            assert!(is_reachable(refusal));
            let element = element(case.elements[0]);
            Some(error(refusal, &case.call, &case.cache_shape, &case.update_shape, element))
        }
    }
}

/// Every fact is known, and then some are not. A symbolic or unknown dimension fits every other, so it hides
/// an error and never makes one.
#[test]
fn errors_are_those_of_the_calls() {
    let (mut random, mut refused) = (Random::new(0x5CA7, 3), 0);
    for case in cases(3, 20_000) {
        let expected = case.expected.as_ref().err().and_then(|refusal| expected(&case, refusal));
        let known = |shape: &[usize]| shape.iter().map(|&size| Known(size)).collect::<Vec<_>>();
        let [cache, update] = [known(&case.cache_shape), known(&case.update_shape)];
        let found = infer(&case, [&cache, &update], Known).err();
        assert_eq!(found, expected, "{case:?}");
        refused += usize::from(found.is_some());
        // The batch of the update counts, too. Packed tokens have none.
        if let (Some(Error::ListLength { .. }), false) = (expected, case.update_shape.len() == 2) {
            let hidden = vec![Unknown; cache.len()];
            assert_eq!(infer(&case, [&hidden, &update], Known).err(), expected, "{case:?}");
        }

        let mut hide = |size| random.pick(&[Known(size), Unknown, Symbolic("size")]);
        let mut partly = |shape: &[usize]| shape.iter().map(|&size| hide(size)).collect::<Vec<_>>();
        let [cache, update] = [partly(&case.cache_shape), partly(&case.update_shape)];
        let found = infer(&case, [&cache, &update], hide).err();
        assert!(found.is_none() || expected.is_some(), "{found:?} {cache:?} {update:?} {case:?}");
    }
    assert!(refused > 5_000, "{refused}");
}

/// An axis is checked even if nothing but the rank of the cache is known.
#[test]
fn unknown_tensors_fit_everything() {
    let scatter = onnx::TensorScatter::new();
    assert_eq!(scatter.infer(UNKNOWN, UNKNOWN, None), Ok(UNKNOWN));
    let cache = PartialTensor { element: None, shape: Some(&[Unknown; 4]) };
    assert_eq!(scatter.axis(3).infer(cache, UNKNOWN, None), Ok(cache));
    let axis = 4;
    assert_eq!(scatter.axis(axis).infer(cache, UNKNOWN, None), Err(Error::AxisOutOfRange { axis, rank: 4 }));
    for (form, lengths) in [(AttentionIoForm::PaddedBhnd, None), (AttentionIoForm::PackedNhd, Some(UNKNOWN))]
    {
        assert_eq!(KvCacheUpdate::new().infer(form, UNKNOWN, UNKNOWN, UNKNOWN, lengths), Ok(UNKNOWN));
    }
    let operation = KvCacheOperation::new();
    assert_eq!(operation.infer(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN), Ok(UNKNOWN));
    let refused =
        operation.infer(UNKNOWN, list(ElementType::Float32, &[Unknown; 2]), UNKNOWN, UNKNOWN, UNKNOWN);
    let (argument, element, accepted) =
        (Argument::NewKv, ElementType::Float32, KvCacheOperation::ELEMENT_TYPES);
    assert_eq!(refused, Err(Error::ElementType { argument, element, accepted }));
}

#[test]
fn lists_have_one_dimension_and_a_type_of_their_own() {
    use ElementType::{Float32, Int32, Int64, UInt32};
    let update = |starts, lengths| {
        KvCacheUpdate::new().infer(AttentionIoForm::PackedNhd, UNKNOWN, UNKNOWN, starts, Some(lengths))
    };
    let operation = |layer, ends, rows| KvCacheOperation::new().infer(UNKNOWN, UNKNOWN, layer, ends, rows);
    type Infer<'f> = &'f dyn Fn(PartialTensor<'static>) -> Result<PartialTensor<'static>, Error>;
    let lists: [(Argument, &[ElementType], Infer<'_>); 6] = [
        (Argument::WriteIndices, &[Int64], &|list| {
            onnx::TensorScatter::new().infer(UNKNOWN, UNKNOWN, Some(list))
        }),
        (Argument::TensorRtWriteIndices, &[Int32, Int64], &|list| update(list, UNKNOWN)),
        (Argument::UpdateLengths, &[Int32], &|list| update(UNKNOWN, list)),
        (Argument::LayerId, &[Int32], &|list| operation(list, UNKNOWN, UNKNOWN)),
        (Argument::TokenOffset, &[Int32], &|list| operation(UNKNOWN, list, UNKNOWN)),
        (Argument::SeqLen, &[Int32], &|list| operation(UNKNOWN, UNKNOWN, list)),
    ];
    for (argument, accepted, infer) in lists {
        for element in [Float32, Int32, Int64, UInt32] {
            let refused = Err(Error::ElementType { argument, element, accepted });
            let expected = if accepted.contains(&element) { Ok(UNKNOWN) } else { refused };
            assert_eq!(infer(list(element, &[Unknown])), expected, "{argument} {element}");
        }
        let rank = Error::Rank { argument, rank: 2, expected: &[1] };
        assert_eq!(infer(PartialTensor { element: None, shape: Some(&[Unknown; 2]) }), Err(rank));
    }
}
