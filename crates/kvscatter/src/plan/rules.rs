//! The rules for one call's lists: how many values each has, and which values fit. Each rule stands here once, for plans
//! and for backends that read the values themselves.

use super::policy::{Mode, NegativeIndex, OutOfRange};
use crate::argument::Argument;
use crate::error::Error;
use crate::geometry::{Geometry, Samples};

/// What the lists of a call mean. The specification decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// The first slot written, for each sample of a padded update: ONNX and TensorRT.
    Starts,
    /// The first slot written for each sample of a packed update, and cumulative lengths from 0, one more than samples:
    /// TensorRT's `updateLengths`.
    #[doc(alias = "cu_seqlens")]
    StartsAndCumulativeLengths,
    /// The length after the write and the rows that are brought, one of each for every sample of the cache, and a layer:
    /// Ascend's `tokenOffset`, `seqLen` and `layerId`.
    EndsAndRowCounts,
}

/// How many values the lists of a call have; `None` where a list is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListCounts {
    /// The positions.
    pub positions: Option<usize>,
    /// The rows that samples bring, one by one or cumulative.
    pub row_counts: Option<usize>,
    /// The rows that are written.
    pub lengths: Option<usize>,
    /// The layers that the call names: 1, or 0 where the operator has none.
    pub layers: usize,
}

/// How many rows a sample may bring. For a padded update both limits are the update's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowLimits {
    /// The minimum. It exceeds `max` if each sample must bring a row, and the update or the cache has none: then no number
    /// fits.
    pub min: usize,
    /// The maximum.
    pub max: usize,
}

/// What a specification and its options ask of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleOptions {
    pub(crate) mode: Mode,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) negative_index: NegativeIndex,
    /// Whether absent positions mean zero.
    pub(crate) optional_positions: bool,
    pub(crate) convention: Convention,
    /// The rows that a sample brings at least, where a list gives them.
    pub(crate) min_rows: usize,
    /// Whether a call names a layer.
    pub(crate) has_layers: bool,
}

impl RuleOptions {
    /// Those of a specification without rings and layers: a negative position never fits.
    pub(crate) const fn linear(convention: Convention, out_of_range: OutOfRange) -> Self {
        Self {
            mode: Mode::Linear,
            out_of_range,
            negative_index: NegativeIndex::Reject,
            optional_positions: false,
            convention,
            min_rows: 0,
            has_layers: false,
        }
    }
}

/// What an operator asks of the indices of each call, and the geometry that they are for.
#[derive(Clone, Debug)]
pub(crate) struct CallRules {
    pub(crate) geometry: Geometry,
    pub(crate) options: RuleOptions,
    /// The update, if a call needs only a list of positions, as in decoding.
    pub(super) padded: Option<Padded>,
}

/// The samples of a padded update, and the rows of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padded {
    pub(super) batch: usize,
    pub(super) rows: usize,
}

impl CallRules {
    pub(crate) fn new(geometry: Geometry, options: RuleOptions) -> Self {
        let padded = match geometry.samples() {
            Samples::Padded { batch, rows } if options.convention == Convention::Starts => {
                Some(Padded { batch, rows })
            }
            _ => None,
        };
        Self { geometry, options, padded }
    }

    #[inline(always)]
    pub(crate) fn row_limits(&self) -> RowLimits {
        let (min, max) = match self.geometry.samples() {
            Samples::Padded { rows, .. } => (rows, rows),
            Samples::Packed { .. } => (0, self.geometry.capacity()),
        };
        RowLimits { min: min.max(self.options.min_rows), max }
    }

