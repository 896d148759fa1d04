//! The order in which the slots of a chunk are read.
//!
//! The positions of a chunk, from the first that is seen to the last, are cut into [`STREAMS`] streams of the same
//! length. The first position of each stream is read, then the second, and so on. The positions after the last stream
//! are cut in the same way. The order depends on the positions that are read, and not on the slots in which they lie.
//! So the bits of a sum are the same in every slot of a ring.
//!
//! A call with one row requests no slots ahead, and reads at eight places in turn ([`Order::Places`]), which is faster
//! than at one. A call with several rows computes too long with a slot for the processor to read ahead, and slots of a
//! narrow type may be too short for it. Such calls request slots ahead, and read in the order of positions
//! ([`Order::Neighbours`]).

use crate::kernel::{AHEAD, STREAMS};
use crate::slots::Slots;

/// The number of slots from which on a stream is long. At most one request in 16 is for a slot after its end. These are
/// mostly the first slots of the next chunk.
const LONG: usize = 16 * AHEAD;

/// Where the streams of a chunk lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each stream is one part of the chunk.
    #[default]
    Places,
    /// The streams share the positions in turn.
    Neighbours,
}

impl Order {
    /// Returns the number of positions from a slot of a stream to the next one.
    fn step(self) -> usize {
        match self {
            Self::Places => 1,
            Self::Neighbours => STREAMS,
        }
    }
}

/// Slots that are equally far apart in each of several streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// The number of slots of each stream in the sweeps before this one.
    pub(crate) before: usize,
    /// The number of slots of each stream.
    pub(crate) count: usize,
    /// The number of slots of each stream that may be requested from memory, in this sweep and after it.
    pub(crate) reach: usize,
    /// The number of positions from a slot of a stream to the next one.
    pub(crate) step: usize,
    starts: [Start; STREAMS],
    used: usize,
}

/// The first slot of a sweep in one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Start {
    /// The index of the position in the chunk.
    pub(crate) index: usize,
    pub(crate) is_past: bool,
    pub(crate) slot: usize,
}

impl Sweep {
    pub(crate) fn starts(&self) -> &[Start] {
        &self.starts[..self.used]
    }
}

/// Returns the sweeps over runs, which are in the order of their positions. A sweep has at most `max_count` slots of
/// each stream.
pub(crate) fn sweeps(runs: &[Slots], order: Order, max_count: usize) -> impl Iterator<Item = Sweep> {
    let step = order.step();
    let end = runs.last().map_or(0, Slots::end);
    let mut first = runs.first().map_or(0, |run| run.index);
    let (mut length, mut at, mut before) = (stream_length(end - first), 0, 0);
    core::iter::from_fn(move || {
        while first < end {
            let mut sweep = Sweep {
                before,
                count: length - at,
                reach: 0,
                step,
                starts: [Start::default(); STREAMS],
                used: 0,
            };
            let index = |stream: usize| first + (stream / step * length + at) * step + stream % step;
            for index in (0..STREAMS).map(index).take_while(|index| *index < end) {
                // The run that contains the index, or else the first one after it. The last run ends after the index.
                let run = &runs[runs.partition_point(|run| run.end() <= index)];
                if run.index <= index {
                    let slot = run.slots.start + index - run.index;
                    sweep.starts[sweep.used] = Start { index, is_past: run.is_past, slot };
                    sweep.used += 1;
                    sweep.count = sweep.count.min((run.end() - index).div_ceil(step));
                } else {
                    sweep.count = sweep.count.min((run.index - index).div_ceil(step));
                }
            }
            sweep.reach = sweep.count + if length < LONG { 0 } else { AHEAD };
            sweep.count = sweep.count.min(max_count);
            at += sweep.count;
            if at == length {
                first = end.min(first + length * STREAMS);
                (length, at) = (stream_length(end - first), 0);
            }
            if sweep.used > 0 {
                // Slots that no stream reads are not counted, so the kernels end a group at each multiple of its size.
                before += sweep.count;
                return Some(sweep);
            }
        }
        None
    })
}

/// Returns the length of the streams of a number of positions.
///
/// It is odd. With a power of two, all places would share the same few sets of the first-level cache.
fn stream_length(count: usize) -> usize {
    (count / STREAMS).saturating_sub(1) | 1
}

#[cfg(test)]
mod tests {
    use super::{Order, Slots, Sweep, sweeps};

    fn run(index: usize, slots: core::ops::Range<usize>) -> Slots {
        Slots { index, is_past: false, slots }
    }

    /// Both orders, with the distance between the indices of a stream.
    const ORDERS: [(Order, usize); 2] = [(Order::Places, 1), (Order::Neighbours, 8)];

    /// Returns the indices and the slots of sweeps in the order in which they are read.
    fn order(sweeps: impl Iterator<Item = Sweep>) -> Vec<(usize, usize)> {
        let read = |sweep: Sweep| {
            (0..sweep.count).flat_map(move |at| {
                let starts = sweep.starts().to_vec();
                starts
                    .into_iter()
                    .map(move |start| (start.index + at * sweep.step, start.slot + at * sweep.step))
            })
        };
        sweeps.flat_map(read).collect()
    }

