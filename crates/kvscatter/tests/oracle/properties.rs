//! Tests all three operators with larger shapes than the exhaustive domain.
//!
//! The documentation of `kvscatter` defines G2 and P1 to P3.

use kvscatter::{ElementType, Executor};
use kvscatter_oracle::cases::{Case, Random, View, stretched};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::call::with_plan;
use crate::pool::POOL;
use crate::scene::{PAINTED, Scene, every_width};
use crate::variants::{self, Variant};
use crate::view::AsLayout;

/// `PROPTEST_CASES` changes the number of cases.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    let cases = 12 * usual.cases;
    ProptestConfig { cases, max_global_rejects: cases, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_operator(seeds: [u64; 3]) {
        seeds.into_iter().try_for_each(|seed| check(seed, variants::ODD))?;
    }

    /// Tests P3 on threads that run at the same time.
    #[test]
    fn on_a_pool(seed: u64) {
        check(seed, &[&*POOL])?;
    }

    /// Tests P1 and P2, and the properties that a plan reports.
    #[test]
    fn blocks_partition_what_is_written(seed: u64) {
        let Case { call, cache_shape, update_shape, .. } = stretched(seed);
        let random = &mut Random::new(seed, 1);
        let cache = View::strided(&cache_shape, 0, random);
        let update = View::broadcast(&update_shape, 0, random);
        let outcome = call.run_on_origins(&cache_shape, &update_shape).unwrap();
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

fn check(seed: u64, executors: &[&dyn Executor]) -> Result<(), TestCaseError> {
    let Case { call, cache_shape, update_shape, .. } = &stretched(seed);
    let random = &mut Random::new(seed, 1);
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