    /// Compares the lengths of the lists with each other and with the cache: one value per sample, no more samples than
    /// the cache has, and one layer if the operator has layers. Returns the number of samples.
    pub(crate) fn check_counts(&self, lists: ListCounts) -> Result<usize, Error> {
        let Self { geometry, options: RuleOptions { convention, .. }, .. } = self;
        let names = geometry.names();
        let ListCounts { positions, row_counts, lengths, layers } = lists;
        self.check_layer_count(layers)?;
        let expected = match (convention, geometry.samples()) {
            (Convention::Starts, Samples::Padded { batch, .. }) => batch,
            (Convention::Starts, Samples::Packed { .. }) => 0,
            (Convention::EndsAndRowCounts, _) => geometry.cache_batch(),
            (Convention::StartsAndCumulativeLengths, _) => {
                // A list with one value per sample has plain lengths, not cumulative ones.
                let cumulative = row_counts.filter(|&count| positions != Some(count));
                cumulative.and_then(|count| count.checked_sub(1)).ok_or(Error::ListLength {
                    argument: names.row_counts,
                    got: row_counts.unwrap_or(0),
                    expected: positions.unwrap_or(0).saturating_add(1),
                })?
            }
        };
        if positions.is_none() && !self.options.optional_positions {
            return Err(Error::ListLength { argument: names.positions, got: 0, expected });
        }
        check_count(names.positions, positions, expected)?;
        // Only the lists of a packed update can bring more samples than the cache has.
        let cache = geometry.cache_batch();
        if expected > cache {
            return Err(Error::BatchTooLarge { argument: names.positions, cache, update: expected });
        }
        match convention {
            Convention::Starts => check_count(names.row_counts, row_counts, 0)?,
            Convention::EndsAndRowCounts => check_count(names.row_counts, row_counts.or(Some(0)), expected)?,
            Convention::StartsAndCumulativeLengths => {}
        }
        check_count(Argument::Lengths, lengths, expected)?;
        Ok(expected)
    }

    /// A call names one layer if the operator has layers, and none otherwise.
    fn check_layer_count(&self, got: usize) -> Result<(), Error> {
        let expected = usize::from(self.options.has_layers);
        if got == expected {
            Ok(())
        } else {
            Err(Error::ListLength { argument: self.geometry.names().layer, got, expected })
        }
    }

    pub(crate) fn check_layer(&self, value: i64) -> Result<usize, Error> {
        let layers = self.geometry.layers();
        let layer = usize::try_from(value).ok().filter(|&layer| layer < layers);
        layer.ok_or(Error::LayerOutOfRange { argument: self.geometry.names().layer, value, layers })
    }

    /// The rows that a sample brings, from a list of such numbers.
    #[inline(always)]
    pub(crate) fn check_row_count(&self, sample: usize, value: i64) -> Result<usize, Error> {
        let RowLimits { min, max } = self.row_limits();
        within(self.geometry.names().row_counts, sample, value, min, max)
    }

    /// The rows that a sample brings, from two neighbours of a list of cumulative lengths that
    /// [`check_cumulative`](Self::check_cumulative) has accepted.
    pub(crate) fn rows_between(&self, sample: usize, previous: i64, value: i64) -> Result<usize, Error> {
        let (argument, capacity) = (self.geometry.names().row_counts, self.geometry.capacity());
        let rows = value.wrapping_sub(previous); // both are at least 0 in a plan, by `check_cumulative`
        let fits = usize::try_from(rows).ok().filter(|&rows| rows <= capacity);
        fits.ok_or(Error::CumulativeLength { argument, index: sample, rows, capacity })
    }

    /// Cumulative lengths begin with 0 and do not decrease.
    pub(crate) fn check_cumulative(&self, sample: usize, previous: i64, value: i64) -> Result<(), Error> {
        let argument = self.geometry.names().row_counts;
        if sample == 0 && previous != 0 {
            return Err(Error::CumulativeStart { argument, value: previous });
        }
        if value < previous {
            let index = sample.saturating_add(1);
            return Err(Error::CumulativeOrder { argument, index, value, previous });
        }
        Ok(())
    }

    /// The rows that are written of those that a sample brings.
    pub(crate) fn check_length(&self, sample: usize, value: i64, rows: usize) -> Result<usize, Error> {
        within(Argument::Lengths, sample, value, 0, rows)
    }

    /// All samples together bring the tokens of a packed update.
    pub(crate) fn check_total(&self, got: i64) -> Result<(), Error> {
        match self.geometry.samples() {
            Samples::Packed { tokens } if i64::try_from(tokens) != Ok(got) => {
                Err(Error::TokenSum { argument: self.geometry.names().row_counts, got, tokens })
            }
            _ => Ok(()),
        }
    }

