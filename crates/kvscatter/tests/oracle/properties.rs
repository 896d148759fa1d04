//! Tests all three operators with larger shapes than the exhaustive domain.
//!
//! The documentation of `kvscatter` defines G2 and P1 to P3.

use kvscatter::{ElementType, Executor};
use kvscatter_oracle::ascend::KvCacheOperation;
use kvscatter_oracle::cases::{Call, Random, View};
use kvscatter_oracle::onnx::TensorScatter;
use kvscatter_oracle::tensorrt::{KvCacheUpdate, UpdateForm};
use kvscatter_oracle::{NegativeIndex, OutOfRange};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::call::with_plan;
use crate::pool::POOL;
use crate::scene::{PAINTED, Scene, every_width};
use crate::variants::{self, Variant};
use crate::view::AsLayout;

/// A call, and the shapes of its cache and its update.
type Sized = (Call, Vec<usize>, Vec<usize>);

/// `PROPTEST_CASES` changes the number of cases.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = 12 * usual.cases;
    ProptestConfig { cases, max_global_rejects: cases, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn tensor_scatter(sized in tensor_scatter_call(), seed: u64) {
        check(&sized, seed)?;
    }

    #[test]
    fn kv_cache_update(sized in kv_cache_update_call(), seed: u64) {
        check(&sized, seed)?;
    }

    #[test]
    fn kv_cache_operation(sized in kv_cache_operation_call(), seed: u64) {
        check(&sized, seed)?;
    }

    /// Tests P3 on threads that run at the same time.
    #[test]
    fn on_a_pool(
        (call, cache_shape, update_shape) in prop_oneof![
            tensor_scatter_call(),
            kv_cache_update_call(),
            kv_cache_operation_call(),
        ],
        seed: u64,
    ) {
        check_on(&(call, cache_shape, update_shape), seed, &[&*POOL])?;
    }

    /// Tests P1 and P2, and the properties that a plan reports.
    #[test]
    fn blocks_partition_what_is_written(
        (call, cache_shape, update_shape) in prop_oneof![
            tensor_scatter_call(),
            kv_cache_update_call(),
            kv_cache_operation_call(),
        ],
        seed: u64,
    ) {
        let random = &mut Random::new(seed, 0);
        let cache = View::strided(&cache_shape, 0, random);
        let update = View::broadcast(&update_shape, 0, random);
        let outcome = call.run_on_origins(&cache_shape, &update_shape);
        prop_assume!(outcome.is_ok(), "refused calls write nothing; `check` covers them");
        let outcome = outcome.unwrap();
        let (places, from) = (cache.places(), update.places());
        let mut expected: Vec<_> = places
            .iter()
            .zip(&outcome.present)
            .filter_map(|(&place, origin)| origin.written().map(|written| (place, from[written])))
            .collect();
        expected.sort_unstable();
        let element = every_width(&call)[0];
        let checked = with_plan(&call, element, cache.layout(), update.layout(), |plan| {
            let blocks: Vec<_> = plan.blocks().collect();
            let mut visited = Vec::new();
            plan.for_each_block(|block| visited.push(*block));
            assert_eq!(blocks, visited);
            assert_eq!(blocks.len(), plan.block_count());
            let skipped: Vec<_> = (0..plan.batch()).filter(|sample| plan.skips(*sample)).collect();
            assert_eq!(plan.skipped_samples().collect::<Vec<_>>(), skipped);
            let mut moved = Vec::new();
            for block in &blocks {
                let before = moved.len();
                block.for_each_run(|dst, src| moved.extend((0..block.len).map(|i| (dst + i, src + i))));
                assert_eq!(moved.len() - before, block.elements());
            }
            assert_eq!(moved.len(), plan.elements());
            assert_eq!(Some(moved.len() * element.bits().unwrap()).map(|bits| bits.div_ceil(8)), plan.bytes());
            moved.sort_unstable();
            assert_eq!(moved, expected, "{call:?}");
            Ok(())
        });
        if !matches!(checked, Err(kvscatter::Error::TooManyLoops { loops: 4.. })) {
            prop_assert_eq!(checked, Ok(()));
        }
    }

    /// Tests G2 with arbitrary strides.
    #[test]
    fn a_cache_whose_positions_meet_is_refused(
        dimensions in vec((1_usize..=4, -12_isize..=12), 2..=4),
        seed: u64,
    ) {
        let (shape, strides): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
        let cache = View::of_strides(&shape, strides, 0, &mut Random::new(seed, 0));
        let write = kvscatter::spec::onnx::TensorScatter::new().axis(1);
        let prepared = write.prepare(ElementType::UInt8, cache.layout(), &shape);
        let mut places = cache.places();
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0] == pair[1]) {
            let argument = kvscatter::Argument::PastCache;
            prop_assert_eq!(prepared.map(|_| ()), Err(kvscatter::Error::CacheOverlapsItself { argument }));
        }
    }

    /// Tests that int32 indices mean the same as int64 indices.
    #[test]
    fn narrow_indices(starts in vec(-9_i32..9, 3), lengths in vec(-1_i32..4, 3)) {
        let wide = |values: &[i32]| values.iter().copied().map(i64::from).collect::<Vec<_>>();
        let write = kvscatter::spec::onnx::TensorScatter::new()
            .axis(1)
            .prepare(ElementType::UInt8, &[3, 5], &[3, 3])
            .unwrap();
        let (wide_starts, wide_lengths) = (wide(&starts), wide(&lengths));
        let segments = |plan: kvscatter::WritePlan<'_>| plan.segments().collect::<Vec<_>>();
        prop_assert_eq!(
            write.plan_with_lengths(&starts, &lengths).map(segments),
            write.plan_with_lengths(&wide_starts, &wide_lengths).map(segments)
        );
    }
}

