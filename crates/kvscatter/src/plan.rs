//! One call's positions, all checked before the first byte moves, as blocks to be copied.

use crate::geometry::{Geometry, Samples};
use crate::indices::{Lengths, Starts, Values};
use crate::mapping::{Block, Rows};
use crate::{Argument, Error, Mode, NegativeIndex, OutOfRange};

/// A write whose every position is known to be right: a [`Geometry`] and this call's starts and lengths.
///
/// It allocates nothing and borrows the indices it was made from, so they cannot change under it. Make it
/// once per step and use it for the key cache, the value cache and every layer that shares the positions.
///
/// * **P1** every destination bit of every block lies inside the cache, every source bit inside the update;
/// * **P2** the blocks of one plan are disjoint in the destination, so they may run in any order.
#[derive(Clone, Copy, Debug)]
pub struct WritePlan<'a> {
    geometry: &'a Geometry,
    call: Call<'a>,
    layer: usize,
    skipped: usize,
    rows: usize,
}

/// A run of slots of one sample that receives consecutive rows of its update.
///
/// A sample has one, or two where a ring wraps: the second then begins at slot 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Segment {
    /// The sample.
    pub sample: usize,
    /// The first slot written.
    pub slot: usize,
    /// The row of the sample's update that goes there.
    pub row: usize,
    /// How many rows.
    pub rows: usize,
}

impl<'a> WritePlan<'a> {
    /// Checks every index of a call:
    ///
    /// 1. the layer exists;
    /// 2. there is one start and one length per sample, and no more samples than the cache has;
    /// 3. the rows that the samples bring are the rows of the update, and each sample fits the cache;
    /// 4. `0 <= lengths[i] <=` the rows sample `i` brings;
    /// 5. linear: `0 <= start` and `start + length <= capacity`; circular: any start, or any that is not
    ///    negative under [`NegativeIndex::Reject`]. Under [`OutOfRange::SkipSample`] a sample that fails this
    ///    is counted and left out.
    pub(crate) fn new(geometry: &'a Geometry, call: Call<'a>) -> Result<Self, Error> {
        let layers = geometry.layers();
        let layer = usize::try_from(call.layer).ok().filter(|&layer| layer < layers);
        let layer = layer.ok_or(Error::LayerOutOfRange {
            value: call.layer,
            layers,
        })?; // Condition 1
        let mut plan = Self {
            geometry,
            call,
            layer,
            skipped: 0,
            rows: 0,
        };
        plan.check_counts()?; // Condition 2
        if plan.is_uniform() {
            // Slot 0 fits wherever the update does; a batch that is huge and empty is not walked.
            plan.rows = plan.batch().wrapping_mul(plan.most_rows());
            return Ok(plan);
        }
        call.spans.check_order(geometry.words.spans)?; // Condition 3, with the span check of `rows_of`
        let mut brought = 0_i64;
        for sample in 0..plan.batch() {
            let (span, length) = plan.rows_of(sample)?; // Conditions 3 and 4
            brought = brought.saturating_add_unsigned(u64::try_from(span).unwrap_or(u64::MAX));
            match plan.slot(sample, span, length) {
                // Condition 5. No sum of lengths wraps: each is at most the capacity of its own sample.
                Ok(_) => plan.rows = plan.rows.wrapping_add(length),
                Err(_) if geometry.rules.out_of_range == OutOfRange::SkipSample => {
                    plan.skipped = plan.skipped.wrapping_add(1);
                }
                Err(error) => return Err(error),
            }
        }
        plan.check_total(brought)?; // Condition 3
        Ok(plan)
    }

    /// The shapes this plan writes.
    #[must_use]
    pub fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// Samples of the update.
    #[must_use]
    pub fn batch(&self) -> usize {
        match (self.geometry.samples, self.call.spans) {
            (Samples::Padded { batch, .. }, _) => batch,
            (Samples::Packed { .. }, Spans::Uniform) => 0,
            (Samples::Packed { .. }, Spans::Each { values, .. }) => values.len(),
            (Samples::Packed { .. }, Spans::Cumulative(values)) => values.len().saturating_sub(1),
        }
    }

    /// The layer written; 0 where the operator knows none.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Samples that [`OutOfRange::SkipSample`] leaves as they are.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// The position of a sample as this call gives it: `write_indices[sample]`, or Ascend's `tokenOffset`.
    #[must_use]
    pub fn position(&self, sample: usize) -> Option<i64> {
        let given = || {
            self.call
                .starts
                .values()
                .map_or(Some(0), |starts| starts.at(sample))
        };
        if sample < self.batch() { given() } else { None }
    }

