//! Derives from the oracle what a launch with indices on the device must do.
//!
//! Samples with a bad index stay as they are and are counted. If a list does not assign each row of the
//! update to a sample, or the layer does not exist, everything stays as it was.

use kvscatter_cuda::StatusWords;
use kvscatter_oracle::cases::{Call, Case};
use kvscatter_oracle::tensorrt::UpdateForm;
use kvscatter_oracle::{OutOfRange, Refusal};

use crate::abi::{LAYER, LENGTH, ROW_COUNT};

/// The expected status after one launch, and the expected contents of the caches.
#[derive(Debug)]
pub(crate) struct Contract {
    pub(crate) status: StatusWords,
    /// A case without bad indices whose result the caches must equal, or `None` if nothing is written.
    pub(crate) written: Option<Case>,
}

/// Returns `None` if the host rejects the shapes or the numbers of indices.
pub(crate) fn expected(case: &Case) -> Option<Contract> {
    let Case { call, cache_shape, update_shape, elements, .. } = case;
    if call.check_elements(*elements).is_err() {
        return None;
    }
    let is_counted = || lengths(call).is_none_or(|lengths| lengths.len() == batch(call, update_shape));
    let starts_alone = with_policy(&without_lengths(call), OutOfRange::SkipSample);
    match starts_alone.run_on_origins(cache_shape, update_shape) {
        Ok(_) => is_counted().then(|| of_samples(case)),
        Err(refusal) => {
            let (first_sample, first_value) = match refusal {
                Refusal::LayerId { layer_id, .. } => (LAYER, layer_id.into()),
                Refusal::UpdateLengthsFirst { .. }
                | Refusal::UpdateLengthsDecrease { .. }
                | Refusal::UpdateLengthsTooLong { .. }
                | Refusal::UpdateLengthsTotal { .. }
                | Refusal::SeqLen { .. }
                | Refusal::SeqLenTotal { .. } => bad_row_count(call, cache_shape, update_shape)?,
                _ => return None,
            };
            let bad_samples = u32::try_from(batch(call, update_shape).max(1)).unwrap();
            let status = StatusWords { bad_samples, first_sample, first_value };
            is_counted().then_some(Contract { status, written: None })
        }
    }
}

/// Returns the contract for correct lists, with which each sample is checked separately.
fn of_samples(case: &Case) -> Contract {
    let Case { call, cache_shape, update_shape, .. } = case;
    let row_counts = row_counts_of(call, update_shape);
    let is_bad = |sample: usize, length: i64| !(0..=row_counts[sample]).contains(&length);
    // A sample with a bad length writes nothing. It gets a start that fits, so that it does not count twice.
    let mut corrected = with_policy(call, OutOfRange::SkipSample);
    let mut with_bad_length = 0;
    let (mut starts, lengths) = lists_mut(&mut corrected);
    for (sample, length) in lengths.into_iter().flatten().enumerate() {
        if is_bad(sample, *length) {
            *length = 0;
            with_bad_length += 1;
            starts.set(sample, row_counts[sample]);
        }
    }
    let skipped = corrected.run_on_origins(cache_shape, update_shape).unwrap().skipped;
    let strict = with_policy(call, OutOfRange::Error).run_on_origins(cache_shape, update_shape);
    let (first_sample, first_value) = match strict {
        Ok(_) => (0, 0),
        Err(Refusal::Length { sample, length, .. }) => (u32::try_from(sample).unwrap() | LENGTH, length),
        Err(Refusal::NegativeStart { sample, .. } | Refusal::OutOfRange { sample, .. }) => {
            (u32::try_from(sample).unwrap(), starts_of(call).unwrap()[sample])
        }
        Err(other) => unreachable!("{other:?} of {case:?}"),
    };
    let bad_samples = u32::try_from(skipped + with_bad_length).unwrap();
    let status = StatusWords { bad_samples, first_sample, first_value };
    Contract { status, written: Some(Case { call: corrected, ..case.clone() }) }
}

