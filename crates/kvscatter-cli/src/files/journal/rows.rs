//! The rows that a plan writes, with the bytes before and after the write.

use std::ops::Range;

use kvscatter::WritePlan;

/// The most bytes of one piece, so that a journal is written and read in little memory.
pub(super) const MAX_PIECE: usize = 64 << 10;

const NIBBLE: usize = 4;

/// The runs of a plan in the order of the cache, and the update that they come from.
pub(in crate::files) struct Rows<'a> {
    runs: Vec<Run>,
    update: &'a [u8],
}

/// Neighbouring elements that are written from neighbouring elements of the update.
struct Run {
    /// The bits of the cache.
    to: Range<u64>,
    /// The first bit of the update.
    from: u64,
}

/// Visits the runs of a plan, passing the bits of the cache and the first bit of the update. A plan of strings
/// has none.
pub(in crate::files) fn for_each_run(plan: &WritePlan<'_>, mut visit: impl FnMut(Range<u64>, u64)) {
    let Some(width) = plan.geometry().element().bits() else { return };
    // P1: every run is inside its buffer, whose size in bits fits u64.
    let bits = |elements: usize| wide(elements).saturating_mul(wide(width));
    plan.for_each_block(|block| {
        block.for_each_run(|to, from| visit(bits(to)..bits(to.saturating_add(block.len)), bits(from)));
    });
}

impl<'a> Rows<'a> {
    /// Returns the rows that a plan writes from the bytes of its update.
    pub(in crate::files) fn new(plan: &WritePlan<'_>, update: &'a [u8]) -> Self {
        let mut runs = Vec::new();
        for_each_run(plan, |to, from| {
            if !to.is_empty() {
                runs.push(Run { to, from });
            }
        });
        runs.sort_unstable_by_key(|run| run.to.start);
        Self { runs, update }
    }

