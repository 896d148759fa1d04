//! The order in which the slots of a chunk are read.
//!
//! One core reads memory faster from several places in turn than from one. So the positions of a chunk are cut into
//! [`STREAMS`] stretches of the same length, and the first position of each stretch is read, then the second, and so
//! on. The order depends on the positions that are read, and not on the slots in which they lie. So the bits
//! of a sum are the same in every slot of a ring.

use crate::kernel::STREAMS;
use crate::slots::Slots;

/// Consecutive slots in each of several stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// The distance of the first slots from the start of their stretches.
    pub(crate) at: usize,
    /// The number of slots in each stretch.
    pub(crate) count: usize,
    starts: [Start; STREAMS],
    used: usize,
}

/// The first slot of a sweep in one stretch.
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

/// Returns the sweeps over runs, which are in the order of their positions. No sweep crosses a distance that is a
/// multiple of `step`.
pub(crate) fn sweeps(runs: &[Slots], step: usize) -> impl Iterator<Item = Sweep> {
    let first = runs.first().map_or(0, |run| run.index);
    let end = runs.last().map_or(0, Slots::end);
    let length = (end - first).div_ceil(STREAMS);
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < length {
            let mut sweep = Sweep { at, count: 0, starts: [Start::default(); STREAMS], used: 0 };
            let mut next = (at / step + 1).saturating_mul(step).min(length);
            for stretch in 0..STREAMS {
                let index = first + stretch * length + at;
                // The run that contains the index, or else the first one after it.
                let Some(run) = runs.get(runs.partition_point(|run| run.end() <= index)) else { continue };
                if run.index <= index {
                    let slot = run.slots.start + index - run.index;
                    sweep.starts[sweep.used] = Start { index, is_past: run.is_past, slot };
                    sweep.used += 1;
                    next = next.min(at + run.end() - index);
                } else {
                    next = next.min(at + run.index - index);
                }
            }
            sweep.count = next - at;
            at = next;
            if sweep.used > 0 {
                return Some(sweep);
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::{STREAMS, Slots, Sweep, sweeps};

    fn run(index: usize, slots: core::ops::Range<usize>) -> Slots {
        Slots { index, is_past: false, slots }
    }

    /// Returns the indices and the slots of sweeps in the order in which they are read.
    fn order(sweeps: impl Iterator<Item = Sweep>) -> Vec<(usize, usize)> {
        let read = |sweep: Sweep| {
            (0..sweep.count).flat_map(move |at| {
                let starts = sweep.starts().to_vec();
                starts.into_iter().map(move |start| (start.index + at, start.slot + at))
            })
        };
        sweeps.flat_map(read).collect()
    }

    #[test]
    fn one_run_is_read_at_eight_places() {
        let all: Vec<_> = sweeps(&[run(3, 100..120)], usize::MAX).collect();
        // Seven stretches of 3 slots. The last one has 2 slots, and there is no eighth.
        assert_eq!(
            all.iter().map(|sweep| (sweep.at, sweep.count, sweep.starts().len())).collect::<Vec<_>>(),
            [(0, 2, 7), (2, 1, 6)]
        );
        let indices: Vec<_> = order(all.into_iter()).into_iter().map(|(index, _)| index - 3).collect();
        assert_eq!(indices, [0, 3, 6, 9, 12, 15, 18, 1, 4, 7, 10, 13, 16, 19, 2, 5, 8, 11, 14, 17]);
    }

    #[test]
    fn every_slot_is_read_once_in_an_order_of_indices() {
        for count in 0..70 {
            let expected = order(sweeps(&[run(0, 0..count)], usize::MAX));
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
                let read = order(sweeps(&runs, step));
                assert_eq!(read.iter().map(|(index, _)| *index).collect::<Vec<_>>(), indices);
                assert!(
                    read.iter()
                        .all(|&(index, slot)| slot == if index < cut { 200 + index } else { index - cut })
                );
            }
        }
    }

    #[test]
    fn hidden_slots_are_left_out() {
        let runs = [run(0, 0..2), run(5, 5..6), run(9, 9..20)];
        let read = order(sweeps(&runs, usize::MAX));
        let all = order(sweeps(&[run(0, 0..20)], usize::MAX));
        let seen = |index: &usize| runs.iter().any(|run| (run.index..run.end()).contains(index));
        let expected: Vec<_> = all.into_iter().filter(|(index, _)| seen(index)).collect();
        assert_eq!(read, expected);
        assert!(sweeps(&runs, 1).all(|sweep| sweep.count == 1 && sweep.starts().len() <= STREAMS));
    }
}
