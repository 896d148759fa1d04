//! Tests sizes at their limits, calls that do not fit a paged cache, and lists of many slots.

use std::time::Instant;

use allocation_counter::measure;
use kvscatter::spec::paged::PagedWrite;
use kvscatter::spec::tensorrt::PackedCall;
use kvscatter::{Argument, Convention, ElementType, Error, Layout, Prepared};

fn prepared() -> Prepared {
    PagedWrite::new().prepare(ElementType::Int8, &[4, 2, 1], &[3, 1]).unwrap()
}

#[test]
fn a_paged_cache_is_only_written_in_place() {
    let prepared = prepared();
    let plan = prepared.plan(&[0, 5, 2]).unwrap();
    let (past, update, mut present) = ([1_i8; 8], [2_i8; 3], [3_i8; 8]);
    let refused = Err(Error::InPlaceOnly { argument: Argument::PresentCache });
    assert_eq!(plan.write_present(&past, &update, &mut present), refused);
    assert_eq!(plan.write_present_cloned(&past, &update, &mut present), refused);
    assert_eq!(present, [3; 8]);
    assert_eq!((prepared.convention(), prepared.is_packed()), (Convention::Slots, false));
}

#[test]
fn other_lists_are_refused() {
    let prepared = prepared();
    let count = |argument, got, expected| Err(Error::ListLength { argument, got, expected });
    let lengths = prepared.plan_with_lengths(&[0, 5, 2], &[1, 1, 1]).map(drop);
    assert_eq!(lengths, count(Argument::Lengths, 3, 0));
    assert_eq!(prepared.plan(None::<&[i64]>).map(drop), count(Argument::SlotMapping, 0, 3));
    let packed = prepared.plan(PackedCall::new(&[0, 5, 2], &[0, 1, 2, 3])).map(drop);
    assert_eq!(packed, count(Argument::UpdateLengths, 4, 0));
    let index = Error::IndexTooLarge { argument: Argument::SlotMapping, index: 1 };
    assert_eq!(prepared.plan(&[0, u64::MAX, 0]).map(drop), Err(index));
}

#[test]
fn shapes_that_are_refused() {
    let prepare = |axis, cache: &[usize], update: &[usize]| {
        PagedWrite::new().axis(axis).prepare(ElementType::Int8, cache, update).map(drop)
    };
    let rank = |argument, rank, expected| Err(Error::Rank { argument, rank, expected });
    assert_eq!(prepare(1, &[4], &[3]), rank(Argument::Cache, 1, &[2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(prepare(1, &[1; 9], &[1; 8]), rank(Argument::Cache, 9, &[2, 3, 4, 5, 6, 7, 8]));
    assert_eq!(prepare(1, &[1; 8], &[1; 8]), rank(Argument::Update, 8, &[7]));
    assert_eq!(prepare(1, &[1; 8], &[1; 7]), Ok(()));
    assert_eq!(prepare(0, &[4, 2, 1], &[3, 1]), Err(Error::AxisIsBatch { axis: 0, rank: 3 }));
    assert_eq!(prepare(-3, &[4, 2, 1], &[3, 1]), Err(Error::AxisIsBatch { axis: -3, rank: 3 }));
    assert_eq!(prepare(3, &[4, 2, 1], &[3, 1]), Err(Error::AxisOutOfRange { axis: 3, rank: 3 }));
    let overlapping = Layout::strided(&[4, 2, 1], &[1, 1, 1]);
    let refused = PagedWrite::new().prepare(ElementType::Int8, overlapping, &[3, 1]).map(drop);
    assert_eq!(refused, Err(Error::CacheOverlapsItself { argument: Argument::Cache }));
}

/// Tests caches with as many slots as a buffer can have (G1), and with one more.
#[test]
fn the_last_slot_of_the_largest_cache() {
    let most = isize::MAX.unsigned_abs();
    let prepare =
        |blocks, block_size| PagedWrite::new().prepare(ElementType::Int8, &[blocks, block_size, 0], &[2, 0]);
    for (blocks, block_size) in [(most, 1), (1, most), (most / 3, 3)] {
        let prepared = prepare(blocks, block_size).unwrap();
        let last = (blocks * block_size) as i64 - 1;
        assert_eq!(prepared.plan(&[last, 0]).unwrap().elements(), 0);
        let argument = Argument::SlotMapping;
        let slots = blocks * block_size;
        for value in [last + 1, i64::MAX] {
            let refused = Error::SlotOutOfRange { argument, index: 1, value, slots };
            // If the cache has the most slots, `i64::MAX` is the first that it does not have.
            assert_eq!(prepared.plan(&[0, value]).map(drop), Err(refused));
        }
        let duplicate = Error::DuplicateSlot { argument, index: 1, value: last, earlier: 0 };
        assert_eq!(prepared.plan(&[last, last]).map(drop), Err(duplicate));
    }
    let too_large = Error::TooLarge { argument: Argument::Cache };
    assert_eq!(prepare(most, 2).map(drop), Err(too_large));
}

#[test]
fn up_to_128_runs_allocate_nothing() {
    let prepare = |tokens| PagedWrite::new().prepare(ElementType::Int8, &[200, 4, 1], &[tokens, 1]).unwrap();
    // Each run touches the next one, but no two share a slot.
    let descending = |tokens: i64| (0..tokens).rev().collect::<Vec<_>>();
    let (few, many) = (descending(128), descending(129));
    let (of_few, of_many) = (prepare(128), prepare(129));
    let (mut k, mut v, update) = (vec![0_i8; 800], vec![0_i8; 800], vec![1_i8; 129]);
    let allocated = measure(|| {
        let plan = of_few.plan(&few).unwrap();
        let _ = plan.write_many(&mut [(&mut k, &update[..128]), (&mut v, &update[..128])]).unwrap();
        assert_eq!(plan.blocks().count(), 128);
    });
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
    let allocated = measure(|| assert_eq!(of_many.plan(&many).unwrap().elements(), 129));
    assert_eq!(allocated.count_current, 0, "{allocated:?}");
    assert_eq!((allocated.count_total, allocated.bytes_max), (1, 16 * 129), "{allocated:?}");

    // A prompt is in ascending order, so its runs are not collected.
    let ascending: Vec<_> = (0_i64..129).map(|token| 4 * token + 1).collect();
    let allocated = measure(|| assert!(of_many.plan(&ascending).is_ok()));
    assert_eq!(allocated.count_total, 0, "{allocated:?}");
}

/// A list of a million single slots is checked in about the time of sorting it.
#[test]
fn long_lists_take_no_quadratic_time() {
    let tokens = 1_000_000;
    let write = PagedWrite::new().prepare(ElementType::Int8, &[tokens, 2, 1], &[tokens, 1]).unwrap();
    let mut slots: Vec<_> = (0..tokens as i64).map(|token| 2 * (token * 7_919 % tokens as i64)).collect();
    let begin = Instant::now();
    assert_eq!(write.plan(&slots).unwrap().elements(), tokens);
    slots[tokens - 1] = slots[17];
    let duplicate = Error::DuplicateSlot {
        argument: Argument::SlotMapping,
        index: tokens - 1,
        value: slots[17],
        earlier: 17,
    };
    assert_eq!(write.plan(&slots).map(drop), Err(duplicate));
    assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
}