    pub(in crate::files) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Visits the bytes that change, in order and in pieces. Passes the offset in the cache, the bytes of the
    /// cache, and the bytes after the write. Runs that touch, or that share a byte, are one range.
    pub(super) fn for_each_piece<E>(
        &self,
        cache: &[u8],
        mut visit: impl FnMut(u64, &[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut new = Vec::new();
        for runs in self.runs.chunk_by(|run, next| next.to.start / 8 <= run.to.end.div_ceil(8)) {
            let ([first, ..], [.., last]) = (runs, runs) else { continue };
            let range = narrow(first.to.start / 8)..narrow(last.to.end.div_ceil(8));
            let mut start = range.start;
            // P1: the range is inside the cache.
            for old in cache.get(range).unwrap_or_default().chunks(MAX_PIECE) {
                new.clear();
                new.extend_from_slice(old);
                let end = start.saturating_add(old.len());
                let bits = wide(start).saturating_mul(8)..wide(end).saturating_mul(8);
                let begun = runs.partition_point(|run| run.to.end <= bits.start);
                for run in runs.iter().skip(begun).take_while(|run| run.to.start < bits.end) {
                    run.store(self.update, &bits, &mut new);
                }
                visit(wide(start), old, &new)?;
                start = end;
            }
        }
        Ok(())
    }
}

impl Run {
    /// Stores the part of the run that is in `bits` of the cache. `piece` is the bytes of `bits`.
    fn store(&self, update: &[u8], bits: &Range<u64>, piece: &mut [u8]) {
        let part = self.to.start.max(bits.start)..self.to.end.min(bits.end);
        let to = narrow(part.start.saturating_sub(bits.start));
        let from = narrow(self.from.saturating_add(part.start.saturating_sub(self.to.start)));
        let len = narrow(part.end.saturating_sub(part.start));
        if [to, from, len].iter().all(|bits| bits.is_multiple_of(8)) {
            let (to, from, len) = (to / 8, from / 8, len / 8);
            let to = piece.get_mut(to..to.saturating_add(len));
            let from = update.get(from..from.saturating_add(len));
            if let (Some(to), Some(from)) = (to, from) {
                to.copy_from_slice(from);
            }
            return;
        }
        for at in (0..len).step_by(NIBBLE) {
            let (to, from) = (to.saturating_add(at), from.saturating_add(at));
            if let (Some(byte), Some(source)) = (piece.get_mut(to / 8), update.get(from / 8)) {
                let nibble = if from.is_multiple_of(8) { source & 0x0f } else { source >> NIBBLE };
                *byte = if to.is_multiple_of(8) {
                    (*byte & 0xf0) | nibble
                } else {
                    (*byte & 0x0f) | (nibble << NIBBLE)
                };
            }
        }
    }
}

/// Returns a number as a journal stores it.
pub(in crate::files) fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn narrow(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kvscatter::ElementType;
    use kvscatter::spec::onnx::TensorScatter;

    use super::{MAX_PIECE, Rows};

    /// Compares the pieces with the core's own write: old and new bytes, and that nothing else changes.
    #[track_caller]
    fn check(element: ElementType, axis: i64, shapes: [&[usize]; 2], starts: &[i64]) -> usize {
        let [cache_shape, update_shape] = shapes;
        let bytes = |shape: &[usize]| element.storage_len(shape).unwrap();
        let cache: Vec<u8> = (0..=250).cycle().take(bytes(cache_shape)).collect();
        let update: Vec<u8> = (0..=240).rev().cycle().take(bytes(update_shape)).collect();
        let operator = TensorScatter::new().axis(axis).mode(kvscatter::Mode::Circular);
        let write = operator.prepare(element, cache_shape, update_shape).unwrap();
        let plan = write.plan(starts).unwrap();
        let mut expected = cache.clone();
        let _ = plan.write_bytes(&mut expected, &update).unwrap();
        let (mut got, mut ends) = (cache.clone(), vec![0]);
        let rows = Rows::new(&plan, &update);
        rows.for_each_piece(&cache, |start, old, new| {
            let start = usize::try_from(start).unwrap();
            assert!(ends.last().is_some_and(|&end| start >= end));
            assert!(!old.is_empty() && old.len() <= MAX_PIECE && old.len() == new.len());
            let end = start.saturating_add(old.len());
            assert_eq!(cache.get(start..end), Some(old));
            got.splice(start..end, new.iter().copied());
            ends.push(end);
            Ok::<_, Infallible>(())
        })
        .unwrap();
        assert!(got == expected, "{element:?} {cache_shape:?} {update_shape:?} {starts:?}");
        ends.len().saturating_sub(1)
    }

    #[test]
    fn pieces_are_what_the_core_writes() {
        for element in [ElementType::UInt8, ElementType::Float16, ElementType::Complex128] {
            assert_eq!(check(element, -2, [&[2, 3, 5, 4], &[2, 3, 2, 4]], &[1, 2]), 6);
            // Two samples wrap around, and the end of each head touches the start of the next.
            check(element, -2, [&[2, 3, 5, 4], &[2, 3, 2, 4]], &[4, 4]);
            check(element, -1, [&[2, 3, 5], &[2, 3, 2]], &[4, 0]);
        }
        // A long run is cut, and rows of the whole capacity are one range.
        assert_eq!(check(ElementType::Float32, 1, [&[1, 9, 50_000], &[1, 2, 50_000]], &[3]), 7);
        assert_eq!(check(ElementType::UInt8, 1, [&[4, 5, 100], &[4, 5, 100]], &[3, 0, 1, 2]), 1);
    }

    #[test]
    fn rows_of_4_bits_that_share_bytes() {
        for starts in 0..25 {
            let starts = [starts / 5, starts % 5];
            for rows in 1..=5 {
                check(ElementType::Int4, -2, [&[2, 3, 5, 3], &[2, 3, rows, 3]], &starts);
                check(ElementType::UInt4, -1, [&[2, 3, 5], &[2, 3, rows]], &starts);
            }
        }
    }

    #[test]
    fn nothing_planned_is_no_piece() {
        assert_eq!(check(ElementType::Float32, 1, [&[2, 5, 4], &[2, 0, 4]], &[0, 0]), 0);
    }
}
