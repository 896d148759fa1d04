//! Compares every byte of every cache after a step with a copy from before the step, and with the caches of
//! an out-of-place run.

use std::ops::Range;

use kvscatter_session::{CachePort, CacheWriter, Feed, Rows, SampleFeed, Tensor};

use crate::certificate::{Failure, SampleSlots};
use crate::drive::values;

use super::check_builder::{CheckBuilder, Place};

/// The claims about the caches' memory.
pub(crate) struct MemoryChecks {
    writer: CacheWriter,
    pub(crate) aliased: CheckBuilder,
    pub(crate) only_named: CheckBuilder,
    pub(crate) written: CheckBuilder,
    pub(crate) placed: CheckBuilder,
    pub(crate) as_out_of_place: CheckBuilder,
    pub(crate) finite: CheckBuilder,
}

/// The caches before and after one step.
pub(crate) struct StepMemory<'a> {
    pub(crate) place: Place<'a>,
    pub(crate) feed: &'a Feed,
    pub(crate) ports: &'a [CachePort],
    pub(crate) capacity: usize,
    pub(crate) before: &'a [Tensor],
    pub(crate) after: &'a [Tensor],
    /// The presents of the same step in the out-of-place run.
    pub(crate) out_of_place: &'a [Tensor],
    /// The address that the engine reports for each present.
    pub(crate) present_at: &'a [usize],
    /// For each sample, whether each slot still contains its canary. All are `false` if the caches were
    /// filled with zeros.
    pub(crate) canaries: &'a mut [Vec<bool>],
}

impl MemoryChecks {
    pub(crate) fn new(writer: CacheWriter) -> Self {
        let [only_named, written, placed] = match writer {
            CacheWriter::TensorScatter => [
                "No byte of a cache changes outside the rows that the write indices name.",
                "Every row that the write indices name is written.",
                "The first new row is in the slot that its write index names, and the other rows follow it.",
            ],
            CacheWriter::GroupQueryAttention => [
                "No byte of a cache changes outside the rows of the step, which end at the length of each sample or, in \
                 the first run, of the longest one.",
                "Every row of the step is written.",
                "The last new row is in the slot before the length of its sample, and the other rows precede it.",
            ],
        };
        Self {
            writer,
            aliased: CheckBuilder::new(
                "present-aliases-past",
                "After a run, every present is at the address of its past.",
            ),
            only_named: CheckBuilder::new("only-named-rows-change", only_named),
            written: CheckBuilder::new("named-rows-are-written", written),
            placed: CheckBuilder::new("rows-lie-where-named", placed),
            as_out_of_place: CheckBuilder::new(
                "rows-equal-unaliased-run",
                match writer {
                    CacheWriter::TensorScatter => {
                        "The caches equal, bit for bit, those of a run that writes present to separate memory."
                    }
                    CacheWriter::GroupQueryAttention => {
                        "The caches up to the new rows equal, bit for bit, those of a run that writes present to separate \
                         memory."
                    }
                },
            ),
            finite: CheckBuilder::new("caches-stay-finite", "No written row contains NaN or an infinity."),
        }
    }

    /// Examines all caches, and returns the slots of each sample.
    pub(crate) fn look(&mut self, moment: &mut StepMemory<'_>) -> Vec<SampleSlots> {
        let mut slots: Vec<SampleSlots> =
            moment.feed.samples.iter().map(|sample| named(sample, moment.feed.width)).collect();
        let mut clobbered: Vec<Vec<bool>> = vec![vec![false; moment.capacity]; slots.len()];
        for (index, port) in moment.ports.iter().enumerate() {
            let [Some(before), Some(after), Some(out_of_place)] =
                [moment.before, moment.after, moment.out_of_place].map(|caches| caches.get(index))
            else {
                continue;
            };
            let at = moment.present_at.get(index).copied();
            self.address(moment.place, port, after, at);
            for (sample, feed) in moment.feed.samples.iter().enumerate() {
                let check = SampleCheck {
                    place: moment.place,
                    port,
                    rows: Rows::of(port, moment.capacity),
                    sample,
                    capacity: moment.capacity,
                    named: feed.start..feed.start + moment.feed.width,
                };
                let canaries = moment.canaries.get(sample).map(Vec::as_slice).unwrap_or_default();
                let strays = self.sample(&check, [before, after, out_of_place], canaries);
                for slot in strays {
                    clobbered
                        .get_mut(sample)
                        .and_then(|of| of.get_mut(slot))
                        .into_iter()
                        .for_each(|it| *it = true);
                }
            }
        }
        for (sample, canaries) in moment.canaries.iter_mut().enumerate() {
            let named =
                slots.get(sample).and_then(|slots| slots.written.first().cloned()).unwrap_or_default();
            canaries.get_mut(named).unwrap_or_default().fill(false);
        }
        for (slots, clobbered) in slots.iter_mut().zip(clobbered) {
            slots.clobbered =
                ranges(clobbered.iter().enumerate().filter(|(_, it)| **it).map(|(slot, _)| slot));
        }
        slots
    }