    /// Whether [`OutOfRange::SkipSample`] leaves this sample as it is.
    #[must_use]
    pub fn skips(&self, sample: usize) -> bool {
        let place = |(span, length)| self.slot(sample, span, length);
        sample < self.batch() && self.rows_of(sample).and_then(place).is_err()
    }

    /// Elements the write moves: a write in place reads and writes these and no others.
    #[must_use]
    pub fn elements(&self) -> usize {
        // G1: a part of the update.
        self.rows.wrapping_mul(self.geometry.row_elements)
    }

    /// Bytes the write moves, rounded up where 4-bit elements end on half a byte; `None` for strings.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        crate::size::bytes(self.elements(), self.geometry.element().bits()?)
    }

    /// Visits every [`Block`]. This is how backends execute a plan.
    #[inline]
    pub fn for_each(&self, mut visit: impl FnMut(&Block)) {
        let (dst, src) = self.bases();
        self.for_each_rows(|rows| self.geometry.write.for_each(dst, src, rows, &mut visit));
    }

    /// The blocks one by one, for pictures and tests; [`for_each`](Self::for_each) is faster.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<'a> {
        let (geometry, (dst, src)) = (self.geometry, self.bases());
        self.targets()
            .flat_map(move |target| target.rows(geometry.capacity()))
            .flatten()
            .flat_map(move |rows| geometry.write.blocks(dst, src, rows))
    }

    /// Which slots of which sample are written: what a block is before layouts enter, for pictures.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        let capacity = self.geometry.capacity();
        self.targets().flat_map(move |target| {
            let segment = move |Rows {
                                    sample,
                                    dst,
                                    src,
                                    count,
                                }: Rows| {
                Segment {
                    sample,
                    slot: dst,
                    row: src.wrapping_sub(target.row),
                    rows: count,
                }
            };
            target
                .rows(capacity)
                .map(|rows| rows.map(segment))
                .into_iter()
                .flatten()
        })
    }

    /// The rows that move from the update into the cache.
    #[inline]
    fn for_each_rows(&self, mut visit: impl FnMut(Rows)) {
        let mut packed_row = 0;
        for sample in 0..self.walked() {
            if let Some(target) = self.target(sample, &mut packed_row) {
                target
                    .rows(self.geometry.capacity())
                    .into_iter()
                    .flatten()
                    .for_each(&mut visit);
            }
        }
    }

    /// The blocks of the functional form that come from the update: those of the plan, in the present's layout.
    pub(crate) fn for_each_present(&self, mut visit: impl FnMut(&Block)) {
        let present = &self.geometry.present;
        let dst = layer_base(0, present.layer_stride, self.layer);
        let src = self.geometry.update.offset;
        self.for_each_rows(|rows| present.from_update.for_each(dst, src, rows, &mut visit));
    }

    /// The blocks of the functional form that come from the past: every slot that the plan leaves alone.
    pub(crate) fn for_each_kept(&self, mut visit: impl FnMut(&Block)) {
        let Geometry {
            cache,
            layers,
            present,
            ..
        } = self.geometry;
        if present.buffer.len == 0 {
            return;
        }
        for layer in 0..layers.size {
            let dst = layer_base(0, present.layer_stride, layer);
            let src = layer_base(cache.offset, layers.stride, layer);
            self.for_each_kept_rows(layer, |rows| {
                present.from_past.for_each(dst, src, rows, &mut visit)
            });
        }
    }

    fn for_each_kept_rows(&self, layer: usize, mut visit: impl FnMut(Rows)) {
        let capacity = self.geometry.capacity();
        let written = if layer == self.layer { self.walked() } else { 0 };
        let mut packed_row = 0;
        for sample in 0..self.geometry.cache_batch() {
            let target = if sample < written {
                self.target(sample, &mut packed_row)
            } else {
                None
            };
            let mut keep = |from: usize, to: usize| {
                visit(Rows {
                    sample,
                    dst: from,
                    src: from,
                    count: to.saturating_sub(from),
                });
            };
            match target {
                None => keep(0, capacity),
                Some(Target { slot, length, .. }) => {
                    // No sum wraps: both are at most the capacity, which fits `isize`.
                    let end = slot.wrapping_add(length);
                    match end.checked_sub(capacity) {
                        Some(wrapped) => keep(wrapped, slot),
                        None => {
                            keep(0, slot);
                            keep(end, capacity);
                        }
                    }
                }
            }
        }
    }

    /// Where sample 0 of the written layer begins, in the cache and in the update.
    fn bases(&self) -> (usize, usize) {
        let Geometry {
            cache,
            update,
            layers,
            ..
        } = self.geometry;
        (layer_base(cache.offset, layers.stride, self.layer), update.offset)
    }

    fn targets(&self) -> impl Iterator<Item = Target> + use<'a> {
        let plan = *self;
        (0..plan.walked())
            .scan(0, move |packed_row, sample| Some(plan.target(sample, packed_row)))
            .flatten()
    }

    /// Samples to go through; none if there is nothing to move.
    fn walked(&self) -> usize {
        if self.elements() == 0 { 0 } else { self.batch() }
    }

    /// Where a sample goes; `None` if it is skipped.
    #[inline]
    fn target(&self, sample: usize, packed_row: &mut usize) -> Option<Target> {
        let (span, length) = self.rows_of(sample).ok()?; // `new` has seen that this is `Ok`
        let row = *packed_row;
        if let Samples::Packed { .. } = self.geometry.samples {
            *packed_row = row.wrapping_add(span); // at most the tokens of the update
        }
        let slot = self.slot(sample, span, length).ok()?; // `Err` is a skipped sample
        Some(Target {
            sample,
            slot,
            row,
            length,
        })
    }

    /// The rows a sample brings, and how many of them are written.
    #[inline]
    fn rows_of(&self, sample: usize) -> Result<(usize, usize), Error> {
        let capacity = self.geometry.capacity();
        let within = |argument, value: i64, min: usize, max: usize| {
            let length = usize::try_from(value)
                .ok()
                .filter(|length| (min..=max).contains(length));
            length.ok_or(Error::LengthOutOfRange {
                argument,
                index: sample,
                value,
                min,
                max,
            })
        };
        let span = match (self.call.spans.at(sample), self.geometry.samples) {
            (None, _) => self.most_rows(),
            (Some((value, _)), Samples::Padded { rows, .. }) => {
                within(self.geometry.words.spans, value, rows, rows)?
            }
            (Some((value, least)), Samples::Packed { .. }) => {
                within(self.geometry.words.spans, value, least, capacity)?
            }
        };
        let length = match self.call.lengths.values().and_then(|lengths| lengths.at(sample)) {
            None => span,
            Some(value) => within(Argument::Lengths, value, 0, span)?,
        };
        Ok((span, length))
    }

    /// The first slot written, by the rules of the mode.
    #[inline]
    fn slot(&self, sample: usize, span: usize, length: usize) -> Result<usize, Error> {
        let Geometry { words, rules, .. } = self.geometry;
        let capacity = self.geometry.capacity();
        let Some(value) = self.call.starts.values().and_then(|starts| starts.at(sample)) else {
            return Ok(0);
        };
        let start = match self.call.anchor {
            Anchor::First => value,
            Anchor::End => {
                let start = i64::try_from(span).ok().and_then(|span| value.checked_sub(span));
                let fits = |start: &i64| {
                    let last = usize::try_from(*start)
                        .ok()
                        .and_then(|start| start.checked_add(length));
                    last.is_some_and(|last| last <= capacity)
                };
                return start
                    .filter(fits)
                    .and_then(|start| usize::try_from(start).ok())
                    .ok_or(Error::EndOutOfRange {
                        argument: words.starts,
                        index: sample,
                        value,
                        rows: span,
                        capacity,
                    });
            }
        };
        let negative = Error::NegativeStart {
            argument: words.starts,
            index: sample,
            value,
        };
        match rules.mode {
            Mode::Linear => {
                let start = usize::try_from(start).map_err(|_| {
                    // On a 32-bit host a start may be too large for `usize` as well.
                    if value < 0 {
                        negative
                    } else {
                        self.past_the_end(sample, value, length)
                    }
                })?;
                // `length <= capacity`, so this is `start + length <= capacity` without overflow.
                if start > capacity.wrapping_sub(length) {
                    return Err(self.past_the_end(sample, value, length));
                }
                Ok(start)
            }
            Mode::Circular if start < 0 && rules.negative_index == NegativeIndex::Reject => Err(negative),
            Mode::Circular => {
                // Reduce first, add later: no start overflows. A ring without slots has only slot 0.
                let slots = i64::try_from(capacity).unwrap_or(i64::MAX);
                let slot = start.checked_rem_euclid(slots).unwrap_or(0);
                Ok(usize::try_from(slot).unwrap_or(0))
            }
        }
    }

    #[cold]
    fn past_the_end(&self, index: usize, value: i64, rows: usize) -> Error {
        let argument = self.geometry.words.starts;
        Error::StartOutOfRange {
            argument,
            index,
            value,
            rows,
            capacity: self.geometry.capacity(),
        }
    }

    /// Every sample from slot 0, in full.
    fn is_uniform(&self) -> bool {
        self.call.starts == Starts::Zero
            && self.call.lengths == Lengths::Full
            && self.call.spans == Spans::Uniform
            && matches!(self.geometry.samples, Samples::Padded { .. })
    }

    fn most_rows(&self) -> usize {
        match self.geometry.samples {
            Samples::Padded { rows, .. } => rows,
            Samples::Packed { .. } => 0,
        }
    }

    fn check_counts(&self) -> Result<(), Error> {
        let want = self.batch();
        let cache = self.geometry.cache_batch();
        if want > cache {
            return Err(Error::BatchTooLarge { cache, update: want });
        }
        let check = |argument, values: Option<Values<'_>>| match values {
            Some(values) if values.len() != want => Err(Error::Count {
                argument,
                got: values.len(),
                want,
            }),
            _ => Ok(()),
        };
        check(self.geometry.words.starts, self.call.starts.values())?;
        if let Spans::Each { values, .. } = self.call.spans {
            check(self.geometry.words.spans, Some(values))?;
        }
        check(Argument::Lengths, self.call.lengths.values())
    }

    fn check_total(&self, got: i64) -> Result<(), Error> {
        match self.geometry.samples {
            Samples::Packed { tokens } if i64::try_from(tokens) != Ok(got) => Err(Error::TokenSum {
                argument: self.geometry.words.spans,
                got,
                tokens,
            }),
            _ => Ok(()),
        }
    }
}

