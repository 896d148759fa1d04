//! Executes a call of the oracle with the core.

use kvscatter::spec::{ascend, onnx, tensorrt};
use kvscatter::{Argument, ElementType, Error, Layout, Mode, NegativeIndex, OutOfRange, Prepared, WritePlan};
use kvscatter_oracle as oracle;
use kvscatter_oracle::Refusal;
use kvscatter_oracle::cases::Call;
use kvscatter_oracle::tensorrt::UpdateForm;

/// Prepares and plans the call, and passes the plan to `execute`.
pub(crate) fn with_plan<R>(
    call: &Call,
    element: ElementType,
    cache: Layout<'_>,
    update: Layout<'_>,
    execute: impl FnOnce(&WritePlan<'_>) -> Result<R, Error>,
) -> Result<R, Error> {
    let prepared = prepare(call, element, cache, update)?;
    execute(&plan(&prepared, call)?)
}

/// Prepares the call's operator. Removes hints from errors, because `tests/tensor_scatter.rs` tests the hints.
pub(crate) fn prepare(
    call: &Call,
    element: ElementType,
    cache: Layout<'_>,
    update: Layout<'_>,
) -> Result<Prepared, Error> {
    let prepared = match call {
        Call::TensorScatter { operator, .. } => tensor_scatter(operator)?.prepare(element, cache, update),
        Call::KvCacheUpdate { operator, .. } => {
            let front = tensorrt::KvCacheUpdate::new().out_of_range(out_of_range(operator.out_of_range));
            match operator.update_form {
                UpdateForm::Padded => front.prepare(element, cache, update),
                UpdateForm::Packed => front.prepare_packed(element, cache, update),
            }
        }
        Call::KvCacheOperation { operator, .. } => {
            let front = ascend::KvCacheOperation::new().out_of_range(out_of_range(operator.out_of_range));
            front.prepare(element, cache, update)
        }
    };
    prepared.map_err(without_hint)
}

pub(crate) fn without_hint(mut error: Error) -> Error {
    if let Error::DimensionMismatch { hint, .. } = &mut error {
        *hint = None;
    }
    error
}

/// Plans the call, whose operator was prepared.
pub(crate) fn plan<'a>(prepared: &'a Prepared, call: &'a Call) -> Result<WritePlan<'a>, Error> {
    match call {
        Call::TensorScatter { write_indices, lengths, .. } => {
            prepared.plan_with_lengths(write_indices.as_deref(), lengths.as_deref())
        }
        Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths } => {
            match operator.update_form {
                UpdateForm::Padded => prepared.plan_with_lengths(write_indices, lengths.as_deref()),
                UpdateForm::Packed => {
                    let update_lengths = update_lengths.as_deref().unwrap_or_default();
                    let call = tensorrt::PackedCall::new(write_indices, update_lengths);
                    prepared.plan_with_lengths(call, lengths.as_deref())
                }
            }
        }
        Call::KvCacheOperation { layer_id, token_offset, seq_len, lengths, .. } => {
            let call = ascend::KvCacheOperationCall { layer_id, token_offset, seq_len };
            prepared.plan_with_lengths(call, lengths.as_deref())
        }
    }
}

/// Returns the core's operator with the attributes and policies of the oracle's operator.
pub(crate) fn tensor_scatter(operator: &oracle::onnx::TensorScatter) -> Result<onnx::TensorScatter, Error> {
    Ok(onnx::TensorScatter::new()
        .axis(operator.axis)
        .mode(operator.mode.parse::<Mode>()?)
        .out_of_range(out_of_range(operator.out_of_range))
        .negative_index(match operator.negative_index {
            oracle::NegativeIndex::Modulo => NegativeIndex::Modulo,
            oracle::NegativeIndex::Reject => NegativeIndex::Reject,
        }))
}

fn out_of_range(policy: oracle::OutOfRange) -> OutOfRange {
    match policy {
        oracle::OutOfRange::Error => OutOfRange::Error,
        oracle::OutOfRange::SkipSample => OutOfRange::SkipSample,
    }
}