fn check(sized: &Sized, seed: u64) -> Result<(), TestCaseError> {
    check_on(sized, seed, variants::ODD)
}

fn check_on(
    (call, cache_shape, update_shape): &Sized,
    seed: u64,
    executors: &[&dyn Executor],
) -> Result<(), TestCaseError> {
    let random = &mut Random::new(seed, 0);
    let variants = &Variant::for_small();
    let outcome = &call.run_on_origins(cache_shape, update_shape);
    let element = random.pick(every_width(call));
    let dense = |shape: &[usize]| View::dense(shape, 2);
    Scene { call, cache: dense(cache_shape), update: dense(update_shape), outcome }
        .check_on(element, variants, executors);
    let cache = View::strided(cache_shape, 2, random);
    let update = View::strided(update_shape, 2, random);
    prop_assume!(cache.total() + update.total() < PAINTED);
    let merges = with_plan(call, element, cache.layout(), update.layout(), |_| Ok(()));
    if !matches!(merges, Err(kvscatter::Error::TooManyLoops { loops: 4.. })) {
        Scene { call, cache, update, outcome }.check_on(element, variants, executors);
    }
    Ok(())
}

fn out_of_range() -> impl Strategy<Value = OutOfRange> {
    prop_oneof![3 => Just(OutOfRange::SkipSample), 1 => Just(OutOfRange::Error)]
}

/// Returns a start that is usually near the cache and sometimes arbitrary.
fn start(capacity: usize) -> impl Strategy<Value = i64> {
    let capacity = capacity as i64;
    prop_oneof![10 => 0..=capacity, 2 => -2 * capacity..=2 * capacity, 1 => any::<i64>()]
}

fn lengths(batch: usize, rows: usize) -> impl Strategy<Value = Option<Vec<i64>>> {
    option::of(vec(0..=rows as i64, batch))
}

