use super::Call;
use crate::onnx::TensorScatter;
use crate::{NegativeIndex, OutOfRange};

/// A `TensorScatter` in index space, to be tested with elements of every width. [`Call::run_on_origins`]
/// returns the expected result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallCase {
    /// Always [`Call::TensorScatter`].
    pub call: Call,
    /// The shape of the cache.
    pub cache_shape: Vec<usize>,
    /// The shape of the update.
    pub update_shape: Vec<usize>,
}

const MODES: [&str; 2] = ["linear", "circular"];

/// Returns every `TensorScatter` of rank 2 to 4 with dimensions from 0 to 3.
///
/// - Outside the axis, rank 4 has no empty dimensions.
/// - Every axis and both modes are used.
/// - Up to two samples have every combination of starts from -9 to 9. Three samples have one such start, and
///   the others are 0.
pub fn exhaustive() -> impl Iterator<Item = SmallCase> {
    (2..=4).flat_map(shapes).flat_map(|(axis, cache_shape, update_shape)| {
        let starts = starts(cache_shape[0]);
        MODES.into_iter().flat_map(move |mode| {
            let (cache_shape, update_shape) = (cache_shape.clone(), update_shape.clone());
            starts.clone().into_iter().map(move |starts| {
                // Both ways to write the axis are used, without doubling the number of cases.
                let from_the_back = starts.iter().flatten().sum::<i64>() % 2 == 0;
                let axis = if from_the_back { axis as i64 - cache_shape.len() as i64 } else { axis as i64 };
                let operator = TensorScatter { axis, mode: mode.to_owned(), ..TensorScatter::default() };
                SmallCase {
                    call: Call::TensorScatter { operator, write_indices: starts, lengths: None },
                    cache_shape: cache_shape.clone(),
                    update_shape: update_shape.clone(),
                }
            })
        })
    })
}

/// Returns calls with kvscatter extensions on every cache `[batch <= 2, 2, capacity <= 3, 1]`. They have all
/// lengths from -1 to one more than the rows, both policies of each kind, and every start from -4 to 4.
pub fn exhaustive_extensions() -> impl Iterator<Item = SmallCase> {
    let policies = [OutOfRange::Error, OutOfRange::SkipSample]
        .into_iter()
        .flat_map(|skip| [NegativeIndex::Modulo, NegativeIndex::Reject].map(|negative| (skip, negative)));
    let shapes = (1..=2).flat_map(|batch| {
        (0..=3).flat_map(move |capacity| (0..=capacity).map(move |s| (batch, capacity, s)))
    });
    let calls = MODES.into_iter().flat_map(move |mode| policies.clone().map(move |policy| (mode, policy)));
    shapes.flat_map(move |(batch, capacity, rows)| {
        calls.clone().flat_map(move |(mode, (out_of_range, negative_index))| {
            tuples(batch, -4..=4).into_iter().flat_map(move |starts| {
                tuples(batch, -1..=rows as i64 + 1).into_iter().map(move |lengths| SmallCase {
                    call: Call::TensorScatter {
                        operator: TensorScatter {
                            axis: 2,
                            mode: mode.to_owned(),
                            out_of_range,
                            negative_index,
                        },
                        write_indices: Some(starts.clone()),
                        lengths: Some(lengths),
                    },
                    cache_shape: vec![batch, 2, capacity, 1],
                    update_shape: vec![batch, 2, rows, 1],
                })
            })
        })
    })
}

/// Returns every `(axis, cache shape, update shape)` of a rank. They include updates with one row too many.
fn shapes(rank: usize) -> impl Iterator<Item = (usize, Vec<usize>, Vec<usize>)> {
    let smallest = if rank < 4 { 0 } else { 1 };
    (1..rank).flat_map(move |axis| {
        tuples(rank, 0..=3).into_iter().flat_map(move |cache_shape| {
            let cache_shape: Vec<_> = cache_shape.into_iter().map(|size| size as usize).collect();
            let taken = cache_shape.iter().enumerate().all(|(d, &size)| d == axis || size >= smallest);
            let rows = 0..if taken { cache_shape[axis] + 2 } else { 0 };
            rows.map(move |rows| {
                let mut update_shape = cache_shape.clone();
                update_shape[axis] = rows;
                (axis, cache_shape.clone(), update_shape)
            })
        })
    })
}

/// Returns the lists of starts for a batch: no list, and the lists that [`exhaustive`] describes.
fn starts(batch: usize) -> Vec<Option<Vec<i64>>> {
    let given = if batch <= 2 {
        tuples(batch, -9..=9)
    } else {
        let deviating = (0..batch).flat_map(|sample| (-9..=9).map(move |start| (sample, start)));
        deviating
            .map(|(sample, start)| {
                let mut starts = vec![0; batch];
                starts[sample] = start;
                starts
            })
            .collect()
    };
    given.into_iter().map(Some).chain([None]).collect()
}

/// Returns all tuples of `count` values of the range.
pub(super) fn tuples(count: usize, range: std::ops::RangeInclusive<i64>) -> Vec<Vec<i64>> {
    (0..count).fold(vec![vec![]], |shorter, _| {
        let longer = |tuple: &Vec<i64>| {
            let tuple = tuple.clone();
            range.clone().map(move |value| [tuple.as_slice(), &[value]].concat())
        };
        shorter.iter().flat_map(longer).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::{exhaustive, exhaustive_extensions, starts, tuples};

    #[test]
    fn tuples_are_all_there() {
        assert_eq!(tuples(0, -9..=9), [[]; 1]);
        assert_eq!(tuples(2, 0..=1), [[0, 0], [0, 1], [1, 0], [1, 1]]);
        assert_eq!(starts(2).len(), 19 * 19 + 1);
        assert_eq!(starts(3).len(), 19 * 3 + 1);
    }

    #[test]
    fn the_domain_is_as_large_as_it_says() {
        let starts = (1 + 1) + (19 + 1) + (361 + 1) + (57 + 1);
        let capacity_and_rows = 2 + 3 + 4 + 5;
        let rank_2_and_3 = (1 + 2 * 4) * starts * capacity_and_rows * 2;
        let rank_4 = 3 * 9 * (starts - 2) * capacity_and_rows * 2;
        assert_eq!(exhaustive().count(), rank_2_and_3 + rank_4);
        assert!(exhaustive_extensions().count() > 50_000);
    }
}
