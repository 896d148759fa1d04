//! Tests the errata's lists of calls that `KVCacheUpdate` and `KVCacheOperation` reject, for the rules about
//! values and shapes.

use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::cases::{Call, Element};
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{OutOfRange, Refusal, Tensor};

const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

fn tensors(cache_shape: &[usize], update_shape: &[usize]) -> (Vec<char>, Vec<char>) {
    let update = LETTERS.chars().cycle().take(update_shape.iter().product()).collect();
    (vec!['.'; cache_shape.iter().product()], update)
}

/// Writes with `KVCacheUpdate`.
fn update(
    update_form: UpdateForm,
    [cache, update]: [&[usize]; 2],
    write_indices: &[i64],
    update_lengths: Option<&[i32]>,
) -> Result<String, Refusal> {
    let operator = KvCacheUpdate { update_form, ..KvCacheUpdate::default() };
    let (cache_data, update_data) = tensors(cache, update);
    let (cache, update) = (Tensor::new(&cache_data, cache), Tensor::new(&update_data, update));
    let outcome = operator.run(cache, update, write_indices, update_lengths, None)?;
    Ok(outcome.present.into_iter().collect())
}

fn padded(cache: &[usize], new: &[usize], write_indices: &[i64]) -> Result<String, Refusal> {
    update(UpdateForm::Padded, [cache, new], write_indices, None)
}

/// Writes to two samples of capacity 4, with one head of size 1.
fn packed(tokens: usize, write_indices: &[i64], update_lengths: &[i32]) -> Result<String, Refusal> {
    update(UpdateForm::Packed, [&[2, 1, 4, 1], &[tokens, 1, 1]], write_indices, Some(update_lengths))
}

#[test]
fn an_update_of_fewer_samples_leaves_the_later_ones() {
    assert_eq!(padded(&[2, 1, 3, 1], &[1, 1, 2, 1], &[1]).unwrap(), ".ab...");
    assert_eq!(packed(2, &[1], &[0, 2]).unwrap(), ".ab.....");
    let larger = |argument, cache, update| Err(Refusal::UpdateBatch { argument, cache, update });
    assert_eq!(padded(&[1, 1, 3, 1], &[2, 1, 1, 1], &[0, 0]), larger("update", 1, 2));
    assert_eq!(packed(0, &[0; 3], &[0; 4]), larger("writeIndices", 2, 3));
}

#[test]
fn padded_shapes() {
    assert_eq!(padded(&[1, 3, 1], &[1, 1, 1, 1], &[0]), Err(Refusal::CacheRank { rank: 3 }));
    assert_eq!(padded(&[1, 1, 3, 1], &[1, 1, 1], &[0]), Err(Refusal::UpdateRank { rank: 3 }));
    let heads = Refusal::Dimension { dimension: 1, cache: 2, update: 1 };
    assert_eq!(padded(&[1, 2, 3, 1], &[1, 1, 1, 1], &[0]), Err(heads));
    let head_size = Refusal::Dimension { dimension: 3, cache: 2, update: 1 };
    assert_eq!(padded(&[1, 1, 3, 2], &[1, 1, 1, 1], &[0]), Err(head_size));
    let longer = Refusal::UpdateTooLong { capacity: 3, rows: 4 };
    assert_eq!(padded(&[1, 1, 3, 1], &[1, 1, 4, 1], &[0]), Err(longer));
    let count = Refusal::IndexCount { argument: "writeIndices", given: 2, needed: 1 };
    assert_eq!(padded(&[2, 1, 3, 1], &[1, 1, 1, 1], &[0, 0]), Err(count));
}

#[test]
fn cumulative_lengths() {
    assert_eq!(packed(3, &[3, 2], &[0, 1, 3]).unwrap(), "...a..bc");
    assert_eq!(packed(2, &[4, 2], &[0, 0, 2]).unwrap(), "......ab");
    assert_eq!(packed(1, &[0], &[1, 1]), Err(Refusal::UpdateLengthsFirst { first: 1 }));
    assert_eq!(packed(1, &[0, 0], &[0, 2, 1]), Err(Refusal::UpdateLengthsDecrease { sample: 1 }));
    assert_eq!(
        packed(5, &[0], &[0, 5]),
        Err(Refusal::UpdateLengthsTooLong { sample: 0, rows: 5, capacity: 4 })
    );
    assert_eq!(packed(3, &[0], &[0, 2]), Err(Refusal::UpdateLengthsTotal { total: 2, tokens: 3 }));
    let count = Refusal::IndexCount { argument: "writeIndices", given: 3, needed: 1 };
    assert_eq!(packed(2, &[0, 0, 0], &[0, 2]), Err(count));
    // As many values as samples are plain lengths.
    let count = Refusal::IndexCount { argument: "updateLengths", given: 2, needed: 3 };
    assert_eq!(packed(2, &[0, 0], &[0, 2]), Err(count));
    let count = Refusal::IndexCount { argument: "updateLengths", given: 0, needed: 1 };
    assert_eq!(packed(0, &[], &[]), Err(count));
    assert_eq!(packed(1, &[-1], &[0, 1]), Err(Refusal::NegativeStart { sample: 0, start: -1 }));
    let beyond = Refusal::OutOfRange { sample: 0, start: 3, rows: 2, capacity: 4 };
    assert_eq!(packed(2, &[3], &[0, 2]), Err(beyond));
}

