//! The rules of one call's indices: which of them fit, and where each sample goes.

use crate::geometry::{Geometry, Samples};
use crate::indices::{Lengths, Starts, Values};
use crate::lists::{LEAST, ListLengths};
use crate::{Argument, Error, Mode, NegativeIndex, OutOfRange};

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
    /// One number per sample, none below [`LEAST`].
    Each(Values<'a>),
    /// Running totals, one more than samples, from 0.
    Cumulative(Values<'a>),
}

/// The indices of a call beside the geometry they are meant for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions<'a> {
    geometry: &'a Geometry,
    call: Call<'a>,
}

/// What a check of all indices has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) layer: usize,
    /// Rows written, over all samples.
    pub(crate) rows: usize,
    pub(crate) skipped: usize,
    /// Whether each sample's start says all there is to know about where it goes.
    pub(crate) one_start_each: bool,
}

impl Checked {
    pub(crate) const NOTHING: Self = Self { layer: 0, rows: 0, skipped: 0, one_start_each: false };
}

impl<'a> Positions<'a> {
    #[inline(always)]
    pub(crate) fn new(geometry: &'a Geometry, call: Call<'a>) -> Self {
        Self { geometry, call }
    }

    pub(crate) fn geometry(&self) -> &'a Geometry {
        self.geometry
    }

    /// Checks every index:
    ///
    /// 1. the layer exists;
    /// 2. there is one start and one length per sample, and no more samples than the cache has;
    /// 3. the rows that the samples bring are the rows of the update, and each sample fits the cache;
    /// 4. `0 <= lengths[i] <=` the rows sample `i` brings;
    /// 5. linear: `0 <= start` and `start + length <= capacity`; circular: any start, or any that is not
    ///    negative under [`NegativeIndex::Reject`]. Under [`OutOfRange::SkipSample`] a sample that fails this
    ///    is counted and left out.
    #[inline(always)]
    pub(crate) fn check(self) -> Result<Checked, Error> {
        match self.one_start_each() {
            Some(rows) => Ok(Checked { rows, one_start_each: true, ..Checked::NOTHING }),
            None => self.check_each(),
        }
    }

    /// The lists that are read again while bytes move, by name.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (Argument, Values<'a>)> + use<'a> {
        let Geometry { words, .. } = self.geometry;
        let spans = match self.call.spans {
            Spans::Uniform => None,
            Spans::Each(values) | Spans::Cumulative(values) => Some(values),
        };
        let lists = [
            (words.starts, self.call.starts.values()),
            (words.spans, spans),
            (Argument::Lengths, self.call.lengths.values()),
        ];
        lists.into_iter().filter_map(|(argument, values)| Some((argument, values?)))
    }

    pub(crate) fn starts(&self) -> Starts<'a> {
        self.call.starts
    }

    /// The rows written, if this is the call that decoding makes and nothing is wrong with it: a start for each
    /// sample of a padded update, all of whose rows are written. Its walk need not look at anything else.
    #[inline(always)]
    fn one_start_each(self) -> Option<usize> {
        let Samples::Padded { batch, rows } = self.geometry.samples else { return None };
        let Call { layer: 0, anchor: Anchor::First, spans: Spans::Uniform, lengths: Lengths::Full, starts } =
            self.call
        else {
            return None;
        };
        let rule = self.slot_rule(rows);
        let fit = match starts {
            Starts::Zero => false,
            Starts::I64(values) => {
                values.len() == batch && values.iter().all(|&value| rule.slot(value).is_some())
            }
            Starts::I32(values) => {
                values.len() == batch && values.iter().all(|&value| rule.slot(value.into()).is_some())
            }
        };
        // G1: the rows of the update.
        fit.then(|| batch.wrapping_mul(rows))
    }

    #[cold]
    #[inline(never)]
    fn check_each(self) -> Result<Checked, Error> {
        let layer = self.layer(self.call.layer)?; // Condition 1
        self.check_counts()?; // Condition 2
        if self.is_uniform() {
            // Slot 0 fits wherever the update does; a batch that is huge and empty is not walked.
            let rows = self.batch().wrapping_mul(self.most_rows());
            return Ok(Checked { layer, rows, ..Checked::NOTHING });
        }
        self.check_order()?; // Condition 3, with `rows_of`
        let mut checked = Checked { layer, ..Checked::NOTHING };
        let mut brought = 0_i64;
        for sample in 0..self.batch() {
            let (span, length) = self.rows_of(sample)?; // Conditions 3 and 4
            brought = brought.saturating_add_unsigned(u64::try_from(span).unwrap_or(u64::MAX));
            match self.slot(sample, span, length) {
                // Condition 5. No sum of lengths wraps: each is at most the capacity of its own sample.
                Ok(_) => checked.rows = checked.rows.wrapping_add(length),
                Err(_) if self.geometry.rules.out_of_range == OutOfRange::SkipSample => {
                    checked.skipped = checked.skipped.wrapping_add(1);
                }
                Err(error) => return Err(error),
            }
        }
        self.check_total(brought)?; // Condition 3
        Ok(checked)
    }

    /// Samples of the update.
    pub(crate) fn batch(&self) -> usize {
        match (self.geometry.samples, self.call.spans) {
            (Samples::Padded { batch, .. }, _) => batch,
            (Samples::Packed { .. }, Spans::Uniform) => 0,
            (Samples::Packed { .. }, Spans::Each(values)) => values.len(),
            (Samples::Packed { .. }, Spans::Cumulative(values)) => values.len().saturating_sub(1),
        }
    }

    /// The position of a sample as the caller gave it.
    pub(crate) fn given(&self, sample: usize) -> Option<i64> {
        let given = || self.call.starts.values().map_or(Some(0), |starts| starts.at(sample));
        if sample < self.batch() { given() } else { None }
    }

    /// The rows a sample brings, and how many of them are written.
    #[inline]
    pub(crate) fn rows_of(&self, sample: usize) -> Result<(usize, usize), Error> {
        let spans = self.geometry.words.spans;
        let span = match self.call.spans {
            Spans::Uniform => self.most_rows(),
            Spans::Each(values) => self.span(sample, self.read(spans, values, sample)?)?,
            Spans::Cumulative(values) => {
                let next = self.read(spans, values, sample.wrapping_add(1))?;
                // `check_order` has seen that they do not decrease from 0, so this does not overflow.
                self.span_between(sample, next.wrapping_sub(self.read(spans, values, sample)?))?
            }
        };
        let length = match self.call.lengths.values() {
            None => span,
            Some(values) => self.length(sample, self.read(Argument::Lengths, values, sample)?, span)?,
        };
        Ok((span, length))
    }

    /// The rows that a list says a sample brings.
    pub(crate) fn span(&self, index: usize, value: i64) -> Result<usize, Error> {
        let (argument, capacity) = (self.geometry.words.spans, self.geometry.capacity());
        let span = within(argument, index, value, LEAST, capacity)?;
        match self.geometry.samples {
            Samples::Packed { .. } => Ok(span),
            Samples::Padded { rows, .. } => within(argument, index, value, rows, rows),
        }
    }

    /// The rows between a sample's running total and the next.
    pub(crate) fn span_between(&self, index: usize, rows: i64) -> Result<usize, Error> {
        let (argument, capacity) = (self.geometry.words.spans, self.geometry.capacity());
        let span = usize::try_from(rows).ok().filter(|&span| span <= capacity);
        span.ok_or(Error::CumulativeLength { argument, index, rows, capacity })
    }

    /// The rows that are written of those that a sample brings.
    pub(crate) fn length(&self, index: usize, value: i64, span: usize) -> Result<usize, Error> {
        within(Argument::Lengths, index, value, 0, span)
    }

    pub(crate) fn layer(&self, value: i64) -> Result<usize, Error> {
        let layers = self.geometry.layers();
        let layer = usize::try_from(value).ok().filter(|&layer| layer < layers);
        layer.ok_or(Error::LayerOutOfRange { value, layers })
    }

    /// The first slot written.
    #[inline]
    pub(crate) fn slot(&self, sample: usize, span: usize, length: usize) -> Result<usize, Error> {
        let Some(starts) = self.call.starts.values() else { return Ok(0) };
        self.slot_at(sample, self.read(self.geometry.words.starts, starts, sample)?, span, length)
    }

    /// The first slot that a position means.
    #[inline]
    pub(crate) fn slot_at(
        &self,
        sample: usize,
        value: i64,
        span: usize,
        length: usize,
    ) -> Result<usize, Error> {
        match self.call.anchor {
            Anchor::First => self.slot_from_start(sample, value, length),
            Anchor::End => self.slot_before_end(sample, value, span, length),
        }
    }

    /// A value that `check_counts` has seen to be there.
    #[inline]
    fn read(&self, argument: Argument, values: Values<'_>, at: usize) -> Result<i64, Error> {
        values.at(at).ok_or(Error::Count { argument, got: values.len(), want: self.batch() })
    }

    #[inline(always)]
    pub(crate) fn slot_rule(self, rows: usize) -> SlotRule {
        let Geometry { rules, .. } = self.geometry;
        let capacity = self.geometry.capacity();
        SlotRule { mode: rules.mode, negative_index: rules.negative_index, rows, capacity }
    }

    #[inline]
    fn slot_from_start(&self, index: usize, value: i64, rows: usize) -> Result<usize, Error> {
        let rule = self.slot_rule(rows);
        rule.slot(value).ok_or_else(|| {
            let (argument, capacity) = (self.geometry.words.starts, rule.capacity);
            if value < 0 {
                Error::NegativeStart { argument, index, value }
            } else {
                Error::StartOutOfRange { argument, index, value, rows, capacity }
            }
        })
    }

    fn slot_before_end(&self, index: usize, value: i64, span: usize, length: usize) -> Result<usize, Error> {
        let (argument, capacity) = (self.geometry.words.starts, self.geometry.capacity());
        let start = i64::try_from(span).ok().and_then(|span| value.checked_sub(span));
        let slot = start.and_then(|start| usize::try_from(start).ok());
        // `length <= capacity`, as above.
        let fits = slot.filter(|&slot| slot <= capacity.wrapping_sub(length));
        // Neither wraps: `length <= span`, and both a span and the capacity fit `isize`.
        let max = capacity.wrapping_add(span.wrapping_sub(length));
        fits.ok_or(Error::EndOutOfRange { argument, index, value, min: span, max })
    }

    /// Every sample from slot 0, in full.
    fn is_uniform(&self) -> bool {
        self.call.starts == Starts::Zero
            && self.call.lengths == Lengths::Full
            && self.call.spans == Spans::Uniform
            && matches!(self.geometry.samples, Samples::Padded { .. })
    }

    /// Rows that each sample of a padded update brings.
    #[inline(always)]
    pub(crate) fn most_rows(&self) -> usize {
        match self.geometry.samples {
            Samples::Padded { rows, .. } => rows,
            Samples::Packed { .. } => 0,
        }
    }

    fn check_counts(&self) -> Result<(), Error> {
        let spans = match self.call.spans {
            Spans::Uniform => None,
            Spans::Each(values) | Spans::Cumulative(values) => Some(values),
        };
        let count = |values: Option<Values<'_>>| values.map(Values::len);
        self.geometry.check_counts(ListLengths {
            starts: count(self.call.starts.values()),
            spans: count(spans),
            lengths: count(self.call.lengths.values()),
        })?;
        Ok(())
    }

    fn check_order(&self) -> Result<(), Error> {
        let Spans::Cumulative(values) = self.call.spans else { return Ok(()) };
        let read = |at| self.read(self.geometry.words.spans, values, at);
        // There is a first one where there are no samples, too.
        self.order(0, read(0)?, i64::MAX)?;
        (0..self.batch())
            .try_for_each(|sample| self.order(sample, read(sample)?, read(sample.wrapping_add(1))?))
    }

    /// Running totals begin with 0 and do not decrease.
    pub(crate) fn order(&self, sample: usize, previous: i64, value: i64) -> Result<(), Error> {
        let argument = self.geometry.words.spans;
        if sample == 0 && previous != 0 {
            return Err(Error::CumulativeStart { argument, value: previous });
        }
        if value < previous {
            let index = sample.saturating_add(1);
            return Err(Error::CumulativeOrder { argument, index, value, previous });
        }
        Ok(())
    }

    pub(crate) fn check_total(&self, got: i64) -> Result<(), Error> {
        match self.geometry.samples {
            Samples::Packed { tokens } if i64::try_from(tokens) != Ok(got) => {
                Err(Error::TokenSum { argument: self.geometry.words.spans, got, tokens })
            }
            _ => Ok(()),
        }
    }
}