/// Returns `true` if a call through [`with_plan`] can break this rule. Such a call has one element type, and
/// has cumulative lengths if and only if the operator needs them.
pub(crate) fn is_reachable(refusal: &Refusal) -> bool {
    !matches!(
        refusal,
        Refusal::TypesDiffer { .. } | Refusal::UpdateLengthsMissing | Refusal::UpdateLengthsUnexpected
    )
}

/// Returns the core's error for a rule that is broken according to the oracle.
pub(crate) fn error(
    refusal: &Refusal,
    call: &Call,
    cache_shape: &[usize],
    update_shape: &[usize],
    element: ElementType,
) -> Error {
    let words = Words::new(call);
    match *refusal {
        Refusal::TypesDiffer { .. } | Refusal::UpdateLengthsMissing | Refusal::UpdateLengthsUnexpected => {
            unreachable!("see `is_reachable`")
        }
        Refusal::UnsupportedType { .. } => {
            Error::ElementType { argument: words.cache, element, accepted: words.types }
        }
        Refusal::Mode { .. } => Error::UnknownMode,
        Refusal::CacheRank { rank } => {
            let argument = words.cache;
            match words.cache_ranks {
                None => Error::RankTooLow { argument, rank, min: 2 },
                Some(expected) => Error::Rank { argument, rank, expected },
            }
        }
        Refusal::UpdateRank { rank } => match words.update_ranks {
            None => Error::RankMismatch { argument: words.update, cache: cache_shape.len(), update: rank },
            Some(expected) => Error::Rank { argument: words.update, rank, expected },
        },
        Refusal::Axis { axis, rank } if axis == 0 || axis == -(rank as i64) => {
            Error::AxisIsBatch { axis, rank }
        }
        Refusal::Axis { axis, rank } => Error::AxisOutOfRange { axis, rank },
        Refusal::Dimension { dimension: 3, cache: hidden, .. }
            if matches!(call, Call::KvCacheOperation { .. }) =>
        {
            Error::HiddenSize {
                argument: words.update,
                heads: update_shape[2],
                head_size: update_shape[3],
                hidden,
            }
        }
        Refusal::Dimension { dimension, cache, update } => {
            let argument = words.update;
            Error::DimensionMismatch { argument, dimension, expected: cache, got: update, hint: None }
        }
        Refusal::UpdateBatch { argument, cache, update } => {
            let argument = if argument == "update" { words.update } else { words.starts };
            Error::BatchTooLarge { argument, cache, update }
        }
        Refusal::UpdateTooLong { capacity, rows } => {
            Error::UpdateLongerThanCache { argument: words.update, rows, capacity }
        }
        Refusal::IndexCount { argument, given, needed } => {
            Error::ListLength { argument: words.list(argument), got: given, expected: needed }
        }
        Refusal::Length { sample, length, rows } => Error::LengthOutOfRange {
            argument: Argument::Lengths,
            index: sample,
            value: length,
            min: 0,
            max: rows,
        },
        Refusal::NegativeStart { sample, .. } | Refusal::OutOfRange { sample, .. }
            if matches!(call, Call::KvCacheOperation { .. }) =>
        {
            end_error(&words, call, sample, cache_shape[2])
        }
        Refusal::NegativeStart { sample, start } => {
            Error::NegativeStart { argument: words.starts, index: sample, value: start as i64 }
        }
        Refusal::OutOfRange { sample, start, rows, capacity } => Error::StartOutOfRange {
            argument: words.starts,
            index: sample,
            value: start as i64,
            rows,
            capacity,
        },
        Refusal::UpdateLengthsFirst { first } => {
            Error::CumulativeStart { argument: words.rows, value: first.into() }
        }
        Refusal::UpdateLengthsDecrease { sample } => {
            let Call::KvCacheUpdate { update_lengths: Some(values), .. } = call else { unreachable!() };
            let (value, previous) = (values[sample + 1].into(), values[sample].into());
            Error::CumulativeOrder { argument: words.rows, index: sample + 1, value, previous }
        }
        Refusal::UpdateLengthsTooLong { sample, rows, capacity } => {
            let rows = rows as i64;
            Error::CumulativeLength { argument: words.rows, index: sample, rows, capacity }
        }
        Refusal::UpdateLengthsTotal { total, tokens } | Refusal::SeqLenTotal { total, tokens } => {
            Error::TokenSum { argument: words.rows, got: total as i64, tokens }
        }
        Refusal::LayerId { layer_id, layers } => {
            Error::LayerOutOfRange { argument: Argument::LayerId, value: layer_id.into(), layers }
        }
        Refusal::SeqLen { sample, seq_len } => {
            seq_len_error(&words, sample, seq_len, cache_shape[2], update_shape)
        }
    }
}