#[test]
fn lengths_go_with_the_packed_form() {
    let missing = update(UpdateForm::Packed, [&[1, 1, 2, 1], &[1, 1, 1]], &[0], None);
    assert_eq!(missing, Err(Refusal::UpdateLengthsMissing));
    let unexpected = update(UpdateForm::Padded, [&[1, 1, 2, 1], &[1, 1, 1, 1]], &[0], Some(&[0, 1]));
    assert_eq!(unexpected, Err(Refusal::UpdateLengthsUnexpected));
}

/// Writes to three layers of two samples, with capacity 3 and hidden size 1.
fn operation(
    out_of_range: OutOfRange,
    new_kv: &[usize],
    layer_id: &[i32],
    token_offset: &[i32],
    seq_len: &[i32],
    lengths: Option<&[i64]>,
) -> Result<(String, usize), Refusal> {
    let past = [3, 2, 3, 1];
    let (past_data, new_data) = tensors(&past, new_kv);
    let outcome = KvCacheOperation { out_of_range }.run(
        Tensor::new(&new_data, new_kv),
        layer_id,
        Tensor::new(&past_data, &past),
        token_offset,
        seq_len,
        lengths,
    )?;
    Ok((outcome.present.into_iter().collect(), outcome.skipped))
}

#[test]
fn the_offset_is_the_length_after_the_write() {
    let strict = |token_offset: &[i32], seq_len: &[i32]| {
        operation(OutOfRange::Error, &[3, 1], &[1], token_offset, seq_len, None)
    };
    // tokenOffset == maxSeqLen fills the last slot.
    assert_eq!(strict(&[3, 1], &[2, 1]).unwrap().0, ".......abc........");
    assert_eq!(
        strict(&[4, 1], &[2, 1]),
        Err(Refusal::OutOfRange { sample: 0, start: 2, rows: 2, capacity: 3 })
    );
    assert_eq!(strict(&[2, 0], &[2, 1]), Err(Refusal::NegativeStart { sample: 1, start: -1 }));
}

#[test]
fn sequence_lengths_add_up_to_the_tokens() {
    let strict = |seq_len: &[i32]| operation(OutOfRange::Error, &[3, 1], &[0], &[3, 3], seq_len, None);
    assert_eq!(strict(&[3, 0]), Err(Refusal::SeqLen { sample: 1, seq_len: 0 }));
    assert_eq!(strict(&[-1, 4]), Err(Refusal::SeqLen { sample: 0, seq_len: -1 }));
    assert_eq!(strict(&[1, 1]), Err(Refusal::SeqLenTotal { total: 2, tokens: 3 }));
    assert_eq!(strict(&[3]), Err(Refusal::IndexCount { argument: "seqLen", given: 1, needed: 2 }));
}

#[test]
fn exactly_one_layer() {
    let strict = |layer_id: &[i32]| operation(OutOfRange::Error, &[2, 1], layer_id, &[1, 1], &[1, 1], None);
    assert_eq!(strict(&[2]).unwrap().0, "............a..b..");
    for layer_id in [-1, 3] {
        assert_eq!(strict(&[layer_id]), Err(Refusal::LayerId { layer_id, layers: 3 }));
    }
    assert_eq!(strict(&[]), Err(Refusal::IndexCount { argument: "layerId", given: 0, needed: 1 }));
    assert_eq!(strict(&[0, 1]), Err(Refusal::IndexCount { argument: "layerId", given: 2, needed: 1 }));
}

#[test]
fn a_four_dimensional_update_has_equal_rows() {
    let strict = |new_kv: &[usize], seq_len: &[i32]| {
        operation(OutOfRange::Error, new_kv, &[0], &[3, 3], seq_len, None).map(|(present, _)| present)
    };
    assert_eq!(strict(&[2, 2, 1, 1], &[2, 2]).unwrap(), ".ab.cd............");
    assert_eq!(strict(&[2, 2, 1, 1], &[1, 3]), Err(Refusal::SeqLen { sample: 0, seq_len: 1 }));
    assert_eq!(strict(&[1, 4, 1, 1], &[2, 2]), Err(Refusal::Dimension { dimension: 0, cache: 2, update: 1 }));
    assert_eq!(strict(&[2, 2, 2, 1], &[2, 2]), Err(Refusal::Dimension { dimension: 3, cache: 1, update: 2 }));
}

#[test]
fn extensions_of_both() {
    let lengths = Some([1, 0].as_slice());
    let present = operation(OutOfRange::Error, &[3, 1], &[0], &[3, 1], &[2, 1], lengths).unwrap().0;
    assert_eq!(present, ".a................");
    let skipped = operation(OutOfRange::SkipSample, &[3, 1], &[0], &[3, 4], &[2, 1], None).unwrap();
    assert_eq!(skipped, (".ab...............".to_owned(), 1));
}

#[test]
fn element_types() {
    let update = Call::KvCacheUpdate {
        operator: KvCacheUpdate::default(),
        write_indices: vec![],
        update_lengths: None,
        lengths: None,
    };
    let operation = Call::KvCacheOperation {
        operator: KvCacheOperation::default(),
        layer_id: vec![],
        token_offset: vec![],
        seq_len: vec![],
        lengths: None,
    };
    let taken_by = |call: &Call| {
        let taken = Element::all().iter().filter(|element| call.check_elements([element, element]).is_ok());
        taken.map(|element| element.name).collect::<Vec<_>>()
    };
    assert_eq!(taken_by(&update), ["bfloat16", "float", "float16"]);
    assert_eq!(taken_by(&operation), ["bfloat16", "float16", "int8"]);
}