/// Which slot a start means.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRule {
    mode: Mode,
    negative_index: NegativeIndex,
    rows: usize,
    capacity: usize,
}

impl SlotRule {
    /// `None` if it is out of range, or negative where that is refused.
    #[inline(always)]
    pub(crate) fn slot(self, value: i64) -> Option<usize> {
        let start = usize::try_from(value);
        match self.mode {
            // `rows <= capacity`, so this is `start + rows <= capacity` without overflow.
            Mode::Linear => start.ok().filter(|&start| start <= self.capacity.wrapping_sub(self.rows)),
            Mode::Circular => match start {
                Ok(start) if start < self.capacity => Some(start),
                Err(_) if self.negative_index == NegativeIndex::Reject => None,
                _ => Some(self.reduce(value)),
            },
        }
    }

    /// Reduce first, add later: no start overflows. A ring without slots has only slot 0.
    #[cold]
    fn reduce(self, value: i64) -> usize {
        let slots = i64::try_from(self.capacity).unwrap_or(i64::MAX);
        usize::try_from(value.checked_rem_euclid(slots).unwrap_or(0)).unwrap_or(0)
    }
}

fn within(argument: Argument, index: usize, value: i64, min: usize, max: usize) -> Result<usize, Error> {
    let length = usize::try_from(value).ok().filter(|length| (min..=max).contains(length));
    length.ok_or(Error::LengthOutOfRange { argument, index, value, min, max })
}