/// Where a layer begins. P1: the layer exists, and `View` proves every partial sum.
fn layer_base(offset: usize, stride: isize, layer: usize) -> usize {
    offset.wrapping_add_signed(stride.wrapping_mul(layer.cast_signed()))
}

/// What one call adds to a geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) layer: i64,
    pub(crate) starts: Starts<'a>,
    pub(crate) anchor: Anchor,
    pub(crate) spans: Spans<'a>,
    pub(crate) lengths: Lengths<'a>,
}

/// What a position counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// The first slot written.
    First,
    /// The length after the write, padding included: the start is this less the rows the sample brings.
    End,
}

/// The rows each sample brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spans<'a> {
    /// Those of a padded update.
    Uniform,
    /// One number per sample, none below `least`.
    Each { values: Values<'a>, least: usize },
    /// Running totals, one more than samples, from 0.
    Cumulative(Values<'a>),
}

impl Spans<'_> {
    /// The sample's number and the least it may be.
    #[inline]
    fn at(self, sample: usize) -> Option<(i64, usize)> {
        match self {
            Self::Uniform => None,
            Self::Each { values, least } => Some((values.at(sample)?, least)),
            Self::Cumulative(values) => {
                // `check_order` has seen that they do not decrease from 0, so this does not overflow.
                Some((
                    values
                        .at(sample.wrapping_add(1))?
                        .wrapping_sub(values.at(sample)?),
                    0,
                ))
            }
        }
    }

    fn check_order(self, argument: Argument) -> Result<(), Error> {
        let Self::Cumulative(values) = self else {
            return Ok(());
        };
        let mut previous = match values.at(0) {
            Some(0) => 0,
            Some(value) => return Err(Error::CumulativeStart { argument, value }),
            None => {
                return Err(Error::Count {
                    argument,
                    got: 0,
                    want: 1,
                });
            }
        };
        for index in 1..values.len() {
            let Some(value) = values.at(index) else { break };
            if value < previous {
                return Err(Error::CumulativeOrder {
                    argument,
                    index,
                    value,
                    previous,
                });
            }
            previous = value;
        }
        Ok(())
    }
}

/// Where one sample goes.
#[derive(Clone, Copy, Debug)]
struct Target {
    sample: usize,
    slot: usize,
    /// Its first row in the update.
    row: usize,
    length: usize,
}

impl Target {
    /// One run of slots, and a second from slot 0 where the ring wraps.
    #[inline]
    fn rows(self, capacity: usize) -> [Option<Rows>; 2] {
        let Self {
            sample,
            slot,
            row,
            length,
        } = self;
        // `slot <= capacity` and `first <= length`: nothing here wraps.
        let first = length.min(capacity.wrapping_sub(slot));
        let rest = length.wrapping_sub(first);
        [
            (first > 0).then_some(Rows {
                sample,
                dst: slot,
                src: row,
                count: first,
            }),
            (rest > 0).then_some(Rows {
                sample,
                dst: 0,
                src: row.wrapping_add(first),
                count: rest,
            }),
        ]
    }
}
