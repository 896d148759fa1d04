//! How tokens of different counts become runs of a model, all of whose samples have one width.
//!
//! A model writes `width` rows for every sample, padding included. Rows of padding lie after a sample's length, where
//! nothing sees them; what they must not do is to reach beyond the capacity or over rows that are in use.

use std::ops::Range;

use crate::{Feed, SampleFeed};

/// One run of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) feed: Feed,
    /// Slots in use that the padding of a place writes over, by place: they are kept aside and put back.
    pub(crate) kept: Vec<(usize, Range<usize>)>,
}

/// What a round may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) capacity: usize,
    /// The most tokens of one sample in a round, at least 1.
    pub(crate) width: usize,
    /// Whether no sample that gets tokens may be padded: the model scores the last column only.
    pub(crate) is_exact: bool,
}

/// The runs that give every place its tokens. `lengths` is how many rows of each are in use, `counts` how many tokens
/// each gets; a place that gets any has room for them.
///
/// A round is as wide as its longest part, unless a sample with tokens has less room: then it is as wide as that, which
/// is room for all of that sample's tokens at least, and the others go on in the next. A full place without tokens is
/// written over at its end, and put back.
pub(crate) fn rounds(lengths: &[usize], counts: &[usize], limits: Limits) -> Vec<Round> {
    let (mut lengths, mut left) = (lengths.to_vec(), counts.to_vec());
    let mut rounds = Vec::new();
    while let Some(width) = width(&lengths, &left, limits) {
        let mut round = Round { feed: Feed { width, samples: Vec::new() }, kept: Vec::new() };
        for (place, (length, left)) in lengths.iter_mut().zip(&mut left).enumerate() {
            let count = (*left).min(width);
            // Only without tokens can it reach beyond the capacity.
            let start = (*length).min(limits.capacity - width);
            if start < *length {
                round.kept.push((place, start..*length));
            }
            let tokens = *length..*length + count;
            round.feed.samples.push(SampleFeed { start, padding: 0, tokens, first_slot: 0 });
            *length += count;
            *left -= count;
        }
        rounds.push(round);
    }
    rounds
}

/// The width of the next round; `None` if no sample has tokens left.
fn width(lengths: &[usize], left: &[usize], limits: Limits) -> Option<usize> {
    let active = || lengths.iter().zip(left).filter(|(_, left)| **left > 0);
    let wanted = active().map(|(_, left)| *left);
    let wanted = if limits.is_exact { wanted.min() } else { wanted.max() }?;
    let room = active().map(|(length, _)| limits.capacity - length).min()?;
    Some(wanted.min(room).min(limits.width))
}

#[cfg(test)]
mod tests {
    use super::{Limits, Round, rounds};

    const WIDE: Limits = Limits { capacity: 8, width: usize::MAX, is_exact: false };

    /// Width, start and tokens of each place, and how many rows are kept.
    type Shown = (usize, Vec<(usize, usize)>, usize);

    fn shown(rounds: &[Round]) -> Vec<Shown> {
        let show = |round: &Round| {
            let samples = round.feed.samples.iter();
            let samples = samples.map(|sample| (sample.start, sample.tokens.len())).collect();
            (round.feed.width, samples, round.kept.iter().map(|(_, slots)| slots.len()).sum())
        };
        rounds.iter().map(show).collect()
    }

    #[test]
    fn ragged_counts_are_one_round_where_there_is_room() {
        assert_eq!(shown(&rounds(&[0, 3], &[2, 5], WIDE)), [(5, vec![(0, 2), (3, 5)], 0)]);
        assert_eq!(rounds(&[0, 3], &[0, 0], WIDE), []);
    }

    #[test]
    fn a_place_without_room_for_the_padding_makes_the_round_narrower() {
        let rounds = rounds(&[7, 0], &[1, 5], WIDE);
        assert_eq!(shown(&rounds), [(1, vec![(7, 1), (0, 1)], 0), (4, vec![(4, 0), (1, 4)], 4)]);
        assert_eq!(rounds[1].kept, [(0, 4..8)]);
    }

    #[test]
    fn only_the_last_column_is_scored_so_that_nobody_is_padded() {
        let rounds = rounds(&[0, 0], &[2, 5], Limits { is_exact: true, ..WIDE });
        assert_eq!(shown(&rounds), [(2, vec![(0, 2), (0, 2)], 0), (3, vec![(2, 0), (2, 3)], 0)]);
    }

    #[test]
    fn every_small_case_gives_all_tokens_and_writes_within_the_capacity() {
        let capacity = 4;
        for width in 1..=5 {
            for is_exact in [false, true] {
                for lengths in all(capacity) {
                    for counts in all(capacity) {
                        if lengths.iter().zip(&counts).any(|(length, count)| length + count > capacity) {
                            continue;
                        }
                        check(&lengths, &counts, Limits { capacity, width, is_exact });
                    }
                }
            }
        }
    }

    fn all(up_to: usize) -> impl Iterator<Item = [usize; 3]> {
        let base = up_to + 1;
        (0..base.pow(3)).map(move |n| [n % base, n / base % base, n / base / base])
    }

    /// Plays the rounds on a model of the cache that knows which token each slot holds.
    fn check(lengths: &[usize; 3], counts: &[usize; 3], limits: Limits) {
        let mut slots = [(); 3].map(|()| vec![None; limits.capacity]);
        for (place, slots) in slots.iter_mut().enumerate() {
            (0..lengths[place]).for_each(|slot| slots[slot] = Some(slot));
        }
        for round in rounds(lengths, counts, limits) {
            assert!(round.feed.width <= limits.width);
            let before = slots.clone();
            for (place, sample) in round.feed.samples.iter().enumerate() {
                if !sample.tokens.is_empty() {
                    assert!(!limits.is_exact || sample.tokens.len() == round.feed.width);
                    assert_eq!(sample.start, sample.tokens.start);
                }
                for column in 0..round.feed.width {
                    slots[place][sample.start + column] = sample.position(column);
                }
            }
            for (place, kept) in round.kept {
                slots[place][kept.clone()].copy_from_slice(&before[place][kept]);
            }
        }
        for (place, slots) in slots.iter().enumerate() {
            let end = lengths[place] + counts[place];
            assert!((0..end).all(|slot| slots[slot] == Some(slot)), "{lengths:?} {counts:?} {limits:?}");
        }
    }
}
