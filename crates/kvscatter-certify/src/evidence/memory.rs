//! Compares every byte of every cache after a step with a copy from before the step, and with the caches of
//! an out-of-place run.

use std::ops::Range;

use kvscatter_session::{CachePort, CacheWriter, Feed, Rows, Tensor};

use crate::certificate::{Failure, SampleSlots};
use crate::drive::values;

use super::check_builder::{CheckBuilder, Place};
use super::slots::{SlotKind, ranges};

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
    /// What the slots of each kind of cache contained before the step.
    pub(crate) kinds: &'a mut [SlotKind],
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

    /// Examines all caches, and returns the slots of each sample, for each kind of cache.
    pub(crate) fn look(&mut self, moment: &mut StepMemory<'_>) -> Vec<Vec<SampleSlots>> {
        let samples = moment.feed.samples.len();
        let mut clobbered: Vec<Vec<Vec<bool>>> =
            moment.kinds.iter().map(|kind| vec![vec![false; kind.capacity()]; samples]).collect();
        for (index, port) in moment.ports.iter().enumerate() {
            let [Some(before), Some(after), Some(out_of_place)] =
                [moment.before, moment.after, moment.out_of_place].map(|caches| caches.get(index))
            else {
                continue;
            };
            let at = moment.present_at.get(index).copied();
            self.address(moment.place, port, after, at);
            let kinds = moment.kinds.iter().zip(&mut clobbered);
            let Some((kind, clobbered)) = kinds.into_iter().find(|(kind, _)| kind.includes(port)) else {
                continue;
            };
            for ((sample, feed), clobbered) in moment.feed.samples.iter().enumerate().zip(clobbered) {
                let check = SampleCheck {
                    place: moment.place,
                    port,
                    rows: Rows::new(port, moment.capacity),
                    sample,
                    kind,
                    named: kind.named(feed, moment.feed.width),
                };
                for slot in self.sample(&check, [before, after, out_of_place]) {
                    clobbered.get_mut(slot).into_iter().for_each(|slot| *slot = true);
                }
            }
        }
        let slots = moment.kinds.iter_mut().zip(clobbered).map(|(kind, clobbered)| {
            let mut slots = kind.write(moment.feed);
            for (slots, clobbered) in slots.iter_mut().zip(clobbered) {
                let clobbered = clobbered.iter().enumerate().filter(|(_, is_clobbered)| **is_clobbered);
                slots.clobbered = ranges(clobbered.map(|(slot, _)| slot));
            }
            slots
        });
        slots.collect()
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
    fn sample(&mut self, check: &SampleCheck<'_>, caches: [&Tensor; 3]) -> Vec<usize> {
        let [before, after, out_of_place] = caches.map(Tensor::bytes);
        let rows = check.rows;
        let named: Vec<usize> = check.named.iter().cloned().flatten().collect();
        let changed = |slots| rows.differing(check.sample, slots, before, after);
        let strays: Vec<usize> = check.others().into_iter().flat_map(changed).collect();
        self.only_named.look((rows.capacity() - named.len()) * rows.row());
        for &slot in &strays {
            self.only_named.fail(check.failure(slot, self.words().0));
        }

        let is_fresh = |slot: usize| check.kind.is_fresh(check.sample, slot);
        let fresh: Vec<usize> = named.iter().copied().filter(|&slot| is_fresh(slot)).collect();
        let hit: Vec<usize> = check.named.iter().cloned().flat_map(changed).collect();
        let missed: Vec<usize> = fresh.iter().copied().filter(|slot| !hit.contains(slot)).collect();
        self.written.look(fresh.len());
        for &slot in &missed {
            self.written.fail(check.failure(slot, self.words().1));
        }

        // If all rows that the write indices refer to contained canaries, the changed rows must be exactly
        // these. Rows that wrap in a ring do not, because the first of its slots was written before.
        let [run_named, wrapped] = &check.named;
        if !named.is_empty() && fresh.len() == named.len() && wrapped.is_empty() {
            self.placed.look(1);
            let mut all = [strays.as_slice(), &hit].concat();
            all.sort_unstable();
            if let [run] = ranges(all).as_slice()
                && run.len() == named.len()
                && run != run_named
            {
                let (start, begins) = (run.start, self.words().2);
                let message = format!("rows were written from slot {start} on, {begins} {}", run_named.start);
                self.placed.fail(check.failure(run.start, &message));
            }
        }

        // GroupQueryAttention does not copy the rows after the new ones to a separate present.
        let compared = match self.writer {
            CacheWriter::TensorScatter => 0..rows.capacity(),
            CacheWriter::GroupQueryAttention => 0..run_named.end,
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
    kind: &'a SlotKind,
    /// The slots that the step writes. The second range is empty unless the step wraps in a ring.
    named: [Range<usize>; 2],
}

impl SampleCheck<'_> {
    /// Returns the slots that the step does not write, in ascending order.
    fn others(&self) -> [Range<usize>; 2] {
        let [first, wrapped] = &self.named;
        [wrapped.end..first.start, first.end..self.rows.capacity()]
    }

    fn failure(&self, slot: usize, message: &str) -> Failure {
        Failure {
            cache: Some(self.port.past.clone()),
            sample: Some(self.sample),
            slot: Some(slot),
            ..self.place.failure(message)
        }
    }
}