/// Returns the error for Ascend's `tokenOffset` that does not fit into the cache.
fn end_error(words: &Words, call: &Call, sample: usize, capacity: usize) -> Error {
    let Call::KvCacheOperation { token_offset, seq_len, lengths, .. } = call else { unreachable!() };
    let rows = seq_len[sample] as usize;
    let padding = lengths.as_ref().map_or(0, |lengths| rows - lengths[sample] as usize);
    Error::EndOutOfRange {
        argument: words.starts,
        index: sample,
        value: token_offset[sample].into(),
        min: rows,
        max: capacity + padding,
    }
}

/// Returns the error for a `seqLen` that differs from the rows of a padded update or does not fit into the
/// cache.
fn seq_len_error(
    words: &Words,
    sample: usize,
    seq_len: i32,
    capacity: usize,
    update_shape: &[usize],
) -> Error {
    let (min, max) = match *update_shape {
        [_, rows, _, _] => (rows.max(1), rows),
        _ => (1, capacity),
    };
    Error::LengthOutOfRange { argument: words.rows, index: sample, value: seq_len.into(), min, max }
}

/// A specification's names of the arguments, and the ranks that it accepts. ONNX accepts any cache of rank 2
/// or more, and an update of the same rank.
struct Words {
    cache: Argument,
    update: Argument,
    starts: Argument,
    rows: Argument,
    types: &'static [ElementType],
    cache_ranks: Option<&'static [usize]>,
    update_ranks: Option<&'static [usize]>,
}

impl Words {
    /// Returns the list with this name in the specification.
    fn list(&self, name: &str) -> Argument {
        match name {
            "lengths" => Argument::Lengths,
            "layerId" => Argument::LayerId,
            "updateLengths" | "seqLen" => self.rows,
            "write_indices" | "writeIndices" | "tokenOffset" => self.starts,
            unknown => unreachable!("{unknown}"),
        }
    }

    fn new(call: &Call) -> Self {
        match call {
            Call::TensorScatter { .. } => Self {
                cache: Argument::PastCache,
                update: Argument::Update,
                starts: Argument::WriteIndices,
                rows: Argument::UpdateLengths,
                types: &ElementType::ALL,
                cache_ranks: None,
                update_ranks: None,
            },
            Call::KvCacheUpdate { operator, .. } => Self {
                cache: Argument::Cache,
                update: Argument::Update,
                starts: Argument::TensorRtWriteIndices,
                rows: Argument::UpdateLengths,
                types: tensorrt::KvCacheUpdate::ELEMENT_TYPES,
                cache_ranks: Some(&[4]),
                update_ranks: Some(match operator.update_form {
                    UpdateForm::Padded => &[4],
                    UpdateForm::Packed => &[3],
                }),
            },
            Call::KvCacheOperation { .. } => Self {
                cache: Argument::Past,
                update: Argument::NewKv,
                starts: Argument::TokenOffset,
                rows: Argument::SeqLen,
                types: ascend::KvCacheOperation::ELEMENT_TYPES,
                cache_ranks: Some(&[4]),
                update_ranks: Some(&[2, 4]),
            },
        }
    }
}