fn tensor_scatter_call() -> impl Strategy<Value = Sized> {
    let shapes = vec(1_usize..=5, 2..=5).prop_flat_map(|dimensions| {
        let rank = dimensions.len();
        (Just(dimensions), 1..rank, 1_usize..=40, any::<bool>())
    });
    shapes
        .prop_flat_map(|(mut cache_shape, axis, capacity, from_the_back)| {
            cache_shape[axis] = capacity;
            let attribute = axis as i64 - if from_the_back { cache_shape.len() as i64 } else { 0 };
            (Just(cache_shape), Just(axis), Just(attribute), 0..=capacity, out_of_range(), any::<[bool; 2]>())
        })
        .prop_flat_map(|(cache_shape, axis, attribute, rows, out_of_range, [circular, reject])| {
            let (batch, capacity) = (cache_shape[0], cache_shape[axis]);
            let operator = TensorScatter {
                axis: attribute,
                mode: if circular { "circular" } else { "linear" }.to_owned(),
                out_of_range,
                negative_index: if reject { NegativeIndex::Reject } else { NegativeIndex::Modulo },
            };
            let mut update_shape = cache_shape.clone();
            update_shape[axis] = rows;
            let starts = option::weighted(0.9, vec(start(capacity), batch));
            (starts, lengths(batch, rows)).prop_map(move |(write_indices, lengths)| {
                let operator = operator.clone();
                let call = Call::TensorScatter { operator, write_indices, lengths };
                (call, cache_shape.clone(), update_shape.clone())
            })
        })
}

/// Returns the batch, heads, capacity and head size, and the number of rows of each sample.
fn ragged(least: usize) -> impl Strategy<Value = ([usize; 4], Vec<usize>)> {
    (1_usize..=4, 1_usize..=4, 1_usize..=30, 1_usize..=9).prop_flat_map(
        move |(batch, heads, capacity, size)| {
            (Just([batch, heads, capacity, size]), vec(least..=capacity, batch))
        },
    )
}

fn kv_cache_update_call() -> impl Strategy<Value = Sized> {
    (ragged(0), any::<bool>(), 0_usize..=2, out_of_range()).prop_flat_map(
        |(([batch, heads, capacity, head_size], mut rows), packed, more_samples, out_of_range)| {
            let most = rows[0];
            if !packed {
                rows.fill(most);
            }
            let (update_form, update_shape, update_lengths) = if packed {
                let totals = rows.iter().scan(0, |total, &rows| {
                    *total += rows as i32;
                    Some(*total)
                });
                let update_lengths: Vec<_> = [0].into_iter().chain(totals).collect();
                (UpdateForm::Packed, vec![rows.iter().sum(), heads, head_size], Some(update_lengths))
            } else {
                (UpdateForm::Padded, vec![batch, heads, most, head_size], None)
            };
            let cache_shape = vec![batch + more_samples, heads, capacity, head_size];
            let operator = KvCacheUpdate { update_form, out_of_range };
            let least = rows.iter().copied().min().unwrap_or(0);
            (vec(start(capacity), batch), lengths(batch, least)).prop_map(move |(write_indices, lengths)| {
                let (operator, update_lengths) = (operator.clone(), update_lengths.clone());
                let call = Call::KvCacheUpdate { operator, write_indices, update_lengths, lengths };
                (call, cache_shape.clone(), update_shape.clone())
            })
        },
    )
}

fn kv_cache_operation_call() -> impl Strategy<Value = Sized> {
    (ragged(1), any::<bool>(), 0..3_i32, 1_usize..=3, out_of_range()).prop_flat_map(
        |(([batch, layers, capacity, size], mut rows), four_dimensions, layer, heads, out_of_range)| {
            if four_dimensions {
                let most = rows[0];
                rows.fill(most);
            }
            let hidden = heads * size;
            let new_kv = if four_dimensions {
                vec![batch, rows[0], heads, size]
            } else {
                vec![rows.iter().sum(), hidden]
            };
            let past = vec![layers, batch, capacity, hidden];
            let seq_len: Vec<_> = rows.iter().map(|&rows| rows as i32).collect();
            let least = rows.iter().copied().min().unwrap_or(0);
            let ends: Vec<_> = rows.iter().map(|&rows| rows as i32 - 1..=capacity as i32 + 1).collect();
            (ends, lengths(batch, least)).prop_map(move |(token_offset, lengths)| {
                let call = Call::KvCacheOperation {
                    operator: KvCacheOperation { out_of_range },
                    layer_id: vec![layer],
                    token_offset,
                    seq_len: seq_len.clone(),
                    lengths,
                };
                (call, past.clone(), new_kv.clone())
            })
        },
    )
}
