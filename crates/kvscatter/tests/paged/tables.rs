//! Compares the slots of block tables with the oracle, exhaustively in a small domain.

use kvscatter::spec::paged::{BlockTables, NewTokens};
use kvscatter::{Argument, Error};
use kvscatter_oracle::paged;

use crate::scene::error;

/// Returns all lists of `count` of these values.
fn lists(count: usize, values: &[i32]) -> Vec<Vec<i32>> {
    (0..count).fold(vec![vec![]], |shorter, _| {
        let longer = |list: &Vec<i32>| {
            let list = list.clone();
            values.iter().map(move |&value| [list.as_slice(), &[value]].concat())
        };
        shorter.iter().flat_map(longer).collect()
    })
}

fn check(tables: &paged::BlockTables, new_tokens: NewTokens<'_>, places: usize) {
    let paged::BlockTables { block_tables, max_blocks, seq_lens, block_size, num_blocks } = tables;
    let core = BlockTables {
        block_tables,
        max_blocks: *max_blocks,
        seq_lens,
        block_size: *block_size,
        num_blocks: *num_blocks,
    };
    let each: Vec<i64> = match new_tokens {
        NewTokens::Same(count) => vec![count as i64; seq_lens.len()],
        NewTokens::Each(counts) => counts.iter().copied().map(i64::from).collect(),
        _ => unreachable!("{new_tokens:?}"),
    };
    let mut slots = vec![-7; places];
    let got = core.slot_mapping(new_tokens, &mut slots);
    if got.is_ok() {
        assert_eq!(core.count_new_tokens(new_tokens), Ok(slots.len()));
    }
    match tables.slot_mapping(&each, places) {
        Ok(expected) => {
            assert_eq!(got, Ok(()), "{tables:?}, {new_tokens:?}");
            assert_eq!(slots, expected, "{tables:?}, {new_tokens:?}");
        }
        Err(refusal) => {
            let refusal = match (refusal, new_tokens) {
                // The core compares one number for all samples with the lengths only.
                (paged::PagedRefusal::NewTokens { sample, most, .. }, NewTokens::Same(least)) => {
                    let seq_len = seq_lens[sample].into();
                    paged::PagedRefusal::SeqLen { sample, seq_len, least, most }
                }
                (refusal, _) => refusal,
            };
            assert_eq!(got, Err(error(&refusal, 0)), "{tables:?}, {new_tokens:?}");
            assert!(slots.iter().all(|&slot| slot == -7), "{tables:?}, {new_tokens:?}");
        }
    }
}

/// Tests up to 2 samples of up to 2 blocks of up to 3 slots. The entries of a table include numbers of blocks
/// that do not exist, also where they are not used.
#[test]
fn every_small_table() {
    for (batch, max_blocks) in [(0, 2), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)] {
        for (num_blocks, block_size) in (0..=3).flat_map(|blocks| (0..=3).map(move |size| (blocks, size))) {
            let entries = [-1, 0, 2, num_blocks];
            let entries = if batch * max_blocks > 2 { &entries[1..] } else { &entries };
            let capacity = (max_blocks * block_size) as i32;
            let lengths: Vec<_> = (-1..=capacity + 1).collect();
            for (block_tables, seq_lens) in lists(batch * max_blocks, entries)
                .into_iter()
                .flat_map(|table| lists(batch, &lengths).into_iter().map(move |lens| (table.clone(), lens)))
            {
                let num_blocks = num_blocks as usize;
                let tables =
                    paged::BlockTables { block_tables, max_blocks, seq_lens, block_size, num_blocks };
                for count in 0..=3 {
                    check(&tables, count.into(), count * batch);
                }
                for counts in lists(batch, &[-1, 0, 1, 3]) {
                    let places = counts.iter().map(|&count| count.max(0) as usize).sum();
                    check(&tables, (&counts).into(), places);
                }
            }
        }
    }
}

#[test]
fn lists_of_other_lengths_are_refused() {
    let tables = paged::BlockTables {
        block_tables: vec![0, 1, 2, 0],
        max_blocks: 2,
        seq_lens: vec![2, 3],
        block_size: 2,
        num_blocks: 3,
    };
    check(&tables, NewTokens::Same(1), 1);
    check(&tables, NewTokens::Same(1), 3);
    check(&tables, NewTokens::Each(&[1]), 1);
    check(&tables, NewTokens::Each(&[1, 2, 0]), 3);
    check(&paged::BlockTables { max_blocks: 1, ..tables.clone() }, NewTokens::Same(1), 2);
    check(&paged::BlockTables { seq_lens: vec![2], ..tables }, NewTokens::Same(1), 1);
}

/// Sizes that no cache has, and a number of tokens that no memory has, are refused at once.
#[test]
fn sizes_at_the_ends_of_their_types() {
    let (most, mut slots) = (isize::MAX.unsigned_abs(), [7]);
    let tables = |block_tables, seq_lens, block_size, num_blocks| BlockTables {
        block_tables,
        max_blocks: 1,
        seq_lens,
        block_size,
        num_blocks,
    };
    let mut refused = |tables: BlockTables<'_>, new_tokens: usize| {
        let refused = tables.slot_mapping(new_tokens, &mut slots).unwrap_err();
        assert_eq!(slots, [7]);
        refused
    };
    let too_large = Error::TooLarge { argument: Argument::Cache };
    assert_eq!(refused(tables(&[0], &[1], most, 2), 1), too_large);
    assert_eq!(refused(tables(&[0], &[1], usize::MAX, usize::MAX), 1), too_large);
    let places = |got| Error::ListLength { argument: Argument::SlotMapping, got: 1, expected: got };
    let all = i32::MAX as usize;
    assert_eq!(refused(tables(&[0], &[i32::MAX], most, 1), all), places(all));
    assert_eq!(
        refused(tables(&[0], &[i32::MAX], most, 1), usize::MAX),
        Error::LengthOutOfRange {
            argument: Argument::SeqLens,
            index: 0,
            value: i32::MAX.into(),
            min: usize::MAX,
            max: most
        }
    );
    let last = tables(&[i32::MAX - 1], &[2], 1 << 31, i32::MAX as usize);
    last.slot_mapping(1, &mut slots).unwrap();
    assert_eq!(slots, [i64::from(i32::MAX - 1) * (1 << 31) + 1]);
}