    #[test]
    fn one_run_is_read_as_eight_streams() {
        let of_places = (0..3).flat_map(|at| (0..8).map(move |stream| 3 * stream + at));
        let expected = [of_places.chain(24..29).collect(), (0..29).collect::<Vec<_>>()];
        for ((order_of_reads, step), expected) in ORDERS.into_iter().zip(expected) {
            let all: Vec<_> = sweeps(&[run(3, 100..129)], order_of_reads, usize::MAX).collect();
            // Streams of 3 slots, and then of one slot.
            let shapes = |sweep: &Sweep| (sweep.before, sweep.count, sweep.starts().len());
            assert_eq!(all.iter().map(shapes).collect::<Vec<_>>(), [(0, 3, 8), (3, 1, 5)]);
            assert!(all.iter().all(|sweep| sweep.step == step));
            let indices: Vec<_> = order(all.into_iter()).into_iter().map(|(index, _)| index - 3).collect();
            assert_eq!(indices, expected);
        }
    }

    #[test]
    fn every_slot_is_read_once_and_a_wrap_does_not_change_the_order() {
        for (count, (order_of_reads, _)) in (0..200).flat_map(|count| ORDERS.map(|order| (count, order))) {
            let expected = order(sweeps(&[run(0, 0..count)], order_of_reads, usize::MAX));
            let indices: Vec<_> = expected.iter().map(|(index, _)| *index).collect();
            let mut sorted = indices.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            for (cut, step) in (0..=count).flat_map(|cut| [1, 2, 5, usize::MAX].map(|step| (cut, step))) {
                // The run wraps around the end of a ring.
                let runs: Vec<_> = [run(0, 200..200 + cut), run(cut, 0..count - cut)]
                    .into_iter()
                    .filter(|run| run.end() > run.index)
                    .collect();
                let read = order(sweeps(&runs, order_of_reads, step));
                assert_eq!(read.iter().map(|(index, _)| *index).collect::<Vec<_>>(), indices);
                assert!(
                    read.iter()
                        .all(|&(index, slot)| slot == if index < cut { 200 + index } else { index - cut })
                );
            }
        }
    }

    #[test]
    fn random_runs_are_read_in_the_order_of_a_run_without_gaps() {
        let mut state = 1_u64;
        let mut below = |end: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % end
        };
        for _ in 0..300 {
            // Runs of the past, and then those of new slots. Gaps are as short as one slot.
            let (mut index, mut runs) = (below(5), vec![]);
            let (past, all) = (below(8), 1 + below(12));
            for number in 0..past.max(all) {
                let (count, slot) = (1 + below(40), 1000 * number);
                runs.push(Slots { index, is_past: number < past, slots: slot..slot + count });
                index += count + below(3) * below(20);
            }
            let [first, .., last] = [&runs[0], &runs[0], &runs[runs.len() - 1]];
            let slot_of = |index: usize| {
                let run = runs.iter().find(|run| (run.index..run.end()).contains(&index))?;
                Some((run.is_past, run.slots.start + index - run.index))
            };
            for (order_of_reads, max_count) in
                ORDERS.iter().flat_map(|(order, _)| [1, 2, 7, usize::MAX].map(|count| (*order, count)))
            {
                let whole = run(first.index, 0..last.end() - first.index);
                let expected: Vec<_> = order(sweeps(&[whole], order_of_reads, usize::MAX))
                    .into_iter()
                    .filter_map(|(index, _)| Some((index, slot_of(index)?)))
                    .collect();
                let read = sweeps(&runs, order_of_reads, max_count).flat_map(|sweep| {
                    let starts = sweep.starts().to_vec();
                    (0..sweep.count * starts.len()).map(move |at| {
                        let (start, at) = (starts[at % starts.len()], at / starts.len() * sweep.step);
                        (start.index + at, (start.is_past, start.slot + at))
                    })
                });
                assert_eq!(read.collect::<Vec<_>>(), expected, "{runs:?}");
            }
        }
    }

    #[test]
    fn slots_are_requested_up_to_the_end_of_a_run() {
        for (count, max_count, expected) in [
            // Streams of 9 slots, and then of one.
            (80, usize::MAX, vec![(9, 9), (1, 1)]),
            // Every sweep reaches the end of its stream.
            (80, 4, vec![(4, 9), (4, 5), (1, 1), (1, 1)]),
            // A long stream reaches the next chunk.
            (1024, usize::MAX, vec![(127, 133), (1, 1)]),
        ] {
            let runs = [run(0, 0..count)];
            let all = sweeps(&runs, Order::Neighbours, max_count);
            assert_eq!(all.map(|sweep| (sweep.count, sweep.reach)).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn hidden_slots_are_left_out_and_not_counted() {
        // The last runs leave all places without a slot for a while.
        let cases = [
            vec![run(0, 0..2), run(5, 5..6), run(9, 9..20)],
            (0..8).map(|stream| run(127 * stream, 0..60)).chain([run(1000, 1000..1024)]).collect(),
        ];
        for (runs, (order_of_reads, _)) in cases.iter().flat_map(|runs| ORDERS.map(|order| (runs, order))) {
            let all = order(sweeps(&[run(0, 0..runs.last().unwrap().end())], order_of_reads, usize::MAX));
            let is_seen = |index: &usize| runs.iter().any(|run| (run.index..run.end()).contains(index));
            let expected: Vec<_> = all.iter().map(|(index, _)| *index).filter(is_seen).collect();
            for most in [1, 7, usize::MAX] {
                let read: Vec<_> = sweeps(runs, order_of_reads, most).collect();
                let mut count = 0;
                for sweep in &read {
                    assert!(!sweep.starts().is_empty());
                    assert!((1..=most).contains(&sweep.count));
                    assert_eq!(sweep.before, count);
                    count += sweep.count;
                }
                let read: Vec<_> = order(read.into_iter()).into_iter().map(|(index, _)| index).collect();
                assert_eq!(read, expected);
            }
        }
    }
}