    /// The first slot that a position means for a sample that brings `rows` rows, of which `length` are written.
    #[inline(always)]
    pub(crate) fn slot_of_position(
        &self,
        sample: usize,
        position: i64,
        rows: usize,
        length: usize,
    ) -> Result<usize, Error> {
        match self.options.convention {
            Convention::EndsAndRowCounts => self.slot_from_end(sample, position, rows, length),
            Convention::Starts | Convention::StartsAndCumulativeLengths => {
                self.slot_from_start(sample, position, length)
            }
        }
    }

    #[inline]
    fn slot_from_start(&self, sample: usize, start: i64, rows: usize) -> Result<usize, Error> {
        let rule = self.slot_rule(rows);
        rule.slot_of_start(start).ok_or_else(|| {
            let (argument, capacity) = (self.geometry.names().positions, rule.capacity);
            if start < 0 {
                Error::NegativeStart { argument, index: sample, value: start }
            } else {
                Error::StartOutOfRange { argument, index: sample, value: start, rows, capacity }
            }
        })
    }

    #[inline(always)]
    fn slot_from_end(&self, sample: usize, end: i64, rows: usize, length: usize) -> Result<usize, Error> {
        let (argument, rule) = (self.geometry.names().positions, self.slot_rule(length));
        let start = i64::try_from(rows).ok().and_then(|rows| end.checked_sub(rows));
        // In a plan `length <= rows <= capacity`, by `rows_of`. A backend brings these numbers to
        // `DeviceInterface::error_for` itself. If they are larger, its answer is wrong, and nothing else depends on it.
        let slot = start.and_then(|start| rule.linear_slot(start));
        // Neither wraps: `length <= rows`, and `rows` and the capacity fit `isize`.
        let max = rule.capacity.wrapping_add(rows.wrapping_sub(length));
        slot.ok_or(Error::EndOutOfRange { argument, index: sample, value: end, min: rows, max })
    }

    #[inline(always)]
    pub(super) fn slot_rule(&self, rows: usize) -> SlotRule {
        let RuleOptions { mode, negative_index, .. } = self.options;
        SlotRule { mode, negative_index, rows, capacity: self.geometry.capacity() }
    }
}

/// Which slot a start means.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRule {
    mode: Mode,
    negative_index: NegativeIndex,
    rows: usize,
    capacity: usize,
}

impl SlotRule {
    /// `None` if the start is out of range, or negative where that is refused.
    #[inline(always)]
    pub(super) fn slot_of_start(self, start: i64) -> Option<usize> {
        match self.mode {
            Mode::Linear => self.linear_slot(start),
            Mode::Circular => match usize::try_from(start) {
                Ok(slot) if slot < self.capacity => Some(slot),
                Err(_) if start < 0 && self.negative_index == NegativeIndex::Reject => None,
                _ => Some(self.reduce(start)),
            },
        }
    }

    #[inline(always)]
    fn linear_slot(self, start: i64) -> Option<usize> {
        // `rows <= capacity`, so this is `start + rows <= capacity` without overflow.
        usize::try_from(start).ok().filter(|&slot| slot <= self.capacity.wrapping_sub(self.rows))
    }

    /// Reduces first and adds later, so no start overflows. A ring without slots has only slot 0.
    #[cold]
    fn reduce(self, start: i64) -> usize {
        let slots = i64::try_from(self.capacity).unwrap_or(i64::MAX);
        usize::try_from(start.checked_rem_euclid(slots).unwrap_or(0)).unwrap_or(0)
    }
}

/// A list that is present has `expected` values.
fn check_count(argument: Argument, got: Option<usize>, expected: usize) -> Result<(), Error> {
    match got {
        Some(got) if got != expected => Err(Error::ListLength { argument, got, expected }),
        _ => Ok(()),
    }
}

fn within(argument: Argument, index: usize, value: i64, min: usize, max: usize) -> Result<usize, Error> {
    let length = usize::try_from(value).ok().filter(|length| (min..=max).contains(length));
    length.ok_or(Error::LengthOutOfRange { argument, index, value, min, max })
}
