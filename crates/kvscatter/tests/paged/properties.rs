//! Tests writes of larger shapes than the exhaustive domain.
//!
//! The documentation of `kvscatter` defines P1 to P3 and X1.

use kvscatter::{ElementType, Error, Executor, Segment};
use kvscatter_oracle::cases::paged::random;
use kvscatter_oracle::cases::{Random, View};
use proptest::prelude::*;

use crate::pool::POOL;
use crate::scene::{EVERY_WIDTH, Scene};
use crate::variants::{self, Variant};

/// `PROPTEST_CASES` changes the number of cases.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: 4 * usual.cases, failure_persistence: None, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn random_writes(seed: u64) {
        check(seed, variants::ODD);
    }

    /// Tests P3 on threads that run at the same time.
    #[test]
    fn on_a_pool(seed: u64) {
        check(seed, &[&*POOL]);
    }

    /// Tests P1 and P2, and the properties that a plan reports.
    #[test]
    fn blocks_partition_what_is_written(seed: u64) {
        let case = &random(seed);
        let Ok(outcome) = case.run_on_origins() else { return Ok(()) };
        let random = &mut Random::new(seed, 1);
        let scene = Scene {
            case,
            cache: View::strided(&case.cache_shape, 0, random),
            update: View::broadcast(&case.update_shape, 0, random),
            outcome: &Ok(outcome.clone()),
        };
        let prepared = match scene.prepare(ElementType::UInt8) {
            Err(Error::TooManyLoops { loops: 4.. }) => return Ok(()),
            prepared => prepared.unwrap(),
        };
        let plan = prepared.plan(&case.slot_mapping).unwrap();
        let (places, from) = (scene.cache.places(), scene.update.places());
        let written = places.iter().zip(&outcome.present);
        let mut expected: Vec<_> =
            written.filter_map(|(&place, origin)| Some((place, from[origin.written()?]))).collect();
        expected.sort_unstable();
        let blocks: Vec<_> = plan.blocks().collect();
        let mut visited = Vec::new();
        plan.for_each_block(|block| visited.push(*block));
        prop_assert_eq!(&blocks, &visited);
        prop_assert_eq!(blocks.len(), plan.block_count());
        let mut moved = Vec::new();
        for block in &blocks {
            block.for_each_run(|dst, src| moved.extend((0..block.len).map(|i| (dst + i, src + i))));
        }
        prop_assert_eq!(moved.len(), plan.elements());
        moved.sort_unstable();
        prop_assert_eq!(moved, expected);

        let skipped: Vec<_> = (0..plan.batch()).filter(|&token| case.slot_mapping[token] < 0).collect();
        prop_assert_eq!(plan.skipped_samples().collect::<Vec<_>>(), skipped);
        prop_assert_eq!(plan.batch(), case.slot_mapping.len());
        let block_size = prepared.geometry().capacity();
        let mut tokens = 0;
        for segment in plan.segments() {
            let Segment { sample: block, slot, row, rows, .. } = segment;
            prop_assert!(!segment.is_wrapped() && slot + rows <= block_size);
            for row_of_segment in 0..rows {
                let slot = block * block_size + slot + row_of_segment;
                prop_assert_eq!(case.slot_mapping[row + row_of_segment], slot as i64);
                prop_assert_eq!(plan.position(row + row_of_segment), Some(slot as i64));
            }
            tokens += rows;
        }
        let elements = prepared.geometry().update_bytes() != Some(0);
        prop_assert!(!elements || tokens == plan.batch() - plan.skipped());
    }

    /// Tests that slots of every integer type mean the same.
    #[test]
    fn slots_of_other_types(seed: u64) {
        let case = &random(seed);
        let outcome = &case.run_on_origins();
        let cache = View::dense(&case.cache_shape, 0);
        let update = View::dense(&case.update_shape, 0);
        let Ok(prepared) = (Scene { case, cache, update, outcome }).prepare(ElementType::UInt8) else {
            return Ok(());
        };
        let segments = |plan: kvscatter::WritePlan<'_>| plan.segments().collect::<Vec<_>>();
        let slots = &case.slot_mapping;
        let expected = prepared.plan(slots).map(segments);
        let narrow: Result<Vec<_>, _> = slots.iter().copied().map(i32::try_from).collect();
        if let Ok(narrow) = narrow {
            prop_assert_eq!(&prepared.plan(&narrow).map(segments), &expected);
        }
        let unsigned: Result<Vec<_>, _> = slots.iter().copied().map(u64::try_from).collect();
        if let Ok(unsigned) = unsigned {
            prop_assert_eq!(&prepared.plan(&unsigned).map(segments), &expected);
        }
    }

    /// Tests X1: a call that is refused changes nothing.
    #[test]
    fn an_error_changes_nothing(seed: u64) {
        let case = &random(seed);
        let Err(_) = case.run_on_origins() else { return Ok(()) };
        let scene = Scene {
            case,
            cache: View::dense(&case.cache_shape, 0),
            update: View::dense(&case.update_shape, 0),
            outcome: &case.run_on_origins(),
        };
        let Ok(prepared) = scene.prepare(ElementType::UInt8) else { return Ok(()) };
        let (mut k, mut v) = (vec![1_u8; scene.cache.total()], vec![2_u8; scene.cache.total()]);
        let update = vec![3_u8; scene.update.total()];
        let mut pairs = [(&mut k[..], &update[..]), (&mut v[..], &update[..])];
        prop_assert!(prepared.write_many(&mut pairs, &case.slot_mapping).is_err());
        prop_assert!(k.iter().all(|&byte| byte == 1) && v.iter().all(|&byte| byte == 2));
    }
}

fn check(seed: u64, executors: &[&dyn Executor]) {
    let case = &random(seed);
    let outcome = &case.run_on_origins();
    let rng = &mut Random::new(seed, 1);
    let element = rng.pick(EVERY_WIDTH);
    let variants = &Variant::for_small();
    let dense = |shape: &[usize]| View::dense(shape, 2);
    Scene { case, cache: dense(&case.cache_shape), update: dense(&case.update_shape), outcome }
        .check(element, variants, executors);
    if case.cache_shape.is_empty() || case.update_shape.is_empty() {
        return;
    }
    let (cache, update) =
        (View::strided(&case.cache_shape, 2, rng), View::strided(&case.update_shape, 2, rng));
    let scene = Scene { case, cache, update, outcome };
    if !matches!(scene.prepare(element), Err(Error::TooManyLoops { loops: 4.. })) {
        scene.check(element, variants, executors);
    }
}