/// Returns the first sample with too few or too many rows in a packed update, or the wrong sum of the rows.
fn bad_row_count(call: &Call, cache_shape: &[usize], update_shape: &[usize]) -> Option<(u32, i64)> {
    if let Call::KvCacheUpdate { update_lengths: Some(lengths), .. } = call
        && lengths[0] != 0
    {
        return Some((ROW_COUNT, lengths[0].into()));
    }
    let capacity = cache_shape[2] as i64;
    let (min_rows, max_rows) = match (call, update_shape) {
        (Call::KvCacheOperation { .. }, &[_, rows, _, _]) => (rows as i64, rows as i64),
        (Call::KvCacheOperation { .. }, _) => (1, capacity),
        _ => (0, capacity),
    };
    let row_counts = row_counts_of(call, update_shape);
    let bad = row_counts.iter().position(|rows| !(min_rows..=max_rows).contains(rows));
    let found =
        bad.map_or((row_counts.len(), row_counts.iter().sum()), |sample| (sample, row_counts[sample]));
    Some((u32::try_from(found.0).unwrap() | ROW_COUNT, found.1))
}

/// Returns the number of rows that the update brings for each sample.
pub(crate) fn row_counts_of(call: &Call, update_shape: &[usize]) -> Vec<i64> {
    match call {
        Call::TensorScatter { operator, .. } => {
            let axis = operator.axis.rem_euclid(update_shape.len() as i64) as usize;
            vec![update_shape[axis] as i64; update_shape[0]]
        }
        Call::KvCacheUpdate { update_lengths: Some(cumulative), .. } => {
            cumulative.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).collect()
        }
        Call::KvCacheUpdate { .. } => vec![update_shape[2] as i64; update_shape[0]],
        Call::KvCacheOperation { seq_len, .. } => seq_len.iter().map(|&rows| rows.into()).collect(),
    }
}

pub(crate) fn batch(call: &Call, update_shape: &[usize]) -> usize {
    match call {
        Call::KvCacheUpdate { operator, update_lengths: Some(cumulative), .. }
            if operator.update_form == UpdateForm::Packed =>
        {
            cumulative.len() - 1
        }
        Call::KvCacheOperation { seq_len, .. } => seq_len.len(),
        _ => update_shape[0],
    }
}

pub(crate) fn starts_of(call: &Call) -> Option<Vec<i64>> {
    match call {
        Call::TensorScatter { write_indices, .. } => write_indices.clone(),
        Call::KvCacheUpdate { write_indices, .. } => Some(write_indices.clone()),
        Call::KvCacheOperation { token_offset, .. } => {
            Some(token_offset.iter().map(|&end| end.into()).collect())
        }
    }
}

pub(crate) fn lengths(call: &Call) -> Option<&[i64]> {
    match call {
        Call::TensorScatter { lengths, .. }
        | Call::KvCacheUpdate { lengths, .. }
        | Call::KvCacheOperation { lengths, .. } => lengths.as_deref(),
    }
}

/// The starts of a call, as first slots or as ends.
enum Positions<'a> {
    None,
    First(&'a mut [i64]),
    End(&'a mut [i32]),
}

impl Positions<'_> {
    /// Sets the start of a sample with `rows` rows to slot 0.
    fn set(&mut self, sample: usize, rows: i64) {
        match self {
            Self::None => {}
            Self::First(starts) => starts[sample] = 0,
            Self::End(ends) => ends[sample] = i32::try_from(rows).unwrap(),
        }
    }
}

fn lists_mut(call: &mut Call) -> (Positions<'_>, Option<&mut Vec<i64>>) {
    match call {
        Call::TensorScatter { write_indices, lengths, .. } => (
            write_indices.as_mut().map_or(Positions::None, |starts| Positions::First(starts)),
            lengths.as_mut(),
        ),
        Call::KvCacheUpdate { write_indices, lengths, .. } => {
            (Positions::First(write_indices), lengths.as_mut())
        }
        Call::KvCacheOperation { token_offset, lengths, .. } => {
            (Positions::End(token_offset), lengths.as_mut())
        }
    }
}

fn without_lengths(call: &Call) -> Call {
    let mut call = call.clone();
    match &mut call {
        Call::TensorScatter { lengths, .. }
        | Call::KvCacheUpdate { lengths, .. }
        | Call::KvCacheOperation { lengths, .. } => *lengths = None,
    }
    call
}

pub(crate) fn with_policy(call: &Call, policy: OutOfRange) -> Call {
    let mut call = call.clone();
    match &mut call {
        Call::TensorScatter { operator, .. } => operator.out_of_range = policy,
        Call::KvCacheUpdate { operator, .. } => operator.out_of_range = policy,
        Call::KvCacheOperation { operator, .. } => operator.out_of_range = policy,
    }
    call
}