    fn address(&mut self, place: Place<'_>, port: &CachePort, cache: &Tensor, at: Option<usize>) {
        self.aliased.look(1);
        if at != Some(cache.address()) {
            self.aliased.fail(Failure {
                cache: Some(port.past.clone()),
                ..place.failure(format!("present {:?} is at another address than its past", port.present))
            });
        }
    }

    /// Examines one sample of one cache. Returns the slots that changed although the write indices do not
    /// refer to them.
    fn sample(&mut self, check: &SampleCheck<'_>, caches: [&Tensor; 3], canaries: &[bool]) -> Vec<usize> {
        let [before, after, out_of_place] = caches.map(Tensor::bytes);
        let rows = check.rows;
        let named = check.named.clone();
        let changed = |slots| rows.differing(check.sample, slots, before, after);
        let mut strays = changed(0..named.start);
        strays.extend(changed(named.end..check.capacity));
        self.only_named.look((check.capacity - named.len()) * rows.row());
        for &slot in &strays {
            self.only_named.fail(check.failure(slot, self.words().0));
        }

        let is_fresh = |slot: usize| canaries.get(slot).copied().unwrap_or_default();
        let fresh: Vec<usize> = named.clone().filter(|&slot| is_fresh(slot)).collect();
        let hit = changed(named.clone());
        let missed: Vec<usize> = fresh.iter().copied().filter(|slot| !hit.contains(slot)).collect();
        self.written.look(fresh.len());
        for &slot in &missed {
            self.written.fail(check.failure(slot, self.words().1));
        }

        // If all rows that the write indices refer to contained canaries, the changed rows must be exactly
        // these.
        if !named.is_empty() && fresh.len() == named.len() {
            self.placed.look(1);
            let mut all = [strays.as_slice(), &hit].concat();
            all.sort_unstable();
            if let [run] = ranges(all).as_slice()
                && run.len() == named.len()
                && *run != named
            {
                let (start, begins) = (run.start, self.words().2);
                let message = format!("rows were written from slot {start} on, {begins} {}", named.start);
                self.placed.fail(check.failure(run.start, &message));
            }
        }

        // GroupQueryAttention does not copy the rows after the new ones to a separate present.
        let compared = match self.writer {
            CacheWriter::TensorScatter => 0..check.capacity,
            CacheWriter::GroupQueryAttention => 0..named.end,
        };
        self.as_out_of_place.look(compared.len());
        for slot in rows.differing(check.sample, compared, after, out_of_place) {
            self.as_out_of_place.fail(check.failure(slot, "differs from the unaliased run"));
        }

        self.finite.look(named.len());
        for slot in named {
            let element = check.port.element;
            let is_finite = |run| after.get(run).is_some_and(|bytes| values::are_finite(element, bytes));
            if !rows.runs(check.sample, slot..slot + 1).all(is_finite) {
                self.finite.fail(check.failure(slot, "was written with NaN or an infinity"));
            }
        }
        strays
    }
}

impl MemoryChecks {
    /// Returns what is wrong with a row that changed, with a row that did not, and with the first row.
    fn words(&self) -> (&'static str, &'static str, &'static str) {
        match self.writer {
            CacheWriter::TensorScatter => (
                "changed, although no write index names it",
                "still contains its canary, although a write index names it",
                "the write index is",
            ),
            CacheWriter::GroupQueryAttention => (
                "changed, although it is not a row of the step",
                "still contains its canary, although it is a row of the step",
                "the first row of the step is",
            ),
        }
    }
}

/// One sample of one cache in one step.
struct SampleCheck<'a> {
    place: Place<'a>,
    port: &'a CachePort,
    rows: Rows,
    sample: usize,
    capacity: usize,
    named: Range<usize>,
}

impl SampleCheck<'_> {
    fn failure(&self, slot: usize, message: &str) -> Failure {
        Failure {
            cache: Some(self.port.past.clone()),
            sample: Some(self.sample),
            slot: Some(slot),
            ..self.place.failure(message)
        }
    }
}

/// Returns the slots that a sample's step writes.
fn named(sample: &SampleFeed, width: usize) -> SampleSlots {
    let run = |range: Range<usize>| if range.is_empty() { Vec::new() } else { vec![range] };
    SampleSlots {
        written: run(sample.start..sample.start + width),
        valid: run(sample.valid()),
        clobbered: Vec::new(),
    }
}

/// Joins slots in ascending order into ranges.
fn ranges(slots: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if last.end == slot => last.end = slot + 1,
            _ => ranges.push(slot..slot + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn neighbours_join() {
        assert_eq!(ranges([1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
        assert_eq!(ranges([]), []);
    }
}
